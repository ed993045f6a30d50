"""Frames as rows: the texts that the Collector writes, and the types that come back."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import pytest
import yaml

from otel_agent_replay.recording import names
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.store import attributes
from otel_agent_replay.store.rows import as_text, content_attribute

PACKAGE = Path(__file__).parents[2] / "otel_agent_replay"
REGISTRY = yaml.safe_load((Path(__file__).parents[2] / "schemas" / "attributes.yaml").read_text())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-(2**63), "-9223372036854775808"),
        (1.0, "1"),
        (0.1, "0.1"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e-7, "1.5e-7"),
        (0.00001, "0.00001"),
        (-0.0, "0"),
        (["a", 'b"c'], '["a","b\\"c"]'),
        ([], "[]"),
    ],
)
def test_attributes_are_written_as_the_collector_writes_them(value, text):
    assert as_text(value) == text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_without_a_json_form_come_back(value):
    again = float(as_text(value))
    assert again == value or (math.isnan(again) and math.isnan(value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.ORDINAL, 7),
        ("gen_ai.usage.input_tokens", 2**40),
        ("gen_ai.request.temperature", 0.7),
        ("gen_ai.request.stream", True),
        ("gen_ai.request.stream", False),
        ("gen_ai.response.finish_reasons", ["stop", "length"]),
        ("gen_ai.request.model", "7"),
        ("openai.request.logprobs", True),
        ("openai.request.logprobs", 5),
        ("something.of.others", "true"),
    ],
)
def test_a_registered_attribute_comes_back_with_its_type(name, value):
    again = attributes.typed(name, as_text(value))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "name", [names.ORDINAL, "gen_ai.request.temperature", "gen_ai.request.stream", "gen_ai.response.finish_reasons"]
)
def test_a_text_of_another_form_stays_what_it_is(name):
    assert attributes.typed(name, "whatever") == "whatever"


def test_the_registry_holds_every_name_of_ours_and_no_other():
    written = {
        value
        for key, value in vars(names).items()
        if key.isupper() and isinstance(value, str) and value.startswith("agent_replay.")
    }
    assert written == {*REGISTRY["ours"], *REGISTRY["prefixes"]}


def test_the_registry_and_the_types_agree():
    types = {name: entry["type"] for part in ("ours", "semantic") for name, entry in REGISTRY[part].items()}

    def of(kind: str) -> set[str]:
        return {name for name, found in types.items() if found == kind}

    assert of("int") == attributes.INTEGERS
    assert of("double") == attributes.NUMBERS
    assert of("boolean") == attributes.BOOLEANS
    assert of("string[]") == attributes.LISTS
    assert of("int or boolean") == attributes.EITHER


def entries() -> dict[str, dict[str, object]]:
    return {name: entry for part in ("ours", "prefixes", "semantic") for name, entry in REGISTRY[part].items()}


def test_frames_in_the_registry_are_the_kinds_there_are():
    kinds = {str(kind) for kind in names.FrameKind}
    for entry in entries().values():
        assert set(entry["frames"]) <= kinds | {"live"}
        assert entry["requirement"] in ("required", "conditional", "reserved")


def dotted_names() -> dict[str, set[str]]:
    """Every text in the package that has the form of an attribute's name, and the files that it stands in."""
    form = re.compile(r"(gen_ai|openai|anthropic|server|http|url|error)(\.[a-z0-9][a-z0-9_]*)+")
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and form.fullmatch(node.value):
                found.setdefault(node.value, set()).add(path.relative_to(PACKAGE).as_posix())
    return found


def test_every_semantic_name_in_the_code_is_registered_and_every_registered_one_is_used():
    no_attributes = {"http.client", "http.response.start", "http.response.body"}  # a module, two ASGI messages
    # What only reads attributes, or abbreviates them in frames, writes none.
    readers = {"recording/frame_schema.py", "recording/layout.py", "store/attributes.py"}
    used = {name: files for name, files in dotted_names().items() if name not in no_attributes}
    assert used.keys() == REGISTRY["semantic"].keys()
    written = {name for name, files in used.items() if files - readers}
    assert written == {name for name, entry in REGISTRY["semantic"].items() if entry["requirement"] != "reserved"}


TYPES = {"string": str, "int": int, "double": float, "boolean": bool, "string[]": list, "int or boolean": int}


def registered(name: str) -> dict[str, object]:
    prefix = next((each for each in REGISTRY["prefixes"] if name.startswith(each)), name)
    return entries()[prefix]


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "recordings").glob("v*/recording.spool")))
def test_recorded_frames_hold_what_is_registered_for_them(path):
    kinds = set()
    for frame in scan(path.read_bytes()):
        assert isinstance(frame, Frame)
        kinds.add(frame.kind)
        held = {names.FRAME: frame.kind.value, **frame.attributes}
        for name, value in held.items():
            entry = registered(name)
            assert frame.kind in entry["frames"], name
            assert isinstance(value, TYPES[entry["type"]]), name
            assert entry["requirement"] != "reserved", name
        required = {
            name for name, e in REGISTRY["ours"].items() if e["requirement"] == "required" and frame.kind in e["frames"]
        }
        assert required <= held.keys()
    assert kinds == set(names.FrameKind)


def test_content_that_is_no_text_travels_as_base64():
    digest = "0" * 32
    assert content_attribute(digest, "aä\0😀".encode()) == (names.CONTENT_PREFIX + digest, "aä\0😀")
    assert content_attribute(digest, b"\xff\0") == (names.CONTENT_BINARY_PREFIX + digest, "/wA=")
