"""Each configuration that is shipped is one that the Collector of the manifest runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NEEDED = {
    "agent": {"GATEWAY_ENDPOINT": "127.0.0.1:1"},
    "gateway": {"CLICKHOUSE_ENDPOINT": "http://127.0.0.1:1"},
    "split": {"CLICKHOUSE_ENDPOINT": "http://127.0.0.1:1", "BACKEND_ENDPOINT": "127.0.0.1:1"},
}
"""The variables that each cannot do without."""


def configuration(name: str) -> dict:
    return yaml.safe_load((ROOT / "collector" / f"{name}.yaml").read_text())


def test_every_configuration_is_tested() -> None:
    assert {path.stem for path in (ROOT / "collector").glob("*.yaml")} == {*NEEDED, "manifest"}


@pytest.mark.parametrize("name", NEEDED)
def test_the_collector_starts_with_it_and_says_nothing_is_deprecated(collectors, name: str) -> None:
    collector = collectors(name, **NEEDED[name]).start()
    collector.stop()
    assert "deprecated" not in collector.log
    assert "please rewrite" not in collector.log


@pytest.mark.parametrize("name", NEEDED)
def test_nothing_is_given_up_and_what_waits_is_on_disk(name: str) -> None:
    exporters = configuration(name)["exporters"]
    kept = [each for each in exporters if not each.endswith("/backend")]
    assert kept
    for each in kept:
        assert exporters[each]["retry_on_failure"]["max_elapsed_time"] == "0s"
        assert exporters[each]["sending_queue"]["storage"] == "file_storage/queue"
        assert exporters[each]["sending_queue"]["sizer"] == "bytes"


@pytest.mark.parametrize("name", NEEDED)
def test_it_listens_on_loopback_unless_told_otherwise_and_documents_its_variables(name: str) -> None:
    text = (ROOT / "collector" / f"{name}.yaml").read_text()
    endpoints = [each["endpoint"] for each in configuration(name)["receivers"]["otlp"]["protocols"].values()]
    assert all(each.startswith("${env:OTLP_HOST:-127.0.0.1}:") for each in endpoints)
    comments = "\n".join(line for line in text.splitlines() if line.lstrip().startswith("#"))
    comments += (ROOT / "collector" / "gateway.yaml").read_text() if name == "split" else ""
    used = set(re.findall(r"\$\{env:(\w+)", text)) - {"OTLP_GRPC_PORT", "OTLP_HTTP_PORT", "HEALTH_PORT", "MEMORY_MIB"}
    assert {each for each in used if each not in comments} == set()
