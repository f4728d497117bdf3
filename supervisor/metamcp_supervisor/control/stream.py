"""Connection on which a verb was asked, and the base of the parameters of all orders.

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
    """Connection to the client, as a verb sees it."""

    @property
    def caller(self) -> str:
        """Client that asks, as the journal names it."""
        ...

    @property
    def uid(self) -> int:
        """Id of the user who asks, -1 where the system does not tell."""
        ...

    @property
    def role(self) -> Role:
        """Role of this user."""
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
        """End the `woken` that waits now, or else the next one."""
        ...

    async def woken(self, timeout_s: float | None) -> None:
        """Wait for `wake`, at most `timeout_s` seconds. Raises PeerGone if the client has left."""
        ...


def known(steering: Steering, names: Sequence[str]) -> list[ServerStatus]:
    """Return the status of the named servers. Raises UnknownName."""
    servers = {server.name: server for server in steering.status().servers}
    unknown = [name for name in names if name not in servers]
    if unknown:
        raise UnknownName(unknown, servers)
    return [servers[name] for name in names]


class ChangeParams(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a verb that changes something."""
