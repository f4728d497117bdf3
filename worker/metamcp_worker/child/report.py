"""Messages of a worker to the supervisor about its server.

Owns: beats, counters until they are sent, the messages about lists, removing secrets from the texts
that a server wrote. Never: the reason for a message.
"""

import contextlib
import itertools
from collections import Counter, deque

from msgspec import structs

from metamcp_worker.child.actions import Fail, Ready, Relisted
from metamcp_worker.child.server_session import ServerSession
from metamcp_worker.child.transport import ServerExit
from metamcp_worker.ipc import codec, packets, server_catalog
from metamcp_worker.ipc.messages import (
    AnswerTimes,
    CallsShown,
    CatalogueChanged,
    EventCounts,
    Heartbeat,
    LogLines,
    Message,
    ServerDown,
    ServerReady,
    Tune,
    pack,
)
from metamcp_worker.ipc.packets import Channel
from metamcp_worker.ipc.spec import LogSpec, ServerSpec
from metamcp_worker.runtime import logs
from metamcp_worker.runtime.masking import SecretMasker

COUNTERS_MAX = 8
"""Maximum counters in one message: the name of one may have a path, and a message 64 KiB."""
TOKENS_MAX = 16
"""Maximum number of tokens that are masked; older ones have expired."""

_secrets: dict["Report", tuple[str, ...]] = {}
"""Secrets of the servers of this process, which its log does not show."""


class Report:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._counts: Counter[str] = Counter()
        self._beats = 0
        self._masks = SecretMasker()
        self._log = LogSpec()
        self._learnt: deque[str] = deque(maxlen=TOKENS_MAX)

    def begin(self, spec: ServerSpec) -> None:
        """Set the server that the messages are about."""
        self._log = spec.log
        # Where the code of a server is in this process, its loggers write into its own log.
        logs.go_on({}, with_libraries=spec.module is None)
        self._apply()

    def tune(self, order: Tune) -> None:
        """Use this format and these levels of the log from now on, still without the secrets of the
        server."""
        self._log = structs.replace(
            self._log, format=order.format, level=order.level, levels=order.levels
        )
        self._apply()

    def _apply(self) -> None:
        secrets = _secrets[self] = (*self._log.secrets, *self._learnt)
        self._masks = SecretMasker(secrets)
        every = tuple(itertools.chain.from_iterable(_secrets.values()))
        logs.tune(structs.replace(self._log, secrets=every))

    def close(self) -> None:
        """Keep the secrets of this server no longer."""
        _secrets.pop(self, None)

    def secret(self, text: str) -> None:
        """Mask this value, too, from now on."""
        self._learnt.append(text)
        self._apply()

    def mask_text(self, text: str) -> str:
        """Return a sentence about the server without its secrets."""
        return self._masks.text(text)

    def tell(self, message: Message, fd: int | None = None) -> None:
        """Send one message, with its descriptor if it has one."""
        if isinstance(message, LogLines):
            message = structs.replace(message, lines=tuple(map(self.mask_text, message.lines)))
        elif isinstance(message, ServerDown):
            message = structs.replace(message, message=self.mask_text(message.message))
        self._channel.send(pack(message), () if fd is None else (fd,))

    def count(self, counter: str, times: int = 1) -> None:
        self._counts[counter] += times

    @property
    def unsent(self) -> bool:
        """Whether something was counted since the last call of `send_counters`."""
        return bool(self._counts)

    def send_counters(self) -> None:
        """Send the counters since the last call, and log the counts of repeated lines."""
        logs.count()
        rows = list(self._counts.items())
        self._counts.clear()
        for at in range(0, len(rows), COUNTERS_MAX):
            self.tell(EventCounts(counts=dict(rows[at : at + COUNTERS_MAX])))

    def beat(self, session: ServerSession | None, lag_s: float, idle_s: float) -> None:
        self._beats += 1
        self.tell(
            Heartbeat(
                seq=self._beats,
                lag_ms=lag_s * 1000,
                inflight=session.in_flight if session is not None else 0,
                queued=session.queue_length if session is not None else 0,
                idle_s=idle_s,
                probes_missed=session.probes_missed if session is not None else 0,
            )
        )

    def answers(self, session: ServerSession | None) -> None:
        """Send how long the server took for its answers, if there were any since the last call."""
        if session is not None and session.timing.news:
            self.tell(AnswerTimes(stats=session.timing.stats()))

    def send_waiting_calls(self, ticket: int, calls: list[tuple[int, int]]) -> None:
        """Answer `ShowCalls` with front and number of the calls that wait for their turn."""
        with contextlib.suppress(OSError):  # no free descriptor: the supervisor waits in vain
            self.tell(CallsShown(ticket=ticket), packets.blob(codec.dump(calls)))

    def send_server_down(
        self, failure: Fail, message: str, how: ServerExit | None, *, probing: bool
    ) -> None:
        """Send why the server is gone. `how`: the exit of its process, if it has one and ended."""
        self.tell(
            ServerDown(
                reason=failure.reason,
                message=message,
                code=how.code if how else None,
                signal=how.signal if how else 0,
                probing=probing,
                retry_after_s=failure.retry_after_s,
            )
        )

    def lists(self, action: Ready | Relisted, start_s: float) -> None:
        """Send the lists, when they are known or have changed. `start_s`: seconds since the server
        was started."""
        lists = action.catalogue
        message: Message = CatalogueChanged()
        if isinstance(action, Ready):
            message = ServerReady(
                protocol=lists.protocol, start_s=start_s, list_hash=action.list_hash
            )
        self.tell(message, packets.blob(server_catalog.pack(lists)))
