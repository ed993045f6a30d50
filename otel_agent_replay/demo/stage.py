"""Where the story is played: a folder, an environment, a model server, and commands run as a user types them."""

from __future__ import annotations

import os
import re
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.errors import CannotStart
from otel_agent_replay.settings import OTEL_AGENT_REPLAY_HOME

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND_LIMIT = 60.0
"""Seconds that one command may take before it is killed."""
PROGRAMS = ("agent.py", "model_server.py")
"""What is copied into the folder, so that the commands look as they would at home."""
DISTRIBUTIONS = {"agent-replay": "otel-agent-replay", "opentelemetry-instrument": "opentelemetry-instrumentation"}
"""The installed distribution that brings each command."""
FOREIGN = re.compile(r"(?i)OTEL_|OPENAI_|.*_proxy$|PYTHONHASHSEED$|PYTHONSTARTUP$")
"""Environment variables that would bend the demo: it runs on defaults, and talks to loopback only."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """All that it printed: standard output, then standard error."""
        return self.stdout + self.stderr


class Stage:
    """A folder with the programs, and what runs in it. Close it: that ends the model server.

    Args:
        folder: an empty folder; the programs are copied into it, the recording goes to ``home`` in it.
        say: prints one line.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.say = say
        self.environment = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        self._server: subprocess.Popen[str] | None = None
        self._port = 0
        source = files("otel_agent_replay.demo")
        for name in PROGRAMS:
            (folder / name).write_bytes((source / name).read_bytes())

    def export(self, **variables: str) -> None:
        """Set environment variables for the commands that follow."""
        self.environment.update(variables)
        self._typed("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()))

    def unset(self, *names: str) -> None:
        """Take environment variables away from the commands that follow."""
        for name in names:
            self.environment.pop(name, None)
        self._typed("unset " + " ".join(names))

    def open_home(self) -> None:
        """Send recordings to this folder instead of the user's own."""
        self.export(**{OTEL_AGENT_REPLAY_HOME: str(self.folder / "home")})

    def start_server(self) -> str:
        """Start the model server. Gives its URL. Raises CannotStart."""
        self._typed("python model_server.py &")
        command = [sys.executable, str(self.folder / "model_server.py")]
        self._server = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        line = self._server.stdout.readline().strip()  # comes at once, or the end of the file does
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\S*", line)
        if found is None:
            raise CannotStart(
                f"The model server of the demo did not start ({line or 'no output'}); run it by hand to see why."
            )
        self.say(f"    {line}")
        self._port = int(found[1])
        return found[0]

    def stop_server(self) -> None:
        """Kill the model server and wait for its end."""
        server, self._server = self._server, None
        if server is None:
            return
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()

    def refused(self) -> str | None:
        """How the operating system refuses a connection to the model server; None where something answers."""
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=2).close()
        except OSError as error:
            return f"127.0.0.1:{self._port}: {error.strerror or error}"
        return None

    def run(self, typed: str) -> Finished:
        """Run a command line (words, no shell), showing its output as it comes."""
        self._typed(typed)
        first, *rest = shlex.split(typed)
        if first == "opentelemetry-instrument":
            rest[0] = resolved(rest[0])
        command = [resolved(first), *rest]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                return self._watch(process)
            finally:
                if process.poll() is None:
                    process.kill()

    def close(self) -> None:
        """End what still runs."""
        self.stop_server()

    def _typed(self, command: str) -> None:
        self.say(f"  $ {command}")

    def _watch(self, process: subprocess.Popen[bytes]) -> Finished:
        """Show lines as they come; of two that are there at once, standard output goes first."""
        assert process.stdout is not None and process.stderr is not None
        streams: list[IO[bytes]] = [process.stdout, process.stderr]
        kept = dict.fromkeys(streams, b"")
        shown = dict.fromkeys(streams, 0)
        deadline = real.monotonic() + COMMAND_LIMIT
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = {key.fileobj for key, _ in selector.select(max(0.0, deadline - real.monotonic()))}
                if not ready:
                    raise CannotStart(f"It did not end within {COMMAND_LIMIT:.0f} s; try on a quieter machine.")
                for stream in streams:
                    if stream not in ready:
                        continue
                    data = os.read(stream.fileno(), 1 << 16)
                    if not data:
                        selector.unregister(stream)
                    kept[stream] += data
                    shown[stream] += self._show(kept[stream][shown[stream] :], final=not data)
        stdout, stderr = (kept[stream].decode(errors="replace") for stream in streams)
        return Finished(process.wait(), stdout, stderr)

    def _show(self, data: bytes, *, final: bool) -> int:
        """Print the whole lines of `data`; gives how many bytes were printed."""
        whole = data if final else data[: data.rfind(b"\n") + 1]
        for line in whole.decode(errors="replace").splitlines():
            self.say(f"    {line}")
        return len(whole)


def resolved(word: str) -> str:
    """The program that a command's first word stands for in this very installation."""
    if word == "python":
        return sys.executable
    distribution = DISTRIBUTIONS.get(word)
    if distribution is not None:
        for file in metadata.files(distribution) or ():
            located = Path(str(file.locate()))
            if file.name == word and located.is_file() and os.access(located, os.X_OK):
                return os.path.normpath(located)
    found = shutil.which(word)
    if found is None:
        raise CannotStart(f"The command {word} is not installed here; install otel-agent-replay with pip.")
    return found
