"""A Collector whose limit is smaller than a request says so in a way of its own, and gets smaller requests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.collector.conftest import CONFIGURATIONS
from tests.shipping.conftest import RECEIVER, Home

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_body_that_the_collector_finds_too_large_goes_in_parts(collectors, tmp_path: Path, compression: str) -> None:
    text = (CONFIGURATIONS / "agent.yaml").read_text()
    assert "max_request_body_size: 20971520" in text
    (tmp_path / "small.yaml").write_text(text.replace("20971520", "60000"))
    home = Home(tmp_path / "home")
    recorder = home.recorder()
    run = recorder.start()
    for number in range(3):
        run.call("tool:t", f"{number} " + os.urandom(80_000).hex())
    run.end()
    recorder.close()
    gateway = RECEIVER.GrpcServer(RECEIVER.Inbox())
    try:
        named = {"GATEWAY_ENDPOINT": f"127.0.0.1:{gateway.port}", "GATEWAY_INSECURE": "true"}
        collector = collectors(str(tmp_path / "small"), **named).start()
        collector.endpoint = f"http://{collector.http}"
        shipper = home.to(collector, "http/protobuf", compression=compression).ship()
    finally:
        gateway.close()
    assert shipper.refused == 0
    assert not home.files()
