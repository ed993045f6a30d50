"""Runs that begin inside a process: functions marked as runs, requests that are served."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import httpx2
import pytest

BIN = __import__("pathlib").Path(sys.executable).parent

FUNCTIONS = """
import concurrent.futures, os, time, uuid
import openai
from otel_agent_replay import outcome, run

STARTED = time.time()
model = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)

@run("answer")
def answer(question, *, style):
    content = f"{question} {style} {uuid.uuid4()} {STARTED}"
    reply = model.chat.completions.create(model="m1", messages=[{"role": "user", "content": content}])
    outcome(text=reply.choices[0].message.content)
    return reply.choices[0].message.content

if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(answer, f"question {n}", style="short") for n in range(3)]
        for future in futures:
            print(future.result())
"""

APPLICATION = """
import os, time, uuid
import openai
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

STARTED = time.time()
model = openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], max_retries=0)

async def ask(request):
    asked = await request.json()
    content = f"{asked['question']} {uuid.uuid4()} {STARTED}"
    reply = await model.chat.completions.create(model="m1", messages=[{"role": "user", "content": content}])
    return JSONResponse({"answer": reply.choices[0].message.content, "at": time.time()})

app = Starlette(routes=[Route("/ask", ask, methods=["POST"])])
"""

FLASK = """
import os, time, uuid
import openai
from flask import Flask, request

model = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)
app = Flask(__name__)

@app.post("/ask")
def ask():
    content = f"{request.get_json()['question']} {uuid.uuid4()}"
    reply = model.chat.completions.create(model="m1", messages=[{"role": "user", "content": content}])
    return {"answer": reply.choices[0].message.content, "at": time.time()}

if __name__ == "__main__":
    from wsgiref.simple_server import make_server
    make_server("127.0.0.1", int(os.environ["PORT"]), app).serve_forever()
"""

TRACE = "0af7651916cd43dd8448eb211c80319c"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_functions_are_runs_of_their_own_and_are_called_again(model_bench) -> None:
    out = model_bench.record(FUNCTIONS)
    runs = [run for run in model_bench.runs() if run["name"] == "answer"]
    assert len(runs) == 3
    assert len({run["trace_id"] for run in runs}) == 3
    assert [run["crossings"] for run in runs] == [1, 1, 1]
    for run in runs:
        again = model_bench.replay(run=run["run_id"])
        assert again.code == 0, again.err
        declared = again.report["outcome"]["declared"]
        assert declared["text"] in out


def test_a_script_of_another_folder_finds_what_is_beside_it(bench) -> None:
    """Also where a run is of a function in a module that the script has imported."""
    (bench.folder / "there").mkdir()
    tools = """
from otel_agent_replay import boundary, run

@boundary("tool", "add")
def add(number):
    return number + 1

@run("imported")
def imported(number):
    return add(number)
"""
    bench.write(tools, "there/tools.py")
    program = """
from tools import add, imported
from otel_agent_replay import run

@run("own")
def own(number):
    return add(number)

if __name__ == "__main__":
    print(imported(1), own(2))
"""
    bench.write(program, "there/program.py")
    done = bench.run(BIN / "opentelemetry-instrument", sys.executable, "there/program.py")
    assert done.stdout == "2 3\n", done.stderr
    recorded = {run["name"]: run["run_id"] for run in bench.runs()}
    for name in ("own", "imported"):
        done = bench.replay(run=recorded[name])
        assert done.code == 0, done.err


def test_the_process_that_ran_them_is_replayed_whole(model_bench) -> None:
    out = model_bench.record(FUNCTIONS)
    process = next(run for run in model_bench.runs() if run["name"] == "program.py")
    again = model_bench.replay(run=process["run_id"])
    assert (again.code, again.out) == (0, out), again.err


WITHIN = """
import os, time
import openai
from otel_agent_replay import outcome, run

STARTED = time.time()
model = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)

@run("inner")
def inner(question):
    messages = [{"role": "user", "content": f"{question} {STARTED}"}]
    outcome(text=model.chat.completions.create(model="m1", messages=messages).choices[0].message.content)

@run("outer")
def outer():
    inner("what of it?")

if __name__ == "__main__":
    outer()
