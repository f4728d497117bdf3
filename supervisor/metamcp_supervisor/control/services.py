"""What the control socket may ask of the gateway: the seam between steering and doing.

Owns: the protocol that the gateway implements, and the error for a name it does not know. Never:
carrying anything out (`run`), the socket (`control`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from metamcp_supervisor.config.naming import hint, nearest
from metamcp_supervisor.control.explain import Tries
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.verbs import CallsUnderWay, GatewayStatus, Overridden, ReloadPlan, Upgrade
from metamcp_worker.ipc.disclosure import Everything, Exposure, OrderOutcome, Pair, ViewStats, Wish
from metamcp_worker.ipc.errors import MetaMCPError

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


class Unconfirmed(ReloadRefused):
    """A reload that needs somebody's yes. `question`: what that person reads; `plan`: the hash of
    what is applied then."""

    def __init__(self, why: str, question: str, plan: str) -> None:
        super().__init__(why)
        self.question = question
        self.plan = plan


class Particulars(Struct, frozen=True, kw_only=True):
    """What the gateway knows of a server beyond its status. `config`: in effect, secrets masked;
    `source`: where it was read; `endpoints`: that expose it; `hidden`: what may be secret in the
    commands of its processes, and what is shown instead; `overrides`: what is set for a time;
    `drift`: tools that are not as approved, each with how. `withheld`: variables of the gateway
    that it does not get and that could matter. `left_out`: definitions that are not valid, each
    with place and reason."""

    config: Mapping[str, Any]
    source: str
    endpoints: tuple[str, ...]
    list_hash: str
    tries: Tries
    hidden: Mapping[str, str]
    overrides: tuple[Overridden, ...] = ()
    drift: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class ViewStore(Protocol):
    """What is remembered of views and tool sets."""

    def everything(self) -> Everything: ...

    async def carry_out(self, wish: Wish) -> OrderOutcome:
        """An order, to its end: every front knows of it then."""
        ...

    def endpoints(self) -> Mapping[str, Exposure]:
        """How much each one shows; the default one is the first."""
        ...

    def tools(self, server: str) -> frozenset[str]:
        """What it offered last, also in an earlier run; nothing, if that is not known."""
        ...

    def kept(self) -> frozenset[Pair]:
        """Tools in quarantine: they come into no view."""
        ...


class Steering(Protocol):
    """The gateway, as far as it can be watched and steered.

    The verbs only order and return at once; `status` and the journal tell what became of it. They
    are all-or-nothing: with one unknown name nothing is ordered. Each may raise NotNow.
    """

    @property
    def journal(self) -> Journal: ...

    @property
    def logs(self) -> ServerLogs: ...

    @property
    def shelf(self) -> ViewStore: ...

    def status(self) -> GatewayStatus: ...

    def longest_s(self) -> dict[str, float]:
        """The longest call so far, by server."""
        ...

    def latencies(self) -> dict[str, tuple[int, ...]]:
        """How many requests took how long so far, by server: counts per bucket of `BUCKETS_S`."""
        ...

    def views(self) -> Sequence[ViewStats]:
        """What is in view, as the fronts told it last, every two seconds."""
        ...

    def particulars(self, name: str) -> Particulars:
        """Of a server that `status` shows at this moment."""
        ...

    def start(self, names: Sequence[str]) -> None:
        """Raises UnknownName."""
        ...

    def stop(self, names: Sequence[str]) -> None:
        """Raises UnknownName."""
        ...

    def restart(self, names: Sequence[str]) -> None:
        """Raises UnknownName."""
        ...

    def part(self, names: Sequence[str], *, yes: bool) -> None:
        """Keep new calls from servers that are ready, or let them come again. Raises
        UnknownName."""
        ...

    def quarantine(self, names: Sequence[str], why: str) -> None:
        """Stop servers, so that only an operator starts them again. Raises UnknownName."""
        ...

    def signal(self, name: str, number: int) -> int:
        """Send a signal to the server's own process; which that is. Raises UnknownName; NotNow
        where there is none."""
        ...

    def override(self, name: str, settings: Mapping[str, str], for_s: float) -> None:
        """Set these for so long, other than in the file, of a server that `status` shows; without
        a name levels of the log (`config.levels`). Raises config.ConfigInvalid."""
        ...

    def as_written(self, name: str) -> tuple[Overridden, ...]:
        """All of it as in the file again; what was set. `name`: as in `override`."""
        ...

    async def stacks(self, name: str) -> str:
        """What the threads of its worker are doing; it is in its log, too. Raises UnknownName,
        NotNow."""
        ...

    async def calls(self, names: Sequence[str], slow_s: float) -> CallsUnderWay:
        """Those that are under way: of these servers, or of all; only those that have taken so
        long. Raises UnknownName."""
        ...

    async def roll(self) -> None:
        """Another process for each front, one after the other, without a gap. Raises NotNow."""
        ...

    async def upgrade(self, told: Callable[[Upgrade], None]) -> None:
        """Let the program that is installed now take over. `told` hears of it at the last moment;
        it does not return then. Raises NotNow."""
        ...

    async def reload(self, dry_run: bool, expect: str | None, yes: bool = False) -> ReloadPlan:
        """`yes`: whoever asks confirms what needs to be. Raises config.ConfigInvalid and
        ReloadRefused."""
        ...
