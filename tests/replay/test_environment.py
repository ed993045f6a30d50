"""Variables of the environment: what the program read by name when it was recorded, it reads in every replay."""

from __future__ import annotations

import base64
import json

import pytest

READS = """
import os
from os import environ, getenv

def show(*values):
    print(*values)

show(os.environ["REGION"], environ.get("REGION"), getenv("REGION"), os.getenvb(b"REGION"), os.environb[b"REGION"])
show("REGION" in os.environ, os.path.expandvars("in $REGION or ${REGION}"), "ODD" in environ, repr(environ.get("ODD")))
show(getenv("NOWHERE"), getenv("NOWHERE", "default"), environ.get("NOWHERE", 3), "NOWHERE" in environ)
try:
    os.environ["NOWHERE"]
except KeyError as error:
    show(repr(error))
show(environ.setdefault("NOWHERE", "own"), environ["NOWHERE"], environ.setdefault("REGION", "own"))
environ["MADE"] = "1"
show(environ["MADE"], environ.pop("MADE"), environ.get("MADE"))
show(environ.pop("REGION"), environ.get("REGION"), "REGION" in environ, environ.pop("REGION", "no more"))
for name in ("A_NAME", "B_NAME", "A_NAME"):
    show(name, environ.get(name))
"""


def kept_by(bench) -> bytes:
    """All that was recorded."""
    return b"".join(path.read_bytes() for path in (bench.folder / "home").rglob("*.spool"))


@pytest.fixture
def recorded(bench) -> str:
    """What the program printed when it was recorded."""
    bench.environment |= {"REGION": "eu", "ODD": "\udcff\u00fc", "A_NAME": "a", "EMPTY": ""}
    return bench.record(READS)


@pytest.mark.parametrize("here", [{}, {"REGION": "us", "NOWHERE": "here", "B_NAME": "b", "MADE": "x"}], ids=str)
def test_what_was_read_by_name_is_given_back(bench, recorded: str, here: dict[str, str]) -> None:
    for name in ("REGION", "ODD", "A_NAME"):
        del bench.environment[name]
    bench.environment |= here
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, recorded), replayed.err
    assert not replayed.report["new_readings"] and not replayed.report["unread"]
    told = [line for line in replayed.report["warnings"] if "of the environment" in line]
    if here:
        (line,) = told
        assert line.startswith("B_NAME, NOWHERE, REGION of the environment") and "--free environment" in line
    else:
        assert told == []


def test_it_is_left_to_the_machine_where_that_is_wanted(bench, recorded: str) -> None:
    bench.environment["REGION"] = "us"
    replayed = bench.replay(options=("--free", "environment"))
    assert replayed.code == 1
    assert replayed.out == recorded.replace("eu", "us")
    assert not replayed.report["new_readings"] and not replayed.report["unread"]
    assert not [line for line in replayed.report["warnings"] if "of the environment" in line]


def test_who_takes_all_takes_those_that_are_there(bench) -> None:
    """For commands that it starts, mostly. Nothing of that is recorded, secrets least of all."""
    program = (
        "import os\ncopies = [dict(os.environ), os.environ.copy(), {**os.environ}, os.environ | {}]\n"
        "print([len(copy['REGION']) for copy in copies], [len(v) for k, v in os.environ.items() if k == 'REGION'])\n"
    )
    bench.environment["REGION"] = "eu-of-the-recording"
    assert bench.record(program) == "[19, 19, 19, 19] [19]\n"
    assert b"eu-of-the-recording" not in kept_by(bench)
    bench.environment["REGION"] = "us"
    assert bench.replay().out == "[2, 2, 2, 2] [2]\n"


def test_new_code_reads_what_was_recorded_elsewhere(bench) -> None:
    program = "import os\nprint(os.environ['REGION'])\n"
    bench.environment["REGION"] = "eu"
    out = bench.record(program)
    bench.environment |= {"REGION": "us", "OTHER": "here"}
    bench.write(f"{program}def again():\n    return os.environ['REGION'], os.environ['OTHER']\nprint(again())\n")
    replayed = bench.replay()
    assert replayed.out == out + "('eu', 'here')\n"
    assert [line.partition(" at ")[0] for line in replayed.report["new_readings"]] == [
        "main environment:get:REGION",
        "main environment:get:OTHER",
    ]
    assert bench.replay(options=("--strict",)).code == 125


