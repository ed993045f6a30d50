"""Values come back equal and of the same type, and a recording can do no more than hand out values."""

import array
import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import itertools
import math
import pathlib
import re
import threading
import types
import typing
import uuid
import zoneinfo

import numpy as np
import orjson
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.errors import Unencodable, UnreadableRecording
from otel_agent_replay.recording import codec, encoder
from otel_agent_replay.recording.opaque import Opaque

thorough = settings(max_examples=120, deadline=None, derandomize=True, database=None)
ran: list[str] = []
"""What the constructors below have run."""


@dataclasses.dataclass
class Point:
    x: int
    y: object = None

    def __post_init__(self):
        ran.append("Point")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    inner: Point | None = None


@dataclasses.dataclass
class Base:
    __slots__ = ("a",)
    a: int


class Extended(Base):
    def __init__(self, a):
        super().__init__(a)
        self.extra = "in the dict"


class Guarded:
    def __init__(self, *_):
        ran.append("Guarded")

    def __new__(cls, *_):
        ran.append("Guarded")
        return super().__new__(cls)


@dataclasses.dataclass(init=False)
class Made(Guarded):
    value: int = 0

    def __setattr__(self, name, value):
        ran.append("Made")
        super().__setattr__(name, value)


class Holder:
    def __init__(self, held):
        self.held = held


class Mark(Holder):
    __slots__ = ("line",)

    def __eq__(self, other):
        return type(self) is type(other) and (self.held, self.line) == (other.held, other.line)

    __hash__ = None


class Colour(enum.Enum):
    RED = "r"
    BLUE = ("b", 2)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Pair(typing.NamedTuple):
    left: int
    right: object = "r"


Old = collections.namedtuple("Old", ["a", "b"])


class Text(str):
    __slots__ = ("note",)


class Bag(dict):
    def __init__(self, *given, **named):
        ran.append("Bag")
        super().__init__(*given, **named)

    def items(self):
        raise AssertionError("a value's own code is not asked")


class Row(list):
    pass


class Count(int):
    pass


class Ordered(collections.OrderedDict):
    pass


class Raw(bytearray):
    pass


class Group(set):
    pass


class Few(frozenset):
    pass


class Reduced:
    def __init__(self):
        self.a = 1

    def __reduce__(self):
        return (Reduced, ())


class Model(pydantic.BaseModel):
    a: int
    b: "Inner | None" = None
    when: dt.datetime | None = None


class Inner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = "n"
    _secret: int = pydantic.PrivateAttr(default=0)


class Root(pydantic.RootModel[list[int]]):
    pass


class Checked(pydantic.BaseModel):
    a: int

    def model_post_init(self, _context):
        ran.append("Checked")


class Ending:
    def __del__(self):
        ran.append("Ending")


@dataclasses.dataclass
class Closing(Ending):
    path: str = ""


Model.model_rebuild()
mark = Mark("text")
mark.line = 3
inner = Inner(name="x", more=[1], deep={"a": (1,)})
inner._secret = 7
text = Text("abc")
text.note = ["n"]
KNOWN = {
    codec.ref(cls): cls
    for cls in (
        Point,
        Frozen,
        Base,
        Extended,
        Made,
        Colour,
        Level,
        Word,
        Rights,
        Pair,
        Old,
        Text,
        Bag,
        Row,
        Count,
        Mark,
    )
} | {codec.ref(cls): cls for cls in (Model, Inner, Root, Checked, Closing, Ordered, Raw, Group, Few)}

