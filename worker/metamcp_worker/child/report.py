"""What a worker tells the supervisor of its server.

Owns: beats, counters until they are sent, the messages about lists. Never: why something is told.
"""

import contextlib
from collections import Counter

from metamcp_worker import catalogue, codec, packets
from metamcp_worker.child.actions import Ready, Relisted
from metamcp_worker.messages import Beat, CallsShown, Counted, Listed, Message, ServerReady, pack
from metamcp_worker.packets import Channel


class Report:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._counts: Counter[str] = Counter()
        self._beats = 0

    def tell(self, message: Message, fd: int | None = None) -> None:
        """Send one message, with its descriptor if it has one."""
        self._channel.send(pack(message), () if fd is None else (fd,))

    def count(self, counter: str, times: int = 1) -> None:
        self._counts[counter] += times

    def counted(self) -> None:
        """Send what was counted since the last time."""
        if self._counts:
            self.tell(Counted(counts=dict(self._counts)))
            self._counts.clear()

    def beat(
        self, lag_ms: float, inflight: int, queued: int, idle_s: float, probes_missed: int
    ) -> None:
        self._beats += 1
        self.tell(
            Beat(
                seq=self._beats,
                lag_ms=lag_ms,
                inflight=inflight,
                queued=queued,
                idle_s=idle_s,
                probes_missed=probes_missed,
            )
        )

    def waiting(self, ticket: int, calls: list[tuple[int, int]]) -> None:
        """The answer to `ShowCalls`: front and number of those that wait for their turn."""
        with contextlib.suppress(OSError):  # no free descriptor: whoever asked waits in vain
            self.tell(CallsShown(ticket=ticket), packets.blob(codec.dump(calls)))

    def lists(self, found: Ready | Relisted, start_s: float) -> None:
        """The lists are known, or others than before. `start_s`: since the server was started."""
        lists, list_hash = found.catalogue, found.list_hash
        sizes = {
            "tools": len(lists.tools),
            "prompts": len(lists.prompts),
            "resources": len(lists.resources),
        }
        message: Message
        if isinstance(found, Relisted):
            message = Listed(list_hash=list_hash, **sizes)
        else:
            message = ServerReady(
                protocol=lists.protocol, start_s=start_s, list_hash=list_hash, **sizes
            )
        self.tell(message, packets.blob(catalogue.pack(lists)))
