"""Call the recorded entry of a run that has no command of its own: a function, or a served request.

    python -m otel_agent_replay.assembly.entry

Started by the replaying command. Importing the program is answered from the process that the run began in.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import io
import logging
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_agent_replay.assembly import child
from otel_agent_replay.boundary import lanes
from otel_agent_replay.errors import AgentReplayError, CannotStart
from otel_agent_replay.instrument.serving import SERVING, Response
from otel_agent_replay.recording import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.recording.values import Json, RunRecord

_logger = logging.getLogger("otel_agent_replay")

IMPORTED_AS = "__mp_main__"
"""Name that a script is run under to get at its functions, as `multiprocessing` does: its
``if __name__ == "__main__"`` part is not run."""


def main() -> None:
    """Import the program, call the entry, and let its end be the process's."""
    replayed = child.current()
    if replayed is None:
        raise CannotStart("This is no replay; use `agent-replay replay RUN`.")
    session = replayed.answers.main
    run = session.recording.run
    prelude = replayed.answers.prelude()
    process = run if prelude is None else prelude.recording.run
    sys.path[:0] = [*_beside_script(process.world), str(Path.cwd())]
    lanes.set_process_root(session.root if prelude is None else prelude.root)
    kind = run.entry.get("kind")
    if kind == "function":
        target = _attribute(_place(run.entry, "qualname"), str(run.entry["qualname"]))
        lanes.set_process_root(session.root)
        _call(inspect.unwrap(target), run, session.root)
    elif kind == "asgi":
        application = _application(run.entry)
        session.declare(asyncio.run(_request(application, run, session.root)))
    elif kind == "wsgi":
        application = _application(run.entry)
        lanes.set_process_root(session.root)
        session.declare(_wsgi(application, run))
    else:
        raise CannotStart(f"A run of kind {kind} has no entry of its own; replay the process that it ran in.")


def _beside_script(world: Mapping[str, Json]) -> list[str]:
    """The folder that Python found the program's modules in, where it ran a script."""
    argv = world.get("argv")
    for part in argv[1:] if isinstance(argv, list) else ():
        if str(part) in ("-m", "-c"):
            return []
        if Path(str(part)).is_file():
            return [str(Path(str(part)).resolve().parent)]
    return []


def _call(function: Any, run: RunRecord, root: Lane) -> None:
    allowed = codec.allowed_from(function)
    given: Any = codec.decode(run.entry.get("input"), dict(allowed))
    result = function(*given["args"], **given["kwargs"])
    if inspect.iscoroutine(result):
        asyncio.run(_awaited(result, root))


async def _awaited(result: Any, root: Lane) -> object:
    lanes.LANE.set(root)  # the recorded run's own lane, not one of a task of ours
    return await result


def _application(entry: dict[str, Json]) -> Any:
    place = entry.get("application")
    if not isinstance(place, dict) or not place:
        raise CannotStart(
            "The application stood in no module's variable when it was recorded; keep it in one and record again."
        )
    application = _attribute(place, str(place["attribute"]))
    return application() if place.get("factory") else application


def _place(entry: dict[str, Json], name: str) -> dict[str, Json]:
    return {"module": entry.get("module"), "file": entry.get("file", ""), "attribute": entry.get(name)}


def _attribute(place: dict[str, Json], path: str) -> Any:
    """What stands at a dotted path of a module, or of a script. Raises CannotStart."""
    module, file = str(place["module"]), str(place.get("file") or "")
    try:
        if module == "__main__":
            namespace: Any = runpy.run_path(file, run_name=IMPORTED_AS)
            first, *rest = path.split(".")
            found = namespace[first]
        else:
            found, rest = importlib.import_module(module), path.split(".")
        for part in rest:
            found = getattr(found, part)
    except (ImportError, AttributeError, KeyError, OSError) as error:
        where = file if module == "__main__" else module
        raise CannotStart(
            f"{path} of {where} cannot be found any more ({error}); give a command after `--`."
        ) from error
    return found


async def _request(application: Any, run: RunRecord, root: Lane) -> dict[str, Json]:
    """Start the application up as a server does, then call it with the recorded request."""
    from otel_agent_replay.instrument.libraries import asgi  # noqa: PLC0415 (only for such runs)

    recorded: Any = run.entry["scope"]
    scope = {name: codec.decode(value, {}) for name, value in recorded.items() if name != "headers"}
    scope["headers"] = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in recorded["headers"]]
    async with _Lifespan(application) as state:
        lanes.set_process_root(root)
        lanes.LANE.set(root)
        response = Response()
        scope["state"] = dict(state)
        token = SERVING.set(True)
        try:
            await application(scope, asgi.received(_never), asgi.sent(_nowhere, response))
        finally:
            SERVING.reset(token)
    return response.declared()


async def _never() -> Any:
    await asyncio.get_running_loop().create_future()


async def _nowhere(message: Any) -> None:
    """A replayed response goes to nobody; it is compared."""


class _Lifespan:
    """The application's start-up and shut-down, where it has such."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._in: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._out: asyncio.Queue[Any] = asyncio.Queue()
        self._state: dict[str, Any] = {}

    async def __aenter__(self) -> dict[str, Any]:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        self._task = asyncio.create_task(self._run(scope))
        await self._in.put({"type": "lifespan.startup"})
        await self._out.get()
        return self._state

    async def __aexit__(self, *_: object) -> None:
        await self._in.put({"type": "lifespan.shutdown"})
        await self._task

    async def _run(self, scope: Any) -> None:
        try:
            await self._application(scope, self._in.get, self._out.put)
        except Exception as error:  # noqa: BLE001 (by the specification: it has no lifespan)
            _logger.debug("the application has no lifespan: %r", error)
        finally:
            await self._out.put(None)


def _wsgi(application: Any, run: RunRecord) -> dict[str, Json]:
    from otel_agent_replay.instrument.libraries import wsgi  # noqa: PLC0415 (only for such runs)

    recorded: Any = run.entry["environ"]
    response = Response()
    environ = {
        **recorded,
        "wsgi.version": (1, 0),
        "wsgi.input": wsgi.Input(io.BytesIO()),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": True,
    }

    def started(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
        response.start(int(status.split(" ", 1)[0]), headers)
        return response.body

    token = SERVING.set(True)
    try:
        parts = application(environ, started)
        for part in parts:
            response.body(part)
        close = getattr(parts, "close", None)
        if close is not None:
            close()
    finally:
        SERVING.reset(token)
    return response.declared()


if __name__ == "__main__":
    try:
        main()
    except AgentReplayError as refusal:
        child.refuse(refusal)
