"""The shipper against real receivers that answer in every way that receivers do."""

from __future__ import annotations

import contextlib
import os
import resource
import ssl
import subprocess
import threading
import time

import grpc
import pytest

from otel_agent_replay.errors import UsageError
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, decode, scan
from otel_agent_replay.telemetry.shipping import destination
from otel_agent_replay.telemetry.shipping.delivery import StoppedError
from otel_agent_replay.telemetry.shipping.ledger import Claim, Ledger, Origin, Progress
from otel_agent_replay.telemetry.shipping.receivers import connect
from otel_agent_replay.telemetry.shipping.shipper import Shipper
from otel_agent_replay.telemetry.shipping.standing import standing

KINDS = ["grpc", "http/protobuf"]


def record(home, crossings: int = 5, size: int = 100, key: str = "tool:t") -> list[Frame]:
    """A whole run of a process that has ended; gives its frames."""
    recorder = home.recorder()
    run = recorder.start()
    for number in range(crossings):
        run.call(key, f"{number}" + os.urandom(size // 2).hex())
    run.end()
    recorder.close()
    return frames_of(home)


def frames_of(home) -> list[Frame]:
    found = [item for path in home.files() for item in scan(path.read_bytes())]
    assert all(isinstance(item, Frame) for item in found)
    return found


def kept(frames: list[Frame]) -> set[tuple[str, str, str]]:
    """Identities that must arrive: beginnings may be left out for their ends."""
    ends = {(frame.trace_id, frame.span_id) for frame in frames if frame.kind.value in ("run", "crossing")}
    return {
        (frame.kind.value, f"{frame.trace_id:032x}", f"{frame.span_id:016x}")
        for frame in frames
        if not (frame.kind.value.endswith(".start") and (frame.trace_id, frame.span_id) in ends)
    }


def arrived(inbox) -> dict:
    """The recordings that a store would have."""
    return assemble(decode(span.SerializeToString()) for span in inbox.spans)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_all_frames_arrive_once_and_the_file_is_removed(home, servers, kind: str, compression: str) -> None:
    frames = record(home)
    server = servers(kind)
    home.to(server, kind, compression=compression, headers="authorization=Bearer%20t0ken,x-team=a").ship()
    assert kept(frames) <= server.inbox.ids
    assert len(server.inbox.spans) == len(server.inbox.ids)
    assert not home.files()
    assert server.inbox.metadata[0]["authorization"] == "Bearer t0ken"
    assert server.inbox.metadata[0]["x-team"] == "a"
    found = standing(home.path)
    assert (found.recorded, found.shipped.frames, found.waiting, found.refused) == (len(frames), len(frames), 0, 0)
    assert found.shipped.spans == len(server.inbox.spans)
    assert not [each for each in home.ledger.folder.iterdir() if each.name.endswith((".progress", ".origin"))]


@pytest.mark.parametrize("kind", KINDS)
def test_what_arrives_is_the_recording(home, servers, kind: str) -> None:
    frames = record(home, 30, 2_000)
    server = servers(kind)
    home.to(server, kind).ship(batch_bytes=65536)
    (before,), (after,) = assemble(frames).values(), arrived(server.inbox).values()
    assert not after.missing
    assert after.run == before.run
    assert [each.outcome for each in after.crossings] == [each.outcome for each in before.crossings]
    assert max(server.inbox.sizes) <= 65536
    assert len(server.inbox.sizes) > 1


def test_the_resource_and_the_scope_are_those_of_the_process(home, servers) -> None:
    record(home)
    (path,) = home.files()
    home.ledger.describe(path.name, Origin({"service.name": "shop", "n": 3, "list": ["a", "b"]}, "d"))
    server = servers("grpc")
    home.to(server, "grpc").ship()
    (each,) = server.inbox.requests[0].resource_spans
    held = {a.key: a.value for a in each.resource.attributes}
    assert held["service.name"].string_value == "shop"
    assert held["n"].int_value == 3
    assert [v.string_value for v in held["list"].array_value.values] == ["a", "b"]
    assert each.scope_spans[0].scope.name == "otel_agent_replay"


def test_a_resource_that_cannot_be_written_down_leaves_the_destination(home) -> None:
    home.ledger.describe("a.spool", Origin({("odd", 1): 2}, "d"))
    assert home.ledger.origin("a.spool") == Origin({}, "d")


@pytest.mark.parametrize("kind", KINDS)
def test_content_comes_before_what_refers_to_it(home, servers, kind: str) -> None:
    record(home, 40, 5_000)
    server = servers(kind)
    home.to(server, kind).ship(batch_bytes=65536)
    seen: list[str] = [str(s.attributes[0].value.string_value) for s in server.inbox.spans]
    assert "contents" in seen
    known: set[str] = set()
    for span in server.inbox.spans:
        held = {a.key: a.value.string_value for a in span.attributes}
        known |= {key.rpartition(".")[2] for key in held if key.startswith("agent_replay.content")}
        if held["agent_replay.frame"] == "crossing":
            for reference in held["agent_replay.payload"].split('"#')[1:]:
                assert reference[:32] in known


@pytest.mark.parametrize("kind", KINDS)
def test_a_default_receiver_takes_a_result_of_64_mb(home, servers, kind: str) -> None:
    text = os.urandom(32 << 20).hex()
    recorder = home.recorder()
    run = recorder.start()
    run.call("tool:read", text)
    run.end()
    recorder.close()
    server = servers(kind)
    home.to(server, kind).ship(seconds=120)
    assert max(server.inbox.sizes) < 4 << 20
    (recording,) = arrived(server.inbox).values()
    assert not recording.missing
    assert recording.crossings[0].outcome == text
    assert not home.files()


FAULTS = {
    "500": {"status": 500},
    "503": {"status": 503},
    "429": {"status": 429, "retry_after": "0.05"},
    "cut": {"cut": True},
    "stored, then no answer": {"status": 503, "keeps": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_may_yet_be_accepted_is_sent_again(home, servers, lib, kind: str, fault: str) -> None:
    frames = record(home)
    server = servers(kind, judge=lambda _, number: lib.Said(**FAULTS[fault]) if number < 3 else None)
    home.to(server, kind).ship()
    assert kept(frames) <= server.inbox.ids
    assert len(server.inbox.sizes) >= 4
    assert not home.files()
    assert not home.ledger.refused.exists()
    assert not standing(home.path).failing


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_says_nothing_is_asked_again(home, servers, lib, kind: str) -> None:
    frames = record(home)
    server = servers(kind, judge=lambda _, number: lib.Said(silent=1.0) if number == 0 else None)
    home.to(server, kind, timeout="0.3").ship()
    assert kept(frames) <= server.inbox.ids


@pytest.mark.parametrize("kind", KINDS)
def test_the_receiver_says_how_long_to_wait(home, servers, lib, kind: str) -> None:
    record(home)
    server = servers(kind, judge=lambda _, number: lib.Said(429, retry_after="1") if number == 0 else None)
    began = time.monotonic()
    home.to(server, kind).ship()
    assert time.monotonic() - began >= 1
    assert not home.files()


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_is_not_there_keeps_the_spool(home, servers, kind: str) -> None:
    frames = record(home)
    server = servers(kind)
    server.close()
    with pytest.raises(StoppedError):
        home.to(server, kind).ship(seconds=0.5)
    assert len(frames_of(home)) == len(frames)
    found = standing(home.path)
    assert found.waiting == len(frames)
    assert found.failing


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_comes_back_gets_everything(home, servers, kind: str) -> None:
    frames = record(home)
    server = servers(kind)
    port = server.port
    server.close()
    again = []
    later = threading.Timer(0.7, lambda: again.append(servers(kind, port=port)))
    later.start()
    home.to(server, kind).ship()
    later.join()
    assert kept(frames) <= again[0].inbox.ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_somebody_has_to_mend_keeps_the_spool(home, servers, lib, kind: str, status: int) -> None:
    frames = record(home)
    codes = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "UNIMPLEMENTED"}
    code = codes[status] if kind == "grpc" else ""
    server = servers(kind, judge=lambda *_: lib.Said(status, "who are you", code=code))
    with pytest.raises(StoppedError):
        home.to(server, kind).ship(seconds=0.4)
    assert len(frames_of(home)) == len(frames)
    assert "who are you" in "".join(standing(home.path).failing.values())
    assert not home.ledger.refused.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_header_that_cannot_be_sent_is_not_shown(home, servers, kind: str) -> None:
    record(home)
    server = servers(kind)
    with pytest.raises(StoppedError):
        home.to(server, kind, headers="authorization=Bearer%20s3cret%0Ax").ship(seconds=0.4)
    (why,) = standing(home.path).failing.values()
    assert why
    assert "s3cret" not in why


def test_a_url_is_not_shown_with_the_key_in_it(home, servers) -> None:
    record(home)
    server = servers("http/protobuf")
    server.close()
    endpoint = f"http://user:s3cret@127.0.0.1:{server.port}/v1/traces?key=s3cret"
    with pytest.raises(StoppedError):
        home.to(server, "http/protobuf", traces_endpoint=endpoint).ship(seconds=0.4)
    (why,) = standing(home.path).failing.values()
    assert why == "ConnectionError: Connection refused"
    assert destination.read({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://u:s3cret@c:4317"}).where == "c:4317"
    with pytest.raises(UsageError) as raised:
        destination.read({"OTEL_EXPORTER_OTLP_ENDPOINT": "u:s3cret@c", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused_for_good_is_set_aside_and_all_else_arrives(home, servers, lib, kind: str) -> None:
    record(home, 6)
    frames = record(home, 6, key="tool:picky")

    def judge(request, _number):
        bad = sum(map(lib.rejected, lib.spans_of(request)))
        return lib.Said(400, "a bad span") if bad else None

    server = servers(kind, judge=judge)
    shipper = home.to(server, kind).ship()
    picky = {each for each in kept(frames) if each[0] == "crossing"} - server.inbox.ids
    assert len(picky) == 6
    assert kept(frames) - picky <= server.inbox.ids
    assert shipper.refused == 6
    aside = [item for path in home.ledger.refused.glob("*.spool") for item in scan(path.read_bytes())]
    assert {f"{item.span_id:016x}" for item in aside} == {span for _, _, span in picky}
    reasons = "".join(path.read_text() for path in home.ledger.refused.glob("*.jsonl"))
    assert reasons.count("a bad span") == 6
    found = standing(home.path)
    assert (found.recorded, found.waiting, found.refused) == (len(frames), 0, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_partial_success_the_rejected_spans_are_found(home, servers, lib, kind: str) -> None:
    recorder = home.recorder()
    run = recorder.start()
    for number in range(20):
        run.call("tool:picky" if number in (3, 4, 17) else "tool:fine", str(number))
    run.end()
    recorder.close()
    frames = frames_of(home)

    def judge(request, _number):
        bad = sum(map(lib.rejected, lib.spans_of(request)))
        return lib.Said(rejected=bad, message="too picky") if bad else None

    server = servers(kind, judge=judge)
    shipper = home.to(server, kind).ship()
    assert shipper.refused == 3
    assert len(kept(frames) - server.inbox.ids) == 3
    assert standing(home.path).refused == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_refuses_everything_is_taken_for_the_wrong_one(home, servers, lib, kind: str) -> None:
    frames = record(home, 100)
    server = servers(kind, judge=lambda *_: lib.Said(400, "what is this"))
    with pytest.raises(StoppedError):
        home.to(server, kind).ship(seconds=3)
    assert len(frames_of(home)) == len(frames)
    assert "refuses everything" in "".join(standing(home.path).failing.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [True, False])
def test_what_fails_for_ever_holds_up_nothing_else(home, servers, lib, kind: str, first: bool) -> None:
    """A receiver may answer what it cannot store as if it were down."""
    keys = ["tool:picky", "tool:fine"] if first else ["tool:fine", "tool:picky"]
    recorder = home.recorder()
    run = recorder.start()
    for key in keys:
        for number in range(12):
            run.call(key if number == 7 else "tool:fine", str(number))
    run.end()
    recorder.close()
    record(home, 6)
    frames = frames_of(home)

    def judge(request, _number):
        return lib.Said(500, "cannot store it") if any(map(lib.rejected, lib.spans_of(request))) else None

    server = servers(kind, judge=judge)
    shipper = home.to(server, kind).ship()
    lacking = kept(frames) - server.inbox.ids
    assert len(lacking) == 1
    assert shipper.refused == 1
    assert not home.files()
    (reasons,) = home.ledger.refused.glob("*.jsonl")
    assert "cannot store it" in reasons.read_text()
    found = standing(home.path)
    assert (found.waiting, found.refused, found.failing) == (0, 1, {})


@pytest.mark.parametrize("kind", KINDS)
def test_many_refusals_do_not_hold_up_what_is_accepted(home, servers, lib, kind: str) -> None:
    record(home, 100, key="tool:picky")
    frames = record(home, 6)

    def judge(request, _number):
        return lib.Said(400, "a bad span") if any(map(lib.rejected, lib.spans_of(request))) else None

    server = servers(kind, judge=judge)
    shipper = home.to(server, kind).ship(seconds=60)
    assert shipper.refused == 100
    assert len(kept(frames) - server.inbox.ids) == 100
    assert not home.files()


def test_a_file_that_is_stuck_lets_others_go_first(home, servers, lib) -> None:
    """Nothing of the first file ever gets through; the second goes all the same."""
    record(home, 3)
    (first,) = home.files()
    home.ledger.describe(first.name, Origin({"service.name": "odd"}, "d"))
    record(home, 3)

    def judge(request, _number):
        odd = any(a.value.string_value == "odd" for each in request.resource_spans for a in each.resource.attributes)
        return lib.Said(503, "not this", retry_after="0.05") if odd else None

    server = servers("http/protobuf", judge=judge)
    with pytest.raises(StoppedError):
        home.to(server, "http/protobuf").ship(seconds=2)
    assert home.files() == [first]
    assert server.inbox.spans


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [1_000_000, 40_000])
def test_a_receiver_with_a_smaller_limit_gets_smaller_requests(home, servers, lib, kind: str, most: int) -> None:
    text = os.urandom(1 << 20).hex()
    recorder = home.recorder()
    run = recorder.start()
    for number in range(5):
        run.call("tool:read", f"{number} {text}")
    run.end()
    recorder.close()
    server = servers(kind, judge=lambda request, _: lib.Said(413) if request.ByteSize() > most else None)
    home.to(server, kind).ship(seconds=60)
    assert not home.files()
    assert not home.ledger.refused.exists()
    (recording,) = arrived(server.inbox).values()
    assert not recording.missing
    assert [each.outcome for each in recording.crossings] == [f"{number} {text}" for number in range(5)]
    refused = sum(size > most for size in server.inbox.sizes)
    assert refused < 20, "it learns the limit"


def test_damage_is_set_aside_and_the_store_is_told(home, servers) -> None:
    frames = record(home, 5)
    (path,) = home.files()
    data = bytearray(path.read_bytes())
    middle = next(frame for frame in frames if frame.kind.value == "crossing")
    data[middle.offset + middle.size // 2] ^= 0xFF
    path.write_bytes(data)
    server = servers("grpc")
    home.to(server, "grpc").ship()
    assert not home.files()
    (recording,) = arrived(server.inbox).values()
    assert any("a frame may be lost" in note.what for note in recording.notes)
    found = standing(home.path)
    assert found.refused == 1
    assert found.waiting == 0


def test_the_torn_end_of_a_dead_writer_is_said_to_be_lost(home, servers) -> None:
    record(home, 5)
    (path,) = home.files()
    path.write_bytes(path.read_bytes()[:-7])
    server = servers("grpc")
    home.to(server, "grpc").ship()
    assert not home.files()
    (recording,) = arrived(server.inbox).values()
    assert any("a frame may be lost" in note.what for note in recording.notes)


def test_a_file_is_shipped_as_it_grows_and_kept_while_it_is_written(home, servers) -> None:
    server = servers("grpc")
    home.to(server, "grpc")
    recorder = home.recorder()
    run = recorder.start()
    home.ship()
    (path,) = home.files()
    first = len(server.inbox.spans)
    assert first
    run.call("tool:t", "one")
    home.ship()
    assert path.exists()
    assert len(server.inbox.spans) > first
    run.end()
    home.ship()
    recorder.close()
    home.ship()
    assert not path.exists()
    assert len(server.inbox.spans) == len(server.inbox.ids)


def test_two_never_ship_one_file_at_once(home, servers) -> None:
    record(home)
    (path,) = home.files()
    claim = Claim.take(home.ledger, path, "d")
    assert claim is not None
    with claim:
        assert Claim.take(home.ledger, path, "d") is None
        server = servers("grpc")
        home.to(server, "grpc").ship()
        assert not server.inbox.spans
    home.ship()
    assert not home.files()
    assert Claim.take(home.ledger, path, "d") is None


def test_what_one_receiver_has_is_no_part_of_what_another_gets(home, servers) -> None:
    one, other = servers("grpc"), servers("http/protobuf")
    recorder = home.recorder()
    run = recorder.start()
    run.call("tool:t", "first")
    home.to(one, "grpc").ship()
    assert one.inbox.spans
    run.call("tool:t", "second")
    run.end()
    recorder.close()
    frames = frames_of(home)
    home.to(other, "http/protobuf").ship()
    assert kept(frames) <= other.inbox.ids
    assert not home.files()
    assert standing(home.path).shipped.frames == len(frames)


def test_a_size_that_was_read_before_the_claim_sends_nothing_twice(home, servers, lib) -> None:
    """Between the two another process ships what was written meanwhile."""
    server = servers("grpc")
    home.to(server, "grpc")
    recorder = home.recorder()
    run = recorder.start()
    for number in range(3):
        run.call("tool:t", str(number))
    to = destination.read(home.environ)

    class Interrupted(Ledger):
        """Its reader is interrupted just before it claims the file."""

        turns = iter([True])

        def progress(self, name: str, destination: str = "") -> Progress:
            found = super().progress(name, destination)
            if next(self.turns, False):
                run.call("tool:t", "later")
                home.ship()
            return found

    receiver = connect(to)
    late = Shipper(Interrupted(home.path), receiver, to.name, batch_bytes=1 << 20, stopped=lambda: False)
    late.round(lambda _path, _written: True)
    receiver.close()
    run.end()
    recorder.close()
    home.ship()
    assert len(server.inbox.spans) == len(server.inbox.ids)


@pytest.fixture
def full_disk():
    """What lets this process, for a time, write nothing beyond some bytes of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextlib.contextmanager
    def full(size: int):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return full


def test_on_a_full_disk_what_is_accepted_goes_and_nothing_is_sent_twice(home, servers, full_disk) -> None:
    frames = record(home)
    (path,) = home.files()
    server = servers("grpc")
    to = destination.read(home.to(server, "grpc").environ)
    home.ledger.folder.mkdir(parents=True, exist_ok=True)
    (home.ledger.folder / "shipped.jsonl").write_text("\n" * 1000)
    claim = Claim.take(home.ledger, path, to.name)
    assert claim is not None
    with claim:
        pass
    with full_disk(200):
        home.ship()
    assert not home.files()
    assert kept(frames) <= server.inbox.ids
    assert len(server.inbox.spans) == len(server.inbox.ids)

    record(home)
    with full_disk(0):
        shipper = home.ship()
    assert len(server.inbox.spans) == len(server.inbox.ids), "nothing is sent that could not be noted"
    assert shipper.problems
    home.ship()
    assert not home.files()


def test_progress_that_cannot_be_read_sends_everything_again(home, servers, lib) -> None:
    frames = record(home)
    (path,) = home.files()
    home.ledger.folder.mkdir(parents=True, exist_ok=True)
    (home.ledger.folder / (path.name + ".progress")).write_text("12\nnonsense")
    server = servers("grpc")
    home.to(server, "grpc").ship()
    assert kept(frames) <= server.inbox.ids


def test_what_is_no_spool_file_is_left_alone(home, servers) -> None:
    record(home)
    foreign = home.path / "spool" / "0-notes.spool"
    foreign.write_text("something else\n" * 100)
    server = servers("grpc")
    shipper = home.to(server, "grpc").ship()
    assert home.files() == [foreign]
    assert foreign.name in shipper.problems


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    line = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*line.split(), "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60)
    return cert, key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mutual", [False, True])
def test_tls(home, servers, certificate, kind: str, mutual: bool) -> None:
    frames = record(home)
    cert, key = certificate
    if kind == "grpc":
        pair = [(key.read_bytes(), cert.read_bytes())]
        credentials = grpc.ssl_server_credentials(pair, cert.read_bytes() if mutual else None, mutual)
        server = servers(kind, credentials=credentials)
        endpoint = server.endpoint.replace("http:", "https:")
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        if mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cert)
        server = servers(kind, tls=context)
        endpoint = server.endpoint
    own = {"client_key": str(key), "client_certificate": str(cert)} if mutual else {}
    home.to(server, kind, certificate=str(cert), **own, endpoint=endpoint).ship()
    assert kept(frames) <= server.inbox.ids

    record(home)
    home.to(server, kind, endpoint=endpoint)
    with pytest.raises(StoppedError):  # nobody vouches for that certificate
        home.ship(seconds=0.5)
    assert standing(home.path).waiting
