"""The program that `replay_speed.py` replays: so many chat calls, one after the other.

    python _agent.py CALLS

With CASSETTE set, vcrpy records into that file or replays from it. With OFFLINE set, a call that reaches the mock
model is an error. What the agent function alone took goes to the file that TIMES names.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import _clocks
import httpx2
import openai
from _contender import Model, text


def agent(client: openai.OpenAI, calls: int) -> None:
    """Ask `calls` times, with prompts of 2 KB."""
    for number in range(calls):
        prompt = text(f"prompt {number}", 2048)
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": prompt}])


def offline(request: httpx2.Request) -> httpx2.Response:
    raise SystemExit(f"A call to {request.url} reached the model.")


def main() -> None:
    model = offline if os.environ.get("OFFLINE") else Model("replayed")
    http = httpx2.Client(transport=httpx2.MockTransport(model))
    client = openai.OpenAI(api_key="none", base_url="http://model.invalid/v1", http_client=http, max_retries=0)
    cassette = nullcontext()
    if path := os.environ.get("CASSETTE"):
        import vcr

        match_on = ["method", "scheme", "host", "port", "path", "query", "body"]
        cassette = vcr.VCR(record_mode="once", match_on=match_on).use_cassette(path)
    with cassette:
        cpu, wall = _clocks.cpu(), _clocks.wall()
        agent(client, int(sys.argv[1]))
        cpu, wall = _clocks.cpu() - cpu, _clocks.wall() - wall
    Path(os.environ["TIMES"]).write_text(json.dumps({"cpu": cpu, "wall": wall}), "utf-8")


if __name__ == "__main__":
    main()
