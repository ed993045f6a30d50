"""A support agent that pays customers back, and fails at it at night.

Of replay it knows two lines: the decorator of its tools and the outcome that it declares. It asks a model
which facts it needs, looks them up at the same time, asks the same question three times over and takes the
opinions as they come, pays, and writes to the customer as the words arrive.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai

from otel_agent_replay import boundary, outcome

MODEL = "demo-model"
TICKET = "Order A-1007 arrived broken. I would like my money back. Kim"
OPINION = "Is this one for a refund? Answer in one sentence."
DECISION = "Refund what was paid if it was delivered less than 30 days ago."


@boundary("tool", "find_order")
async def find_order(order: str) -> dict[str, str]:
    """Ask the shop what it knows of an order."""
    await asyncio.sleep(random.random() / 20)
    delivered = datetime.now(UTC) - timedelta(days=6)
    return {"order": order, "paid": "12.50", "currency": "EUR", "delivered": delivered.date().isoformat()}


@boundary("tool", "search_policy")
async def search_policy(question: str) -> str:
    """Look up how the shop handles a question."""
    await asyncio.sleep(random.random() / 20)
    return f"{question}: broken on arrival is paid back in full."


@boundary("tool", "issue_refund")
def issue_refund(order: str, amount: str) -> str:
    """Pay. Nobody wants this to happen again each time that a run is looked into."""
    reference = f"R-{uuid.uuid4().hex[:8]}"
    with Path("payments.log").open("a") as log:
        log.write(f"{reference}: {amount} EUR for {order}\n")
    return reference


TOOLS: dict[str, Any] = {"find_order": find_order, "search_policy": search_policy}


def schema(name: str, *parameters: str) -> Any:
    """What the model is told of a tool."""
    properties = {parameter: {"type": "string"} for parameter in parameters}
    described = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": described}}


async def look_up(model: openai.AsyncOpenAI, chat: list[Any]) -> None:
    """Let the model ask for facts, and get them at the same time."""
    tools = [schema("find_order", "order"), schema("search_policy", "question")]
    reply = await model.chat.completions.create(model=MODEL, messages=chat, tools=tools)
    message: Any = reply.choices[0].message
    calls = message.tool_calls
    print("looks up:", ", ".join(call.function.name for call in calls), flush=True)
    found = await asyncio.gather(*(TOOLS[call.function.name](**json.loads(call.function.arguments)) for call in calls))
    chat.append(message.model_dump(exclude_none=True))
    for call, fact in zip(calls, found, strict=True):
        chat.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(fact)})


async def opinion(model: openai.AsyncOpenAI, question: list[Any]) -> str:
    """What the model thinks, asked once."""
    reply = await model.chat.completions.create(model=MODEL, messages=question)
    return reply.choices[0].message.content or ""


async def ask_around(model: openai.AsyncOpenAI, chat: list[Any]) -> None:
    """Ask the same three times at once; what is asked next holds the answers in the order they came."""
    question = [*chat, {"role": "user", "content": OPINION}]
    for answered in asyncio.as_completed([opinion(model, question) for _ in range(3)]):
        text = await answered
        print("opinion:", text, flush=True)
        chat.append({"role": "assistant", "content": text})


async def decide(model: openai.AsyncOpenAI, chat: list[Any]) -> dict[str, str]:
    """Let the model fill in the refund."""
    chat.append({"role": "user", "content": DECISION})
    reply = await model.chat.completions.create(
        model=MODEL,
        messages=chat,
        tools=[schema("issue_refund", "order", "amount")],
        tool_choice={"type": "function", "function": {"name": "issue_refund"}},
    )
    message: Any = reply.choices[0].message
    refund: dict[str, str] = json.loads(message.tool_calls[0].function.arguments)
    return refund


async def write_back(model: openai.AsyncOpenAI, chat: list[Any], reference: str) -> None:
    """Write to the customer, word by word."""
    chat.append({"role": "user", "content": f"The refund {reference} is on its way. Tell the customer."})
    print("to the customer:", end=" ", flush=True)
    async for chunk in await model.chat.completions.create(model=MODEL, messages=chat, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print(flush=True)


def cents(amount: str) -> int:
    """An amount as the books want it."""
    return round(float(amount) * 100)


async def main() -> None:
    """Handle one ticket."""
    model = openai.AsyncOpenAI()
    case, opened = uuid.uuid4().hex[:8], datetime.now(UTC).time().isoformat("milliseconds")
    print(f"case {case}, opened at {opened}", flush=True)
    system = f"You look after the orders of a shop. This is case {case}, opened at {opened}."
    chat: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": TICKET}]
    await look_up(model, chat)
    await ask_around(model, chat)
    refund = await decide(model, chat)
    reference = await asyncio.to_thread(issue_refund, **refund)
    print(f"paid {refund['amount']} EUR, reference {reference}", flush=True)
    await write_back(model, chat, reference)
    booked = cents(refund["amount"])
    outcome(status="refunded", cents=booked)
    print(f"booked {booked} cents", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
