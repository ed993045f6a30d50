"""One contender of `record_overhead.py`: makes the calls that it is told to, and says what they took.

    python _contender.py NAME FOLDER

Reads one JSON object a line from standard input and answers each with one. NAME is `bare`, `ours` (which must have
been started by `opentelemetry-instrument`), `genai-openai` or `openinference`; what is written lies under FOLDER.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _clocks
import httpx2
import openai

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

BATCHES = 4
URL = "http://model.invalid/v1"


def text(seed: str, size: int) -> str:
    """Words that never come twice, `size` characters."""
    digits = hashlib.shake_256(seed.encode()).hexdigest((size + 1) // 2)
    return " ".join(digits[at : at + 7] for at in range(0, size, 8))[:size].ljust(size, ".")


class Model:
    """The model behind a mock transport: each answer is new."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.answered = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.count += 1
        body = json.dumps(
            {
                "id": f"chatcmpl-{self.name}{self.count}",
                "object": "chat.completion",
                "created": 1790000000,
                "model": "gpt-4o-mini-2024-07-18",
                "service_tier": "default",
                "system_fingerprint": "fp_f64f290af2",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text(f"a{self.count}", 600), "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 500, "completion_tokens": 150, "total_tokens": 650},
            }
        ).encode()
        self.answered += len(body)
        headers = {"content-type": "application/json", "x-request-id": f"req_{self.count:08d}"}
        return httpx2.Response(200, content=body, headers=headers)


class Contender:
    """Makes calls, and measures them.

    Args:
        settle: writes whatever the calls left to be written.
    """

    def __init__(self, name: str, folder: Path, settle: Callable[[], object]) -> None:
        self.folder = folder
        self.settle = settle
        self.model = Model(name)
        http = httpx2.Client(transport=httpx2.MockTransport(self.model))
        self.client = openai.OpenAI(api_key="none", base_url=URL, http_client=http, max_retries=0)
        self.rounds = 0

    def ask(self, messages: list[Any]) -> str:
        answer = self.client.chat.completions.create(model="gpt-4o-mini", messages=messages, temperature=0.2)
        return answer.choices[0].message.content or ""

    def calls(self, size: int, count: int) -> dict[str, float]:
        """Batches of single calls with prompts of `size` characters: least CPU and wall of a call, in µs."""
        self.rounds += 1
        cpu, elapsed = [], []
        for batch in range(1 + BATCHES):  # the first warms the caches that other processes have used
            prompts = [text(f"{self.rounds}.{batch}.{number}.{size}", size) for number in range(count)]
            gc.collect()
            began, since = _clocks.cpu(), _clocks.wall()
            for prompt in prompts:
                self.ask([{"role": "system", "content": "You are terse."}, {"role": "user", "content": prompt}])
            self.settle()
            cpu.append((_clocks.cpu() - began) / count * 1e6)
            elapsed.append((_clocks.wall() - since) / count * 1e6)
        return {"cpu": min(cpu[1:]), "wall": min(elapsed[1:])}

    def chat(self, turns: int, size: int, seconds: float) -> dict[str, float] | None:
        """A chat whose every turn adds `size` characters; None where it takes longer than `seconds`."""
        self.rounds += 1
        said = [text(f"{self.rounds}.{turn}.{size}", size) for turn in range(turns)]
        messages: list[Any] = [{"role": "system", "content": "You are terse."}]
        gc.collect()
        written, answered = self.written(), self.model.answered
        began, since = _clocks.cpu(), _clocks.wall()
        for prompt in said:
            messages.append({"role": "user", "content": prompt})
            messages.append({"role": "assistant", "content": self.ask(messages)})
            if _clocks.wall() - since > seconds:
                return None
        self.settle()
        cpu, elapsed = _clocks.cpu() - began, _clocks.wall() - since
        return {
            "cpu": cpu / turns * 1e6,
            "wall": elapsed / turns * 1e6,
            "written": self.written() - written,
            "unique": turns * size + self.model.answered - answered,
        }

    def written(self) -> int:
        """Bytes under the folder."""
        return _clocks.written(self.folder)


def instrumented(name: str, folder: Path) -> Callable[[], object]:
    """Set a peer up: batches of spans, as OTLP writes them, into a file. Gives what flushes it."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class FileExporter(SpanExporter):
        def __init__(self) -> None:
            self.file = (folder / "spans.otlp").open("wb", buffering=0)

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            self.file.write(encode_spans(spans).SerializeToString())
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            self.file.close()

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(FileExporter()))
    trace.set_tracer_provider(provider)
    if name == "genai-openai":
        from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
    else:
        from openinference.instrumentation.openai import OpenAIInstrumentor
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    return lambda: provider.force_flush(600_000)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    peer = name in ("genai-openai", "openinference")
    contender = Contender(name, folder, instrumented(name, folder) if peer else lambda: None)
    contender.calls(2048, 20)
    first = contender.written()
    contender.settle()
    for line in sys.stdin:
        order = json.loads(line)
        result = getattr(contender, order.pop("do"))(**order)
        print(json.dumps({"result": result, "first": first}), flush=True)


if __name__ == "__main__":
    main()