def test_a_library_that_fills_it_in_does_not_change_what_was_read(bench) -> None:
    """Here the variable is not set, so that the library sets it from its file: the program read another value."""
    (bench.folder / "filled.py").write_text(
        "import os\ndef fill():\n    if 'REGION' not in os.environ:\n        os.environ['REGION'] = 'of the file'\n"
    )
    bench.environment["OTEL_AGENT_REPLAY_READINGS_EXCLUDE"] = "filled"
    bench.environment["REGION"] = "eu"
    out = bench.record("import os, filled\nfilled.fill()\nprint(os.environ['REGION'], os.environ.get('REGION'))\n")
    del bench.environment["REGION"]
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert out == "eu eu\n"


def test_secrets_are_masked_by_name_and_by_shape(bench) -> None:
    secrets = {"DATABASE_URL": "postgres://me:hunter2-hunter2@db/x", "PASSPHRASE_OF_IT": "correct horse battery"}
    secrets["SIGNING_KEY"] = "no-shape-that-is-known"
    bench.environment |= {**secrets, "OTEL_AGENT_REPLAY_MASK_KEYS": "PASSPHRASE_OF_IT", "PLAIN": "kept as it is"}
    bench.record(f"import os\nfor name in {[*secrets, 'PLAIN']!r}:\n    os.environ[name]\n")
    kept = kept_by(bench)
    assert b"kept as it is" in kept
    assert b"hunter2" not in kept and b"correct horse" not in kept and b"no-shape" not in kept
    assert b"masked.environment" in kept
    for name in secrets:
        del bench.environment[name]
    assert bench.replay().code == 0


def test_where_a_secret_stood_the_program_has_its_own(bench) -> None:
    program = "import os\nprint(len(os.environ['DB_PASS']), os.environ['MAX_TOKENS'], os.environ['TOKEN_LIMIT'])\n"
    bench.environment |= {"DB_PASS": "correct horse", "MAX_TOKENS": "4000", "TOKEN_LIMIT": "12"}
    assert bench.record(program) == "13 4000 12\n"
    assert b"correct horse" not in kept_by(bench)
    bench.environment |= {"DB_PASS": "battery", "MAX_TOKENS": "3", "TOKEN_LIMIT": "4"}
    assert bench.replay(options=("--expect", "ok")).out == "7 4000 12\n"


def test_a_file_of_variables_has_no_secret_in_the_recording(bench) -> None:
    lines = [
        "DB_PASSWORD=hunter2hunter2",
        "export API_TOKEN='abcdef-123456'",
        'WEBHOOK_SECRET="shh-shh-shh"',
        "N=plain",
    ]
    (bench.folder / ".env").write_text("\n".join([*lines, "KEY_OF = os.environ['X']", "MY_KEY=os.environ['X']", ""]))
    bench.record(
        "import subprocess\nprint(len(open('.env').read()))\nsubprocess.run(['cat', '.env'], capture_output=True)\n"
    )
    kept = kept_by(bench)
    for each in (b"hunter2", b"abcdef-123", b"shh-shh"):
        assert each not in kept and base64.b64encode(each) not in kept
    replayed = bench.replay_changed("print(open('.env').read())\n", options=("--expect", "ok"))
    assert "N=plain" in replayed.out and "MY_KEY=os.environ['X']" in replayed.out
    assert replayed.out.count("masked.environment.") == 3


def test_variables_by_their_setting_are_there_for_libraries_too(bench) -> None:
    """Which go through all of them, or ask from C; where this machine has its own value, that stays."""
    bench.environment |= {"REGION": "eu", "OTEL_AGENT_REPLAY_ENVIRONMENT": "REGION,ELSEWHERE"}
    program = "import os, json\nprint(json.dumps({k: v for k, v in os.environ.items() if k == 'REGION'}))\n"
    out = bench.record(program)
    assert json.loads(out) == {"REGION": "eu"}
    del bench.environment["REGION"]
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


