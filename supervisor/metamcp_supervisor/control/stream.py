"""The connection on which a verb was asked, and the root of all orders.

Owns: the protocol that the control socket implements, and the check of names that verbs share.
Never: the socket (`control`).
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.services import Steering, UnknownName
from metamcp_supervisor.verbs import ServerStatus


class ControlStream(Protocol):
    """The connection, as a verb sees it."""

    @property
    def caller(self) -> str:
        """Who asks, for the journal."""
        ...

    @property
    def uid(self) -> int:
        """The user who asks, -1 where the system does not tell."""
        ...

    @property
    def role(self) -> Role:
        """What this user may do."""
        ...

    async def tell(self, method: str, params: object) -> None:
        """Send a notification and wait until the reader keeps up. Raises PeerGone."""
        ...

    async def answer(self, result: object) -> None:
        """Send the result now. Raises PeerGone."""
        ...

    def push(self, method: str, params: object) -> None:
        """Send a notification without waiting. Raises PeerGone when the reader is too slow."""
        ...

    def wake(self) -> None:
        """End a `woken`, now or the next one."""
        ...

    async def woken(self, timeout_s: float | None) -> None:
        """Wait for `wake`, at most so long. Raises PeerGone when the client has left."""
        ...


def known(steering: Steering, names: Sequence[str]) -> list[ServerStatus]:
    """The named servers as they stand. Raises UnknownName."""
    servers = {server.name: server for server in steering.status().servers}
    unknown = [name for name in names if name not in servers]
    if unknown:
        raise UnknownName(unknown, servers)
    return [servers[name] for name in names]


class ChangeParams(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a verb that changes something."""
