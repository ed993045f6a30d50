"""The program of the recording beside it. It is never changed: the recording is replayed against it for ever.

The model is a mock transport whose answers are drawn, so what comes back equal in a replay came from the recording.
"""

import asyncio
import json
import random
import time
import uuid

import httpx2
import openai

from otel_agent_replay import boundary, outcome

WORDS = [f"word{number}" for number in range(1000)]


def model(request: httpx2.Request) -> httpx2.Response:
    """Answers with words that nobody can foresee; as a stream where it is asked to."""
    asked = json.loads(request.content)
    said = " ".join(random.SystemRandom().choices(WORDS, k=12))
    head = {"id": "chatcmpl-1", "created": 1790000000, "model": asked["model"]}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": said}
        usage = {"prompt_tokens": 50, "completion_tokens": 12, "total_tokens": 62}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return httpx2.Response(200, json={**head, "object": "chat.completion", "choices": choices, "usage": usage})
    lines = []
    for word in said.split():
        choices = [{"index": 0, "delta": {"content": word + " "}, "finish_reason": None}]
        lines.append(f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': choices})}\n\n")
    text = "".join(lines) + "data: [DONE]\n\n"
    return httpx2.Response(200, content=text.encode(), headers={"content-type": "text/event-stream"})


@boundary("tool", "lookup")
def lookup(key: str) -> dict[str, object]:
    """A tool whose answer nobody can foresee, and that fails for one key."""
    if key == "nothing":
        raise KeyError(key)
    return {"key": key, "value": random.SystemRandom().random(), "bytes": b"\x00\xff", "none": None}


@boundary("tool", "remember")
def remember(notes: list[str], said: str) -> int:
    """A tool that changes what it is handed."""
    notes.append(f"{said[:20]} {random.SystemRandom().random()}")
    return len(notes)


async def concurrent(client: openai.AsyncOpenAI) -> list[str]:
    """Two calls at once."""

    async def ask(number: int) -> str:
        said = [{"role": "user", "content": f"Question {number}."}]
        answer = await client.chat.completions.create(model="gpt-6-mini", messages=said)
        return answer.choices[0].message.content or ""

    return [await each for each in asyncio.as_completed([ask(0), ask(1)])]


def main() -> None:
    """Everything that a recording of this version can hold, once."""
    http = httpx2.Client(transport=httpx2.MockTransport(model))
    client = openai.OpenAI(api_key="none", base_url="http://model.invalid/v1", http_client=http, max_retries=0)
    messages = [{"role": "system", "content": "You are terse. " * 20}]
    notes: list[str] = []
    for turn in range(3):
        remember(notes, str(messages[-1]["content"]))
        found = lookup(f"key {turn}")
        question = f"{turn}: {notes[-1]}; it is {time.time()}, {random.random()}, {uuid.uuid4()}; {found}"
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="gpt-6-mini", temperature=0.5, messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        print(messages[-1]["content"])
    stream = client.chat.completions.create(model="gpt-6-mini", messages=messages, stream=True)
    print("".join(chunk.choices[0].delta.content or "" for chunk in stream))
    try:
        lookup("nothing")
    except KeyError as error:
        print("not there:", error)
    others = httpx2.AsyncClient(transport=httpx2.MockTransport(model))
    print(
        asyncio.run(concurrent(openai.AsyncOpenAI(api_key="none", base_url="http://m.invalid/v1", http_client=others)))
    )
    outcome(status="done")


if __name__ == "__main__":
    main()
