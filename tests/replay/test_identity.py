"""Identity under change: only what truly changed is reported, and everything else gets its own answer."""

from __future__ import annotations

import re

import pytest

PROGRAM = """
import asyncio, datetime, json, os, random, uuid
import openai

async def ask(model, prompt):
    messages = [{"role": "user", "content": prompt}]
    reply = await model.chat.completions.create(model="m1", messages=messages)
    return reply.choices[0].message.content

async def log():
    return datetime.datetime.now()

async def worker(model, i):
    first = await ask(model, "same")
    stamp = datetime.datetime.now().isoformat()
    token = uuid.uuid4().hex
    draw = random.random()
    second = await ask(model, f"{stamp} {token} {draw}")
    alpha = await ask(model, "alpha")
    beta = await ask(model, "beta")
    third = await ask(model, "same")
    return [i, first, second, alpha, beta, third]

async def main():
    async with openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], max_retries=0) as model:
        for result in await asyncio.gather(*(worker(model, i) for i in range(5))):
            print(json.dumps(result))

asyncio.run(main())
"""

WORKER = "main/task:main#0/task:worker#{}"


@pytest.fixture
def recorded(model_bench):
    return model_bench, model_bench.record(PROGRAM)


def changed(*edits: tuple[str, str]) -> str:
    program = PROGRAM
    for old, new in edits:
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    return program


def lines(out: str, *, without: int = -1) -> list[str]:
    return [line for line in out.splitlines() if not line.startswith(f"[{without},")]


def test_the_unchanged_program_is_the_recorded_one(recorded) -> None:
    bench, out = recorded
    again = bench.replay()
    assert (again.code, again.out, again.divergences) == (0, out, [])
    assert again.report["new_readings"] == again.report["unread"] == again.report["moved"] == []
    assert again.report["answered"] == again.report["crossings"] == 25


def test_one_call_added(recorded) -> None:
    bench, out = recorded
    extra = """    third = await ask(model, "same")
    if i == 2:
        try:
            await ask(model, "extra")
        except BaseException as error:
            assert type(error).__name__ == "DivergenceError"
"""
    again = bench.replay_changed(changed(('    third = await ask(model, "same")\n', extra)))
    assert again.out == out
    assert again.code == 125
    assert again.divergences == [("exhausted", WORKER.format(2))]


def test_one_call_added_in_the_middle(recorded) -> None:
    bench, out = recorded
    extra = """    if i == 2:
        try:
            await ask(model, "extra")
        except BaseException as error:
            assert type(error).__name__ == "DivergenceError"
    stamp ="""
    again = bench.replay_changed(changed(("    stamp =", extra)))
    assert again.out == out
    assert again.code == 125
    assert again.divergences == [("diverged", WORKER.format(2))]


def test_one_call_removed(recorded) -> None:
    bench, out = recorded
    edit = ('    alpha = await ask(model, "alpha")', '    alpha = None if i == 3 else await ask(model, "alpha")')
    again = bench.replay_changed(changed(edit))
    assert lines(again.out, without=3) == lines(out, without=3)
    assert again.code == 125
    assert again.divergences == [("unconsumed", WORKER.format(3))]


def test_two_calls_reordered_in_a_lane(recorded) -> None:
    bench, out = recorded
    in_order = '    alpha = await ask(model, "alpha")\n    beta = await ask(model, "beta")\n'
    other_way = '    beta = await ask(model, "beta")\n    alpha = await ask(model, "alpha")\n'
    again = bench.replay_changed(changed((in_order, other_way)))
    assert (again.code, again.out, again.divergences) == (0, out, [])


def test_a_task_spawned_before_the_workers(recorded) -> None:
    bench, out = recorded
    edit = ("        for result", "        task = asyncio.create_task(log())\n        for result")
    again = bench.replay_changed(changed(edit))
    assert (again.code, again.out, again.divergences) == (0, out, [])
    assert len(again.report["new_readings"]) == 1
    assert "task:log#0" in again.report["new_readings"][0]


