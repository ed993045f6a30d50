"""What calls behind the public door may change of what they are handed, kind by kind: recorded and replayed."""

import asyncio
import collections
import contextlib
import dataclasses
import threading
import types
from typing import Any

import numpy
import pydantic

from otel_agent_replay import boundary

KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def live(change):
    """A tool that does `change` to what it is handed."""

    def tool(*args, **kwargs):
        return change(*args, **kwargs)

    return boundary("tool", change.__name__)(tool)


@dataclasses.dataclass
class Note:
    text: str
    tags: list


@dataclasses.dataclass
class Slotted:
    __slots__ = ("a", "b")
    a: int
    b: list


@dataclasses.dataclass(frozen=True)
class Frozen:
    held: list


class Plain:
    def __init__(self, n=0):
        self.n = n


class Memory:
    """No plain data: it holds a list, and something that nobody can write."""

    def __init__(self):
        self.items = [{"a": 1}]
        self.lock = threading.Lock()
        self.secret = "unchanged"


class Model(pydantic.BaseModel):
    name: str
    items: list[Any] = []
    _seen: int = pydantic.PrivateAttr(default=0)


class Loose(pydantic.BaseModel, extra="allow"):
    name: str = ""


class Messages(list):
    pass


class Base:
    def change(self, what):
        raise NotImplementedError


@kind
def appended_to_a_list_in_a_dict():
    state = {"results": [], "n": 1}
    results = state["results"]
    live(lambda s: s["results"].append({"found": 1}))(state)
    return state, results is state["results"]


@kind
def keys_set_and_removed_in_order():
    state = {"a": 1, "b": 2, "c": 3}

    def change(s):
        del s["a"]
        s["a"] = 9
        s.pop("b")
        s["d"] = True

    live(change)(state)
    return list(state.items())


@kind
def types_told_apart():
    state = {"one": 1, "zero": 0.0}

    def change(s):
        s["one"] = True
        s["zero"] = -0.0

    live(change)(state)
    return state


@kind
def keys_that_are_no_strings():
    state = {1: "a", ("x", 2): [1], None: 0}
    held = state[("x", 2)]
    live(lambda s: (s[("x", 2)].append(2), s.update({2.5: "b"})))(state)
    return state, held is state[("x", 2)]


@kind
def only_the_order_of_keys():
    state = collections.OrderedDict(a=1, b=2)
    live(lambda s: s.move_to_end("a"))(state)
    return list(state)


@kind
def a_list_of_messages():
    messages = [{"role": "user", "content": "hi"}]
    first = messages[0]
    live(lambda m: m.append({"role": "assistant", "content": "hello"}))(messages)
    return messages, messages[0] is first


@kind
def a_list_sorted_in_place():
    a, b, c = {"n": 3}, {"n": 1}, {"n": 2}
    items = [a, b, c]
    live(lambda x: x.sort(key=lambda item: item["n"]))(items)
    return items, items[0] is b, items[1] is c, items[2] is a


@kind
def put_in_front_and_changed():
    a = {"n": 1}
    items = [a]

    def change(x):
        x[0]["n"] = 5
        x.insert(0, {"n": 0})

    live(change)(items)
    return items, items[1] is a, a


@kind
def another_list_in_its_place():
    old = [1]
    state = {"items": old}

    def change(s):
        s["items"] = s["items"] + [2]

    live(change)(state)
    return state, old, state["items"] is old


@kind
def a_new_list_of_the_old_messages():
    first = {"role": "user"}
    old = [first]
    state = {"messages": old}

    def change(s):
        s["messages"] = [*s["messages"], {"role": "tool"}]

    live(change)(state)
    return state, old, state["messages"][0] is first


@kind
def one_object_in_two_places():
    state = {"a": None, "b": None}

    def change(s):
        s["a"] = s["b"] = [1]

    live(change)(state)
    state["a"].append(2)
    return state


@kind
def it_holds_itself():
    state = {"n": 1}

    def change(s):
        s["me"] = s

    live(change)(state)
    return state["me"] is state, sorted(state)


@kind
def moved_between_arguments():
    todo, done = [{"id": 1}, {"id": 2}], []
    first = todo[0]
    live(lambda t, d: d.append(t.pop(0)))(todo, done)
    return todo, done, done[0] is first


@kind
def deeply_nested():
    state = {"a": [{"b": ({"c": [1]},)}]}
    inner = state["a"][0]["b"][0]["c"]
    live(lambda s: s["a"][0]["b"][0]["c"].append(2))(state)
    return state, inner


@kind
def a_set():
    state = {"seen": {"a", "b"}}
    seen = state["seen"]
    live(lambda s: (s["seen"].add("c"), s["seen"].discard("a")))(state)
    return sorted(seen), seen is state["seen"]


