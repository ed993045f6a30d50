"""A program that calls the real SDKs as it is told and prints what it got, one line of JSON a call.

    python program.py CALLS PORT [--legacy]

CALLS is a file of JSON lines as `calls.py` makes them; PORT is where a server answers on loopback. With
`--legacy`, `openai` is given clients of the older `httpx`. The output holds no time and no random value, so that
two runs that got the same answers print the same bytes. Credentials are taken from the environment by the SDKs.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import openai
import pydantic

TOGETHER = 6
"""How many asynchronous calls run at once."""

TIMEOUT_S = 60.0
"""Timeout of each request. Not the SDK's own, with which `anthropic` refuses long answers that are no streams."""

THREAD = r"/threads/(?P<thread_id>[^/]+)"
RUN = THREAD + r"/runs/(?P<run_id>[^/]+)"
OPERATIONS = [
    ("POST", r"/chat/completions", "chat.completions.create", {"messages", "model"}),
    ("POST", r"/completions", "completions.create", {"model", "prompt"}),
    ("POST", r"/responses", "responses.create", set[str]()),
    ("POST", r"/embeddings", "embeddings.create", {"input", "model"}),
    ("POST", r"/images/generations", "images.generate", {"prompt"}),
    ("POST", r"/assistants", "beta.assistants.create", {"model"}),
    ("GET", r"/assistants/(?P<assistant_id>[^/]+)", "beta.assistants.retrieve", set[str]()),
    ("POST", r"/threads", "beta.threads.create", set[str]()),
    ("POST", THREAD + r"/messages", "beta.threads.messages.create", {"content", "role"}),
    ("GET", THREAD + r"/messages", "beta.threads.messages.list", set[str]()),
    ("POST", THREAD + r"/runs", "beta.threads.runs.create", {"assistant_id"}),
    ("GET", RUN, "beta.threads.runs.retrieve", set[str]()),
    ("POST", RUN + r"/submit_tool_outputs", "beta.threads.runs.submit_tool_outputs", {"tool_outputs"}),
]
MESSAGES = [("POST", r"/v1/messages", "messages.create", {"max_tokens", "messages", "model"})]
"""Method and path, the SDK's own method for them, and the arguments that it demands."""


class Clients:
    """Clients of the right SDK and colour, whose requests go to the server on loopback; one for each address."""

    def __init__(self, port: int, *, legacy: bool) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._legacy = legacy
        self._made: dict[tuple[Any, ...], Any] = {}

    def get(self, told: dict[str, Any]) -> Any:
        key = (told["sdk"], told["asynchronous"], told["prefix"], told["retries"], told["query"].get("api-version"))
        if key not in self._made:
            self._made[key] = self._client(*key)
        return self._made[key]

    def _client(self, sdk: str, asynchronous: bool, prefix: str, retries: int, version: str | None) -> Any:
        common: dict[str, Any] = {"max_retries": retries, "timeout": TIMEOUT_S}
        if sdk == "anthropic":
            import anthropic

            kind: Any = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
            return kind(base_url=self._base, **common)
        if self._legacy:
            import httpx

            common["http_client"] = (httpx.AsyncClient if asynchronous else httpx.Client)(timeout=TIMEOUT_S)
        if sdk == "azure":
            kind = openai.AsyncAzureOpenAI if asynchronous else openai.AzureOpenAI
            deployment = prefix.rpartition("/")[2]
            return kind(azure_endpoint=self._base, azure_deployment=deployment, api_version=version, **common)
        kind = openai.AsyncOpenAI if asynchronous else openai.OpenAI
        return kind(base_url=self._base + prefix, **common)

    def close(self) -> None:
        for key, client in self._made.items():
            if not key[1]:
                client.close()

    async def aclose(self) -> None:
        for key, client in self._made.items():
            if key[1]:
                await client.close()


class Caller:
    """One call as it was told, ready to be made in either colour."""

    def __init__(self, told: dict[str, Any], clients: Clients) -> None:
        self.told = told
        self._clients = clients
        self.body: dict[str, Any] | None = told["body"]
        self.streams = bool(self.body and self.body.get("stream"))

    def ask(self) -> Any:
        """Make the call: a value, an awaitable, or a context manager where the SDK's method is a stream helper."""
        client = self._clients.get(self.told)
        if self.told["sdk"] == "anthropic" and self.told["query"].get("beta") == "true":
            client = client.beta
        found = self._operation()
        if found is None:
            return self._untyped(client)
        name, arguments = found
        owner: Any = client
        *path, method = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        match self.told["style"]:
            case "raw":
                owner = owner.with_raw_response
            case "stream" | "parse" if hasattr(owner, self.told["style"]):
                method = self.told["style"]
        return getattr(owner, method)(**_fitted(getattr(owner, method), arguments))

    def _operation(self) -> tuple[str, dict[str, Any]] | None:
        known = MESSAGES if self.told["sdk"] == "anthropic" else OPERATIONS
        body = self.body or {}
        for method, pattern, name, needed in known:
            found = re.fullmatch(pattern, self.told["operation"])
            if method == self.told["method"] and found and needed <= body.keys():
                query = self.told["query"] if method == "GET" else {}
                return name, {**found.groupdict(), **query, **body}
        return None

    def _untyped(self, client: Any) -> Any:
        """What no method of the SDK is made for goes through its request method."""
        if self.told["method"] == "GET":
            return client.get(self.told["operation"], cast_to=object, options={"params": self.told["query"]})
        more: dict[str, Any] = {}
        if self.streams:
            sdk = importlib.import_module("anthropic" if self.told["sdk"] == "anthropic" else "openai")
            kind = sdk.AsyncStream if self.told["asynchronous"] else sdk.Stream
            more = {"stream": True, "stream_cls": kind[object]}
        return client.post(self.told["operation"], cast_to=object, body=self.body, **more)


