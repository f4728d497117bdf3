"""What the control socket may ask of the gateway: the seam between steering and doing.

Owns: the protocol that the gateway implements, and the error for a name it does not know. Never:
carrying anything out (`run`), the socket (`control`).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from metamcp_supervisor.verbs import GatewayStatus, ReloadPlan
from metamcp_supervisor.wanted.nearest import hint, nearest
from metamcp_supervisor.watched.events import Journal
from metamcp_supervisor.watched.logs import ServerLogs
from metamcp_worker.errors import MetaMCPError

_SHOWN_NAMES = 8
_SHOWN_CHARACTERS = 64
"""Names come from the outside; a message repeats so much of them."""


class UnknownName(MetaMCPError):
    """Servers that are not configured. `names`: those; `nearest`: the known name most like the
    first of them, or None."""

    def __init__(self, names: Sequence[str], known: Iterable[str]) -> None:
        known = sorted(known)
        first = names[0] if names else ""
        self.names = tuple(names)
        self.nearest = nearest(first, known)
        listed = ", ".join(f"'{name[:_SHOWN_CHARACTERS]}'" for name in self.names[:_SHOWN_NAMES])
        super().__init__(f"no server is named {listed}; {hint(first, known)}")


class NotNow(MetaMCPError):
    """The gateway ends and takes no orders any more."""


class ReloadRefused(MetaMCPError):
    """A reload that was not carried out although its configuration is valid: the plan is not the
    expected one, or its commands were never confirmed. The text says which."""


class Steering(Protocol):
    """The gateway, as far as it can be watched and steered.

    The verbs only order and return at once; `status` and the journal tell what became of it. They
    are all-or-nothing: with one unknown name nothing is ordered. Each may raise NotNow.
    """

    @property
    def journal(self) -> Journal: ...

    @property
    def logs(self) -> ServerLogs: ...

    def status(self) -> GatewayStatus: ...

    def start(self, names: Sequence[str]) -> None:
        """Raises UnknownName."""
        ...

    def stop(self, names: Sequence[str]) -> None:
        """Raises UnknownName."""
        ...

    def restart(self, names: Sequence[str]) -> None:
        """Raises UnknownName."""
        ...

    async def reload(self, dry_run: bool, expect: str | None) -> ReloadPlan:
        """Raises config.ConfigInvalid and ReloadRefused."""
        ...
