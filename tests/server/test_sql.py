"""The ClickHouse HTTP interface: what clients of it do, and what nobody may do."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError

HOSTILE = {
    "file, scalar": "SELECT file('/etc/passwd')",
    "file, quoted": "SELECT `file`('/etc/passwd')",
    "file, spaced": "SELECT FiLe /* x */ ('/etc/passwd')",
    "file, in a string function": "SELECT length(file('/etc/passwd'))",
    "file, table": "SELECT * FROM file('/etc/passwd', 'LineAsString', 'a String')",
    "file, described": "DESCRIBE TABLE file('/etc/passwd', 'LineAsString')",
    "file, in EXPLAIN": "EXPLAIN SELECT * FROM file('/etc/passwd', 'LineAsString', 'a String')",
    "file, in a CTE": "WITH x AS (SELECT * FROM file('/etc/passwd', 'LineAsString', 'a String')) SELECT * FROM x",
    "file cluster": "SELECT * FROM fileCluster('default', '/etc/passwd', 'LineAsString', 'a String')",
    "filesystem": "SELECT * FROM filesystem('/etc')",
    "url": "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString', 'a String')",
    "url, described": "DESCRIBE TABLE url('http://127.0.0.1:1/', 'LineAsString')",
    "s3": "SELECT * FROM s3('http://127.0.0.1:1/x', 'CSV', 'a String')",
    "remote": "SELECT * FROM remote('127.0.0.1:1', system.one)",
    "cluster": "SELECT * FROM cluster('default', system.one)",
    "mysql": "SELECT * FROM mysql('127.0.0.1:1', 'd', 't', 'u', 'p')",
    "sqlite": "SELECT * FROM sqlite('/tmp/x.db', 't')",
    "remote column": "SELECT hasColumnInTable('127.0.0.1:1', 'u', 'p', 'd', 't', 'c')",
    "executable": "SELECT * FROM executable('id', 'CSV', 'a String')",
    "python": "SELECT * FROM Python(settings)",
    "eval": "SELECT * FROM eval('SELECT 1')",
    "a model": "SELECT aiGenerate('hello')",
    "sleep": "SELECT sleep(3)",
    "sleep for each": "SELECT sleepEachRow(3) FROM numbers(1000)",
    "stacks": "SELECT * FROM system.stack_trace",
    "stacks, quoted": "SELECT * FROM `system`.`stack_trace`",
    "outfile": "SELECT 1 INTO OUTFILE '{folder}/out'",
    "outfile, in EXPLAIN": "EXPLAIN SELECT 1 INTO OUTFILE '{folder}/out'",
    "outfile, truncating": "SELECT 1 INTO OUTFILE '{folder}/out' TRUNCATE FORMAT CSV",
    "infile": "INSERT INTO otel.loaded_runs FROM INFILE '/etc/passwd' FORMAT CSV",
    "two statements": "SELECT 1; DROP TABLE otel.runs",
    "two statements, hidden": "SELECT 1 -- x\n; SET readonly = 0; DROP TABLE otel.runs",
    "readonly off": "SET readonly = 0",
    "settings": "SELECT 1 SETTINGS readonly = 0",
    "insert": "INSERT INTO otel.runs (run_id) VALUES ('x')",
    "insert, commented": "/* SELECT */ INSERT INTO otel.runs (run_id) VALUES ('x')",
    "insert from a query": "INSERT INTO otel.loaded_runs SELECT 'a', 'b'",
    "drop": "DROP TABLE otel.runs",
    "drop the database": "DROP DATABASE otel",
    "truncate": "TRUNCATE TABLE otel.runs",
    "alter": "ALTER TABLE otel.runs DELETE WHERE 1",
    "delete": "DELETE FROM otel.runs WHERE 1",
    "optimize": "OPTIMIZE TABLE otel.runs FINAL",
    "rename": "RENAME TABLE otel.runs TO otel.gone",
    "create": "CREATE TABLE otel.x (a String) ENGINE = Memory",
    "create a function": "CREATE FUNCTION f AS x -> x",
    "create a dictionary": "CREATE DICTIONARY otel.d (a UInt64) PRIMARY KEY a "
    "SOURCE(FILE(path '/etc/passwd' format 'CSV')) LAYOUT(FLAT()) LIFETIME(0)",
    "create a user": "CREATE USER x",
    "grant": "GRANT ALL ON *.* TO default",
    "attach": "ATTACH TABLE otel.x FROM '/tmp' (a Int8) ENGINE = MergeTree ORDER BY a",
    "detach": "DETACH TABLE otel.runs",
    "system": "SYSTEM SHUTDOWN",
    "stop merges": "SYSTEM STOP MERGES",
    "kill": "KILL QUERY WHERE 1",
    "backup": "BACKUP TABLE otel.runs TO Disk('default', 'x')",
    "watch": "WATCH otel.runs_view",
    "use of a url table": "SELECT * FROM otel.`http://127.0.0.1:1/`",
    "garbage": "\u0007\u202eSELEKT",
    "nothing": "",
    "NUL": "SELECT 1\0; DROP TABLE otel.runs",
    "unclosed": "SELECT " + "'" * 10_001,
    "a flood of parentheses": "SELECT " + "(" * 20_000,
    "too long": "SELECT '" + "x" * (1 << 20) + "'",
}
FOR_THE_WRITER_TOO = [
    name
    for name in HOSTILE
    if name.split(",")[0]
    in (
        "file", "file cluster", "filesystem", "url", "s3", "remote", "cluster", "mysql", "sqlite", "remote column",
        "executable", "python", "eval", "a model", "sleep", "stacks", "outfile", "infile", "two statements",
        "create a function", "create a dictionary", "create a user", "grant", "attach", "detach", "system",
        "stop merges", "kill", "backup", "garbage", "NUL",
    )
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_reader_may_not_do_is_refused(shared, tmp_path: Path, name: str):
    answer = shared.sql(HOSTILE[name].replace("{folder}", str(tmp_path)))
    assert answer.status >= 400, answer.text
    assert answer.text.startswith("Code: ")
    assert "root:" not in answer.text
    assert list(tmp_path.iterdir()) == []
    assert shared.rows("EXISTS TABLE otel.runs") == [["1"]]


@pytest.mark.parametrize("name", FOR_THE_WRITER_TOO)
def test_what_the_writer_may_not_do_either_is_refused(shared, tmp_path: Path, name: str):
    answer = shared.sql(HOSTILE[name].replace("{folder}", str(tmp_path)), writer=True)
    assert answer.status >= 400, answer.text
    assert "root:" not in answer.text
    assert list(tmp_path.iterdir()) == []
    assert shared.rows("EXISTS TABLE otel.runs") == [["1"]]


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE x AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM x) SELECT max(a) FROM x",
        "SELECT groupArray(repeat('x', 1000000)) FROM numbers(1000000)",
        "SELECT count() FROM numbers(1e12) WHERE cityHash64(number) = 1",
    ],
)
def test_what_never_ends_is_cut_off(shared, sql: str):
    began = time.monotonic()
    answer = shared.sql(sql, max_execution_time=2)
    assert answer.status >= 400 or "__exception__" in answer.text, answer.text[:200]
    assert time.monotonic() - began < 60
    assert shared.resident() < 1500 << 20


@pytest.mark.parametrize(
    "settings",
    [
        {"format_schema": "/etc/passwd"},
        {"allow_introspection_functions": "1"},
        {"user_files_path": "/"},
        {"max_memory_usage; DROP": "1"},
        {"storage_system_stack_trace_pipe_read_timeout_ms": "1"},
    ],
)
def test_settings_that_change_more_than_a_result_are_refused(shared, settings):
    answer = shared.sql("SELECT 1", **settings)
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (403, "452")


def test_bounds_cannot_be_lifted(shared):
    asked = "SELECT getSetting('max_execution_time'), getSetting('max_memory_usage'), getSetting('readonly')"
    answer = shared.sql(asked, max_execution_time=0, max_memory_usage=1 << 50, readonly=0)
    seconds, memory, readonly = answer.text.split()
    assert float(seconds) == 120
    assert int(memory) == 600 << 20
    assert readonly == "1"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "127.0.0.1.attacker.example"},
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_what_a_browser_sends_for_somebody_else_is_refused(shared, headers):
    assert shared.sql("SELECT 1", headers=headers).status == 403


def test_a_wrong_token_is_no_token(shared):
    answer = shared.sql("SELECT 1", headers={"X-ClickHouse-User": "default", "X-ClickHouse-Key": "wrong"})
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (401, "516")


def test_the_token_is_for_this_user_only(shared):
    assert Path(shared.said["token_file"]).stat().st_mode & 0o077 == 0
    assert len(shared.token) >= 32


@pytest.mark.parametrize("compression", [False, "lz4", "zstd", "gzip"])
def test_clickhouse_connect_reads(shared, compression):
    with shared.client(compress=compression) as client:
        assert client.command("SELECT 1") == 1
        sql = "SELECT number AS n, repeat('é', number % 50) AS s FROM numbers({many:UInt64})"
        rows = client.query(sql, parameters={"many": 100_000}).result_rows
        assert len(rows) == 100_000
        assert rows[49] == (49, "é" * 49)
        awkward = "tab\t line\n quote' back\\slash {x}"
        assert client.query("SELECT {x:String}", parameters={"x": awkward}).result_rows == [(awkward,)]


def test_clickhouse_connect_streams_a_large_result(shared):
    with (
        shared.client(compress=False) as client,
        client.query_row_block_stream("SELECT number, repeat('x', 1000) FROM numbers(300000)") as stream,
    ):
        assert sum(len(block) for block in stream) == 300_000
    assert shared.resident() < 1500 << 20


def test_clickhouse_connect_is_told_what_is_wrong(shared):
    with shared.client() as client:
        with pytest.raises(DatabaseError, match="UNKNOWN_TABLE"):
            client.query("SELECT * FROM otel.nothing")
        with pytest.raises(DatabaseError, match="READONLY"):
            client.command("CREATE TABLE otel.x (a String) ENGINE = Memory")


def test_an_error_in_the_middle_of_a_result_reaches_the_client(shared):
    sql = "SELECT throwIf(number = 5000000) FROM numbers(10000000)"
    with shared.client(writer=True, compress=False) as client:
        result = client.query(sql, settings={"max_block_size": 65536})
        with pytest.raises(StreamFailureError, match="FUNCTION_THROW_IF"):
            list(result.result_rows)


@pytest.mark.parametrize("compression", [False, "lz4", "zstd", "gzip"])
def test_clickhouse_connect_writes_with_the_token(shared, compression):
    with shared.client(writer=True, compress=compression, database="otel") as client:
        name = f"written_{compression}"
        client.command(f"CREATE TABLE {name} (a UInt64, b String) ENGINE = MergeTree ORDER BY a")
        client.insert(name, [[n, "é\n\t'" * n] for n in range(1000)], column_names=["a", "b"])
        client.raw_insert(name, ["a", "b"], b"1001\tx\n", fmt="TSV")
        client.command(f"INSERT INTO {name} VALUES (1002, 'FORMAT'), (1003, '; DROP')")
        client.command(f"INSERT INTO {name} SELECT number + 2000, 'x' FROM numbers(5)")
        assert client.query(f"SELECT count(), sum(a) FROM {name}").result_rows == [
            (1008, sum(range(1000)) + 1001 + 1002 + 1003 + sum(range(2000, 2005)))
        ]
        client.command(f"DROP TABLE {name}")


def test_a_session_keeps_its_database_and_settings(shared):
    with shared.client(session_id="mine", autogenerate_session_id=False) as client:
        client.command("USE otel")
        client.command("SET extremes = 1, session_timezone = 'Asia/Tokyo'")
        assert client.command("SELECT currentDatabase()") == "otel"
        assert client.command("SELECT timezone()") == "Asia/Tokyo"
    assert shared.sql("SELECT currentDatabase()").text == "default\n"


def test_the_format_is_the_one_asked_for(shared):
    assert shared.sql("SELECT 1 AS a FORMAT JSONEachRow").text == '{"a":1}\n'
    assert shared.sql("SELECT 1 AS a", default_format="CSV").text == "1\n"
    assert shared.sql("SELECT 'FORMAT x' AS a, 2 AS format").text == "FORMAT x\t2\n"
    assert shared.sql("SELECT a FROM (SELECT 3 AS a) AS format -- FORMAT CSV").text == "3\n"
    assert shared.sql("DESCRIBE TABLE otel.loaded_runs FORMAT TSV").text.startswith("file\tString")
    assert shared.sql("(SELECT 1) UNION ALL (SELECT 1) FORMAT CSV").text == "1\n1\n"
    assert shared.sql("SELECT 1 FORMAT Nonsense").status == 400


def test_clients_that_leave_in_the_middle_of_a_result_leave_nothing_behind(shared):
    for _ in range(12):
        with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as connection:
            sql = b"SELECT number, repeat('x', 1000) FROM numbers(100000000)"
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(sql)
            connection.sendall(head + sql)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    deadline = time.monotonic() + 60
    running = "SELECT count() FROM system.processes WHERE query LIKE '%100000000%' AND query NOT LIKE '%processes%'"
    while shared.rows(running) != [["0"]] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert shared.rows(running) == [["0"]]
    assert shared.sql("SELECT 1").text == "1\n"


def test_rows_that_a_table_refuses_are_told_and_none_is_written(shared):
    made = "CREATE TABLE otel.checked (a String, CONSTRAINT short CHECK length(a) < 3) ENGINE = MergeTree ORDER BY a"
    assert shared.sql(made, writer=True).status == 200
    for settings in ("", "SETTINGS max_threads = 1 "):
        answer = shared.sql(f"INSERT INTO otel.checked {settings}FORMAT TSV\nab\nabc\n", writer=True)
        assert answer.headers["X-ClickHouse-Exception-Code"] == "469", answer.text
        assert shared.rows("SELECT count() FROM otel.checked") == [["0"]]
    for settings in ("", "SETTINGS max_threads = 1 "):
        assert shared.sql(f"INSERT INTO otel.checked (a) {settings}FORMAT RowBinary\n\x01\n", writer=True).status == 200
    assert shared.rows("SELECT hex(a) FROM otel.checked") == [["0A"], ["0A"]]
    answer = shared.sql("INSERT INTO otel.checked; SELECT 1 FORMAT TSV\nab\n", writer=True)
    assert answer.status >= 400


def test_rows_leave_no_file_behind(shared):
    assert sorted(path.name for path in (shared.home / "store.serve").iterdir()) == ["config.xml", "users.xml"]