def test_a_worker_function_renamed(recorded) -> None:
    bench, out = recorded
    again = bench.replay_changed(PROGRAM.replace("worker", "researcher"))
    assert (again.code, again.out, again.divergences) == (0, out, [])
    assert again.report["new_readings"] == again.report["unread"] == []


@pytest.mark.parametrize("reading", ["datetime.datetime.now()", "uuid.uuid4()", "random.random()"])
@pytest.mark.parametrize("place", ["    stamp = ", "    second = ", "    first = "])
def test_one_more_reading(recorded, reading: str, place: str) -> None:
    bench, out = recorded
    again = bench.replay_changed(changed((place, f"    more = {reading}\n{place}")))
    assert (again.code, again.out, again.divergences) == (0, out, [])
    assert len(again.report["new_readings"]) == 5, "one for each worker"
    assert again.report["unread"] == []


@pytest.mark.parametrize("name", ["stamp", "token", "draw"])
def test_the_same_reading_once_more(recorded, name: str) -> None:
    bench, out = recorded
    line = re.search(rf"    {name} = .*\n", PROGRAM)
    assert line is not None
    twice = line[0].replace(f"{name} =", "unused =") + line[0]
    again = bench.replay_changed(changed((line[0], twice)))
    assert (again.code, again.out, again.divergences) == (0, out, [])
    assert len(again.report["new_readings"]) == 5


def test_a_changed_prompt_is_a_divergence_that_shows_only_what_differs(recorded) -> None:
    bench, _ = recorded
    again = bench.replay_changed(changed(('"alpha"', '"alpha!"')))
    assert again.code == 125
    first = again.report["divergences"][0]
    assert first["kind"] == "diverged"
    assert [difference["where"] for difference in first["differences"]] == ["body.messages[0].content"]
    assert "alpha!" in first["differences"][0]["asked"]


SPAWNS = """
import asyncio, os, sys
import openai

async def worker(model, name):
    seen = []
    for question in (f"who is {name}", "same"):
        reply = await model.chat.completions.create(model="m1", messages=[{"role": "user", "content": question}])
        seen.append(reply.choices[0].message.content)
    return name, seen

async def main(names):
    async with openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], max_retries=0) as model:
        for name, seen in sorted(await asyncio.gather(*(worker(model, name) for name in names))):
            print(name, seen)

asyncio.run(main(NAMES))
"""


@pytest.mark.parametrize("names", [["b", "a", "c"], ["c", "b", "a"], ["b", "c", "a"]])
def test_spawns_of_one_name_reordered(model_bench, names: list[str]) -> None:
    out = model_bench.record(SPAWNS.replace("NAMES", repr(["a", "b", "c"])))
    again = model_bench.replay_changed(SPAWNS.replace("NAMES", repr(names)))
    assert (again.code, again.out, again.divergences) == (0, out, []), again.err


def test_one_spawn_of_a_name_taken_away(model_bench) -> None:
    out = model_bench.record(SPAWNS.replace("NAMES", repr(["a", "b", "c"])))
    again = model_bench.replay_changed(SPAWNS.replace("NAMES", repr(["b", "c"])))
    assert again.out == "".join(line for line in out.splitlines(keepends=True) if not line.startswith("a"))
    assert again.code == 125
    assert {kind for kind, _ in again.divergences} == {"unconsumed"}
    assert len(again.divergences) == 2, "what the worker that is gone had asked"


SHARED = """
import asyncio, contextvars, os
import openai

async def ask(model):
    messages = [{"role": "user", "content": "same"}]
    return (await model.chat.completions.create(model="m1", messages=messages)).choices[0].message.content

async def main():
    context = contextvars.Context()
    async with openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], max_retries=0) as model:
        tasks = [asyncio.create_task(ask(model), context=context) for _ in range(4)]
        print(await asyncio.gather(*tasks))

asyncio.run(main())
"""


def test_tasks_that_share_a_context_get_their_own_answers(model_bench) -> None:
    out = model_bench.record(SHARED)
    again = model_bench.replay()
    assert (again.code, again.out, again.divergences) == (0, out, [])
    assert again.report["answered"] == 4
