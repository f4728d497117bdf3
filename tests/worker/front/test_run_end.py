"""A front that ends while others go on: what still comes to it is answered, or left to them."""

import contextlib
import socket
from collections import Counter

import pytest

from metamcp_worker.front import run
from metamcp_worker.http.connection_moves import NOBODY
from metamcp_worker.ipc import messages, packets
from metamcp_worker.ipc.errors import PeerGone
from metamcp_worker.ipc.frames import Result
from metamcp_worker.ipc.messages import (
    HOPS_MAX,
    ConnectionTaken,
    FrontReady,
    HandOver,
    Message,
    Stop,
)

from .door import bodiless, legacy, modern, opened_door
from .peers import WAIT_S
from .process import Front, front
from .test_run_wrong_front import answer, at, handed

pytestmark = pytest.mark.process

COMING, TIMES = 8, 3
PING = at(legacy("ping", session="unknown"))
STREAMS: dict[str, bytes] = {
    "sse": at(bodiless("GET"), "sse"),
    "listen": at(modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})),
}


class Mover:
    """A client, and its connection on the way to a front with this request; all made beforehand."""

    def __init__(self, request: bytes, hops: int = 1) -> None:
        self.client, theirs = socket.socketpair()
        self.client.settimeout(WAIT_S)
        self._order = HandOver(name="x.0", maker=0, hops=hops)
        self._fds = [packets.blob(request), theirs.detach()]

    def go(self, one: Front) -> socket.socket:
        """Raises PeerGone."""
        fds, self._fds = self._fds, []
        try:
            packets.send(one.sock, messages.pack(self._order), fds)
        finally:
            packets.close_all(fds)
        return self.client


def listened(one: Front, until: type[Message] | None = None) -> Counter[type[Message]]:
    """How often the front says what, up to the first of this kind or its end."""
    said: Counter[type[Message]] = Counter()
    while until is None or not said[until]:
        try:
            data, fds = packets.receive(one.sock)
        except PeerGone:
            break
        packets.close_all(fds)
        said[type(messages.unpack_from_front(data))] += 1
    return said


@pytest.mark.promise("M79")
@pytest.mark.parametrize("time", range(TIMES))
def test_a_front_that_ends_answers_every_connection_that_it_has_taken(time: int) -> None:
    with front() as one:
        one.serve()
        one.heard(FrontReady)
        movers = [Mover(PING, HOPS_MAX) for _ in range(COMING)]
        movers[0].go(one)
        one.send(Stop(grace_s=10.0, heirs=True))
        taken = 0
        for mover in movers[1:]:
            said = listened(one, HandOver)  # the one before leaves: nothing else is there now
            taken += said[ConnectionTaken]
            with contextlib.suppress(PeerGone):
                mover.go(one)
        assert one.ended() == run.EXIT_STOPPED
        taken += listened(one)[ConnectionTaken]
        answered = 0
        for mover in movers:
            with mover.client:
                answered += bool(mover.client.recv(1))
        assert answered == taken


@pytest.mark.promise("M79")
@pytest.mark.parametrize("kind", STREAMS)
def test_a_front_that_ends_leaves_new_streams_to_the_others(kind: str) -> None:
    with front() as one:
        one.serve()
        one.offer("git", "t")
        worker = one.attach("git")
        one.heard(FrontReady)
        running = one.post("tools/call", name="git__t")
        call = worker.call()
        one.send(Stop(grace_s=10.0, heirs=True))
        with Mover(STREAMS[kind]).go(one), Mover(STREAMS[kind], HOPS_MAX).go(one) as last:
            message, read, fd = handed(one)
            packets.close_all([fd])
            assert message == HandOver(name="", maker=NOBODY, hops=2)
            assert read.partition(b"\r\n")[0] == STREAMS[kind].partition(b"\r\n")[0]
            status, error = answer(last)
            assert (status, "is ending" in error["message"]) == (503, True)
        worker.write(Result(call.id, b'{"content":[]}'))
        assert "result" in running.answer()
        listened(one)


async def test_a_call_that_nobody_cancelled_never_looks_like_one_that_was() -> None:
    async with opened_door() as door:
        client = await door.connect()
        client.send(modern("tools/call", {"name": "t"}))
        await door.peer.call()
        await door.server.drain(0)
        assert await client.closed() == b""
