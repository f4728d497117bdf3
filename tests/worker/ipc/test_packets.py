"""Packets, descriptors and blobs on a control socket, and the channel on the event loop."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import DescriptorsLost, PeerGone, TooLarge
from metamcp_worker.ipc.packets import PACKET_BYTES_MAX, PACKET_FDS_MAX, QUEUE_PACKETS_MAX, Channel
from tests.live.processes import descriptors

quick = settings(max_examples=25, deadline=None, database=None)


@contextlib.contextmanager
def ends() -> Generator[tuple[socket.socket, socket.socket]]:
    near, far = packets.pair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        yield near, far


@contextlib.contextmanager
def no_free_descriptor() -> Generator[None]:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


class Inbox:
    """Collects what one channel delivers."""

    def __init__(self, sock: socket.socket) -> None:
        self.packets: asyncio.Queue[tuple[bytes, list[int]]] = asyncio.Queue()
        self.lost: asyncio.Queue[bytes] = asyncio.Queue()
        self.gone = 0
        self.ended = asyncio.Event()
        self.channel = Channel(sock, self._packet, self._gone, self.lost.put_nowait)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        self.packets.put_nowait((data, fds))

    def _gone(self) -> None:
        self.gone += 1
        self.ended.set()


@asynccontextmanager
async def opened_channel() -> AsyncGenerator[tuple[Inbox, socket.socket]]:
    before = descriptors(os.getpid())
    near, far = packets.pair()
    inbox = Inbox(near)
    with far:
        try:
            yield inbox, far
        finally:
            inbox.channel.close()
    assert descriptors(os.getpid()) == before


@quick
@given(st.lists(st.binary(min_size=1, max_size=2000), max_size=8))
def test_packets_keep_their_borders_and_their_order(sent: list[bytes]) -> None:
    with ends() as (near, far):
        for data in sent:
            packets.send(near, data)
        assert [packets.receive(far) for _ in sent] == [(data, []) for data in sent]
        with pytest.raises(BlockingIOError):
            packets.receive(far)


def test_the_largest_packet_with_the_most_descriptors_arrives_whole() -> None:
    with ends() as (near, far):
        packets.send(near, b"x" * PACKET_BYTES_MAX, [near.fileno()] * PACKET_FDS_MAX)
        data, fds = packets.receive(far)
        assert len(data) == PACKET_BYTES_MAX
        assert len(set(fds)) == PACKET_FDS_MAX
        assert not any(os.get_inheritable(fd) for fd in fds)
        assert all(os.path.sameopenfile(fd, near.fileno()) for fd in fds)
        packets.close_all(fds)
        with pytest.raises(TooLarge):
            packets.send(near, b"x" * (PACKET_BYTES_MAX + 1))


def test_descriptors_that_this_process_cannot_take_are_an_error_with_the_packet() -> None:
    with ends() as (near, far):
        packets.send(near, b"take it", [near.fileno()])
        packets.send(near, b"next")
        with no_free_descriptor(), pytest.raises(DescriptorsLost) as lost:
            packets.receive(far)
        assert lost.value.data == b"take it"
        assert packets.receive(far) == (b"next", [])


def test_a_peer_that_closed_is_gone_once_its_packets_are_read() -> None:
    with ends() as (near, far):
        packets.send(near, b"last words")
        near.close()
        assert packets.receive(far) == (b"last words", [])
        with pytest.raises(PeerGone):
            packets.receive(far)
        with pytest.raises(PeerGone):
            packets.send(far, b"too late")


def test_the_last_words_of_a_peer_that_had_not_read_everything_are_heard() -> None:
    with ends() as (ours, theirs):
        packets.send(ours, b"nobody reads this")
        packets.send(theirs, b"one")
        packets.send(theirs, b"two")
        theirs.close()
        assert [packets.receive(ours)[0] for _ in range(2)] == [b"one", b"two"]
        with pytest.raises(PeerGone):
            packets.receive(ours)


def test_a_peer_that_closed_with_unread_packets_is_gone() -> None:
    with ends() as (near, far):
        packets.send(far, b"never read")
        near.close()
        with pytest.raises(PeerGone):
            packets.receive(far)


@quick
@given(st.binary(max_size=300_000))
def test_a_blob_is_read_as_it_was_written_and_more_than_once(data: bytes) -> None:
    fd = packets.blob(data)
    assert packets.read_blob(os.dup(fd)) == data
    assert packets.read_blob(fd) == data


def test_a_blob_above_its_limit_is_refused_on_both_sides() -> None:
    fd = packets.blob(b"")
    os.ftruncate(fd, packets.BLOB_BYTES_MAX + 1)  # sparse: it takes no memory
    with pytest.raises(TooLarge):
        packets.read_blob(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


async def test_a_channel_keeps_order_while_the_peer_is_slow() -> None:
    async with opened_channel() as (inbox, far):
        count = 3000  # the kernel holds some hundreds, the channel the rest
        for number in range(count):
            inbox.channel.send(b"%d" % number)
        peer = Inbox(far.dup())
        try:
            for number in range(count):
                assert await peer.packets.get() == (b"%d" % number, [])
        finally:
            peer.channel.close()


async def test_a_channel_hands_over_descriptors_and_closes_its_own() -> None:
    async with opened_channel() as (inbox, far):
        peer = Inbox(far.dup())
        try:
            inbox.channel.send(b"a blob", [packets.blob(b"what it holds")])
            data, (fd,) = await peer.packets.get()
            assert data == b"a blob"
            assert packets.read_blob(fd) == b"what it holds"
        finally:
            peer.channel.close()


async def test_a_peer_that_never_reads_counts_as_gone_and_no_descriptor_stays_open() -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * QUEUE_PACKETS_MAX
    assert usual[1] == resource.RLIM_INFINITY or usual[1] >= wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(usual[0], wanted), usual[1]))
    try:
        async with opened_channel() as (inbox, far):
            while not inbox.channel.is_closed:
                inbox.channel.send(b"x" * 1000, [os.dup(far.fileno())] if not inbox.gone else [])
            await inbox.ended.wait()
            inbox.channel.send(b"to nobody", [packets.blob(b"")])
            assert inbox.gone == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


async def test_a_channel_hears_the_last_words_and_then_once_that_the_peer_is_gone() -> None:
    async with opened_channel() as (inbox, far):
        packets.send(far, b"last words")
        far.close()
        await inbox.ended.wait()
        assert inbox.packets.get_nowait() == (b"last words", [])
        inbox.channel.close()
        assert inbox.gone == 1


async def test_a_channel_that_is_closed_calls_nobody() -> None:
    async with opened_channel() as (inbox, far):
        inbox.channel.send(b"sent before the end")
        inbox.channel.close()
        assert packets.receive(far) == (b"sent before the end", [])
        assert inbox.gone == 0
        assert inbox.channel.is_closed


async def test_a_channel_tells_of_lost_descriptors_and_goes_on() -> None:
    async with opened_channel() as (inbox, far):
        packets.send(far, b"with one", [far.fileno()])
        with no_free_descriptor():
            assert await inbox.lost.get() == b"with one"
        packets.send(far, b"next")
        assert await inbox.packets.get() == (b"next", [])


async def test_a_packet_that_is_too_large_for_a_channel_closes_its_descriptors() -> None:
    async with opened_channel() as (inbox, _far):
        with pytest.raises(TooLarge):
            inbox.channel.send(b"x" * (PACKET_BYTES_MAX + 1), [packets.blob(b"")])
        assert not inbox.channel.is_closed


@pytest.fixture
def accepting() -> Generator[tuple[socket.socket, socket.socket]]:
    """An acceptor and its connector."""
    acceptor, connector = packets.acceptor()
    with acceptor, connector:
        yield acceptor, connector


def test_a_connection_waits_with_what_was_sent_until_it_is_taken(
    accepting: tuple[socket.socket, socket.socket],
) -> None:
    acceptor, connector = accepting
    with packets.connect(connector) as one, packets.connect(connector) as two:
        one.send(b"one")
        two.send(b"two")
        with packets.accept(acceptor) as first, packets.accept(acceptor) as second:
            assert (first.recv(9), second.recv(9)) == (b"one", b"two")
            first.send(b"heard")
            assert one.recv(9) == b"heard"
            with pytest.raises(BlockingIOError):
                packets.accept(acceptor)


def test_a_connection_whose_process_ends_untaken_is_closed(
    accepting: tuple[socket.socket, socket.socket],
) -> None:
    acceptor, connector = accepting
    with packets.connect(connector) as ours:
        acceptor.close()
        assert ours.recv(9) == b""
        with pytest.raises(ConnectionRefusedError):
            packets.connect(connector)


def test_more_connections_than_may_wait_are_refused_and_leave_no_descriptor(
    accepting: tuple[socket.socket, socket.socket],
) -> None:
    _, connector = accepting
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(BlockingIOError):
            for _ in range(10_000):
                opened.enter_context(packets.connect(connector))
        before = descriptors(os.getpid())
        with pytest.raises(BlockingIOError):
            packets.connect(connector)
        assert descriptors(os.getpid()) == before


def test_a_front_connects_by_the_connector_that_came_last_and_by_those_in_use(
    accepting: tuple[socket.socket, socket.socket],
) -> None:
    acceptor, connector = accepting
    connectors = packets.Connectors()
    old, earlier = packets.acceptor()
    connectors.attach("audit", earlier.detach())
    connectors.attach("audit", connector.detach())
    with pytest.raises(PeerGone):
        packets.accept(old)
    old.close()
    with connectors.connect("audit") as ours, packets.accept(acceptor) as theirs:
        ours.send(b"record")
        assert theirs.recv(9) == b"record"
    connectors.keep(("code",))
    assert not connectors.has("audit")
    with pytest.raises(ConnectionRefusedError):
        connectors.connect("audit")
    with pytest.raises(PeerGone):
        packets.accept(acceptor)
