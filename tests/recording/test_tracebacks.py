"""Tracebacks as JSON and back: the text that `traceback` makes of them is the same."""

from __future__ import annotations

import traceback

import orjson
import pytest

from otel_agent_replay.boundary.session import attempt, settle
from otel_agent_replay.errors import UnreadableRecording
from otel_agent_replay.recording import codec, tracebacks
from otel_agent_replay.recording.encoder import Encoder
from otel_agent_replay.recording.tracebacks import frames_of, hide_in


def down(depth: int, more: int = 0) -> int:
    if depth == 0:
        raise ValueError("at the bottom")
    return down(
        depth - 1,
        more + sum(one for one in (1,)),
    )


def caught(function, *args) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def again(error: BaseException) -> BaseException:
    text = orjson.dumps(codec.encode(error, strict=False, by=Encoder(strict=False, traces=True)))
    decoded = codec.decode(orjson.loads(text))
    assert isinstance(decoded, BaseException)
    return decoded


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def fails_in_many_ways() -> None:
    try:
        [down(one) for one in (2,)]
    except ValueError as error:
        try:
            {}[None]
        except KeyError:
            raise RuntimeError("both") from error


def fails_in_a_generator() -> None:
    list(down(number) for number in (0,))  # noqa: C400 (its frame is wanted)


def fails_in_code_without_a_file() -> None:
    eval("1 / 0")


@pytest.mark.parametrize("function", [fails_in_many_ways, fails_in_a_generator, fails_in_code_without_a_file])
def test_the_text_is_the_same(function) -> None:
    error = caught(function)

    assert shown(again(error)) == shown(error)


def test_it_is_the_same_once_raised_again() -> None:
    replayed = again(caught(down, 3))

    def raised() -> None:
        raise replayed

    files = [line for line in shown(caught(raised)).splitlines() if line.startswith("  File")]
    names = [line.rpartition(" ")[2] for line in files]
    assert names == ["caught", "raised", "caught", "down", "down", "down", "down"]


def test_frames_of_the_recorder_are_no_part_of_it() -> None:
    error = caught(lambda: settle(attempt(lambda: down(1))))
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert any("otel_agent_replay/boundary" in file for file in files)

    assert {frame[0] for frame in frames_of(error.__traceback__)} == {__file__}
    hide_in(error)
    assert {frame.filename for frame in traceback.extract_tb(error.__traceback__)} == {__file__}


def test_the_middle_of_a_deep_one_is_left_out(monkeypatch) -> None:
    error = caught(down, 30)
    whole = frames_of(error.__traceback__)
    assert len(whole) == 32
    monkeypatch.setattr(tracebacks, "MOST_FRAMES", 20)

    assert frames_of(error.__traceback__) == whole[:10] + whole[-10:]


def test_a_value_has_none() -> None:
    assert "t" not in codec.encode(caught(down, 1), strict=False)


@pytest.mark.parametrize("frames", [[["a.py", "f"]], [[1, "f", 2]], [["a.py", 3, 2]], ["abc"], [["a\0.py", "f", 1]], 7])
def test_what_is_no_traceback_is_refused(frames) -> None:
    error = codec.encode(ValueError("x"))
    error["t"] = frames
    with pytest.raises(UnreadableRecording):
        codec.decode(error)
