"""A program that shows tracebacks, to its model or on its output, shows the same ones in a replay."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent

HEAD = """
import asyncio, concurrent.futures, contextlib, io, json, logging, os, sqlite3, subprocess, threading, traceback
from otel_agent_replay import boundary

def shown(error=None):
    text = traceback.format_exc() if error is None else "".join(traceback.format_exception(error))
    print(text + "-" * 8, flush=True)

def deeper(number):
    if number == 0:
        raise ValueError("too deep")
    return [deeper(one) for one in [number - 1]]
"""

PROGRAMS = {
    "a tool": """
@boundary("tool", "dig")
def dig(number):
    return deeper(number)

for number in range(3):
    try:
        dig(number)
    except ValueError:
        shown()
""",
    "a tool with causes": """
@boundary("tool", "dig")
def dig(number):
    try:
        deeper(number)
    except ValueError as error:
        try:
            {}["nothing"]
        except KeyError:
            raise RuntimeError("dug in vain") from error

try:
    dig(1)
except RuntimeError as error:
    shown()
    try:
        raise LookupError("above")
    except LookupError:
        shown()
        traceback.print_exc(file=(text := io.StringIO()))
        print(text.getvalue())
""",
    "tools in a group": """
@boundary("tool", "dig")
async def dig(number):
    await asyncio.sleep(0.01 * number)
    return deeper(number)

async def main():
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(dig(number))
    except* ValueError as errors:
        shown(errors)
    for error in await asyncio.gather(dig(1), dig(2), return_exceptions=True):
        shown(error)
    try:
        await asyncio.wait_for(dig(0), 5)
    except ValueError:
        shown()

asyncio.run(main())
""",
    "a tool that raises a group": """
@boundary("tool", "both")
def both():
    errors = []
    for number in (0, 1):
        try:
            deeper(number)
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup("both", errors)

try:
    both()
except ExceptionGroup:
    shown()
""",
    "tools in threads": """
@boundary("tool", "dig")
def dig(number):
    return deeper(number)

with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for future in [pool.submit(dig, 0), pool.submit(dig, 1)]:
        try:
            future.result()
        except ValueError:
            shown()

async def main():
    try:
        await asyncio.to_thread(dig, 1)
    except ValueError:
        shown()

asyncio.run(main())
threading.excepthook = lambda told: shown(told.exc_value)
thread = threading.Thread(target=dig, args=(1,))
thread.start()
thread.join()
""",
    "a tool that streams": """
@boundary("tool", "count")
def count():
    yield 1
    deeper(1)

@boundary("tool", "count")
async def count_slowly():
    yield 1
    deeper(1)

async def main():
    try:
        async for one in count_slowly():
            print(one)
    except ValueError:
        shown()

try:
    for one in count():
        print(one)
except ValueError:
    shown()
asyncio.run(main())
""",
    "files and commands": """
for attempt in (
    lambda: open("missing.txt"),
    lambda: os.listdir("missing"),
    lambda: os.stat("missing"),
    lambda: subprocess.run(["false"], check=True),
    lambda: subprocess.check_output(["no-such-command"]),
    lambda: subprocess.run(["sleep", "5"], timeout=0.05),
    lambda: sqlite3.connect(":memory:").execute("select nothing"),
    lambda: json.loads("{"),
):
    try:
        attempt()
    except Exception:
        shown()
""",
    "a command that is awaited": """
async def main():
    try:
        await asyncio.create_subprocess_exec("no-such-command")
    except OSError:
        shown()

asyncio.run(main())
""",
    "clients that find nobody": """
import anthropic, httpx, httpx2, openai

NOBODY = "http://127.0.0.1:9/v1"
asked = [{"role": "user", "content": "hi"}]
claude = anthropic.Anthropic(api_key="k", base_url=NOBODY, max_retries=1)
for attempt in (
    lambda: httpx.get(NOBODY),
    lambda: httpx2.get(NOBODY),
    lambda: openai.OpenAI(base_url=NOBODY, max_retries=1).chat.completions.create(model="m", messages=asked),
    lambda: claude.messages.create(model="m", max_tokens=9, messages=asked),
):
    try:
        attempt()
    except Exception:
        shown()

async def main():
    client = openai.AsyncOpenAI(base_url=NOBODY, max_retries=0)
    try:
        await client.chat.completions.create(model="m", messages=asked)
    except openai.APIConnectionError:
        shown()
    async with httpx2.AsyncClient() as plain:
        try:
            await plain.get(NOBODY)
        except httpx2.ConnectError:
            shown()

asyncio.run(main())
""",
    "a model that refuses": """
import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=1, default_headers={"x-status": "429"})
try:
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
except openai.APIStatusError:
    shown()
""",
    "a log": """
log = io.StringIO()
logging.basicConfig(stream=log, format="%(levelname)s %(message)s")

@boundary("tool", "dig")
def dig(number):
    return deeper(number)

def where(number):
    return "".join(traceback.format_stack()) if number == 0 else where(number - 1)

print(where(1))
try:
    dig(2)
except ValueError:
    logging.exception("failed")
    logging.warning("here", stack_info=True)
print(log.getvalue())
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_traceback_is_the_same(model_bench, program) -> None:
    out = model_bench.record(HEAD + PROGRAMS[program])
    assert "Traceback (most recent call last)" in out
    assert "otel_agent_replay/" not in out

    replayed = model_bench.replay()

    assert replayed.out == out
    assert replayed.code == 0, replayed.err


def test_the_model_is_told_the_same(model_bench) -> None:
    """A traceback in a prompt: another one would be another question."""
    out = model_bench.record(
        HEAD
        + """
import openai

@boundary("tool", "dig")
def dig(number):
    return deeper(number)

client = openai.OpenAI(base_url=os.environ["BASE_URL"])
try:
    dig(3)
except ValueError:
    asked = [{"role": "user", "content": "The tool failed:\\n" + traceback.format_exc()}]
print(client.chat.completions.create(model="m", messages=asked).choices[0].message.content)
"""
    )
    assert out

    replayed = model_bench.replay(options=("--strict",))

    assert (replayed.code, replayed.out) == (0, out), replayed.err


def test_an_uncaught_error_shows_the_program_alone(bench) -> None:
    program = HEAD + PROGRAMS["a tool"].replace("except ValueError", "except KeyError")
    path = bench.write(program)
    recorded = bench.run(BIN / "opentelemetry-instrument", sys.executable, path.name)
    assert recorded.returncode == 1
    assert "in deeper\n" in recorded.stderr and "otel_agent_replay/" not in recorded.stderr

    replayed = bench.replay()

    assert replayed.code == 0, replayed.err
    assert recorded.stderr.strip() in replayed.err
