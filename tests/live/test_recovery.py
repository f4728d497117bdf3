"""What becomes of calls whose server dies with them, and of those that wait for a busy one."""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.live import processes
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SERVER = str(ROOT / "tests" / "fakes" / "journal_server.py")
DOWN = -10001
FLOOD = 200


class Till:
    """A gateway with one server that writes down what it runs."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.journal, self.gate = folder / "journal", folder / "gate"
        self.journal.touch()
        entry = {"command": [sys.executable, SERVER, str(self.journal)], **options}
        self.gateway = Gateway({"till": entry})
        self.threads = ThreadPoolExecutor(2)

    def ran(self) -> list[str]:
        return self.journal.read_text().splitlines()

    def start(self, tool: str, text: str, era: str = LEGACY) -> Future[dict[str, Any]]:
        """Call a tool that ends when the gate is open; returns when the server has it."""
        client, before = Client(self.gateway.port, era), len(self.ran())

        def call() -> dict[str, Any]:
            try:
                return client.call(f"till__{tool}", text=text, gate=str(self.gate))
            finally:
                client.close()

        started = self.threads.submit(call)
        until(lambda: len(self.ran()) > before, f"the server runs {tool}")
        return started

    def kill(self, field: str = "pid") -> None:
        """Kill the server, or its worker; whatever is started after it finds the gate open."""
        told = self.gateway.server("till")
        os.kill(told[field], signal.SIGKILL)
        until(lambda: not processes.alive({told["pid"]}), "the server is dead")
        self.gate.touch()

    def metric(self, name: str) -> dict[str, float]:
        """The samples of one metric, by their labels."""
        found = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", self.gateway.ops("/metrics")[1], re.M)
        return {labels: float(value) for labels, value in found}


@pytest.fixture
def till(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Till]:
    made = Till(tmp_path, **request.param)
    with made.gateway, made.threads:
        yield made


def text_of(answer: dict[str, Any]) -> str:
    found: str = answer["result"]["content"][0]["text"]
    return found


@pytest.mark.promise("M75")
@pytest.mark.parametrize("till", [{"retry": "read-only"}], indirect=True)
@pytest.mark.parametrize(("field", "era"), [("pid", LEGACY), ("worker_pid", MODERN)])
def test_a_reading_call_of_a_killed_server_is_answered_by_the_next_one(
    till: Till, field: str, era: str
) -> None:
    started = till.start("look", "book", era)
    till.kill(field)
    assert text_of(started.result(30)) == "look book"
    assert till.ran() == ["look book", "look book"]
    assert till.gateway.server("till")["generation"] == 2
    name = "metamcp_call_retries_total"
    until(lambda: sum(till.metric(name).values()), "the retry is counted")
    assert till.metric(name)['outcome="answered",server="till"'] == 1.0


@pytest.mark.promise("M75")
@pytest.mark.parametrize(
    ("till", "tool"),
    [({"retry": "read-only"}, "pay"), ({"retry": "read-only"}, "put"), ({}, "look")],
    indirect=["till"],
)
def test_a_call_that_may_not_run_twice_gets_the_error_and_runs_once(till: Till, tool: str) -> None:
    started = till.start(tool, "once")
    till.kill()
    error = started.result(30)["error"]
    assert error["code"] == DOWN
    assert error["data"]["may_have_run"] is True
    client = Client(till.gateway.port)
    assert client.text("till__look", text="after") == "look after"
    client.end()
    assert till.ran() == [f"{tool} once", "look after"]


@pytest.mark.promise("M75")
@pytest.mark.parametrize("till", [{"retry": "idempotent"}], indirect=True)
def test_a_call_that_dies_twice_is_told_so_and_does_not_run_a_third_time(till: Till) -> None:
    started = till.start("put", "twice")
    old = till.gateway.server("till")["pid"]
    os.kill(old, signal.SIGKILL)
    until(lambda: len(till.ran()) == 2, "the next server runs it")
    pid = until(
        lambda: next(iter({till.gateway.server("till")["pid"]} - {0, old}), 0), "its process"
    )
    os.kill(pid, signal.SIGKILL)
    data = started.result(30)["error"]["data"]
    assert (data["attempts"], data["may_have_run"], data["generation"]) == (2, True, 2)
    till.gateway.wait("till")
    assert till.ran() == ["put twice", "put twice"]


@pytest.mark.promise("M98")
@pytest.mark.parametrize("till", [{"concurrency": 1}], indirect=True)
def test_a_session_with_two_hundred_calls_does_not_keep_another_waiting(till: Till) -> None:
    busy, other = Client(till.gateway.port), Client(till.gateway.port)
    first = till.start("look", "first")

    def waiting(calls: int) -> bool:
        return bool(till.gateway.server("till")["inflight"] >= calls)

    with ExitStack() as open_sockets:
        for number in range(FLOOD):
            sock = open_sockets.enter_context(
                socket.create_connection(("127.0.0.1", till.gateway.port))
            )
            sock.sendall(raw_call(busy, number))
        until(lambda: waiting(FLOOD + 1), "all calls wait")
        second = till.threads.submit(other.call, "till__look", text="other")
        until(lambda: waiting(FLOOD + 2), "the other session's call waits too")
        till.gate.touch()
        assert text_of(second.result(60)) == "look other"
        assert text_of(first.result(60)) == "look first"
        assert till.ran().index("look other") <= 3
    busy.end()
    other.end()


def raw_call(client: Client, number: int) -> bytes:
    """A POST in this client's session, as bytes."""
    params = {"name": "till__look", "arguments": {"text": "busy"}}
    message = {"jsonrpc": "2.0", "id": 5000 + number, "method": "tools/call", "params": params}
    body = json.dumps(message).encode()
    headers = client.headers() | {"Host": "127.0.0.1", "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {client.path} HTTP/1.1\r\n{lines}\r\n".encode() + body
