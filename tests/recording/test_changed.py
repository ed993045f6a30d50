"""What a call has changed: put back into a copy of what it was handed, that is then the same graph of objects."""

from __future__ import annotations

import copy
import dataclasses
import random
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.recording import codec
from otel_agent_replay.recording.changed import Handed
from otel_agent_replay.recording.exact import dumps, loads
from otel_agent_replay.recording.restoring import Lent
from otel_agent_replay.recording.trees import Walk, of_value
from otel_agent_replay.recording.variables import Bindings

thorough = settings(max_examples=1000, deadline=None, derandomize=True, database=None)


@dataclasses.dataclass
class Note:
    text: object
    more: object = None


class Memory:
    """No plain data."""

    def __init__(self, *held: object) -> None:
        self.held = list(held)
        self.first = held[0] if held else None


class Row(list):
    pass


TYPES = {codec.ref(cls): cls for cls in (Note, Row, Memory)}


def looks_into(cls: type) -> bool:
    return cls is Memory


class Maker:
    """Makes objects and changes them, the same way for the same seed."""

    def __init__(self, seed: int, *, opaque: bool = True) -> None:
        self.draw = random.Random(seed)
        self.made: list[Any] = []
        self.opaque = opaque

    def scalar(self) -> object:
        return self.draw.choice([0, 1, True, None, 1.0, "a", "b", b"x", 2**70, (1, 2), float("inf")])

    def value(self, depth: int) -> Any:
        draw = self.draw
        if depth == 0 or draw.random() < 0.3:
            return self.scalar()
        if self.made and draw.random() < 0.15:
            return draw.choice(self.made)
        few = [self.value(depth - 1) for _ in range(draw.randrange(4))]
        kind = draw.randrange(12 if self.opaque else 11)
        names = [draw.choice("abcd") for _ in few]
        made: Any
        if kind <= 2:
            made = dict(zip(names, few, strict=True))
        elif kind <= 5:
            made = few
        elif kind == 6:
            made = OrderedDict(zip([(name, 1) for name in names], few, strict=True))
        elif kind == 7:
            made = deque(few)
        elif kind == 8:
            made = Note(few[0] if few else 0, few[1:])
        elif kind == 9:
            made = SimpleNamespace(**dict(zip(names, few, strict=True)))
        elif kind == 10:
            made = draw.choice([{1, 2}, bytearray(b"ab"), (few, self.scalar()), Row(few), defaultdict(list, a=few)])
        else:
            made = Memory(*few)
        if not isinstance(made, tuple):
            self.made.append(made)
        return made


def changed(whole: list[Any], maker: Maker) -> Any:
    """Change some objects below `whole`; gives an outcome."""
    draw = maker.draw
    for _ in range(draw.randrange(6)):
        objects = [one for one in Walk(whole, looks_into).objects.values() if not isinstance(one, tuple)]
        one: Any = draw.choice(objects)
        part = draw.choice(objects) if draw.random() < 0.3 else maker.value(2)
        change(one, part, draw)
    objects = list(Walk(whole, looks_into).objects.values())
    return draw.choice([None, draw.choice(objects), [draw.choice(objects), {"x": draw.choice(objects)}]])


def change(one: Any, part: Any, draw: random.Random) -> None:
    if isinstance(one, list | deque):
        action = draw.randrange(4)
        if action == 0 or not one:
            one.append(part)
        elif action == 1:
            one.insert(0, part)
        elif action == 2:
            del one[draw.randrange(len(one))]
        else:
            one.reverse()
    elif isinstance(one, dict):
        if one and draw.random() < 0.4:
            del one[draw.choice(list(one))]
        one[draw.choice("abcde")] = part
    elif isinstance(one, set):
        one ^= {draw.choice([1, 2, 3, "x"])}
    elif isinstance(one, bytearray):
        one.append(7)
    elif isinstance(one, Note | SimpleNamespace | Memory):
        setattr(one, draw.choice(["text", "more", "held", "other"]), part)


def graph(value: Any) -> list[Any]:
    """All of a value, with which objects are which."""
    numbers: dict[int, int] = {}
    kept: list[Any] = []
    lines: list[Any] = []
    todo = [value]
    for one in todo:
        if id(one) in numbers:
            lines.append(numbers[id(one)])
            continue
        node = of_value(one, looks_into)
        if node is None and not isinstance(one, set | bytearray):
            lines.append((type(one).__name__, repr(one)))
            continue
        if type(one) is not tuple:
            numbers[id(one)] = len(numbers)
            kept.append(one)
        if node is None:
            lines.append((type(one).__name__, sorted(map(repr, one))))
        else:
            lines.append((node.kind, node.cls, list(map(repr, node.names))))
            todo += node.parts
    return lines


def in_a_circle(value: Any, around: tuple[int, ...] = (), within: int = 0) -> bool:
    """Whether a value holds itself by way of a tuple: orjson may end the process then."""
    if id(value) in around:
        return around.index(id(value)) < within
    node = of_value(value, looks_into)
    inside = len(around) + 1 if isinstance(value, tuple) else within
    return node is not None and any(in_a_circle(part, (*around, id(value)), inside) for part in node.parts)


def put_back(seed: int, *, opaque: bool) -> None:
    maker = Maker(seed, opaque=opaque)
    whole = [maker.value(4) for _ in range(2)]
    before = [one for one in Walk(whole, looks_into).objects.values() if not isinstance(one, tuple)]
    there, others = copy.deepcopy((whole, before))

    handed = Handed(whole, None, looks_into)
    outcome = changed(whole, maker)
    if in_a_circle(whole) or in_a_circle(outcome):
        return
    told = handed.changes(outcome)
    if told is None:
        assert graph(whole) == graph(there)
        return
    if told.lost:  # a new object that cannot be made
        return
    lent = Lent(there, looks_into)
    after, same = loads(dumps(told.after)), loads(dumps(told.same))
    assert isinstance(same, dict)
    restored = lent.put_back(after, same, TYPES, Bindings())
    assert restored.failed == []
    given_back = restored.given(codec.decode(loads(dumps(codec.encode(outcome, strict=False))), TYPES), same)

    now = Walk(whole, looks_into).places
    reached = [number for number, one in enumerate(before) if id(one) in now]
    assert graph([whole, [before[number] for number in reached]]) == graph(
        [there, [others[number] for number in reached]]
    )
    if "Opaque" not in repr(graph(given_back)) and "Memory" not in repr(graph(outcome)):
        assert graph([whole, outcome]) == graph([there, given_back])


@thorough
@given(st.integers(0, 10**9))
def test_what_was_changed_is_changed_in_a_copy(seed: int) -> None:
    put_back(seed, opaque=False)


@thorough
@given(st.integers(0, 10**9))
def test_so_is_what_is_no_plain_data(seed: int) -> None:
    put_back(seed, opaque=True)


def test_data_that_holds_itself_through_a_tuple_does_not_end_the_process():
    """As `orjson.dumps` does, in version 3.13.0: so this runs in a process of its own."""
    program = """
from otel_agent_replay.recording import codec
outer, inner = [], []
inner.append(outer)
outer.append((inner, 1.0))
print(codec.encode({"x": outer}, strict=False)["x"][0]["$"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "tuple\n"), done.stderr
