"""The numbered SQL files, applied in order and each once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.errors import StoreError, StoreTooNew
from otel_agent_replay.store.clickhouse import NoSuchTableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.store.clickhouse import Engine

_NAME = re.compile(r"(\d{4})_(\w+)(?:\.(embedded|server))?\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file of SQL."""

    version: int
    name: str
    sql: str
    only: str
    """`embedded`, `server`, or empty for both."""

    @property
    def digest(self) -> str:
        """Says whether a file was changed after it was applied."""
        return blake2b(self.sql.encode(), digest_size=16).hexdigest()

    def statements(self) -> Iterator[str]:
        """The statements, without comments."""
        bare = re.sub(r"^\s*--.*$", "", self.sql, flags=re.MULTILINE)
        for statement in bare.split(";\n"):
            if statement.strip(" \n;"):
                yield statement.strip(" \n;")


@dataclass(frozen=True, slots=True)
class Applied:
    """What the store says of one migration."""

    version: int
    name: str
    state: str
    """`applied`, `pending`, or `changed` where the file is not what was applied."""


def migrations(*, embedded: bool) -> list[Migration]:
    """The files for this kind of store, in order; version 0 is the table that keeps the versions."""
    ours = "embedded" if embedded else "server"
    return [each for each in _all() if each.only in ("", ours)]


def known_version() -> int:
    """The highest schema version that this package knows."""
    return max(each.version for each in _all())


def status(engine: Engine) -> list[Applied]:
    """What is applied and what is not. Raises StoreTooNew."""
    done = _applied(engine)
    newest = max(done, default=0)
    if newest > known_version():
        raise StoreTooNew(engine.where, newest, known_version())
    return [_compare(each, done.get(each.version)) for each in migrations(embedded=engine.embedded) if each.version]


def apply(engine: Engine) -> list[Applied]:
    """Apply what is pending; gives what was applied. Raises StoreTooNew before anything is changed.

    Every statement can be repeated, so that an apply that was killed is finished by the next.
    """
    pending = {each.version for each in status(engine) if each.state == "pending"}
    if not pending:
        return []
    engine.use_database(create=True)
    applied = []
    for migration in migrations(embedded=engine.embedded):
        if migration.version and migration.version not in pending:
            continue
        for statement in migration.statements():
            engine.command(statement)
        if migration.version:
            engine.command(
                "INSERT INTO schema_versions SELECT {version:UInt32}, {name:String}, {digest:String}, "
                "fromUnixTimestamp64Milli({applied:Int64}, 'UTC')",
                {
                    "version": migration.version,
                    "name": migration.name,
                    "digest": migration.digest,
                    "applied": real.time_ns() // 1_000_000,
                },
            )
            applied.append(Applied(migration.version, migration.name, "applied"))
    return applied


def require(engine: Engine) -> None:
    """Make sure that the store can be read: an embedded one is brought up to date, a server must be already.

    Raises StoreTooNew, or StoreError where a server's schema is incomplete.
    """
    if engine.embedded:
        apply(engine)
        return
    if any(each.state == "pending" for each in status(engine)):
        raise StoreError(f"The schema of the store {engine.where} is not up to date; run `agent-replay schema apply`.")


def _applied(engine: Engine) -> dict[int, str]:
    engine.use_database(create=engine.embedded)
    try:
        return {int(row[0]): str(row[1]) for row in engine.rows("SELECT version, digest FROM schema_versions FINAL")}
    except NoSuchTableError:
        return {}


def _compare(migration: Migration, digest: str | None) -> Applied:
    done = "applied" if digest == migration.digest else "changed"
    return Applied(migration.version, migration.name, "pending" if digest is None else done)


def _all() -> list[Migration]:
    found = []
    for file in _directory().iterdir():
        match = _NAME.fullmatch(file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"), match[3] or ""))
    return sorted(found, key=lambda each: each.version)


def _directory() -> Path:
    """In an installed package the files are inside it; in a checkout they are beside it."""
    package = Path(__file__).parent.parent
    inside = package / "schemas"
    return inside if inside.is_dir() else package.parent / "schemas"
