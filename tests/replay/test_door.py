"""The public door: boundaries of the program's own, in every form, recorded in one process and answered in another."""

from __future__ import annotations

import pytest

TOOLS = """
import asyncio, dataclasses, enum, os, sys, time
from otel_agent_replay import boundary, outcome

LIVE = os.environ.get("LIVE") == "1"

class Refused(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail

@dataclasses.dataclass
class Order:
    id: str
    total: float

def world(what):
    if not LIVE:
        raise SystemError(f"{what} went live")
    return time.perf_counter_ns()

@boundary("tool", "lookup")
def lookup(order_id, *, deep=False):
    return Order(f"{order_id}-{world('lookup')}", 12.5)

@boundary("tool", "refuse")
def refuse(code):
    world("refuse")
    raise Refused(code, detail="no")

@boundary("retrieval", "search")
async def search(query):
    await asyncio.sleep(0.01)
    return [query, world("search")]

@boundary("tool", "count")
def count(n):
    for i in range(n):
        yield i, world("count")

@boundary("tool", "acount")
async def acount(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i, world("acount")

class Shop:
    @boundary("database", "price")
    def price(self, sku):
        return {"sku": sku, "at": world("price")}

def plain(a, b=1):
    return a + b + world("plain")

async def aplain(a):
    return a, world("aplain")

async def asyncs():
    found = await asyncio.gather(*(search("same") for _ in range(4)))
    items = [item async for item in acount(3)]
    first = None
    async for item in acount(5):
        first = item
        break
    called = await boundary("tool", "aplain").call(aplain, 2)
    async with boundary("human", "approve", {"order": 1}) as crossing:
        crossing.value = crossing.recorded if crossing.answered else world("approve")
    return found, items, first, called, crossing.value

def main():
    order = lookup("A1", deep=True)
    print(type(order).__name__, order)
    try:
        refuse(7)
    except Refused as error:
        print(type(error).__name__, error, error.code, error.detail)
    print(list(count(3)))
    left = count(5)
    print(next(left))
    left.close()
    print(Shop().price("x"))
    print(boundary("tool", "plain").call(plain, 1, b=2))
    with boundary("human", "ask") as crossing:
        crossing.value = crossing.recorded if crossing.answered else world("ask")
    print(crossing.value)
    print(asyncio.run(asyncs()))
    outcome(order=order.id, done=True)

main()
"""


@pytest.fixture
def recorded(bench):
    bench.environment["LIVE"] = "1"
    out = bench.record(TOOLS)
    bench.environment["LIVE"] = "0"
    return bench, out


def test_every_form_is_answered(recorded) -> None:
    bench, out = recorded
    again = bench.replay()
    assert (again.code, again.out) == (0, out), again.err
    assert out.startswith("Order Order(")
    assert again.report["outcome"]["declared"]["done"] is True


def test_without_a_run_a_boundary_is_only_its_function(bench) -> None:
    bench.environment["LIVE"] = "1"
    import sys

    path = bench.write(TOOLS)
    done = bench.run(sys.executable, path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ('lookup("A1", deep=True)', 'lookup("A2", deep=True)', "diverged"),
        ('lookup("A1", deep=True)', 'lookup("A1", deep=1)', "diverged"),
        ("    print(list(count(3)))\n", "", "unconsumed"),
        ("    print(list(count(3)))\n", "    print(list(count(3)))\n    lookup('B')\n", "exhausted"),
        ("    print(next(left))\n", "    print(next(left), next(left))\n", "diverged"),
    ],
)
def test_a_changed_program_diverges(recorded, old: str, new: str, kind: str) -> None:
    bench, _ = recorded
    assert TOOLS.count(old) == 1
    again = bench.replay_changed(TOOLS.replace(old, new))
    assert again.code == 125, again.err
    assert again.divergences[0][0] == kind


def test_a_declared_outcome_is_what_is_compared(recorded) -> None:
    bench, _ = recorded
    noisy = TOOLS.replace("def main():\n", "def main():\n    print('a new line of output')\n")
    assert bench.replay_changed(noisy).code == 0
    assert bench.replay_changed(TOOLS.replace("done=True", "done=False")).code == 1


def test_an_unknown_kind_is_refused() -> None:
    from otel_agent_replay import boundary

    with pytest.raises(ValueError, match="kind of boundary"):
        boundary("tools", "x")
