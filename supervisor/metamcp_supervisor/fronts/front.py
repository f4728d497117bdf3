"""A front as the supervisor sees it: a process and its control socket; what fronts need of the
nursery and of the rest of the gateway.

Owns: the packets to and from one front, its last figures, questions about its calls in flight, two
protocols. Never: the consequences, such as a restart (`fronts`), an implementation of a protocol.
"""

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, structs

from metamcp_supervisor.processes.nursery import ForkedWorker
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.disclosure import (
    DisclosureApplied,
    ListsAnnounced,
    OrderRequest,
    ServerListsChanged,
)
from metamcp_worker.ipc.embedding import Embed
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.figures import DayCount, ShowKeyUse
from metamcp_worker.ipc.messages import (
    AttachRole,
    CallsShown,
    Figures,
    FromFront,
    FrontStats,
    HandOver,
    Message,
    SessionKept,
    ShowCalls,
    ShowPath,
    ShowTools,
    Spans,
    Tenant,
)
from metamcp_worker.ipc.packets import ChannelSnapshot

Question = ShowCalls | ShowPath | ShowTools | ShowKeyUse
Shown = tuple[CallsShown, bytes]
"""The answer, and the blob that came with it."""


class Questions:
    """Questions to one front or worker. `send`: sends a message there."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._tickets = itertools.count(1)
        self._open: dict[int, asyncio.Future[Shown]] = {}

    async def ask(self, question: Question, within_s: float) -> Shown | None:
        """Ask for calls, the path of one, tools, or what an API key has open; return None if no
        answer comes in time. Sets the ticket of `question`."""
        ticket = next(self._tickets)
        answer: asyncio.Future[Shown] = asyncio.get_running_loop().create_future()
        self._open[ticket] = answer
        self._send(structs.replace(question, ticket=ticket))
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._open[ticket]

    def answer(self, message: CallsShown, blob: bytes) -> None:
        future = self._open.get(message.ticket)
        if future is not None and not future.done():
            future.set_result((message, blob))


_WITH_BLOB = FrontStats | SessionKept | Spans | CallsShown | OrderRequest | Embed


class FrontSnapshot(Struct, frozen=True, kw_only=True):
    number: int
    slot: int
    pid: int
    since: float
    line: ChannelSnapshot
    summary: FrontStats | None = None
    halted: bool = False


class FrontListener(Protocol):
    """The listener that receives everything that fronts send."""

    def on_message(self, front: "FrontProcess", message: FromFront, blob: bytes) -> None:
        """The front sent this message. `blob`: content of the descriptor of `FrontStats`,
        `SessionKept`, `Spans`, `OrderRequest` and `Embed`, empty for other messages. Raises
        codec.Malformed when the blob cannot be read."""
        ...

    def on_hand_over(self, front: "FrontProcess", message: HandOver, fds: list[int]) -> None:
        """Pass a connection on to another front. Takes the descriptors."""
        ...

    def unheard(self, front: "FrontProcess", sentence: str) -> None:
        """The front sent something that cannot be used."""
        ...

    def fell_silent(self, front: "FrontProcess") -> None:
        """The control socket is closed: the front is dead or about to be."""
        ...


class FrontProcess:
    """`number` is never used twice, `slot` is. `condemned`: the supervisor kills the front.
    `silent`: the control socket is closed. `questions`: about its calls. `owes`: the last round of
    new lists that the front has not announced to its clients yet, or 0. `keys`: the last change of
    the API keys that it has applied."""

    def __init__(
        self, number: int, slot: int, worker: ForkedWorker, now: float, ear: FrontListener
    ) -> None:
        self.number = number
        self.slot = slot
        self.pid = worker.pid
        self.since = now
        self.ready = False
        self.condemned = False
        self.silent = False
        self.owes = 0
        self.keys = 0
        self._given_up = False
        self._connectors: dict[str, socket.socket] = {}
        """Connectors that the front was sent last."""
        self.summary: FrontStats | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.questions = Questions(self.send)
        self.on_applied: Callable[[int], None] = lambda number: None
        """Callback for `disclosure.DisclosureApplied`, called with its number."""
        self._ear = ear
        self._channel = packets.Channel(
            worker.sock, self._packet, lambda: ear.fell_silent(self), self._on_descriptors_lost
        )

    @property
    def process_name(self) -> str:
        return f"front-{self.slot}"

    @property
    def able(self) -> bool:
        """Whether this front can take over the sessions and connections of another front."""
        return self.ready and not self.condemned and not self.silent

    def give_up(self) -> None:
        """Send nothing more to this front, because it is killed: a front that missed one message
        must not get those that follow."""
        self.condemned = self._given_up = True

    def send(self, message: Message, fds: Iterable[int] = ()) -> None:
        """Send a message, unless the front is given up. Takes the descriptors."""
        if self._given_up:
            packets.close_all(list(fds))
            return
        self._channel.send(messages.pack(message), list(fds))

    def attach(self, connectors: Mapping[str, socket.socket]) -> None:
        """Send the connectors that the front does not have. Raises OSError."""
        for role, connector in connectors.items():
            if self._connectors.get(role) is not connector:
                self.send(AttachRole(role=role), [os.dup(connector.fileno())])
                self._connectors[role] = connector

    def take_snapshot(self, *, halted: bool) -> FrontSnapshot:
        """Return the state of this front that the program after this one needs."""
        return FrontSnapshot(
            number=self.number,
            slot=self.slot,
            pid=self.pid,
            since=self.since,
            line=self._channel.take_snapshot(),
            summary=self.summary,
            halted=halted,
        )

    def adopt(self, snapshot: FrontSnapshot) -> None:
        """Continue from the state that the previous program handed over."""
        self.ready, self.summary = True, snapshot.summary
        for data, fds in snapshot.line.waiting:
            self._channel.send(data, fds)

    def cancel(self) -> None:
        """Cancel the deadline."""
        if self.deadline is not None:
            self.deadline.cancel()

    def close(self) -> None:
        self.cancel()
        self._channel.close()

    def _packet(self, data: bytes, fds: list[int]) -> None:
        try:
            message = messages.unpack_from_front(data)
            if isinstance(message, HandOver):
                handed, fds = fds, []
                self._ear.on_hand_over(self, message, handed)
                return
            blob = b""
            if isinstance(message, _WITH_BLOB) and fds:
                blob = packets.read_blob(fds.pop(0))
            if isinstance(message, CallsShown):
                self.questions.answer(message, blob)
                return
            if isinstance(message, DisclosureApplied):
                self.on_applied(message.number)
                return
            if isinstance(message, ListsAnnounced):
                self.owes = 0 if message.number == self.owes else self.owes
                return
            self._ear.on_message(self, message, blob)
        except (codec.Malformed, TooLarge) as error:
            self._ear.unheard(self, f"it sent something that cannot be read: {error}")
        finally:
            packets.close_all(fds)

    def _on_descriptors_lost(self, data: bytes) -> None:
        """Handle a message whose descriptors were lost. Figures come again in a moment. A session
        without a record here is lost only if this front dies: its client opens a new one. Spans are
        counted. The front that asked for a change or for vectors gets an answer."""
        message = messages.unpack_from_front(data)
        if isinstance(message, Spans | OrderRequest | Embed):
            self._ear.on_message(self, message, b"")


class FrontNotReplaced(Exception):
    """A front was not replaced. The text is a sentence."""


class Forker(Protocol):
    """Services of the nursery that fronts need."""

    async def fork(self, role: str, name: str) -> ForkedWorker: ...

    def signal(self, pid: int, number: int) -> None: ...

    def tune(self) -> None:
        """Set the log format and log levels of the nursery to those of this process."""
        ...

    def suspect(self) -> None:
        """Check whether the nursery still answers, after it did not report the end of a killed
        process."""
        ...


class FrontServices(Protocol):
    """Services of the rest of the gateway for fronts."""

    def welcome(self, front: FrontProcess) -> None:
        """Send a new front the states of the servers. Raises OSError."""
        ...

    def connectors(self) -> Mapping[str, socket.socket]:
        """Return the connectors of the processes that work for fronts (`packets`), by name."""
        ...

    def on_server_wanted(self, server: str, tenant: Tenant | None) -> None:
        """A client called a server that is not ready, or needs its own process of a server that
        serves other clients already."""
        ...

    def on_roots_changed(self, who: str, roots: str) -> None:
        """The client with this key (`who`) has different roots now."""
        ...

    def on_sessions_ended(self, sessions: Sequence[str]) -> None:
        """Sessions of clients with these ids have ended."""
        ...

    def on_request(
        self, front: FrontProcess, message: OrderRequest | ServerListsChanged, blob: bytes
    ) -> None:
        """A front asks to change what clients see (`disclosure.ViewOrder`), and waits for the
        outcome; or it has news of servers for its clients. `blob`: empty if its descriptor was
        lost. Raises codec.Malformed."""
        ...

    def on_other_message(self, front: FrontProcess, message: Message, blob: bytes) -> None:
        """A front sent a message for one of the features. `blob`: as for `on_request`."""
        ...

    def on_attach_failed(self, front: FrontProcess, server: str, generation: int) -> None:
        """A front did not get the pipe to this instance; generation 0: the front did not get the
        catalogue of this server."""
        ...

    def on_front_stats(
        self, front: FrontProcess, figures: Figures, summary: FrontStats
    ) -> None: ...

    def on_day_counts(self, front: FrontProcess, counts: Sequence[DayCount]) -> None:
        """A front has made calls that count against quotas."""
        ...

    def on_front_gone(self, number: int) -> None:
        """The front with this number is gone, and its last figures have come."""
        ...

    def hopeless(self, reason: str) -> None:
        """End the gateway, because fronts crash again and again."""
        ...
