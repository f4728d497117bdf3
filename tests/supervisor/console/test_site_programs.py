"""Verbs of programs at the console, whatever the gateway behind it answers and the program does."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from metamcp_supervisor import runtime
from metamcp_supervisor.console.site import BODY_BYTES_MAX
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.console_sessions import NOT_A_KEY
from metamcp_supervisor.control.contexts import Context, ContextClient
from metamcp_supervisor.verbs import Exit
from metamcp_worker.http.requests import Handler, HttpRequest, Pending
from tests.supervisor.console.served import serve, site_of
from tests.waiting import WAIT_S, until

pytestmark = [pytest.mark.process, pytest.mark.promise("M107")]

KEY = {"authorization": "Bearer mmcp_k3Jq9ZxA_x"}
STATUS = {"method": "status"}
ADMITTED = {"id": 1, "result": {"v": 1, "role": "viewer", "key": "k3Jq9ZxA"}}

Answer = Callable[[str], list[object]]
"""Answer of a gateway to a verb: its lines."""


class Gateway:
    """A control socket with these answers. `verbs`: those that came; `admits`: whether it answers
    yet; `left`: set when a connection has ended."""

    def __init__(self, directory: Path, answer: Answer) -> None:
        self.directory = directory
        self.verbs: list[str] = []
        self.admits, self.left = asyncio.Event(), asyncio.Event()
        self.admits.set()
        self._answer = answer

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"jsonrpc":"2.0","method":"hello","params":{"v":1}}\n')
        while line := await reader.readline():
            self.verbs.append(json.loads(line)["method"])
            await self.admits.wait()
            for sent in self._answer(self.verbs[-1]):
                raw = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
                writer.write(raw + b"\n")
        self.left.set()
        writer.close()

    @asynccontextmanager
    async def behind(self, site: Handler) -> AsyncGenerator[str]:
        """Serve a console of this gateway, and yield its URL."""
        (self.directory / runtime.TOKEN).write_text("token")
        path = runtime.socket_path(str(self.directory))
        async with await asyncio.start_unix_server(self.talk, path), serve(site) as base:
            yield base


@asynccontextmanager
async def ask_through(directory: Path, answer: Answer) -> AsyncGenerator[httpx2.AsyncClient]:
    """Serve the console of a gateway with these answers, and yield a client with an API key."""
    async with (
        Gateway(directory, answer).behind(site_of(str(directory))) as base,
        httpx2.AsyncClient(base_url=base, timeout=20.0, headers=KEY) as program,
    ):
        yield program


def begin(base: str, line: str, body: str = "") -> socket.socket:
    """Send a request, and read nothing of its answer."""
    port = int(base.rpartition(":")[2])
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    head = f"{line} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer x\r\n"
    site = "" if body else "sec-fetch-site: same-origin\r\n"
    client.sendall(f"{head}{site}content-length: {len(body)}\r\n\r\n{body}".encode())
    return client


async def test_a_gateway_that_does_not_judge_keys_gets_no_verb(tmp_path: Path) -> None:
    verbs: list[str] = []

    def answer(method: str) -> list[object]:
        verbs.append(method)
        return [{"id": 1, "result": {"v": 1, "role": "admin"}}]

    async with ask_through(tmp_path, answer) as program:
        refused = await program.post("/control", json={"method": "stop"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.json()["error"] == {"code": Exit.DENIED, "message": NOT_A_KEY}
    assert verbs == ["hello"]


@pytest.mark.parametrize(
    "hello",
    [
        {"id": 1, "error": {"code": Exit.DENIED, "message": "the token is not the one in /run/x"}},
        {"id": 1, "result": {"v": 1, "role": 7}},
        b"hello",
    ],
)
async def test_strangers_read_nothing_of_a_console_that_is_not_admitted(
    tmp_path: Path, hello: object
) -> None:
    async with ask_through(tmp_path, lambda _: [hello]) as program:
        refused = await program.post("/control", json=STATUS)
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert error["code"] == Exit.NOT_RUNNING
    assert error["message"] == "the gateway does not admit its console now"


async def test_an_answer_that_cannot_be_read_is_no_fault_of_the_program(tmp_path: Path) -> None:
    async with ask_through(
        tmp_path, lambda method: [ADMITTED if method == "hello" else b"status"]
    ) as program:
        answer = await program.post("/control", json=STATUS)
        assert answer.status_code == 503
        assert "the gateway sent a bad answer" in answer.json()["error"]["message"]


async def test_an_answer_that_breaks_off_keeps_the_lines_before(tmp_path: Path) -> None:
    event = {"method": "event", "params": {"seq": 1}}

    def answer(method: str) -> list[object]:
        return [ADMITTED] if method == "hello" else [event, b"{"]

    async with ask_through(tmp_path, answer) as program:
        answered = await program.post("/control", json={"method": "events"})
    assert (answered.status_code, answered.json()) == (200, event)


async def test_a_verb_that_is_too_large_fails_with_its_size(tmp_path: Path) -> None:
    async with Gateway(tmp_path, lambda _: []).behind(site_of(str(tmp_path))) as base:

        def ask() -> None:
            with ContextClient(Context(url=base, key="x"), 20.0) as client:
                client.call("stop", {"names": ["x" * BODY_BYTES_MAX]})

        with pytest.raises(Failed, match=rf"the body has \d+ bytes, the limit is {BODY_BYTES_MAX}"):
            await asyncio.to_thread(ask)


REQUESTS = [("POST /control", '{"method": "stop", "params": {}}'), ("GET /events", "")]


@pytest.mark.parametrize(("line", "body"), REQUESTS)
async def test_who_left_before_its_turn_gets_nothing_done(
    tmp_path: Path, line: str, body: str
) -> None:
    requests: list[HttpRequest] = []
    site = site_of(str(tmp_path))

    def handle(request: HttpRequest) -> Pending:
        requests.append(request)
        return site(request)

    gateway = Gateway(tmp_path, lambda _: [ADMITTED])
    gateway.admits.clear()
    async with gateway.behind(handle) as base:
        client = begin(base, line, body)
        await asyncio.to_thread(until, lambda: gateway.verbs, "the console asks for the client")
        client.close()
        await asyncio.to_thread(until, lambda: requests[0].lost, "the client has left")
        gateway.admits.set()
        await asyncio.wait_for(gateway.left.wait(), WAIT_S)
    assert gateway.verbs == ["hello"]
    assert site.streams == 0


@pytest.mark.parametrize(("line", "body"), REQUESTS)
async def test_who_does_not_read_gives_back_its_connection_to_the_gateway(
    tmp_path: Path, line: str, body: str
) -> None:
    part = json.dumps({"method": "line", "params": {"text": "x" * 3 * 1024 * 1024}}).encode()
    done = {"id": 2, "result": {}}

    def answer(method: str) -> list[object]:
        return [ADMITTED] if method == "hello" else [*before, part, part, part, done]

    before = [] if body else [done]
    gateway = Gateway(tmp_path, answer)
    async with gateway.behind(site_of(str(tmp_path), send_s=0.2)) as base:
        with begin(base, line, body):
            await asyncio.wait_for(gateway.left.wait(), WAIT_S)
