# ruff: noqa: E501 (programs as text)
"""Whole programs in processes of their own: what the world handed out is handed out again, edit or no edit."""

from __future__ import annotations

import json
import textwrap

import pytest

AMBIENT = """
    import datetime, json, os, random, secrets, tempfile, time, uuid
    from datetime import datetime as dt, timezone, timedelta
    from time import time as early, monotonic
    from zoneinfo import ZoneInfo

    class Mine(datetime.datetime):
        pass

    def stamp():
        return datetime.datetime.now().isoformat()

    def main():
        random.seed(7)
        seen = {
            "now": datetime.datetime.now().isoformat(),
            "utc": datetime.datetime.now(datetime.UTC).isoformat(),
            "zone": dt.now(ZoneInfo("Asia/Kolkata")).isoformat(),
            "offset": dt.now(tz=timezone(timedelta(hours=-3))).isoformat(),
            "mine": [type(Mine.now()).__name__, Mine.now(timezone.utc).isoformat(), Mine.today().isoformat()],
            "today": [str(datetime.date.today()), datetime.datetime.today().isoformat()],
            "t": [time.time(), time.time_ns(), early(), time.monotonic(), monotonic(), time.perf_counter()],
            "local": [time.strftime("%H:%M:%S"), time.ctime(), time.asctime(), list(time.localtime()), list(time.gmtime())],
            "zone of local": time.localtime().tm_zone,
            "seeded": [random.random(), random.randint(1, 10**6), random.gauss(0, 1), random.choice("abcdef")],
            "shuffled": random.sample(range(100), 10),
            "own": random.Random().random(),
            "system": random.SystemRandom().random(),
            "secrets": [secrets.token_hex(8), secrets.randbelow(1000), secrets.choice("abc")],
            "uuids": [str(uuid.uuid4()), str(uuid.uuid1()), uuid.uuid4().hex],
            "bytes": os.urandom(4).hex(),
            "pid": os.getpid(),
            "temporary": os.path.basename(tempfile.mktemp()),
            "stamps": [stamp() for _ in range(3)],
            "big": random.getrandbits(200),
            "own seeded": random.Random(3).random(),
        }
        print(json.dumps(seen))

    if __name__ == "__main__":
        main()
"""


@pytest.fixture(scope="module")
def recorded(module_process):
    """One recording of the program above, for all tests that replay it."""
    live, tape, _ = module_process.run(AMBIENT)
    return module_process, live, tape


def test_what_the_world_handed_out_is_handed_out_again(recorded):
    process, live, tape = recorded
    other, _, _ = process.run(AMBIENT)
    again, replayed, _ = process.run(AMBIENT, tape)
    assert again == live
    assert replayed["new"] == []
    differing = {name for name, value in json.loads(other).items() if json.loads(live)[name] != value}
    assert {"now", "utc", "t", "own", "system", "secrets", "uuids", "bytes", "pid", "temporary", "stamps"} <= differing
    assert not {"seeded", "shuffled", "big", "own seeded"} & differing  # a seed means what it meant


def test_a_seeded_program_draws_what_it_draws_unpatched(recorded):
    import random

    _, live, _ = recorded
    random_state = random.getstate()
    try:
        random.seed(7)
        expected = [random.random(), random.randint(1, 10**6), random.gauss(0, 1), random.choice("abcdef")]
        sample = random.sample(range(100), 10)
        big = random.getrandbits(200)
    finally:
        random.setstate(random_state)
    seen = json.loads(live)
    assert (seen["seeded"], seen["shuffled"], seen["big"]) == (expected, sample, big)


def test_another_time_zone_shows_the_recorded_one(process):
    live, tape, _ = process.run(AMBIENT, env={"TZ": "America/New_York"})
    again, replayed, _ = process.run(AMBIENT, tape, env={"TZ": "Asia/Tokyo"})
    assert again == live and replayed["new"] == []


@pytest.mark.parametrize(
    "edit",
    [
        (
            "random.seed(7)\n",
            "random.seed(7)\n        datetime.datetime.now(); uuid.uuid4(); random.random(); time.time()\n",
        ),
        (
            '"bytes": os',
            '"x": [datetime.datetime.now() and 0, uuid.uuid4() and 0, random.random() * 0],\n            "bytes": os',
        ),
        (
            "        print(json",
            "        stamp(); uuid.uuid4(); random.shuffle([1, 2, 3]); os.urandom(9)\n        print(json",
        ),
        (
            "def main():",
            "def another():\n        return [time.time(), uuid.uuid4(), random.random()]\n\n    def main():\n        another()",
        ),
        ("def stamp():", "def stamp():\n        extra = time.time()"),
        ("def stamp():", "# a comment\n\n\n    def stamp():"),
        ("import datetime, json", "import sys, datetime, json"),
    ],
)
def test_one_more_reading_is_new_and_takes_nothing(recorded, edit):
    process, live, tape = recorded
    assert AMBIENT.count(edit[0]) == 1
    again, _, _ = process.run(AMBIENT.replace(*edit), tape)
    seen = json.loads(again)
    seen.pop("x", None)
    assert seen == json.loads(live)


def test_what_is_new_is_the_same_each_time(recorded):
    process, _, tape = recorded
    more = "print(json.dumps(seen), datetime.datetime.now(), uuid.uuid4(), uuid.uuid1(), random.random(), os.urandom(3), time.time(), time.localtime(), random.Random().random())"
    first, new, _ = process.run(AMBIENT.replace("print(json.dumps(seen))", more), tape)
    second, again, _ = process.run(AMBIENT.replace("print(json.dumps(seen))", more), tape)
    assert first == second and new["new"] == again["new"] and len(new["new"]) == 8


