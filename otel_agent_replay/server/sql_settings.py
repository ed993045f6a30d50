"""Which settings a client may give, and what the server's own are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from otel_agent_replay.server import limits
from otel_agent_replay.server.engine import SqlError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RESERVED = frozenset(
    {
        "buffer_size",
        "client_protocol_version",
        "compress",
        "database",
        "decompress",
        "default_format",
        "enable_http_compression",
        "http_headers_progress_interval_ms",
        "http_make_head_request",
        "password",
        "query",
        "query_id",
        "quota_key",
        "role",
        "send_progress_in_http_headers",
        "session_check",
        "session_id",
        "session_timeout",
        "user",
        "wait_end_of_query",
    }
)
"""Parameters of the HTTP interface that are no settings."""

IGNORED = frozenset(
    {
        "async_insert",
        "cancel_http_readonly_queries_on_client_close",
        "log_comment",
        "log_queries",
        "network_compression_method",
        "priority",
        "readonly",
        "wait_for_async_insert",
    }
)
"""Settings that clients send as a matter of course and that the server decides itself."""

ALLOWED = frozenset(
    {
        "additional_result_filter",
        "allow_experimental_analyzer",
        "date_time_input_format",
        "date_time_output_format",
        "deduplicate_blocks_in_dependent_materialized_views",
        "enable_analyzer",
        "enable_json_type",
        "enable_time_time64_type",
        "extremes",
        "final",
        "group_by_overflow_mode",
        "insert_deduplicate",
        "insert_deduplication_token",
        "join_algorithm",
        "join_use_nulls",
        "max_block_size",
        "max_bytes_to_read",
        "max_execution_time",
        "max_insert_block_size",
        "max_memory_usage",
        "max_query_size",
        "max_result_bytes",
        "max_result_rows",
        "max_rows_to_group_by",
        "max_rows_to_read",
        "max_threads",
        "mutations_sync",
        "alter_sync",
        "prefer_column_name_to_alias",
        "read_overflow_mode",
        "result_overflow_mode",
        "session_timezone",
        "timeout_overflow_mode",
        "totals_mode",
        "type_json_skip_duplicated_paths",
        "use_hive_partitioning",
    }
)
"""Settings that change a result's form, or bound a query further."""

PREFIXES = ("cast_string_to_", "output_format_", "input_format_", "optimize_", "lightweight_delete")
"""… and beginnings of such names."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,80}")
_BOUNDS = {
    "max_execution_time": limits.QUERY_SECONDS,
    "max_memory_usage": limits.QUERY_BYTES,
    "max_threads": 8,
    "max_block_size": 1 << 20,
    "max_query_size": limits.SQL_TEXT_BYTES * 4,
}
"""Largest value that a client may give. 0 means no bound to the engine, so it gives this one."""

_OWN = {
    "async_insert": "0",
    "max_execution_time": str(limits.QUERY_SECONDS),
    "max_memory_usage": str(limits.QUERY_BYTES),
    "max_query_size": str(limits.SQL_TEXT_BYTES * 4),
    "max_recursive_cte_evaluation_depth": "1000",
    "max_threads": "2",
}


def checked(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The settings of these that a statement may have. Raises SqlError for one that it may not."""
    found = {}
    for name, value in given:
        if name in IGNORED:
            continue
        if not _NAME.fullmatch(name) or not (name in ALLOWED or name.startswith(PREFIXES)):
            raise SqlError.refused(452, "SETTING_CONSTRAINT_VIOLATION", f"The setting {name[:80]} cannot be given here")
        found[name] = _bounded(name, value)
    return found


def applied(given: Mapping[str, str], *, writer: bool) -> dict[str, str]:
    """What a connection is set to. `readonly` comes last: nothing can be set after it."""
    return {**_OWN, **given} if writer else {**_OWN, **given, "readonly": "1"}


def _bounded(name: str, value: str) -> str:
    most = _BOUNDS.get(name)
    if most is None:
        return value
    try:
        number = float(value)
    except ValueError:
        raise SqlError.refused(72, "CANNOT_PARSE_NUMBER", f"The setting {name} is no number: {value[:80]}") from None
    return value if 0 < number <= most else str(most)
