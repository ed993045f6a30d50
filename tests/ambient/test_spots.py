"""How places are named."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_agent_replay.boundary.sites import SiteMap, site_of
from otel_agent_replay.boundary.spots import Site, tokens_of


def test_a_site_is_what_its_id_says():
    def here() -> Site:
        return site_of(sys._getframe(1))

    def helper() -> Site:
        return here()

    for site in (here(), helper(), *[here() for _ in range(1)], (lambda: here())()):
        assert Site.parse(site.id) == site
    assert here().inner[0].module == __name__
    assert helper().context is not None
    one, two = here(), here()
    assert one.id != two.id


def test_code_without_source_is_told_by_its_instructions():
    tape: list[str] = []
    names = {"read": lambda: tape.append(site_of(sys._getframe(1)).id), "__name__": "made"}
    exec("def f():\n  read()\n  read()\nf()\nf()", names)
    assert len(set(tape)) > 1 and all(Site.parse(site).inner[0].line.tokens.startswith("@") for site in tape)


@pytest.mark.parametrize("text", ["", "a", "a:b:c", "a:b:c:d:e:f", "^", "|", "x:y:z:w:notanumber:q^", "\x00" * 50])
def test_a_hostile_site_stands_for_nothing(text):
    def here() -> Site:
        return site_of(sys._getframe(1))

    known = here()
    assert SiteMap({"now": [text, known.id]}).resolve("now", known) == known.id
    assert SiteMap({"now": [text]}).resolve("now", here()) is None


@given(st.text(max_size=80))
def test_spacing_and_comments_are_no_tokens(line):
    assert tokens_of(line) == tokens_of("   " + line + "  ")
    assert tokens_of("x = now()  # why") == tokens_of("x=now()")
    assert tokens_of("x = '#1'") != tokens_of("x = '")
