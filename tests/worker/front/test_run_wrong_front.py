"""A front that is asked for what another one has, and one that is sent such a connection."""

import http.client
import os
import resource
import socket

import pytest
from msgspec import structs

from metamcp_worker.http import connection_moves
from metamcp_worker.http.connection_moves import Handover, WrongFront, build_unknown_error
from metamcp_worker.http.request_head import MovedConnection
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.messages import (
    HOPS_MAX,
    ConnectionTaken,
    FrontReady,
    HandOver,
    Message,
    maker,
    with_front_number,
)

from .door import LEGACY, bodiless, legacy, modern
from .peers import WAIT_S
from .process import Front, front

pytestmark = pytest.mark.process

FOREIGN = "token.7"
"""A name that the front with the number 7 made."""
STATE = f"metamcp.x.7.{FOREIGN}"


@pytest.mark.parametrize("front", [0, 7, 123_456_789])
def test_a_name_says_which_front_made_it(front: int) -> None:
    assert maker(with_front_number("token-_", front)) == front


@pytest.mark.parametrize(
    "name", ["", "token", "token.", ".x", "a.1b", "a.²", "a." + "1" * 10, "7", "a" * 255 + ".1"]
)
def test_a_name_that_no_front_made_says_nothing(name: str) -> None:
    assert maker(name) is None
    why = KeyError()
    assert build_unknown_error(name, why) is why


def test_a_name_of_some_front_is_looked_for_elsewhere() -> None:
    found = build_unknown_error(FOREIGN, KeyError())
    assert isinstance(found, WrongFront)
    assert (found.name, found.maker) == (FOREIGN, 7)


def handed(one: Front) -> tuple[HandOver, bytes, int]:
    """The next connection that this front sends away: what it says, what was read, the socket."""
    while True:
        data, fds = packets.receive(one.sock)
        message = messages.unpack_from_front(data)
        if isinstance(message, HandOver):
            return message, packets.read_blob(fds[0]), fds[1]
        packets.close_all(fds)


def told(one: Front, kind: type[Message]) -> None:
    """It says this."""
    while not isinstance(messages.unpack_from_front(packets.receive(one.sock)[0]), kind):
        pass


def connected(one: Front) -> socket.socket:
    return socket.create_connection(one.listener.getsockname(), WAIT_S)


def answer(client: socket.socket) -> tuple[int, dict[str, str]]:
    """The status of the next answer, and its JSON-RPC error if it has one."""
    found = http.client.HTTPResponse(client)
    found.begin()
    error: dict[str, str] = codec.value(found.read()).get("error", {})
    return found.status, error


def at(request: bytes, last: str = "mcp") -> bytes:
    """The same request, for the endpoint that the front in these tests has."""
    path, _, rest = request.partition(b" ")[2].partition(b" ")
    assert path == b"/mcp"
    where = b"%b /metamcp/default/%b " % (request.split(b" ")[0], last.encode())
    return where + rest.replace(b"Host: localhost", b"Host: 127.0.0.1")


REQUESTS: dict[str, bytes] = {
    "post": at(legacy("ping", session=FOREIGN)),
    "get": at(bodiless("GET", f"Mcp-Session-Id: {FOREIGN}")),
    "delete": at(bodiless("DELETE", f"Mcp-Session-Id: {FOREIGN}")),
    "initialize": at(legacy("initialize", {"protocolVersion": LEGACY}, session=FOREIGN)),
    "sse": at(legacy("ping"), f"messages?session_id={FOREIGN}"),
    "state": at(modern("tools/call", {"name": "git__t", "requestState": STATE})),
}


@pytest.mark.promise("M79")
@pytest.mark.parametrize("kind", REQUESTS)
def test_a_connection_that_asks_for_what_another_front_has_goes_there(kind: str) -> None:
    request, name = REQUESTS[kind], STATE if kind == "state" else FOREIGN
    with front() as one:
        one.serve()
        one.offer("git", "t")
        one.heard(FrontReady)
        with connected(one) as client:
            client.sendall(request)
            message, read, fd = handed(one)
            assert message == HandOver(name=name, maker=7, hops=1)
            first, _, body = read.partition(b"\r\n")
            assert first == request.partition(b"\r\n")[0]
            assert body.endswith(request.partition(b"\r\n\r\n")[2])
            back = structs.replace(message, hops=HOPS_MAX)
            one.send(back, [packets.blob(read), fd])
            told(one, ConnectionTaken)
            status, error = answer(client)
            assert status == (400 if kind == "state" else 404), error
            assert "has ended" in error["message"] or "There is no such" in error["message"]


def served(one: Front) -> None:
    one.serve()
    one.heard(FrontReady)


def test_a_connection_that_is_sent_here_is_answered_here_and_stays() -> None:
    with front() as one:
        served(one)
        with connected(one) as client:
            client.sendall(at(legacy("ping", session=FOREIGN)))
            message, read, fd = handed(one)
            unknown = read.replace(b"token.7", b"unknown")
            one.send(message, [packets.blob(unknown), fd])
            told(one, ConnectionTaken)
            assert answer(client)[0] == 404
            client.sendall(at(legacy("ping", session="unknown")))
            assert answer(client)[0] == 404
            client.sendall(at(legacy("ping", session=FOREIGN)))
            message, _, fd = handed(one)
            assert message.hops == 1, "each request has its own way"
            packets.close_all([fd])


def test_a_front_without_free_descriptors_loses_that_connection_and_no_more() -> None:
    with front() as one:
        served(one)
        usual = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        ours, theirs = socket.socketpair()
        with ours:
            one.send(HandOver(name="x.0", maker=0, hops=1), [packets.blob(b""), theirs.detach()])
            told(one, ConnectionTaken)
            assert ours.recv(1) == b""
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, usual)
        with connected(one) as client:
            client.sendall(at(legacy("ping", session="unknown")))
            assert answer(client)[0] == 404


class Leaving:
    """A request whose connection goes when it is told to, if it is not `stuck`."""

    hops = 0

    def __init__(self, stuck: bool) -> None:
        self.stuck = stuck

    def leave(self, body: bytes) -> MovedConnection | None:
        return None if self.stuck else MovedConnection(os.open(os.devnull, os.O_RDONLY), body)


@pytest.mark.parametrize(
    ("stuck", "queued", "goes"),
    [(False, 0, True), (True, 0, False), (False, connection_moves.QUEUED_MAX, False)],
)
def test_a_connection_that_cannot_go_now_stays(stuck: bool, queued: int, goes: bool) -> None:
    sent: list[Message] = []

    def send(message: Message, fds: tuple[int, ...]) -> None:
        sent.append(message)
        packets.close_all(fds)

    found = Handover(send, lambda: queued).give(
        Leaving(stuck), WrongFront("x.1", 1, KeyError()), b""
    )
    assert found == goes
    assert sent == ([HandOver(name="x.1", maker=1, hops=1)] if goes else [])
