"""The chat that `growing_chat.py` records: TURNS calls, each of which sends everything that was said before.

    opentelemetry-instrument python _chat.py TURNS

Prints the bytes that went to the model, and those that were said, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys

import httpx2
import openai

SIZE = 980
"""Characters of what is said in a turn, and of what is answered: with the rest of a message about a kilobyte."""


def text(seed: str) -> str:
    """Words that never come twice; half of what they take cannot be compressed away."""
    digits = hashlib.shake_256(seed.encode()).hexdigest(SIZE)
    return " ".join(digits[at : at + 7] for at in range(0, SIZE, 8))[:SIZE]


def main() -> None:
    sent: list[int] = []

    def model(request: httpx2.Request) -> httpx2.Response:
        sent.append(len(request.content))
        message = {"role": "assistant", "content": text(f"answer {len(sent)}"), "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        usage = {"prompt_tokens": 500, "completion_tokens": 150, "total_tokens": 650}
        head = {
            "id": f"chatcmpl-{len(sent)}",
            "object": "chat.completion",
            "created": 1790000000,
            "model": "gpt-6-mini",
        }
        return httpx2.Response(200, json={**head, "choices": [choice], "usage": usage})

    http = httpx2.Client(transport=httpx2.MockTransport(model))
    client = openai.OpenAI(api_key="none", base_url="http://model.invalid/v1", http_client=http, max_retries=0)
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "system", "content": "You are terse."}]
    said = 0
    for turn in range(int(sys.argv[1])):
        question = text(f"question {turn}")
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="gpt-6-mini", messages=messages).choices[0].message.content or ""
        messages.append({"role": "assistant", "content": answer})
        said += len(question) + len(answer)
    print(json.dumps({"sent": sum(sent), "said": said}))


if __name__ == "__main__":
    main()