@kind
def a_bytearray():
    buffer = bytearray(b"ab")
    live(lambda b: b.extend(b"\xff"))(buffer)
    return bytes(buffer)


@kind
def a_deque():
    queue = collections.deque([1, 2], maxlen=3)
    live(lambda q: (q.append(3), q.append(4)))(queue)
    return queue


@kind
def counters_and_defaults():
    counts, groups = collections.Counter("a"), collections.defaultdict(list)

    def change(c, g):
        c["b"] += 2
        g["x"].append(1)

    live(change)(counts, groups)
    groups["y"].append(2)
    return counts, groups


@kind
def a_default_that_is_no_class():
    groups = collections.defaultdict(lambda: 7)
    live(lambda g: g.update(a=1))(groups)
    return dict(groups), groups["new"]


@kind
def a_dataclass():
    note = Note("a", ["x"])
    tags = note.tags

    def change(n):
        n.text = "b"
        n.tags.append("y")
        n.extra = 1

    live(change)(note)
    return note, tags, note.extra


@kind
def slots():
    value = Slotted(1, [])

    def change(v):
        v.a = 2
        v.b.append(1)

    live(change)(value)
    return value


@kind
def a_frozen_dataclass_that_holds_a_list():
    value = Frozen([1])
    live(lambda v: v.held.append(2))(value)
    return value


@kind
def a_new_dataclass():
    state = {"notes": []}
    live(lambda s: s["notes"].append(Note("n", [])))(state)
    return state, type(state["notes"][0]) is Note


@kind
def an_object():
    value = Plain(1)

    def change(v):
        v.n += 1
        v.name = "x"

    live(change)(value)
    return vars(value)


@kind
def an_object_that_gets_a_list():
    value = Plain(1)

    def change(v):
        v.items = [1]
        del v.n

    live(change)(value)
    return vars(value)


@kind
def an_object_that_is_no_plain_data():
    memory = Memory()
    items, lock = memory.items, memory.lock

    def change(m):
        m.items.append(2)
        m.items[0]["a"] = 3
        m.count = 1
        del m.secret

    live(change)(memory)
    return items, memory.items is items, memory.lock is lock, memory.count, hasattr(memory, "secret")


@kind
def such_an_object_within_a_dict():
    memory = Memory()
    state = {"memory": memory, "list": [memory]}
    live(lambda s: s["list"][0].items.append(2))(state)
    return memory.items, state["memory"] is memory, state["list"][0] is memory


@kind
def such_objects_in_another_order():
    one, two = Memory(), Memory()
    two.items = [2]
    pair = [one, two]

    def change(p):
        p.reverse()
        p[0].items.append(3)

    live(change)(pair)
    return pair[0] is two, pair[1] is one, two.items, one.items


@kind
def a_namespace():
    value = types.SimpleNamespace(a=1, b=[])

    def change(v):
        v.b.append(1)
        del v.a
        v.c = 2

    live(change)(value)
    return value


@kind
def a_model():
    model = Model(name="a")
    items = model.items

    def change(m):
        m.name = "b"
        m.items.append({"x": 1})
        m._seen = 3

    live(change)(model)
    return model, model._seen, items is model.items, sorted(model.model_fields_set)


@kind
def a_model_with_extra():
    model = Loose()

    def change(m):
        m.more = [1]

    live(change)(model)
    return model, sorted(model.model_fields_set)


@kind
def a_class_built_on_list():
    messages = Messages([1])

    def change(m):
        m.append(2)
        m.title = "t"

    live(change)(messages)
    return type(messages) is Messages, list(messages), messages.title


@kind
def an_array():
    found = numpy.zeros(3)
    view = found[1:]

    def change(a):
        a[2] = 5.5

    live(change)(found)
    return found.tolist(), view.tolist()


@kind
def a_user_dict():
    state = collections.UserDict(a=1)
    live(lambda s: s.update(b=[1]))(state)
    return dict(state)


@kind
def it_raises_afterwards():
    state = {"tries": 0}

    def change(s):
        s["tries"] += 1
        raise ValueError("no")

    try:
        live(change)(state)
    except ValueError as error:
        return state, str(error)


@kind
def given_by_name():
    state = {"n": 0}
    live(lambda *, into: into.update(n=1))(into=state)
    return state


@kind
def a_coroutine():
    state = {"n": 0}

    @boundary("tool", "coroutine")
    async def change(s):
        await asyncio.sleep(0)
        s["n"] += 1
        s["list"] = [1]
        return len(s)

    return asyncio.run(change(state)), state


@kind
def a_cancelled_coroutine():
    state = {"steps": []}

    @boundary("tool", "cancelled")
    async def change(s):
        s["steps"].append("begun")
        await asyncio.sleep(60)

    async def main():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(change(state), 0.05)
        return state

    return asyncio.run(main())


