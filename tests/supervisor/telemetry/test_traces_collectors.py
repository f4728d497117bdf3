"""Collectors that are not as they should be: they cost spans, which are counted, and no more."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

import pytest

from metamcp_supervisor.telemetry.otlp import (
    ANSWER_BYTES_MAX,
    EXPORT_S_MAX,
    PAUSE_S_MAX,
    WHY_CHARACTERS_MAX,
    Exporter,
    ExportOutcome,
)
from metamcp_worker.ipc.messages import Span
from tests.faults.badnet import dripping
from tests.live.collector import Collector
from tests.supervisor.telemetry.test_traces import span
from tests.worker.http.test_fetch_tls import certificate, tls

pytestmark = [pytest.mark.promise("M88"), pytest.mark.process]

PIECE = b"x" * 65536
_EXPORT = """
import sys
from metamcp_supervisor.telemetry.otlp import Exporter, ExportOutcome
headers = {"Authorization": "Bearer mine"}
made = Exporter(sys.argv[1], headers, version="1", instance="i").export([], 0)
assert made == ExportOutcome(), made
"""
_LATE = """
import sys
from metamcp_supervisor.telemetry.otlp import Exporter
print(Exporter(sys.argv[1], {}, version="1", instance="i", s_max=0.3).export([], 0).why)
"""
LATE = "it takes longer than 0.3 s"


class Answering:
    """Answers every request with this, and then with so many more pieces. `connections`: how many
    there were; `requests`: how many came in them."""

    def __init__(self, answer: bytes, more: int) -> None:
        self._answer, self._more = answer, more
        self.connections = self.requests = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1/traces"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection, contextlib.suppress(OSError), connection.makefile("rb") as told:
                while _read(told):
                    self.requests += 1
                    connection.sendall(self._answer)
                    for _ in range(self._more):
                        connection.sendall(PIECE)
                    if b"Connection: close" in self._answer:
                        break

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


def _read(told: BinaryIO) -> bool:
    """One request; False at the end."""
    size = 0
    for line in iter(told.readline, b""):
        name, _, value = line.lower().partition(b":")
        if name == b"content-length":
            size = int(value)
        if not line.strip():
            return len(told.read(size)) == size
    return False


@contextlib.contextmanager
def answering(status: str, *headers: str, more: int = 0) -> Generator[Answering]:
    lines = [f"HTTP/1.1 {status}", *(headers or ["Connection: close"]), "", ""]
    made = Answering("\r\n".join(lines).encode(), more)
    try:
        yield made
    finally:
        made.close()


def outcome(url: str, *spans: Span, s_max: float = EXPORT_S_MAX) -> ExportOutcome:
    headers = {"Authorization": "Bearer mine"}
    exporter = Exporter(url, headers, version="1", instance="i", s_max=s_max)
    try:
        return exporter.export(spans or [span()], 0)
    finally:
        exporter.close()


def exported(url: str, *spans: Span) -> str:
    """Why they are lost, or nothing."""
    made = outcome(url, *spans)
    assert made.lost == (len(spans or [span()]) if made.why else 0)
    return made.why


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_collector_that_sends_elsewhere_has_not_taken_them(status: int) -> None:
    with (
        Collector() as other,
        answering(f"{status} Go", "Connection: close", f"Location: {other.url}") as collector,
    ):
        assert exported(collector.url) == f"it answers with status {status}"
        assert collector.requests == 1
        assert other.headers == [], "what opens the one is told to nobody else"


@pytest.mark.parametrize("status", ["400 Bad", "404 No", "413 Big", "429 Slow"])
def test_the_reason_is_the_status(status: str) -> None:
    with answering(status, "Connection: close", "Retry-After: 60") as collector:
        assert exported(collector.url) == f"it answers with status {status[:3]}"


@pytest.mark.parametrize("status", ["200 Fine", "308 Go"])
def test_an_answer_without_end_is_not_read_to_its_end(status: str) -> None:
    with answering(status, "Connection: close", "Location: /x", more=512) as collector:
        exported(collector.url)  # what is made once is made
        tracemalloc.start()
        why = exported(collector.url)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    fine = status.startswith("200")
    assert why == ("its answer is longer than 16 KiB" if fine else "it answers with status 308")
    assert most < 64 * ANSWER_BYTES_MAX


def test_a_connection_is_used_again() -> None:
    with answering("200 Fine", "Content-Length: 0") as collector:
        exporter = Exporter(collector.url, {}, version="1", instance="i")
        assert [exporter.export([span()], 0) for _ in range(3)] == [ExportOutcome()] * 3
        exporter.close()
        assert (collector.connections, collector.requests) == (1, 3)


def test_the_headers_of_the_configuration_are_those_that_are_sent(tmp_path: Path) -> None:
    passwords = tmp_path / "netrc"
    passwords.write_text("machine 127.0.0.1 login somebody password else\n")
    environ = {**os.environ, "NETRC": str(passwords)}
    with Collector() as collector:
        subprocess.run(
            [sys.executable, "-c", _EXPORT, collector.url], env=environ, check=True, timeout=30
        )
        assert collector.headers[0]["authorization"] == "Bearer mine"


def test_what_a_client_says_is_no_reason() -> None:
    with answering("400 Bad") as collector:
        assert "hunter2" not in exported(collector.url, span(state="hunter2 is no state"))


@pytest.mark.parametrize("state", ["", ",,,", "a", "a=1,a=2", "\N{GRINNING FACE}=1", "a=\x00"])
def test_spans_arrive_whatever_their_state_is(state: str) -> None:
    with Collector() as collector:
        assert exported(collector.url, span(state=state)) == ""
        assert len(collector.spans) == 1


def test_why_there_is_no_answer_is_said_without_what_may_be_secret() -> None:
    with answering("200 Fine") as collector:
        pass
    why = exported(collector.url.replace("v1", "hunter2"))
    assert "Connection refused" in why
    assert "hunter2" not in why


def test_an_answer_that_is_none_is_said_in_few_words() -> None:
    collector = Answering(b"Connection: close" + PIECE[:60_000] + b"\r\n\r\n", 0)
    try:
        why = exported(collector.url)
    finally:
        collector.close()
    assert "BadStatusLine" in why or "LineTooLong" in why
    assert len(why) <= WHY_CHARACTERS_MAX


_NEVER = [
    pytest.param(b"", b"", id="says nothing"),
    pytest.param(b"HTTP/1.1 200 Fi", b"n", id="a status"),
    pytest.param(b"HTTP/1.1 200 Fine\r\nX: ", b"x", id="a header"),
    pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n", id="that it will answer"),
    pytest.param(b"HTTP/1.1 200 Fine\r\n\r\n", b"x", id="a body to its end"),
    pytest.param(b"HTTP/1.1 200 Fine\r\nContent-Length: 9999\r\n\r\n", b"x", id="a body"),
    pytest.param(
        b"HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", id="pieces"
    ),
]


@pytest.mark.parametrize(("begin", "drop"), _NEVER)
def test_an_answer_that_drips_is_cut_off(begin: bytes, drop: bytes) -> None:
    with dripping(begin, drop) as url:
        made = outcome(url, span(1), span(2), s_max=0.3)
    assert made == ExportOutcome(2, LATE)


def test_an_answer_that_drips_is_cut_off_in_tls_too(tmp_path: Path) -> None:
    file = certificate(tmp_path)
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(file)}
    with dripping(b"HTTP/1.1 200 Fine\r\nX: ", b"x", tls(file)) as url:
        done = subprocess.run(
            [sys.executable, "-c", _LATE, url],
            env=environ, check=True, timeout=30, capture_output=True, text=True,
        )  # fmt: skip
    assert done.stdout.strip() == LATE


def test_after_a_cut_the_next_export_has_a_connection_of_its_own() -> None:
    with answering("200 Fine", "Content-Length: 9", more=0) as collector:
        exporter = Exporter(collector.url, {}, version="1", instance="i", s_max=0.3)
        assert [exporter.export([span()], 0) for _ in range(2)] == [ExportOutcome(1, LATE)] * 2
        exporter.close()
        assert collector.connections == 2


def test_an_answer_that_breaks_off_is_none() -> None:
    with answering("200 Fine", "Connection: close", "Content-Length: 9") as collector:
        assert exported(collector.url) == "its answer breaks off"


def test_what_a_collector_rejects_is_lost() -> None:
    with Collector() as collector:
        collector.rejected, collector.message = 2, "too\nold"
        made = outcome(collector.url, span(1), span(2), span(3))
        assert made == ExportOutcome(2, "too old")
        collector.rejected = 99
        assert outcome(collector.url, span(1)).lost == 1, "no more than there were"
        collector.rejected = -1
        assert outcome(collector.url, span(1)).lost == 0


@pytest.mark.parametrize("kind", ["text/plain", "application/x-protobuf"])
def test_an_answer_of_another_form_says_nothing_but_its_status(kind: str) -> None:
    body = b"\n\x02\x08\x01" if kind == "text/plain" else b"fine!"  # a rejection, if it were one
    head = f"HTTP/1.1 200 Fine\r\nContent-Length: {len(body)}\r\nContent-Type: {kind}\r\n\r\n"
    collector = Answering(head.encode() + body, 0)
    try:
        assert exported(collector.url) == ""
    finally:
        collector.close()


@pytest.mark.parametrize(
    ("said", "pause_s"),
    [
        ("30", 30.0), ("99999", PAUSE_S_MAX), ("Fri, 31 Dec 9999 23:59:59 GMT", PAUSE_S_MAX),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("-1", 0.0), ("soon", 0.0), ("nan", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_a_busy_collector_says_when_to_come_again(said: str, pause_s: float) -> None:
    with Collector() as collector:
        collector.status, collector.answer_headers = 400, {"Retry-After": said}
        assert outcome(collector.url).pause_s == 0, "it is not busy"
        collector.status = 429
        made = outcome(collector.url, s_max=0.3)
        assert made.pause_s == pause_s or made.why == LATE  # it was tried again until then


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_may_go_better_is_tried_again(status: int) -> None:
    with answering(f"{status} No", "Connection: close", "Retry-After: 0") as collector:
        assert exported(collector.url) == f"it answers with status {status}"
        assert collector.requests > 1


def test_the_environment_may_compress_and_add_headers_but_change_none() -> None:
    environ = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-more=1,authorization=theirs",
    }
    with Collector() as collector:
        subprocess.run(
            [sys.executable, "-c", _EXPORT, collector.url], env=environ, check=True, timeout=30
        )
        (headers,) = collector.headers
    assert (headers["content-encoding"], headers["x-more"]) == ("gzip", "1")
    assert headers["authorization"] == "Bearer mine"
