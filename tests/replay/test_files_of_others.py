"""Files that others open, change or write: modules of the standard library, other programs, other threads, C code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent

THROUGH = {
    "logging": """
import logging
logging.basicConfig(filename="agent.log", level=logging.INFO, format="%(message)s")
logging.info("started")
print(open("agent.log").read())
""",
    "rotation": """
import logging.handlers, os
handler = logging.handlers.RotatingFileHandler("app.log", maxBytes=200, backupCount=2)
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(20)
for number in range(20):
    logging.info("message number %d", number)
print(sorted(name for name in os.listdir() if "log" in name), open("app.log.1").read())
""",
    "configuration": """
import configparser, logging.config
from xml.etree import ElementTree
print(ElementTree.parse("a.xml").getroot().tag)
parser = configparser.ConfigParser()
print(parser.read(["a.ini", "none.ini"]), dict(parser["here"]))
logging.config.dictConfig({"version": 1, "root": {"handlers": ["file"], "level": "INFO"}, "handlers": {
    "file": {"class": "logging.FileHandler", "filename": "late.log", "delay": True}}})
logging.warning("late")
print(open("late.log").read())
""",
    "stores": """
import dbm.dumb, http.cookiejar, os, shelve, wave
dbm._defaultmod = dbm.dumb
with shelve.open("state") as state:
    state["n"] = state.get("n", 0) + 1
    print(state["n"])
jar = http.cookiejar.LWPCookieJar("cookies.txt")
jar.save()
with wave.open("a.wav", "wb") as sound:
    sound.setnchannels(1)
    sound.setsampwidth(1)
    sound.setframerate(8000)
    sound.writeframes(b"abc")
print(os.path.exists("cookies.txt"), os.path.getsize("a.wav"), wave.open("a.wav").getnframes())
""",
    "lazily": """
import pathlib
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(pathlib.Path.read_text, sorted(pathlib.Path("d").glob("*.txt")))))
    print(sorted(pool.map(str, pathlib.Path("d").glob("*.txt"))))
""",
}


def make(folder: Path) -> None:
    (folder / "a.xml").write_text("<config/>")
    (folder / "a.ini").write_text("[here]\nx = 1\n")
    (folder / "d").mkdir()
    for name in ("1", "2"):
        (folder / "d" / f"{name}.txt").write_text(name)


def disk(folder: Path) -> dict[str, bytes]:
    """What stands below a folder, without what recordings and replays leave there."""
    ours = {"home", "report.json"}
    kept = (path for path in folder.rglob("*") if path.is_file() and ours.isdisjoint(path.relative_to(folder).parts))
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


@pytest.mark.parametrize("name", THROUGH)
def test_the_standard_library_opens_for_the_program(bench, name: str) -> None:
    make(bench.folder)
    out = bench.record(THROUGH[name])
    for path in ("a.xml", "a.ini", "d"):
        path = bench.folder / path
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = disk(bench.folder)
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert disk(bench.folder) == before
    assert not replayed.report["new_readings"] and not replayed.report["unread"]


FOR_ITSELF = """
import argparse, ctypes.util, datetime, gettext, importlib.metadata, inspect, linecache, mimetypes, multiprocessing
import pkgutil, platform, runpy, ssl, traceback, warnings, zoneinfo

def double(n):
    return 2 * n

if __name__ == "__main__":
    print(datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).utcoffset())
    print(mimetypes.guess_type("a.html"), bool(ssl.create_default_context()), len(inspect.getsource(double)))
    print(argparse.ArgumentParser().parse_args([]), importlib.metadata.version("pytest") > "1", platform.libc_ver()[0])
    try:
        1 / 0
    except ZeroDivisionError:
        print(traceback.format_exc().count("1 / 0"))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(double, [1, 2]))
    with multiprocessing.Manager() as manager:
        print(manager.list([1]))
    runpy.run_path("other.py")
