"""What fronts need of the rest of the supervisor, and what it may hear from them.

Owns: two protocols and an error. Never: an implementation.
"""

from collections.abc import Sequence
from typing import Protocol

from metamcp_supervisor.fronts.front import Front
from metamcp_supervisor.processes.nursery import Worker
from metamcp_worker.ipc.disclosure import Change, News
from metamcp_worker.ipc.embedding import Embed
from metamcp_worker.ipc.messages import Figures, FrontStats, Tenant


class NotRolled(Exception):
    """A front stays as it is. The text is a sentence."""


class Forker(Protocol):
    """What is needed of the nursery."""

    async def fork(self, role: str, name: str) -> Worker: ...

    def signal(self, pid: int, number: int) -> None: ...

    def tune(self) -> None:
        """It is to speak as this process does."""
        ...

    def suspect(self) -> None:
        """A process was killed and its end is not told: does the nursery still answer?"""
        ...


class House(Protocol):
    """What the rest of the gateway does for fronts."""

    def welcome(self, front: Front) -> None:
        """Tell a new front about the servers. Raises OSError."""
        ...

    def wanted(self, server: str, tenant: Tenant | None) -> None:
        """A client called a server that is not ready, or its project's, which serves others
        already."""
        ...

    def rooted(self, who: str, roots: str) -> None:
        """The client with this word has other roots now."""
        ...

    def ended(self, sessions: Sequence[str]) -> None:
        """These sessions of clients are over."""
        ...

    def asked(self, front: Front, message: Change | Embed | News, blob: bytes) -> None:
        """A front has an order about what is in view (`disclosure.Wish`), or texts that are to
        become vectors, and waits for the outcome; or news of servers for its clients. `blob`:
        nothing, if its descriptor was lost. Raises codec.Malformed."""
        ...

    def undelivered(self, front: Front, server: str, generation: int) -> None:
        """A front did not get the pipe to this instance; generation 0: nor the catalogue of this
        server."""
        ...

    def counted(self, front: Front, figures: Figures, summary: FrontStats) -> None: ...

    def left(self, number: int) -> None:
        """This front is gone, and its last figures have come."""
        ...

    def hopeless(self, reason: str) -> None:
        """Fronts crash again and again: the gateway must end."""
        ...