def test_a_renamed_function_keeps_its_readings(recorded):
    process, live, tape = recorded
    again, replayed, _ = process.run(
        AMBIENT.replace("stamp()", "moment()").replace("def main", "def run").replace("    main()", "    run()"), tape
    )
    assert again == live and replayed["new"] == []


def test_a_program_may_be_imported_or_run_by_another(recorded):
    process, live, tape = recorded
    (process.folder / "inner.py").write_text(textwrap.dedent(AMBIENT))
    through = (
        "import os, runpy\nrunpy.run_path(os.path.join(os.path.dirname(__file__), 'inner.py'), run_name='__main__')\n"
    )
    imported = "import inner\ninner.main()\n"
    live, tape, _ = process.run(through)
    for launcher in (through, imported):
        again, replayed, _ = process.run(launcher, tape)
        assert again == live and replayed["new"] == []


def test_a_debugger_sees_the_same_values(recorded):
    process, live, tape = recorded
    again, replayed, _ = process.run(AMBIENT, tape, args=("-m", "pdb", "-c", "continue", "-c", "quit"))
    assert json.loads(again.splitlines()[0]) == json.loads(live) and replayed["new"] == []


LIBRARIES = """
    import asyncio, gzip, json, logging, queue, subprocess, sys, threading, time, email.utils, zipfile, io
    import concurrent.futures, uuid, datetime, dataclasses
    import pydantic

    class Event(pydantic.BaseModel):
        id: uuid.UUID = pydantic.Field(default_factory=uuid.uuid4)
        at: datetime.datetime = pydantic.Field(default_factory=datetime.datetime.now)

    @dataclasses.dataclass
    class Thing:
        id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
        at: float = dataclasses.field(default_factory=time.time)

    class Timer:
        clock = time.perf_counter
        def __init__(self):
            self.began = self.clock()

    def make():
        return Event().model_dump_json()

    records = []
    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.created)

    async def loop():
        began = asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.05)
        except TimeoutError:
            pass
        await asyncio.sleep(0.01)
        made = await asyncio.to_thread(uuid.uuid4)
        return asyncio.get_running_loop().time() - began < 5

    def main():
        logging.getLogger().addHandler(Keep())
        logging.warning("hello")
        waits = []
        try:
            queue.Queue().get(timeout=0.02)
        except queue.Empty:
            waits.append("queue")
        threading.Event().wait(0.02)
        try:
            subprocess.run([sys.executable, "-c", "import time; time.sleep(5)"], timeout=0.2)
        except subprocess.TimeoutExpired:
            waits.append("subprocess")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(concurrent.futures.wait([pool.submit(lambda: 1)], timeout=1).done)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("a", "b")
        print(json.dumps({
            "loop": asyncio.run(loop()), "waits": waits, "event": [make(), make()], "thing": dataclasses.astuple(Thing()),
            "timer": Timer().began, "zipped": gzip.compress(b"x").hex(), "archive": archive.getvalue().hex(),
            "date": email.utils.formatdate(), "message": email.utils.make_msgid(domain="x"),
        }))
        sys.stderr.write(f"CREATED {records[0]}")

    main()
"""


def test_libraries_read_for_the_program_and_infrastructure_keeps_its_clock(process):
    live, tape, error = process.run(LIBRARIES)
    again, replayed, later = process.run(LIBRARIES, tape)
    assert again == live, (again, live)
    assert replayed["new"] == []
    assert float(later.rpartition("CREATED ")[2]) > float(error.rpartition("CREATED ")[2])  # logging is real
    sources = {source for _, source, _, _ in tape["values"]}
    assert sources - {"clock:time.localtime"} == {  # as some versions format a date
        "clock:datetime.now",
        "clock:time.perf_counter",
        "clock:time.time",
        "random:uuid4",
        "random:getrandbits:64",
        "process:getpid",
    }
    assert [what for _, what, _ in tape["notes"] if "process" in what]


def test_one_more_object_takes_no_reading_of_the_others(process):
    live, tape, _ = process.run(LIBRARIES)
    again, replayed, _ = process.run(LIBRARIES.replace("waits = []", "waits = []; make(); Event(); Thing()"), tape)
    assert json.loads(again) == json.loads(live)
    assert len(replayed["new"]) == 6


SLEEPER = """
    import time, threading, concurrent.futures, asyncio, json
    def main():
        a = time.time()
        time.sleep(0.3)
        b = time.time()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(time.sleep, [0.1, 0.1]))
        thread = threading.Thread(target=time.sleep, args=(0.1,))
        thread.start(); thread.join()
        EXTRA
        print(json.dumps([a, b]))
        for bad in (-1, "1", None, float("nan")):
            try:
                time.sleep(bad)
            except (ValueError, TypeError) as error:
                print(type(error).__name__, error)
    main()
"""


def test_sleeping_takes_no_time_and_moves_the_virtual_clock(process):
    import time

    live, tape, _ = process.run(SLEEPER.replace("EXTRA", "pass"))
    began = time.monotonic()
    again, replayed, _ = process.run(SLEEPER.replace("EXTRA", "pass"), tape)
    assert again == live and replayed["slept"] == [0.3, 0.1, 0.1, 0.1]
    extra = "x = time.time(); time.sleep(3600); y = time.time(); m = time.monotonic(); time.sleep(60); print(y - x, time.monotonic() - m, b <= x)"
    again, _, _ = process.run(SLEEPER.replace("EXTRA", extra), tape)
    assert time.monotonic() - began < 30
    first, rest = again.split("\n", 1)
    assert rest == live
    wall, mono, later = first.split()
    assert (
        float(wall) == pytest.approx(3600, abs=0.01) and float(mono) == pytest.approx(60, abs=0.01) and later == "True"
    )
