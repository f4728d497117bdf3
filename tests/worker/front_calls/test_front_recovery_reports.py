"""What the supervisor is told of sessions, and at which pace."""

import asyncio
import resource
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from metamcp_worker.front_calls.front_recovery import OVER_MAX, QUEUED_MAX, SessionRecordSender
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.messages import Message, SessionKept, SessionRecord, SessionsOver


def record(session: str, level: str = "") -> SessionRecord:
    return SessionRecord(
        id=session, endpoint="default", protocol="2025-11-25", caller="{}", level=level
    )


class Supervisor:
    """Takes messages; `queued` of them wait, as far as the front knows."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[SessionRecord | tuple[str, ...]] = asyncio.Queue()
        self.queued = 0
        self.looked: asyncio.Queue[int] = asyncio.Queue()
        self.keeping = SessionRecordSender(self._take, self._queued)

    def _take(self, message: Message, fds: tuple[int, ...]) -> None:
        if isinstance(message, SessionKept):
            (fd,) = fds
            self.told.put_nowait(codec.decode_as(SessionRecord, packets.read_blob(fd)))
        else:
            assert isinstance(message, SessionsOver)
            self.told.put_nowait(message.ids)

    def _queued(self) -> int:
        self.looked.put_nowait(self.queued)
        return self.queued


@asynccontextmanager
async def opened_supervisor() -> AsyncGenerator[Supervisor]:
    supervisor = Supervisor()
    running = asyncio.create_task(supervisor.keeping.run())
    try:
        yield supervisor
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_record_is_sent_before_the_client_can_have_an_answer() -> None:
    async with opened_supervisor() as supervisor:
        supervisor.keeping.send_record(record("a"))
        assert supervisor.told.get_nowait() == record("a")


async def test_of_a_session_the_newest_record_is_told() -> None:
    async with opened_supervisor() as supervisor:
        supervisor.queued = QUEUED_MAX
        supervisor.keeping.send_record(record("a"))
        supervisor.keeping.send_record(record("b"))
        supervisor.keeping.send_record(record("a", "debug"))
        supervisor.queued = 0
        assert [await supervisor.told.get(), await supervisor.told.get()] == [
            record("a", "debug"), record("b")
        ]  # fmt: skip
        supervisor.keeping.send_record(record("a", "info"))
        assert await supervisor.told.get() == record("a", "info")


async def test_of_a_session_that_is_over_the_end_is_told_only() -> None:
    async with opened_supervisor() as supervisor:
        supervisor.queued = QUEUED_MAX
        supervisor.keeping.send_record(record("a"))
        supervisor.keeping.on_sessions_end(("a", "b"))
        supervisor.keeping.send_record(record("c"))
        supervisor.queued = 0
        assert [await supervisor.told.get(), await supervisor.told.get()] == [
            ("a", "b"), record("c")
        ]  # fmt: skip


async def test_very_many_ends_are_told_in_messages_that_fit() -> None:
    async with opened_supervisor() as supervisor:
        ids = tuple(f"{number:0>100}" for number in range(2 * OVER_MAX + 1))
        supervisor.keeping.on_sessions_end(ids)
        first, second, third = [await supervisor.told.get() for _ in range(3)]
        assert isinstance(first, tuple)
        assert isinstance(second, tuple)
        assert isinstance(third, tuple)
        assert first + second + third == ids
        assert len(codec.dump(SessionsOver(ids=first))) < packets.PACKET_BYTES_MAX


async def test_a_supervisor_that_does_not_read_is_not_flooded() -> None:
    async with opened_supervisor() as supervisor:
        supervisor.queued = QUEUED_MAX
        supervisor.keeping.send_record(record("a"))
        await supervisor.looked.get()
        await supervisor.looked.get()
        assert supervisor.told.empty()
        supervisor.queued = QUEUED_MAX - 1
        assert await supervisor.told.get() == record("a")


async def test_at_the_end_everything_is_told_at_once() -> None:
    async with opened_supervisor() as supervisor:
        supervisor.queued = QUEUED_MAX
        supervisor.keeping.send_record(record("a"))
        supervisor.keeping.on_sessions_end(("b",))
        supervisor.keeping.flush()
        assert [supervisor.told.get_nowait(), supervisor.told.get_nowait()] == [
            ("b",), record("a")
        ]  # fmt: skip


async def test_a_record_for_which_there_is_no_descriptor_is_told_later() -> None:
    async with opened_supervisor() as supervisor:
        usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        supervisor.queued = QUEUED_MAX
        supervisor.keeping.send_record(record("a"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))
        try:
            supervisor.keeping.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        assert supervisor.told.empty()
        supervisor.keeping.flush()
        assert supervisor.told.get_nowait() == record("a")