def test_freed_commands_run_and_freed_files_are_read(bench) -> None:
    program = (
        "import subprocess, pathlib\n"
        "print(pathlib.Path('note.txt').read_text())\n"
        "print(subprocess.run(['cat', 'note.txt'], capture_output=True, text=True).stdout)\n"
    )
    (bench.folder / "note.txt").write_text("before")
    bench.record(program)
    (bench.folder / "note.txt").write_text("after")
    for free, out in (
        ((), "before\nbefore\n"),
        (("process",), "before\nafter\n"),
        (("filesystem",), "after\nbefore\n"),
        (("filesystem", "process"), "after\nafter\n"),
    ):
        replayed = bench.replay(options=("--expect", "ok", *(part for kind in free for part in ("--free", kind))))
        assert (replayed.code, replayed.out) == (0, out), replayed.err
        assert not replayed.report["unread"] and not replayed.divergences


def test_whose_recording_it_is_not_says_nothing_of_what_is_loaded(bench) -> None:
    """A variable that a setting named reaches the process only with a command that may be run, and no loader ever."""
    names = ("REGION", "LD_PRELOAD", "PYTHONSTARTUP", "BASH_ENV")
    bench.environment |= dict.fromkeys(names, "/nowhere") | {"OTEL_AGENT_REPLAY_ENVIRONMENT": ",".join(names)}
    program = "import os\nprint(sorted(k for k, v in os.environ.items() if v == '/nowhere'))\n"
    bench.record(program)
    for name in names:
        del bench.environment[name]
    assert bench.replay().out == "['REGION']\n"
    (bench.folder / "home" / "trust.key").unlink()
    replayed = bench.replay("python", "program.py")
    assert replayed.out == "[]\n" and "ld.so" not in replayed.err


SET = """
import os
def model():
    return os.environ.get("MODEL_NAME", "none")
SETS
print(model())
"""


@pytest.mark.parametrize(
    "sets",
    [
        "os.environ['MODEL_NAME'] = 'repaired'",
        "os.environ.update(MODEL_NAME='repaired')",
        "os.environ.pop('MODEL_NAME')",
    ],
)
def test_what_the_changed_program_sets_counts(bench, sets: str) -> None:
    bench.environment["MODEL_NAME"] = "old"
    assert bench.record(SET.replace("SETS", "")) == "old\n"
    replayed = bench.replay_changed(SET.replace("SETS", sets), options=("--expect", "ok"))
    assert replayed.out == ("none\n" if "pop" in sets else "repaired\n")


def test_what_the_process_set_is_no_reading_of_a_run_in_it(bench) -> None:
    program = (
        "import os\nimport otel_agent_replay as oar\nos.environ['MODE'] = 'a'\n"
        "with oar.run('one'):\n    print('in', os.environ['MODE'])\nprint('after', os.environ['MODE'])\n"
    )
    bench.record(program)
    (process,) = (run["run_id"] for run in bench.runs() if run["entry"] == "process")
    bench.write(program.replace("'a'", "'b'"))
    replayed = bench.replay(run=process, options=("--expect", "ok"))
    assert replayed.out == "in b\nafter b\n"
    assert not [line for line in replayed.report["warnings"] if "of the environment" in line]


def test_what_is_here_can_be_deleted(bench) -> None:
    program = (
        "import os\nprint(os.environ.get('OPTX'))\n"
        "for name in [name for name in os.environ if name.startswith('OPTX')]:\n    del os.environ[name]\n"
        "print(os.environ.get('OPTX'))\n"
        "kept = dict(os.environ)\nos.environ.clear()\nprint(len(os.environ))\nos.environ.update(kept)\n"
    )
    out = bench.record(program)
    bench.environment["OPTX"] = "1"
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


def test_a_masked_value_is_not_said_to_be_another(bench) -> None:
    bench.environment["DATABASE_URL"] = "postgres://user:hunter2secret@db/x"
    bench.record("import os\nos.environ['DATABASE_URL']\n")
    assert not [line for line in bench.replay().report["warnings"] if "of the environment" in line]


def test_what_a_library_filled_in_is_given_where_it_is_set(bench) -> None:
    """There the library found nothing and set it; here it is set to something else, and the library leaves that."""
    (bench.folder / "filled.py").write_text(
        "import os\ndef fill():\n    if 'REGION' not in os.environ:\n        os.environ['REGION'] = 'of the file'\n"
    )
    bench.environment["OTEL_AGENT_REPLAY_READINGS_EXCLUDE"] = "filled"
    out = bench.record("import os, filled\nfilled.fill()\nprint(os.environ['REGION'])\n")
    assert out == "of the file\n"
    bench.environment["REGION"] = "us"
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