"""


def test_what_the_interpreter_reads_is_no_part_of_a_run(bench) -> None:
    """Code, time zones, certificates, sockets of its own."""
    (bench.folder / "other.py").write_text("print('other')")
    out = bench.record(FOR_ITSELF)
    run = bench.run(BIN / "agent-replay", "show", "latest", "--json")
    assert "filesystem" not in {each["kind"] for each in json.loads(run.stdout)["crossings"]}
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert not replayed.report["new_readings"] and not replayed.report["unread"]


THREADS = """
import os, sys, threading
sys.setswitchinterval(1e-5)
errors = []
os.makedirs("o")
def work(n):
    try:
        for i in range(150):
            with open(f"o/{n}-{i}.tmp", "w") as file:
                file.write("x")
            os.replace(f"o/{n}-{i}.tmp", f"o/{n}-{i}.json")
            if i % 10 == 0:
                os.mkdir(f"o/{n}-{i}")
                os.rename(f"o/{n}-{i}", f"o/{n}-{i}-moved")
                os.unlink(f"o/{n}-{i}.json")
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(errors, len(os.listdir("o")))
"""


def test_threads_write_at_once(bench) -> None:
    out = bench.record(THREADS)
    assert out == "[] 1200\n"
    shutil.rmtree(bench.folder / "o")
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert not (bench.folder / "o").exists()


def test_a_path_is_looked_up_and_never_searched_for() -> None:
    """A rename among many files of the program costs what it costs among few."""
    from otel_agent_replay.instrument._filesystem import Own, Shadow

    for known, moved, holds in ((own := Own(), own.moved, own.knows), (shadow := Shadow(), shadow.moved, shadow.makes)):
        made = known.made if isinstance(known, Own) else known.wrote
        for number in range(20_000):
            made(f"/a/b{number % 10}/{number}")
        begun = time.process_time()
        for number in range(2_000):
            moved(f"/a/b{number % 10}/{number}", f"/a/c/{number}")
        assert time.process_time() - begun < 1
        moved("/a", "/z/y")
        assert holds("/z/y/c/7") and holds("/z/y/b1/19991") and not holds("/a/b1/19991") and not holds("/a/c/7")


EDITED = {
    "session": """
import subprocess
shell = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
with open("code.py", "w") as file:
    file.write("x=1\\n")
shell.stdin.write("sed -i 's/=/ = /' code.py; echo done\\n")
print(shell.stdout.readline(), open("code.py").read())
shell.stdin.close()
print(shell.wait())
""",
    "polled": """
import os, time
with open("plan.md", "w") as file:
    file.write("draft")
open("ready", "w").close()
while (text := open("plan.md").read()) in ("draft", ""):
    time.sleep(0.05)
print(text, os.path.getsize("plan.md"))
""",
    "by number": """
import os, tempfile, time
number = os.open("plan.md", os.O_CREAT | os.O_WRONLY)
os.write(number, b"draft")
os.close(number)
os.utime("plan.md", (1, 1))
os.chmod("plan.md", 0o600)
open("ready", "w").close()
while open("plan.md").read() in ("draft", ""):
    time.sleep(0.05)
print(open("plan.md").read())
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
    file.write("named")
os.rename(file.name, "named")
print(open("named").read())
""",
}


@pytest.mark.parametrize("name", EDITED)
def test_what_somebody_else_made_of_a_written_file_is_read(bench, name: str) -> None:
    """A person, or a command that was running already."""

    def edit() -> None:
        while not (bench.folder / "ready").exists():
            if over.wait(0.05):
                return
        (bench.folder / "new").write_text("edited")
        (bench.folder / "new").replace(bench.folder / "plan.md")  # at once: whoever has it open reads what it was

    over = threading.Event()
    person = threading.Thread(target=edit)
    person.start()
    try:
        out = bench.record(EDITED[name])
    finally:
        over.set()
        person.join()
    assert "edited" in out or "x = 1" in out
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert not replayed.report["warnings"]


def test_what_was_written_and_left_alone_is_its_own(bench) -> None:
    program = """
import os, tempfile, shutil
with open("a.txt", "w") as file:
    file.write("one")
    file.flush()
    print(open("a.txt").read())
shutil.copy2("a.txt", "b.txt")
os.utime("b.txt", (1, 1))
os.replace("b.txt", "c.txt")
os.symlink("c.txt", "link")
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as named:
    named.write("one")
os.rename(named.name, "named.txt")
number = os.open("n.txt", os.O_CREAT | os.O_WRONLY)
with os.fdopen(number, "w") as file:
    file.write("one")
open("d.txt", "w").write("one")
print([open(name).read() for name in ("a.txt", "c.txt", "link", "named.txt", "n.txt", "d.txt")])
"""
    bench.record(program)
    replayed = bench.replay_changed(program.replace("one", "three"))
    assert replayed.out == f"three\n{['three'] * 6}\n", replayed.err


UNCLOSED = """
import gc, os
def leave(path, mode, buffering, text):
    held = type("Held", (), {})()
    held.held = held
    held.file = open(path, mode, buffering)
    held.file.write(text)
    return held.file.fileno()
