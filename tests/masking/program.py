"""An agent that meets credentials wherever one can stand. What it decides is printed last.

    python program.py --api-key SECRET

Reads the credentials from ``secrets.json``, by name, so that none stands in the program.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import anthropic
import httpx
import openai
from opentelemetry import trace
from opentelemetry.trace import Link, Status, StatusCode

from otel_agent_replay import boundary, outcome

S = json.loads(Path("secrets.json").read_text())
BASE = os.environ["BASE_URL"]
decisions: list[object] = []


class Refused(Exception):
    def __init__(self, message: str, token: str) -> None:
        super().__init__(message, token)
        self.token = token


@boundary("tool", "lookup")
def lookup(query: str, options: dict) -> dict:
    return {
        "found": f"the key is {S['outcome']}",
        "nested": json.dumps({"deep": [S["outcome"]]}),
        "raw": b"\xff" + S["binary"].encode(),
    }


@boundary("tool", "refuse")
def refuse(what: str) -> None:
    raise Refused(f"no: {S['error']}", S["error"])


@boundary("tool", "stream")
def items(count: int):
    for number in range(count):
        yield {"number": number, "password": S["item"]}


def chat() -> None:
    host = BASE.removeprefix("http://")
    client = openai.OpenAI(
        base_url=f"http://me:{S['url']}@{host}/v1", default_headers={"x-session-token": S["header"]}, max_retries=0
    )
    found = lookup(f"with {S['input']}", {"password": S["named"], "n": 1})
    messages = [
        {"role": "system", "content": f"Never say {S['prompt']}."},
        {"role": "user", "content": json.dumps({"tool": found["found"], "inner": json.dumps({"k": S["nested"]})})},
    ]
    for _ in range(3):
        whole = client.chat.completions.create(model="m", messages=messages, extra_query={"api_key": S["query"]})
        messages.append({"role": "assistant", "content": whole.choices[0].message.content})
        messages.append({"role": "user", "content": f"and {S['prompt']} again? " + "x" * 1500})
    text, arguments = "", ""
    for event in client.chat.completions.create(model="m", messages=messages, stream=True):
        delta = event.choices[0].delta
        text += delta.content or ""
        for call in delta.tool_calls or ():
            arguments += call.function.arguments or ""
    messages.append({"role": "assistant", "content": text})
    messages.append({"role": "tool", "content": arguments, "tool_call_id": "c"})
    whole = client.chat.completions.create(model="m", messages=messages)
    decisions.append([whole.choices[0].finish_reason, len(messages), sorted(json.loads(arguments))])


def claude() -> None:
    client = anthropic.Anthropic(base_url=BASE, max_retries=0)
    with client.messages.stream(
        model="c", max_tokens=10, messages=[{"role": "user", "content": f"hello {S['claude']}"}]
    ) as stream:
        text = stream.get_final_text()
    decisions.append(
        [
            "claude",
            text.startswith("The secret is"),
            client.messages.create(model="c", max_tokens=10, messages=[{"role": "user", "content": text}]).stop_reason,
        ]
    )


def plain() -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in S["escaped"])
    with httpx.Client() as client:
        answer = client.post(
            f"{BASE}/echo",
            content=f'{{"a": "{escaped}", "b": "caf\\u00e9"}}'.encode(),
            headers={
                "content-type": "application/json",
                "authorization": f"Basic {S['basic']}",
                "cookie": f"s={S['cookie']}",
            },
        )
        decisions.append([answer.status_code, sorted(answer.json())])
        form = client.post(f"{BASE}/echo", data={"password": S["form"], "x": "1 2"})
        decisions.append(form.status_code)


def observed() -> None:
    tracer = trace.get_tracer("other", attributes={"scope": "x"})
    link = Link(trace.get_current_span().get_span_context(), {"why": S["link"]})
    with tracer.start_as_current_span("work", links=[link]) as span:
        span.set_attribute("db.statement", f"connect {S['attribute']}")
        span.set_attribute("http.request.header.authorization", [S["attribute"]])
        span.add_event("seen", {"what": S["event"]})
        span.record_exception(ValueError(S["event"]))
        span.set_status(Status(StatusCode.ERROR, f"failed with {S['status']}"))
    try:
        raise ValueError(f"bad {S['log']}")
    except ValueError:
        logging.getLogger("agent").exception("logged %s", S["log"])


def main() -> None:
    chat()
    claude()
    plain()
    observed()
    try:
        refuse("x")
    except Refused as error:
        decisions.append(["refused", error.token in error.args[0]])
    decisions.append(sum(item["number"] for item in items(3)))
    stamp = time.strftime(f"%Y {S['reading']}")
    decisions.append(len(stamp) > 5)
    decisions.append(bool(os.environ["CONFIG_URL"]))
    print("with", S["stdout"])
    outcome(**{"kept": S["declared"]}) if "--declare" in sys.argv else None
    Path(os.environ["DECISIONS"]).write_text(json.dumps(decisions))
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:  # there is no SDK in a replay
        flush()


main()