def _fitted(method: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; what the method's signature does not have goes into the body as it is."""
    names = inspect.signature(method).parameters
    fitted = {name: value for name, value in arguments.items() if name in names}
    rest = {name: value for name, value in arguments.items() if name not in names and name != "stream"}
    return {**fitted, "extra_body": rest} if rest else fitted


def plain(value: Any) -> Any:
    """A result as a value of JSON, with the name of its type."""
    if isinstance(value, pydantic.BaseModel):
        return [type(value).__name__, value.model_dump(mode="json", warnings=False)]
    return [type(value).__name__, value if isinstance(value, (dict, list, str, int, float, type(None))) else str(value)]


def raw(response: Any) -> dict[str, Any]:
    """What a raw response shows beside its parsed value; cookies are credentials and may come back masked."""
    headers = sorted(pair for pair in response.headers.multi_items() if pair[0] != "set-cookie")
    return {"status": response.status_code, "headers": headers, "retries": response.retries_taken}


def failure(error: Exception) -> dict[str, Any]:
    """An error by type, status, body, code and request id, and what it says."""
    names = ("status_code", "body", "code", "request_id")
    return {"error": [type(error).__name__, *(getattr(error, name, None) for name in names), str(error)]}


def call(caller: Caller) -> dict[str, Any]:
    """Make a synchronous call and keep all that it gave, its error included."""
    seen: dict[str, Any] = {}
    try:
        result = caller.ask()
        if hasattr(result, "parse"):
            seen["raw"] = raw(result)
            result = result.parse()
        if hasattr(result, "__next__"):
            _drain(result, seen.setdefault("chunks", []))
        elif hasattr(result, "__enter__"):
            with result as events:
                _drain(events, seen.setdefault("chunks", []))
        else:
            seen["result"] = plain(result)
    except Exception as error:
        seen.update(failure(error))
    return seen


def _drain(events: Any, chunks: list[Any]) -> None:
    for event in events:
        chunks.append(plain(event))


async def acall(caller: Caller) -> dict[str, Any]:
    """The same for an asynchronous call."""
    seen: dict[str, Any] = {}
    try:
        result = await _awaited(caller.ask())
        if hasattr(result, "parse"):
            seen["raw"] = raw(result)
            result = await _awaited(result.parse())
        if hasattr(result, "__anext__"):
            await _adrain(result, seen.setdefault("chunks", []))
        elif hasattr(result, "__aenter__"):
            async with result as events:
                await _adrain(events, seen.setdefault("chunks", []))
        else:
            seen["result"] = plain(result)
    except Exception as error:
        seen.update(failure(error))
    return seen


async def _adrain(events: Any, chunks: list[Any]) -> None:
    async for event in events:
        chunks.append(plain(event))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def together(callers: list[Caller]) -> list[dict[str, Any]]:
    """Asynchronous calls, as many at once as the constant says."""
    seen: list[dict[str, Any]] = []
    for start in range(0, len(callers), TOGETHER):
        seen.extend(await asyncio.gather(*(acall(one) for one in callers[start : start + TOGETHER])))
    return seen


def main(arguments: list[str]) -> None:
    """Make all calls, neighbours of the asynchronous colour together, and print them in the order told."""
    clients = Clients(int(arguments[1]), legacy="--legacy" in arguments)
    lines = Path(arguments[0]).read_text(encoding="utf-8").splitlines()
    callers = [Caller(json.loads(line), clients) for line in lines]
    with asyncio.Runner() as loop:
        for asynchronous, group in itertools.groupby(callers, key=lambda one: one.told["asynchronous"]):
            some = list(group)
            results = loop.run(together(some)) if asynchronous else map(call, some)
            for caller, seen in zip(some, results, strict=True):
                print(json.dumps({"id": caller.told["id"], **seen}), flush=True)
        loop.run(clients.aclose())
    clients.close()


if __name__ == "__main__":
    main(sys.argv[1:])
