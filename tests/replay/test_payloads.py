"""Payloads whole: large, odd, and many."""

from __future__ import annotations

LARGE = """
import base64, hashlib, os, random
import openai

image = base64.b64encode(random.Random(5).randbytes(15_000_000)).decode()
model = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)
content = [{"type": "text", "text": "what is this"},
           {"type": "image_url", "image_url": {"url": "data:image/png;base64," + image}}]
reply = model.chat.completions.create(model="m1", messages=[{"role": "user", "content": content}])
print(len(image), reply.choices[0].message.content)
"""

ODD = r"""
import math, sys
from otel_agent_replay import boundary

VALUES = ["\ud800 lone", "nul \0 and \x7f", "astral \U0001f600", float("nan"), float("inf"), -0.0, 2**63, -(2**200),
          1e308, b"\x00\xff", {"a": (1, {2, 3})}, "\u2028", "", None, True, {1: "x", "1": "y"}, "é" * 70_000]

@boundary("tool", "echo")
def echo(value):
    return [value, sys.argv[1:]]

for value in VALUES:
    print(ascii(echo(value))[:200])
"""

MANY = """
import asyncio, random
from otel_agent_replay import boundary

@boundary("tool", "fetch")
async def fetch(query):
    await asyncio.sleep(random.random() / 100)
    return random.getrandbits(64)

async def main():
    answers = await asyncio.gather(*(fetch("same") for _ in range(5000)))
    print(hash(tuple(answers)))

asyncio.run(main())
"""


def test_a_message_of_20_megabytes(model_bench) -> None:
    out = model_bench.record(LARGE)
    assert out.startswith("20000000 ")
    again = model_bench.replay()
    assert (again.code, again.out) == (0, out), again.err
    changed = model_bench.replay_changed(LARGE.replace("what is this", "what is that"))
    assert changed.code == 125
    assert len(changed.err) < 10_000, "only what differs is shown"


def test_values_that_other_formats_lose(bench) -> None:
    out = bench.record(ODD)
    again = bench.replay()
    assert (again.code, again.out) == (0, out), again.err


def test_five_thousand_concurrent_crossings(bench) -> None:
    out = bench.record(MANY)
    (run,) = bench.runs()
    assert (run["crossings"], run["complete"]) == (5000, True)
    again = bench.replay()
    assert (again.code, again.out, again.report["answered"]) == (0, out, 5000), again.err
