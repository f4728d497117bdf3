"""Interfaces between fronts and the rest of the supervisor: the nursery, and the gateway's
services.

Owns: two protocols and an error. Never: an implementation.
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.processes.nursery import ForkedWorker
from metamcp_worker.ipc.disclosure import OrderRequest, ServerListsChanged
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.figures import DayCount
from metamcp_worker.ipc.messages import Figures, FrontStats, Tenant


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