@kind
def a_generator():
    state = {"n": 0}

    @boundary("tool", "generator")
    def change(s):
        for i in range(3):
            s["n"] = i
            yield i
        s["done"] = True

    return list(change(state)), state


@kind
def a_generator_that_is_left():
    state = {"n": 0}

    @boundary("tool", "left")
    def change(s):
        try:
            for i in range(3):
                s["n"] = i
                yield i
        finally:
            s["closed"] = True

    items = change(state)
    first = next(items)
    items.close()
    return first, state


@kind
def an_asynchronous_generator():
    state = {"n": 0}

    @boundary("tool", "asynchronous")
    async def change(s):
        for i in range(3):
            s["n"] = i
            yield i

    async def main():
        return [item async for item in change(state)], state

    return asyncio.run(main())


@kind
def a_method_changes_its_own():
    class Toolbox:
        def __init__(self):
            self.calls = 0
            self.history = []
            self.client = threading.Lock()

        @boundary("tool", "method")
        def search(self, query):
            self.calls += 1
            self.history.append(query)
            self.last = {"q": query}
            return "found"

    box = Toolbox()
    history = box.history
    found = box.search("a"), box.search("b")
    return found, box.calls, history, box.history is history, box.last


@kind
def a_single_call():
    state = {"n": 0}

    def change(s):
        s["n"] = 1

    boundary("tool", "single").call(change, state)
    return state


@kind
def a_single_call_with_its_own_input():
    state = {"n": 0, "held": [object]}

    def change(s):
        s["n"] = 1

    boundary("tool", "single", {"q": 1}).call(change, state)
    return state["n"]


@kind
def a_single_call_of_a_method():
    class Toolbox:
        def __init__(self):
            self.history = []

        def search(self, query):
            self.history.append(query)

    box = Toolbox()
    boundary("tool", "single").call(box.search, "a")
    return box.history


@kind
def a_context():
    state = {"n": 0}
    with boundary("human", "context", {"state": state}) as crossing:
        if not crossing.answered:
            state["n"] = 1
            crossing.value = state
    return state, crossing.value is state


@kind
def an_asynchronous_context():
    state = [1]

    async def main():
        async with boundary("human", "context", state) as crossing:
            if not crossing.answered:
                state.append(2)
        return state

    return asyncio.run(main())


@kind
def it_gives_back_what_it_was_handed():
    state = {"items": [1]}

    def change(s):
        s["items"].append(2)
        return s

    result = live(change)(state)
    result["more"] = 1
    return result is state, state


@kind
def it_gives_back_a_part():
    state = {"items": [{"id": 1}, {"id": 2}]}
    found = live(lambda s: s["items"][1])(state)
    found["seen"] = True
    return state


@kind
def it_gives_back_a_part_among_others():
    state = {"items": [{"id": 1}]}

    def change(s):
        s["last"] = {"id": 9}
        return {"which": (s["last"], s["items"]), "n": 1}

    found = live(change)(state)
    found["which"][0]["seen"] = True
    found["which"][1].append(2)
    return state, found


@kind
def a_part_that_nobody_can_write():
    memory = Memory()
    return live(lambda m: m)(memory) is memory


@kind
def handed_on_from_call_to_call():
    state = {"results": [], "n": 0}

    def step(s, query):
        s["results"].append({"q": query})
        s["n"] += 1

    def look(s):
        return len(s["results"])

    for query in "abc":
        live(step)(state, query)
    return live(look)(state), state


@kind
def lanes_that_share_it():
    state = {"log": [], "by": {}}

    @boundary("tool", "shared")
    async def change(s, name, after):
        await asyncio.sleep(after)
        s["log"].append(name)
        s["by"][name] = len(s["log"])

    async def main():
        calls = [change(state, name, after) for name, after in (("a", 0.06), ("b", 0.02), ("c", 0.04))]
        await asyncio.gather(*calls)
        return state

    return asyncio.run(main())


@kind
def threads_that_share_it():
    import concurrent.futures
    import time

    state = {"log": []}
    gate = threading.Barrier(3)

    @boundary("tool", "threaded")
    def change(s, name):
        gate.wait(20)
        time.sleep({"a": 0.3, "b": 0.1, "c": 0.5}[name])
        s["log"].append(name)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: change(state, name), "abc"))
    return state


@kind
def a_secret_beside_it():
    key = "sk-proj-" + "a1B2" * 12
    state = {"api_key": key, "n": 0}
    live(lambda s: s.update(n=1))(state)
    return state["n"], state["api_key"] == key


def main():
    for name, function in KINDS.items():
        try:
            result = repr(function())
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        print(f"{name}\t{result}".replace("\n", " "))


if __name__ == "__main__":
    main()