PARIS = zoneinfo.ZoneInfo("Europe/Paris")
VALUES = [
    None, True, False, 0, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**5000, 0.0, -0.0, 1.0,
    0.1, 5e-324, 1.7e308,
    math.inf, -math.inf, "", "é\0\x7f\u2028", "\ud800", "\ud83d\ude00", "😀", b"", b"abc", b"\xff\0",
    bytearray(b"\xff"), bytearray(b"a"),
    [], [[]], (), (1, (2, [3])), {}, {"a": 1}, {"$": 1}, {"$": "error", "v": {"$": []}}, {1: "a", (1, 2): "b",
    None: 0, False: 2.5},
    {"b": 1, "a": 2}, {"\ud800": 1}, {"é": 1}, set(), {1, "a", None, (1,)}, frozenset({1.5, "x"}),
    {frozenset({1}): {2}},
    1 + 2j, complex(-0.0, math.inf), range(3), range(10**30, 0, -7), slice(1), slice(None, "a", [2]), ...,
    NotImplemented,
    decimal.Decimal("1.10"), decimal.Decimal("-0E+7"), decimal.Decimal("Infinity"), uuid.UUID(int=5),
    dt.date(1, 1, 1), dt.datetime(2026, 1, 1, 1, 2, 3, 4), dt.datetime(2026, 10, 25, 2, 30, tzinfo=PARIS, fold=1),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-3), "X")),
    dt.time(23, 59, 59, 999999, fold=1),
    dt.timedelta(-1, 2, 3), dt.timedelta.max, dt.timezone(dt.timedelta(seconds=1)), PARIS,
    pydantic.TypeAdapter(dt.datetime).validate_python("2026-01-01T00:00:00+02:00"),
    pathlib.Path("/a/é"), pathlib.PurePosixPath("x"), pathlib.PureWindowsPath("c:\\x"), pathlib.Path("bad\udcff"),
    types.SimpleNamespace(a=1, b=[(2,)]), collections.OrderedDict([("b", 1), (2, "a")]), collections.Counter("abca"),
    collections.deque([1, (2,)], 5), collections.deque(), collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(None, {1: 2}),
    int, list, ValueError, Point(1, {2: (3,)}), Frozen("n", Point(1)), Extended(4), Colour.RED, Colour.BLUE,
    Level.LOW, Word.A,
    Rights.READ, Rights.READ | Rights.RUN, Rights(0), Pair(1, [2]), Old(1, 2), text, Row([1, (2,)]), Count(5),
    {"deep": [{"deeper": ({"set": {1}},)}]}, Model(a=1, b=inner, when=dt.datetime(2026, 1, 1)),
    Model.model_construct(a="not checked"),
    Root([1, 2]), inner, mark, Ordered([(2, 1), (1, [2])]), Raw(b"\xff"), Group({1, (2,)}), Few({1}),
]  # fmt: skip


def there_and_back(value, known=KNOWN, **options):
    return codec.decode(orjson.loads(orjson.dumps(codec.encode(value, **options))), known)


def same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float | complex):
        return repr(a) == repr(b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(v, w) for (k, v), (m, w) in zip(dict.items(a), dict.items(b), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize(
    "value", VALUES, ids=[f"{type(value).__name__}-{number}" for number, value in enumerate(VALUES)]
)
def test_a_value_comes_back_equal_and_of_the_same_type(value):
    before = len(ran)
    json = codec.encode(value)
    assert same(codec.decode(orjson.loads(orjson.dumps(json)), KNOWN), value)
    assert codec.encode(value) == json
    assert len(ran) == before


def test_what_is_not_a_number_comes_back():
    assert math.isnan(there_and_back(math.nan))
    back = there_and_back([math.nan, {"a": decimal.Decimal("NaN123")}])
    assert math.isnan(back[0])
    assert str(back[1]["a"]) == "NaN123"


def test_what_hangs_on_a_value_comes_back():
    assert there_and_back(text).note == ["n"]
    assert there_and_back(Extended(4)).extra == "in the dict"
    back = there_and_back(inner)
    assert back._secret == 7
    assert back.model_extra == {"more": [1], "deep": {"a": (1,)}}
    assert back.model_fields_set == inner.model_fields_set
    assert there_and_back(Model(a=1)).model_fields_set == {"a"}
    assert there_and_back(collections.deque([1], 3)).maxlen == 3
    assert there_and_back(collections.defaultdict(list))["new"] == []
    assert list(there_and_back({3: 0, 1: 0, 2: 0})) == [3, 1, 2]


@pytest.mark.parametrize("dtype", ["?", "i1", "<u8", ">i4", "<f2", "f4", "f8", "c16", "S5", "<U3", "M8[ns]", "m8[D]"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)])
def test_arrays_come_back(dtype, shape):
    array = np.arange(math.prod(shape)).astype("i8").astype(dtype).reshape(shape)
    for value in (array, np.asfortranarray(array), array.T, array[..., ::-1] if shape else array):
        back = there_and_back(value)
        assert back.dtype == value.dtype
        assert back.shape == value.shape
        assert back.tobytes() == value.tobytes()
        assert back.flags.writeable
        assert back.flags.f_contiguous == value.flags.f_contiguous or not (
            value.flags.c_contiguous or value.flags.f_contiguous
        )


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.float32("nan"),
        np.int8(-1),
        np.bool_(True),
        np.str_("é"),
        np.bytes_(b"x"),
        np.datetime64("2026-01-01"),
        np.str_(""),
    ],
)
def test_array_scalars_come_back(value):
    back = there_and_back(value)
    assert type(back) is type(value)
    assert back == value or np.isnan(value)


