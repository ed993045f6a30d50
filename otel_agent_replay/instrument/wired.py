"""Everything that is recorded and answered at the wire. The model SDKs need the HTTP libraries beneath them."""

from __future__ import annotations

from otel_agent_replay.instrument.libraries.anthropic import ANTHROPIC
from otel_agent_replay.instrument.libraries.httpx_family import HTTPX, HTTPX2
from otel_agent_replay.instrument.libraries.openai import OPENAI

LIBRARIES = (HTTPX, HTTPX2, OPENAI, ANTHROPIC)
