"""What the workers of a process pool ask belongs to the item, not to the worker that happens to take it."""

from __future__ import annotations

import pytest

HEAD = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import openai

def ask(number, prompt="the same"):
    client = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)
    asked = [{"role": "user", "content": prompt}]
    return number, client.chat.completions.create(model="m", messages=asked).choices[0].message.content

def main():
"""
TAIL = """
if __name__ == "__main__":
    main()
"""

PROGRAMS = {
    "map": """
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(ask, range(7)))
        print(pool.map(ask, range(7), chunksize=2))
        print(pool.starmap(ask, [(1, "the same"), (2, "other"), (3, "the same")]))
""",
    "imap": """
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(list(pool.imap(ask, range(6))))
        print(list(pool.imap(ask, range(6), chunksize=2)))
        print(sorted(pool.imap_unordered(ask, range(6))))
""",
    "calls": """
    with multiprocessing.get_context("fork").Pool(3, maxtasksperchild=2) as pool:
        given = [pool.apply_async(ask, (number,)) for number in range(6)]
        again = pool.map_async(ask, range(4))
        print([one.get() for one in given], again.get(), pool.apply(ask, (9,)))
""",
    "executor": """
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("fork")) as pool:
        print(list(pool.map(ask, range(7))))
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_identical_prompts_have_their_own_answers(model_bench, program) -> None:
    out = model_bench.record(HEAD + PROGRAMS[program] + TAIL)
    assert out.count("answer<the same>") > 6

    for _ in range(3):
        replayed = model_bench.replay()

        assert (replayed.code, replayed.out) == (0, out), replayed.err