for at, (mode, buffering, text) in enumerate([("w", -1, "kept"), ("wb", 0, b"kept"), ("wb", -1, b"kept")]):
    number = leave(f"{at}", mode, buffering, text)
    gc.collect()
    try:
        print(os.fstat(number))
    except OSError as error:
        print(error.errno)
print(os.path.getsize("1"))
raw = open("raw", "wb", buffering=0)
raw.write(b"x")
raw.close()
raw.close()
print(raw.closed, type(raw), vars(raw))
open("at once", "w").write("x")
print(os.path.getsize("at once"))
"""


def test_an_unclosed_file_is_closed_as_ever(bench) -> None:
    """Also one that only the collector of garbage finds."""
    out = bench.record(UNCLOSED)
    bench.write(UNCLOSED, "bare.py")
    assert out == bench.run(sys.executable, "bare.py").stdout
    assert out.splitlines()[:4] == ["9", "9", "9", "4"]


def test_temporary_files_are_where_they_were(bench) -> None:
    (bench.folder / "first").mkdir()
    bench.environment["TMPDIR"] = str(bench.folder / "first")
    out = bench.record(
        "import tempfile, os\nprint(tempfile.gettempdir(), os.listdir(tempfile.mkdtemp()))\n"
        "with tempfile.TemporaryDirectory() as folder:\n    print(folder)\n"
        "tempfile.tempdir = '.'\nprint(tempfile.gettempdir())\n"
    )
    assert str(bench.folder / "first") in out
    shutil.rmtree(bench.folder / "first")
    (bench.folder / "second").mkdir()
    bench.environment["TMPDIR"] = str(bench.folder / "second")
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert not list((bench.folder / "second").iterdir()) and not (bench.folder / "first").exists()


SQL = {
    "elsewhere": """
os.chdir("data")
print(sqlite3.connect("app.db").execute("select name from sqlite_master").fetchall())
print(sqlite3.connect("file:app.db?mode=ro", uri=True).execute("select name from sqlite_master").fetchall())
""",
    "temporary": """
with tempfile.NamedTemporaryFile(suffix=".db") as file:
    use(file.name)
with tempfile.TemporaryDirectory() as folder:
    use(os.path.join(folder, "x.db"))
    use(f"file:{folder}/y.db?cache=private", uri=True)
""",
    "anew": """
for path in ("data/app.db", "x.db"):
    if os.path.exists(path):
        os.remove(path)
    use(path)
""",
}


@pytest.mark.parametrize("name", SQL)
def test_databases_of_sqlite(bench, name: str) -> None:
    def make_one() -> None:
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sqlite3; c = sqlite3.connect('data/app.db'); c.execute('create table t(x)')",
            ],
            cwd=bench.folder,
            check=True,
        )

    (bench.folder / "data").mkdir()
    (bench.folder / "temporary").mkdir()
    bench.environment["TMPDIR"] = str(bench.folder / "temporary")
    make_one()
    out = bench.record(
        "import os, sqlite3, tempfile\n"
        "def use(path, **options):\n"
        "    database = sqlite3.connect(path, **options)\n"
        "    with database:\n"
        "        database.execute('create table t(x)')\n"
        "        database.execute('insert into t values (1)')\n"
        "    print(database.execute('select count(*) from t').fetchall(), os.path.exists('x.db'))\n"
        "    database.close()\n" + SQL[name]
    )
    before = disk(bench.folder)
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert disk(bench.folder) == before


@pytest.mark.parametrize(
    "program",
    [
        "print(open(0).read())",
        "print(open('/dev/stdin', 'rb').read())",
        "import json, sys\nprint(json.load(sys.stdin))",
        "import json\nfile = open(0, encoding='utf-8', closefd=False)\nprint(json.load(file), file.name, file.mode)",
    ],
)
def test_standard_input_as_a_file(bench, program: str) -> None:
    bench.write(program)
    recorded = bench.run(BIN / "opentelemetry-instrument", sys.executable, "program.py", input='{"a": 1}')
    assert recorded.returncode == 0, recorded.stderr
    assert "a" in recorded.stdout
    replayed = bench.replay(stdin=subprocess.DEVNULL)
    assert (replayed.code, replayed.out) == (0, recorded.stdout), replayed.err