# what is refused

refused = [
    (lambda: 1, "function"),
    (object(), "object"),
    (iter([]), "list_iterator"),
    (array.array("i", [1]), "array"),
    (np.array([object()]), "dtype"),
    (np.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]), "dtype"),
    (Closing("p"), "goes away"),
    (collections.defaultdict(lambda: 1), "default factory"),
    (Holder([1]), "no plain data"),
    (Reduced(), "no plain data"),
    (re.compile("a"), "no plain data"),
    (threading.Lock(), "no plain data"),
    (itertools.count(5), "no plain data"),
]


@pytest.mark.parametrize(("value", "why"), refused, ids=[why for _, why in refused])
def test_what_cannot_be_written_exactly_is_refused_by_type(value, why):
    for placed in (value, [value], {"a": {"b": (value,)}}):
        with pytest.raises(Unencodable, match=why) as told:
            codec.encode(placed)
        assert f"{type(value).__module__}:{type(value).__qualname__}" in str(told.value)
        back = there_and_back(placed, strict=False)
        while not isinstance(back, Opaque):
            back = next(iter(back.values() if isinstance(back, dict) else back))
        assert repr(back)


@pytest.mark.parametrize("depth", [100, 190, 201, 500, 10_000, 100_000])
@pytest.mark.parametrize("kind", [list, tuple, dict, Point, "cause"])
def test_a_deep_value_comes_back_or_is_refused_in_a_sentence(depth, kind):
    value = None
    for _ in range(depth):
        if kind == "cause":
            error = ValueError("x")
            error.__cause__ = value
            value = error
        else:
            value = {"a": value} if kind is dict else Point(0, value) if kind is Point else kind([value])
    if depth == 100 and kind in (list, dict):
        assert same(there_and_back(value), value)
    try:
        there_and_back(value)
    except Unencodable as error:
        assert "levels deep" in str(error) or "stack" in str(error)
    there_and_back(value, strict=False)
    # taken apart by hand: the interpreter's own deallocation of deep objects of our classes recurses
    while kind in (Point, "cause") and value is not None:
        value = value.__cause__ if kind == "cause" else value.y


def test_a_value_that_holds_itself_is_refused():
    row: list = [1]
    row.append(row)
    table: dict = {"self": None}
    table["self"] = (table,)
    point = Point(1)
    point.y = [point]
    for value in (row, table, point):
        with pytest.raises(Unencodable, match="holds itself"):
            codec.encode(value)
    assert there_and_back(row, strict=False)[0] == 1
    assert isinstance(there_and_back(row, strict=False)[1], Opaque)


def test_a_stack_that_is_nearly_full_is_no_fault():
    value = nested = []
    for _ in range(150):
        nested.append(
            (),
        )
        nested.append([])
        nested = nested[1]

    def deeper():
        try:
            return deeper()
        except RecursionError:
            return codec.encode(value, strict=False)

    def strictly():
        try:
            return strictly()
        except RecursionError:
            return codec.encode(value)

    assert isinstance(codec.decode(deeper()), Opaque | list)
    with contextlib.suppress(Unencodable):
        strictly()


