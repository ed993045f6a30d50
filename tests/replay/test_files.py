"""Files and directories: what the program read is given back, and the disk is left alone."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SETUP = """
import os, pathlib, sys
W = pathlib.Path("work")
"""

PROGRAMS = {
    "reads": """
import json, fileinput, mmap
print(open("work/a.txt").read(), open("work/b.bin", "rb").read())
print((W / "a.txt").read_text(), (W / "b.bin").read_bytes())
print(json.load(open("work/c.json")), os.path.getsize("work/c.json"))
number = os.open("work/a.txt", os.O_RDONLY)
print(os.read(number, 4), os.fstat(number).st_size)
os.close(number)
with open("work/a.txt", encoding="utf-8", newline="") as file:
    print(file.name, file.readline(), file.tell(), list(file), file.mode)
with open("work/b.bin", "rb", buffering=0) as raw:
    print(raw.read(2), raw.name)
with open("work/a.txt", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
    print(held[:3])
with fileinput.input("work/a.txt") as lines:
    print(list(lines))
for path in ("work/none", "none/at/all", "work"):
    try:
        print(open(path).read())
    except OSError as error:
        print(repr(error), error.filename)
try:
    os.open("work/none", os.O_RDONLY)
except FileNotFoundError as error:
    print(error)
""",
    "lists": """
import glob
print(os.listdir("work"), sorted(os.listdir(b"work")))
print([(e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink(), e.stat().st_mtime_ns) for e in os.scandir("work")])
print(list(W.iterdir()), list(W.rglob("*.txt")), glob.glob("work/**", recursive=True), glob.glob("work/*.txt"))
print(list(os.walk("work")))
print(os.stat("work/a.txt"), os.lstat("work/link"), os.path.getmtime("work/d/e.txt"))
print((W / "a.txt").exists(), W.is_dir(), (W / "a.txt").is_file(), (W / "no").exists(), os.path.exists("work/d"))
print((W / "link").is_symlink(), os.readlink("work/link"), os.path.realpath("work/link"), (W / "link").resolve())
print(os.access("work/a.txt", os.R_OK), os.access("work/no", os.R_OK))
print(os.getcwd(), pathlib.Path.cwd())
os.chdir("work")
print(os.getcwd(), os.listdir("."), open("a.txt").read(), os.path.exists("d"))
for act in (lambda: os.stat("no"), lambda: os.listdir("no"), lambda: os.scandir("no"), lambda: os.chdir("no"),
            lambda: os.listdir("a.txt"), lambda: os.readlink("a.txt")):
    try:
        act()
    except OSError as error:
        print(repr(error), error.filename)
""",
    "writes": """
import shutil, tempfile
out = W / "out"
out.mkdir()
(out / "x.txt").write_text("one\\n")
with open(out / "x.txt", "a") as file:
    file.write("two\\n")
print((out / "x.txt").read_text(), (out / "x.txt").stat().st_size, os.listdir(out))
with open("work/a.txt", "r+") as file:
    print(file.read())
    file.write("more")
print(open("work/a.txt").read())
os.rename(out / "x.txt", out / "y.txt")
print(sorted(os.listdir(out)), (out / "x.txt").exists(), (out / "y.txt").read_text())
shutil.copy("work/a.txt", out / "z.txt")
shutil.copytree("work/d", out / "d")
print(sorted(p.name for p in out.rglob("*")), (out / "z.txt").read_text(), (out / "d" / "e.txt").read_text())
os.unlink("work/b.bin")
print(os.path.exists("work/b.bin"))
try:
    open("work/b.bin")
except FileNotFoundError as error:
    print(error)
try:
    open(out / "z.txt", "x")
except FileExistsError as error:
    print(error)
try:
    os.mkdir(out)
except FileExistsError as error:
    print(error)
os.makedirs(out / "p" / "q", exist_ok=True)
os.makedirs(out / "p" / "q", exist_ok=True)
with tempfile.TemporaryDirectory(dir=out) as folder:
    (pathlib.Path(folder) / "t").write_text("temporary")
    print(os.listdir(folder), (pathlib.Path(folder) / "t").read_text(), folder)
print(os.path.exists(folder))
with tempfile.NamedTemporaryFile("w+", dir=out) as file:
    file.write("named")
    file.flush()
    print(file.name, open(file.name).read())
with tempfile.TemporaryFile(dir=out) as file:
    file.write(b"x")
    file.seek(0)
    print(file.read())
number, name = tempfile.mkstemp()
os.write(number, b"here")
os.close(number)
print(name, open(name).read())
os.replace(name, out / "moved")
print((out / "moved").read_text(), os.path.exists(name))
os.symlink("y.txt", out / "s")
print((out / "s").read_text(), os.readlink(out / "s"))
os.chmod(out / "y.txt", 0o600)
os.utime(out / "y.txt", (1, 1))
print(oct((out / "y.txt").stat().st_mode), (out / "y.txt").stat().st_mtime)
shutil.move(out / "y.txt", out / "p" / "y.txt")
os.truncate(out / "p" / "y.txt", 2)
print((out / "p" / "y.txt").read_text(), sorted(os.listdir(out)))
shutil.rmtree(out / "p")
print(sorted(os.listdir(out)))
shutil.rmtree(out)
print(out.exists(), sorted(os.listdir("work")))
""",
    "commands": """
import subprocess
(W / "n.txt").write_text("alpha\\nbeta\\n")
print((W / "n.txt").read_text())
subprocess.run(["sed", "-i", "s/alpha/gamma/", "work/n.txt"], check=True)
print((W / "n.txt").read_text())
(W / "n.txt").write_text("delta\\n")
print(subprocess.check_output(["cat", "work/n.txt"], text=True), (W / "n.txt").read_text())
with open("work/out.log", "w") as log:
    subprocess.run("echo $$", shell=True, stdout=log)
print(open("work/out.log").read(), sorted(os.listdir("work")))
subprocess.run(["rm", "work/n.txt"])
print((W / "n.txt").exists(), sorted(os.listdir("work")))
""",
}


def make(folder: Path) -> None:
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    (work / "d").mkdir(parents=True)
    (work / "a.txt").write_text("first\nsecond é\n")
    (work / "b.bin").write_bytes(b"\0\xff\x01")
    (work / "c.json").write_text('{"a": [1, 2]}')
    (work / "d" / "e.txt").write_text("deep")
    (work / "link").symlink_to("a.txt")


def tree(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.mark.parametrize("after", ["gone", "changed"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_read_is_given_back(bench, name: str, after: str) -> None:
    make(bench.folder)
    out = bench.record(SETUP + PROGRAMS[name])
    assert "Error" in out or name not in ("reads", "lists")
    work = bench.folder / "work"
    shutil.rmtree(work)
    if after == "changed":
        work.mkdir()
        (work / "a.txt").write_text("something else")
        (work / "new.txt").write_text("new")
    before = tree(work)
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert tree(work) == before
    assert not replayed.report["new_readings"] and not replayed.report["unread"]


def test_a_file_that_has_changed_since_is_told_of(bench) -> None:
    """A prompt that was edited: the replay goes by the recorded one, and says so."""
    prompts = bench.folder / "prompts"
    prompts.mkdir()
    for name in ("edited", "kept", "gone", "rewritten"):
        (prompts / name).write_text(f"the {name} prompt")
    out = bench.record(
        "names = ('edited', 'kept', 'gone', 'rewritten')\n"
        "print([open(f'prompts/{name}').read() for name in names])\n"
        "open('prompts/rewritten', 'w').write('by the program')\n"
    )
    (prompts / "edited").write_text("another prompt")
    (prompts / "gone").unlink()
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    (warning,) = [each for each in replayed.report["warnings"] if "is not what it was" in each]
    assert "prompts/edited" in warning and "OTEL_AGENT_REPLAY_FILES_EXCLUDE" in warning
    assert "prompts/edited is not what it was" in replayed.err


TEMPORARY = """
import os, pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp(dir="scratch"))
print(folder.is_dir(), list(folder.iterdir()), folder.stat().st_mtime)
try:
    folder.mkdir()
