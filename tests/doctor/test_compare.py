"""What kind of value makes two texts differ."""

from __future__ import annotations

import pytest

from otel_agent_replay.doctor.compare import differences, kind_of
from otel_agent_replay.doctor.findings import Leak


@pytest.mark.parametrize(
    ("recorded", "asked", "kind"),
    [
        ("<Tool at 0x7f31c0a5e4d0>", "<Tool at 0x7f99aa05e4d0>", Leak.ADDRESS),
        ("it is 2026-11-30T08:31:19", "it is 2026-12-01T09:00:00", Leak.CLOCK),
        ("it is 08:31:19", "it is 09:00:01", Leak.CLOCK),
        ("at 1790000000.25", "at 1790000007.5", Leak.CLOCK),
        ("id 3f2504e0-4f89-41d3-9a0c-0305e82c3301", "id 9f2504e0-4f89-41d3-9a0c-0305e82c33ff", Leak.ENTROPY),
        ("nonce 9fe2c4e93f654fdbb24c", "nonce 0dd0c4e93f654fdbb2aa", Leak.ENTROPY),
        ("tools: a, b, c", "tools: c, a, b", Leak.SET_ORDER),
        ("the answer is 4", "the answer is 5", Leak.DIFFERENCE),
        ("yes", "", Leak.DIFFERENCE),
    ],
)
def test_the_kind_of_a_difference(recorded: str, asked: str, kind: Leak) -> None:
    assert kind_of(recorded, asked) is kind


def test_lines_that_a_replay_did_not_come_to_are_no_difference() -> None:
    recorded = {"stdout": {"text": "one\ntwo\nthree\n"}}
    cut = {"verdict": "cannot-judge", "divergences": [{"summary": "gone"}], "outcome": {"stdout": {"text": "one\n"}}}
    assert [place for place, _ in differences(recorded, cut)] == ["the program difference "]
    whole = {"verdict": "holds", "outcome": {"stdout": {"text": "one\n2\nthree\n"}}}
    ((place, finding),) = differences(recorded, whole)
    assert place == "stdout 2"
    assert finding.evidence == "recorded 'two', replayed '2'"
