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

from metamcp_supervisor.watched.otlp import ANSWER_BYTES_MAX, WHY_CHARACTERS_MAX, Exporter
from metamcp_worker.messages import Span
from tests.live.collector import Collector

from .test_traces import span

pytestmark = [pytest.mark.promise("M88"), pytest.mark.process]

PIECE = b"x" * 65536
_EXPORT = """
import sys
from metamcp_supervisor.watched.otlp import Exporter
headers = {"Authorization": "Bearer mine"}
assert Exporter(sys.argv[1], headers, version="1", instance="i").export([], 0) == ""
"""


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


def exported(url: str, *spans: Span) -> str:
    exporter = Exporter(url, {"Authorization": "Bearer mine"}, version="1", instance="i")
    try:
        return exporter.export(spans or [span()], 0)
    finally:
        exporter.close()


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
    assert why == ("" if status.startswith("200") else "it answers with status 308")
    assert most < 64 * ANSWER_BYTES_MAX


def test_a_connection_is_used_again() -> None:
    with answering("200 Fine", "Content-Length: 0") as collector:
        exporter = Exporter(collector.url, {}, version="1", instance="i")
        assert [exporter.export([span()], 0) for _ in range(3)] == [""] * 3
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