@pytest.mark.parametrize(
    "changed",
    [
        "from unittest import mock\nwith mock.patch.dict(os.environ, {'ONE': '1'}):\n    print(os.environ['ONE'])\n",
        "kept = dict(os.environ)\nos.environ.clear()\nos.environ.update(kept)\n",
        "before = os.environ['REGION']\nos.environ['REGION'] = 'x'\nos.environ['REGION'] = before\n",
    ],
)
def test_what_was_put_back_is_the_worlds_again(bench, changed: str) -> None:
    bench.environment["REGION"] = "eu"
    out = bench.record(f"import os\n{changed}print(os.environ['REGION'], 'ONE' in os.environ)\n")
    assert out.endswith("eu False\n")
    bench.environment["REGION"] = "eu" if "before" in changed else "us"
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


def test_deleting_says_whether_it_was_there(bench) -> None:
    program = (
        "import os\nfor name in ('HTTPS_PROXY', 'NEVER'):\n    try:\n        del os.environ[name]\n"
        "        print('deleted', name)\n    except KeyError as error:\n        print(repr(error))\n"
        "print('HTTPS_PROXY' in os.environ)\n"
    )
    bench.environment["HTTPS_PROXY"] = "http://127.0.0.1:9"
    out = bench.record(program)
    assert out == "deleted HTTPS_PROXY\nKeyError('NEVER')\nFalse\n"
    del bench.environment["HTTPS_PROXY"]
    bench.environment["NEVER"] = "here"
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


def test_whoever_asks_for_the_program(bench) -> None:
    """`shutil.which` looks through PATH; a thread reads what the program handed to it."""
    tool = bench.folder / "bin" / "mytool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    program = (
        "import asyncio, os, shutil\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "print(shutil.which('mytool'), asyncio.run(asyncio.to_thread(os.getenv, 'REGION')))\n"
        "with ThreadPoolExecutor(1) as pool:\n    print(list(pool.map(os.environ.get, ['REGION', 'PATH'])))\n"
    )
    path = bench.env["PATH"]
    bench.environment |= {"REGION": "eu", "PATH": f"{tool.parent}:{path}"}
    out = bench.record(program)
    assert str(tool) in out and "eu" in out
    bench.environment |= {"REGION": "us", "PATH": path}
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


CLIENTS = """
import anthropic, openai

client = openai.OpenAI(max_retries=0)
print(client.base_url, client.organization, anthropic.Anthropic().base_url)
messages = [{"role": "user", "content": "hello"}]
print(client.chat.completions.create(model="m", messages=messages).choices[0].message.content)
print(client.post("/elsewhere", body={"messages": messages, "model": "m"}, cast_to=object)["id"])
azure = openai.AzureOpenAI(max_retries=0)
print(azure.base_url, azure.chat.completions.create(model="m", messages=messages).choices[0].message.content)
"""


def test_what_clients_of_models_read_by_name_is_given_back(model_bench) -> None:
    """Else a program that leaves to its client where the model is cannot be replayed on a machine without that."""
    url = model_bench.base_url
    there = {"OPENAI_BASE_URL": url, "OPENAI_ORG_ID": "org-there", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
    there |= {"AZURE_OPENAI_ENDPOINT": url, "AZURE_OPENAI_API_KEY": "key", "OPENAI_API_VERSION": "2024-10-21"}
    model_bench.environment |= {"ANTHROPIC_API_KEY": "sk-ant-there", **there}
    out = model_bench.record(CLIENTS)
    model_bench.environment = {}
    replayed = model_bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert replayed.report["new_readings"] == replayed.report["unread"] == []
    model_bench.environment = {"OPENAI_BASE_URL": "http://127.0.0.1:2/other"}
    replayed = model_bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert any(line.startswith("OPENAI_BASE_URL of the environment") for line in replayed.report["warnings"])


def test_what_the_program_sets_for_its_client_is_its_own(bench) -> None:
    bench.environment = {"OPENAI_BASE_URL": "http://there"}
    program = "import openai, os\nos.environ['OPENAI_BASE_URL'] = 'http://own'\nprint(openai.OpenAI().base_url)\n"
    out = bench.record(program)
    bench.environment = {}
    assert bench.replay().out == out == "http://own\n"