def test_what_is_held_twice_is_no_cycle():
    row = [1]
    assert there_and_back([row, row, {"a": row, 1: row}]) == [[1], [1], {"a": [1], 1: [1]}]


def test_a_value_that_unfolds_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(encoder, "MOST_VALUES", 10_000)
    value: tuple = (1,)
    for _ in range(100):
        value = (value, value)
    with pytest.raises(Unencodable, match="more than"):
        codec.encode(value)
    assert isinstance(there_and_back(value, strict=False), Opaque)


def test_what_is_large_is_described_by_its_size():
    assert repr(there_and_back(array.array("b", bytes(10_000_000)), strict=False)) == "<array:array of 10000000 items>"


def test_a_repr_that_fails_or_holds_an_address_is_still_a_description():
    class Bad:
        def __repr__(self):
            raise RuntimeError("no")

    assert repr(there_and_back(Bad(), strict=False)) == "<Bad instance>"
    assert codec.encode(object(), strict=False) == codec.encode(object(), strict=False)


def test_an_opaque_value_fails_where_it_is_used_and_can_be_recorded_again():
    opaque = there_and_back(Ending, {}, strict=False)
    opaque = there_and_back([object()], strict=False)[0]
    uses = [
        lambda: opaque.name, lambda: opaque(), lambda: bool(opaque), lambda: len(opaque), lambda: list(opaque),
        lambda: opaque[0],
        lambda: opaque == 1, lambda: opaque != 1, lambda: str(opaque), lambda: 1 in opaque, lambda: setattr(opaque,
        "x", 1),
        lambda: opaque.__enter__(), lambda: f"{opaque}", lambda: opaque.__await__(),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(Unencodable, match="record again"):
            use()
    assert repr(opaque) == "<object object>"
    assert isinstance(opaque, Opaque)
    assert {opaque: 1}[opaque] == 1
    assert codec.encode(opaque) == codec.encode(object(), strict=False)


# what a recording may do


@pytest.mark.parametrize(
    "value",
    [
        Point(1),
        Frozen("n"),
        Extended(4),
        Colour.RED,
        Rights.RUN,
        Pair(1),
        text,
        Bag(a=1),
        Row([1]),
        inner,
        Model(a=1),
        Root([3]),
    ],
)
def test_a_class_that_may_not_come_back_is_plain_data(value):
    back = there_and_back(value, {})
    assert type(back) in (dict, str, int, tuple, list)


def test_no_code_of_a_class_is_run():
    bag = Bag(a=1)
    made = Made.__new__(Made)
    object.__setattr__(made, "value", 3)
    checked = Checked(a=1)
    ran.clear()
    back = there_and_back([bag, made, Point(1, 2), checked])
    assert ran == ["Point"], "the one that this test makes"
    assert dict.items(back[0]) == {"a": 1}.items()
    assert type(back[0]) is Bag
    assert back[1].value == 3
    assert back[3].a == 1


@pytest.mark.parametrize(
    "hostile",
    [
        {"$": "data", "c": f"{__name__}:Closing", "v": {"path": "/etc"}},
        {"$": "data", "c": f"{__name__}:Colour", "v": {"a": 1}},
        {"$": "data", "c": f"{__name__}:Row", "v": {"a": 1}},
        {"$": "data", "c": f"{__name__}:Guarded", "v": {"a": 1}},
        {"$": "object", "c": f"{__name__}:Guarded", "v": {"a": [1]}},
        {"$": "object", "c": f"{__name__}:Closing", "v": {"a": 1}},
        {"$": "object", "c": f"{__name__}:Colour", "v": {"a": 1}},
        {"$": "object", "c": f"{__name__}:Row", "v": {"a": 1}},
        {"$": "derived", "c": f"{__name__}:Point", "v": [1]},
        {"$": "derived", "c": f"{__name__}:Row", "v": {"a": 1}},
        {"$": "derived", "c": "subprocess:Popen", "v": [1]},
        {"$": "derived", "c": "builtins:type", "v": "x"},
        {"$": "pydantic", "c": f"{__name__}:Point", "v": {"a": 1}},
        {"$": "enum", "c": f"{__name__}:Point", "n": "__class__", "v": 1},
        {"$": "defaultdict", "f": {"$": "class", "c": f"{__name__}:Guarded"}, "v": {}},
    ],
)
def test_a_tag_makes_only_objects_of_its_own_kind_of_class(hostile):
    known = {codec.ref(cls): cls for cls in (Closing, Colour, Row, Guarded, Point)}
    ran.clear()
    back = codec.decode(hostile, known)
    assert type(back) in (dict, list, str, int, collections.defaultdict, Opaque)
    if isinstance(back, collections.defaultdict):
        assert back.default_factory is None
    assert not ran


@pytest.mark.parametrize(
    "broken",
    [
        {"$": "pickle", "v": ""}, {"$": None}, {"$": 1}, {"$": []}, {"$": "tuple"}, {"$": "tuple", "v": 3},
        {"$": "int", "v": "x"},
        {"$": "int", "v": 5}, {"$": "bytes", "v": "?"}, {"$": "map", "v": [1]}, {"$": "map", "v": [[], 1]},
        {"$": "set", "v": [[1]]},
        {"$": "datetime", "v": "x"}, {"$": "datetime", "v": "2026-01-01T00:00:00", "tz": 5}, {"$": "zone",
        "v": "../../etc/passwd"},
        {"$": "path", "c": "Popen", "v": "x"}, {"$": "const", "v": "x"}, {"$": "data", "c": 5, "v": {}},
        {"$": "data", "c": "a:b", "v": []},
        {"$": "ndarray", "t": "|O", "n": [1], "v": "AAAAAAAAAAA="}, {"$": "ndarray", "t": "f8", "n": [2], "v": ""},
        {"$": "uuid", "v": ""},
        {"$": "ndarray", "t": "f8", "n": [-1], "v": ""}, {"$": "npscalar", "t": "O", "v": ""}, {"$": "error"},
        {"$": "range", "v": ["1x"]},
        {"$": "decimal", "v": "x"}, {"$": "tz", "v": [999, 0, 0]}, {"$": "namespace", "v": {"$": "map", "v": [1,
        2]}}, {"$": "response", "lib": "os"},
        {"$": "str", "v": "7aC"}, {"$": "float", "v": "x"}, {"$": "complex", "v": ["x"]},
    ],
)  # fmt: skip
def test_a_broken_value_is_unreadable(broken):
    for placed in (broken, [broken], {"a": {"b": broken}}):
        with pytest.raises(UnreadableRecording, match="cannot be read"):
            codec.decode(placed, KNOWN)


def test_a_hostile_depth_is_unreadable():
    deep: object = {"$": "tuple", "v": []}
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(UnreadableRecording):
        codec.decode(deep)


def test_what_is_decoded_is_the_callers_own():
    json = codec.encode({"a": [1, {"b": 2}]})
    first, second = codec.decode(json), codec.decode(json)
    first["a"][1]["b"] = 3
    assert second == {"a": [1, {"b": 2}]}
    value = {"a": [1]}
    json = codec.encode(value)
    value["a"].append(2)
    assert json == {"a": [1]}


# which classes may come back


def local_function():
    @dataclasses.dataclass
    class Local:
        part: "Nested | None" = None

    @dataclasses.dataclass
    class Nested:
        n: int

    Local.__annotations__["part"] = Nested | None

    def tool(given: Local) -> "list[Model]":
        return [given]

    return tool, Local, Nested


class Tools:
    class Answer(typing.NamedTuple):
        text: str

    def search(self, query: str) -> "Tools.Answer":
        return Tools.Answer(query)

    def __call__(self):
        return Tools.Answer("x")


def wrapped(function):
    @functools.wraps(function)
    def call(*given):
        return function(*given)

    return call


@pytest.mark.parametrize("how", [lambda f: f, wrapped, functools.partial])
def test_a_function_sees_the_classes_around_it(how):
    tool, local, nested = local_function()
    allowed = codec.allowed_from(how(tool))
    for cls in (
        local,
        nested,
        Model,
        Inner,
        Point,
        Tools,
        decimal.Decimal,
        pydantic.ValidationError,
        zoneinfo.ZoneInfoNotFoundError,
    ):
        assert allowed[codec.ref(cls)] is cls
    assert "subprocess:Popen" not in allowed
    value = [local(nested(1)), Model(a=1)]
    assert there_and_back(value, allowed) == value


@pytest.mark.parametrize("function", [Tools.search, Tools().search, Tools(), Tools.__call__])
def test_a_method_sees_what_its_class_holds(function):
    assert codec.allowed_from(function)[codec.ref(Tools.Answer)] is Tools.Answer


def test_classes_are_looked_for_when_one_is_asked_for():
    def tool():
        return Later()

    allowed = codec.allowed_from(tool, types=[Frozen])

    class Later:
        pass

    tool.__globals__["Later"] = Later
    try:
        assert allowed[codec.ref(Later)] is Later
        assert allowed[codec.ref(Frozen)] is Frozen
        assert len(allowed) == len(list(allowed))
    finally:
        del tool.__globals__["Later"]


def test_annotations_that_do_not_evaluate_are_passed_over():
    def tool(a: "Nowhere", b: "Model", c: 1 / 2 = 0) -> None:  # noqa: F821
        pass

    assert codec.allowed_from(tool)[codec.ref(Model)] is Model


# any value

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(),
    st.text(st.characters(exclude_categories=())), st.binary(),
    st.decimals(), st.uuids(), st.dates(), st.datetimes(timezones=st.none() | st.timezones() | st.just(dt.UTC)),
    st.times(), st.timedeltas(),
    st.sampled_from([*Colour, *Level, *Rights, ..., range(4), pathlib.PurePosixPath("x"), int]),
    st.binary().map(bytearray),
)  # fmt: skip
keys = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=5),
    st.just("$"),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.binary(max_size=4),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.lists(inner, max_size=5).map(tuple), st.dictionaries(keys, inner, max_size=5),
        st.dictionaries(st.text(max_size=6), inner, max_size=5), st.sets(keys, max_size=5), st.frozensets(keys,
        max_size=5),
        st.builds(Point, st.integers(), inner), st.builds(Pair, st.integers(), inner), st.lists(inner,
        max_size=3).map(Row),
        st.builds(lambda v: Model.model_construct(a=v), inner), st.builds(lambda v: types.SimpleNamespace(v=v),
        inner),
    ),
    max_leaves=25,
)  # fmt: skip


@thorough
@given(values)
def test_any_value_comes_back(value):
    json = codec.encode(value)
    back = codec.decode(orjson.loads(orjson.dumps(json)), KNOWN)
    assert type(back) is type(value)
    assert codec.encode(back) == json
    assert repr(back) == repr(value) or isinstance(
        value, set | frozenset | list | dict | tuple | Point | Model | types.SimpleNamespace
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["$", "v", "c", "n", "a", "m", "s",
    "t", "lib"]) | st.text(max_size=3), inner, max_size=5),
    max_leaves=15,
)  # fmt: skip


@thorough
@given(
    json_values,
    st.sampled_from(
        [
            *[
                "str",
                "int",
                "bytes",
                "tuple",
                "map",
                "set",
                "data",
                "derived",
                "enum",
                "error",
                "pydantic",
                "ndarray",
                "datetime",
                "zone",
                "request",
                "response",
                "opaque",
            ]
        ]
    ),
)
def test_whatever_a_recording_holds_gives_a_value_or_one_sentence(json, tag):
    if isinstance(json, dict):
        json["$"] = tag
    ran.clear()
    try:
        codec.decode(json, KNOWN)
    except UnreadableRecording as error:
        assert "record the run again" in str(error)
    assert not ran