"""


@pytest.mark.parametrize("name", ["inner", "outer"])
def test_importing_is_answered_from_the_process_however_deep_a_run_is(model_bench, name: str) -> None:
    """On a machine that has no key either, which the module-level client asks for."""
    model_bench.record(WITHIN)
    (run,) = [run for run in model_bench.runs() if run["name"] == name]
    env = {key: value for key, value in model_bench.env.items() if key not in ("OPENAI_API_KEY", "BASE_URL")}
    again = model_bench.replay(run=run["run_id"], env=env)
    assert again.code == 0, again.err
    assert not again.report["new_readings"]


def serve(bench, command: list[str], port: int) -> subprocess.Popen:
    server = subprocess.Popen(command, env=bench.env | {"PORT": str(port)}, cwd=bench.folder, stderr=subprocess.PIPE)
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        assert server.poll() is None, server.stderr.read().decode()
        time.sleep(0.05)
    raise AssertionError("the server did not start")


def until_ended(bench) -> None:
    """A client has its answer before the server has written how the request ended: wait for that."""
    for _ in range(60):
        if all(run["status"] == "ok" for run in bench.runs() if run["name"] == "POST /ask"):
            return
        time.sleep(0.5)
    raise AssertionError("a request does not end")


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_requests_are_runs_and_are_served_again(model_bench, kind: str) -> None:
    model_bench.write(APPLICATION if kind == "asgi" else FLASK, "service.py")
    port = free_port()
    uvicorn = ["-m", "uvicorn", "service:app", "--port", str(port), "--log-level", "warning"]
    command = [str(BIN / "opentelemetry-instrument"), sys.executable, *(uvicorn if kind == "asgi" else ["service.py"])]
    server = serve(model_bench, command, port)
    try:
        answers = []
        for n in range(2):
            headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"} if n else {}
            asked = {"question": f"question {n}"}
            reply = httpx2.post(f"http://127.0.0.1:{port}/ask", json=asked, headers=headers, timeout=30)
            answers.append(reply.text)
        until_ended(model_bench)
    finally:
        server.terminate()
        server.wait(30)
        server.stderr.close()
    runs = [run for run in model_bench.runs() if run["name"] == "POST /ask"]
    assert len(runs) == 2
    assert len({run["trace_id"] for run in runs}) == 2
    assert TRACE in {run["trace_id"] for run in runs}
    for run in runs:
        again = model_bench.replay(run=run["run_id"])
        assert again.code == 0, again.err
        response = again.report["outcome"]["declared"]["response"]
        assert response["status"] == 200
        assert json.loads(response["text"]) in [json.loads(answer) for answer in answers]


def test_a_changed_application_answers_something_else(model_bench) -> None:
    model_bench.write(APPLICATION, "service.py")
    port = free_port()
    uvicorn = ["-m", "uvicorn", "service:app", "--port", str(port), "--log-level", "warning"]
    server = serve(model_bench, [str(BIN / "opentelemetry-instrument"), sys.executable, *uvicorn], port)
    try:
        httpx2.post(f"http://127.0.0.1:{port}/ask", json={"question": "what"}, timeout=30).raise_for_status()
        until_ended(model_bench)
    finally:
        server.terminate()
        server.wait(30)
        server.stderr.close()
    run = next(run for run in model_bench.runs() if run["name"] == "POST /ask")
    model_bench.write(APPLICATION.replace('"answer":', '"reply":'), "service.py")
    assert model_bench.replay(run=run["run_id"]).code == 1
    model_bench.write(APPLICATION.replace("asked['question']", "asked['question'].upper()"), "service.py")
    again = model_bench.replay(run=run["run_id"])
    assert again.code == 125
    assert again.report["divergences"][0]["kind"] == "diverged"


def test_a_class_may_hold_the_maker_of_locks(bench) -> None:
    # As werkzeug does: the built-in function is no method there, and what stands for it must be none either.
    program = "import threading\nclass Map:\n    lock_class = threading.Lock\nprint(Map().lock_class().acquire())\n"
    assert bench.record(program) == "True\n"
    again = bench.replay()
    assert (again.code, again.out) == (0, "True\n")


def test_who_answered_stands_on_each_call_and_on_the_run(model_bench) -> None:
    """By hash: the same provider, model and sampling give the same one, in whatever order calls were made."""
    program = """
import os, sys
import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)
for temperature in map(float, sys.argv[1:]):
    client.chat.completions.create(
        model="m1", temperature=temperature, messages=[{"role": "user", "content": "hello"}]
    )
"""

    def shown(*temperatures: float) -> tuple[list[str], str]:
        model_bench.record(program, *temperatures)
        done = model_bench.run(BIN / "agent-replay", "show", "latest", "--json")
        run = json.loads(done.stdout)
        calls = [call["attributes"]["agent_replay.serving"] for call in run["crossings"] if call["kind"] == "model"]
        return calls, run["outcome"]["serving"]

    (cold, cold_too, warm), both = shown(0, 0, 1)
    assert cold == cold_too != warm
    (only,), one = shown(0)
    assert only == cold
    assert one != both == shown(1, 0)[1]