except FileExistsError as error:
    print(error)
folder.mkdir(exist_ok=True)
(folder / "a.txt").write_text("a")
number, name = tempfile.mkstemp(dir="scratch")
os.write(number, b"12")
os.close(number)
with tempfile.NamedTemporaryFile("w", dir="scratch", delete=False) as file:
    print(os.path.getsize(file.name), file.name)
    file.write("more")
with open(tempfile.mktemp(dir="scratch"), "w") as plain:
    plain.write("123")
print(sorted(entry.name for entry in os.scandir("scratch")), [os.path.getsize(path) for path in (name, file.name)])
print(open(name).read(), open(file.name).read(), (folder / "a.txt").read_text())
"""


@pytest.mark.parametrize("left", [True, False], ids=["left there", "taken away"])
@pytest.mark.parametrize("captured", ["process,filesystem", "none"])
def test_temporary_files_are_made_again(bench, captured: str, left: bool) -> None:
    """Where files are not recorded, those that the run left behind are used again."""
    bench.environment["OTEL_AGENT_REPLAY_CAPTURE"] = captured
    scratch = bench.folder / "scratch"
    scratch.mkdir()
    out = bench.record(TEMPORARY)
    names = [path for path, _ in tree(scratch)]
    assert len(names) == 5
    if not left:
        shutil.rmtree(scratch)
        scratch.mkdir()
    before = tree(scratch)
    replayed = bench.replay()
    if captured == "none":
        assert [path for path, _ in tree(scratch)] == names
        return
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert tree(scratch) == before
    assert not replayed.report["new_readings"] and not replayed.report["unread"]
