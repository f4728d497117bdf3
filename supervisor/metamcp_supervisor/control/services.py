"""Interface between the control socket and the gateway: what can be asked and ordered.

Owns: the protocol that the gateway implements, and the errors for orders that it does not carry
out; the protocol of a connection on which a verb was asked (`ControlStream`), and the check of
names that verbs share. Never: carrying an order out (`gateway`), the socket (`control`).
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from metamcp_supervisor.approval.lock_drift import ToolDrift
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.naming import hint, nearest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.console_sessions import ConsoleSession, ConsoleSessions
from metamcp_supervisor.control.explain import Tries
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.verbs import (
    CallsUnderWay,
    ConfigTree,
    Exit,
    GatewayStatus,
    KeyChanged,
    KeyList,
    KeyOrder,
    OverriddenSetting,
    PepperRotated,
    ReloadPlan,
    ServerStatus,
    Upgrade,
)
from metamcp_worker.confinement.denials import DeniedRight
from metamcp_worker.ipc.disclosure import (
    DisclosureState,
    Exposure,
    OrderOutcome,
    Pair,
    ViewOrder,
    ViewStats,
)
from metamcp_worker.ipc.errors import MetaMCPError, ProtocolError
from metamcp_worker.ipc.figures import CallPath, KeyUse, PathQuery, ShownTools, ToolQuery, ToolStats
from metamcp_worker.ipc.key_table import KeySpec
from metamcp_worker.ipc.saved_scripts import Script

T = TypeVar("T")
_SHOWN_NAMES = 8
_SHOWN_CHARACTERS = 64
"""Maximum names in a message, and characters of each; names come from outside."""


class UnknownName(MetaMCPError):
    """Raised if named servers are not configured. `names`: the unknown names; `nearest`: the known
    name most like the first of them, or None."""

    def __init__(self, names: Sequence[str], servers: Iterable[str]) -> None:
        servers = sorted(servers)
        first = names[0] if names else ""
        self.names = tuple(names)
        self.nearest = nearest(first, servers)
        listed = ", ".join(f"'{name[:_SHOWN_CHARACTERS]}'" for name in self.names[:_SHOWN_NAMES])
        super().__init__(f"no server is named {listed}; {hint(first, servers)}")


class NotNow(MetaMCPError):
    """Raised if the gateway cannot carry out the order now, for example because it is ending. The
    text says why."""


class ReloadRefused(MetaMCPError):
    """Raised if a reload was not carried out although its configuration is valid: the plan is not
    the expected one, or its commands were never confirmed. The text says which."""


class Unconfirmed(ReloadRefused):
    """Raised if a reload needs the confirmation of a person. `question`: text to show; `plan`: hash
    of the plan that is applied after a yes."""

    def __init__(self, message: str, question: str, plan: str) -> None:
        super().__init__(message)
        self.question = question
        self.plan = plan


class ServerDetails(Struct, frozen=True, kw_only=True):
    """Facts about a server beyond its status. `config`: configuration in effect, secrets masked;
    `source`: file and line of its table; `endpoints`: endpoints that expose the server;
    `hidden`: text in the commands of its processes that may be secret, with the text to show
    instead; `overrides`: settings that are overridden for a time; `drift`: tools that are not as
    approved, each with the difference. `withheld`: environment variables of the gateway that the
    server does not get and that could matter. `left_out`: definitions that are not valid, each with
    place and reason."""

    config: Mapping[str, Any]
    source: str
    endpoints: tuple[str, ...]
    list_hash: str
    tries: Tries
    hidden: Mapping[str, str]
    overrides: tuple[OverriddenSetting, ...] = ()
    drift: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class ScriptStore(Protocol):
    """Store of scripts, and of all that orders change. `unread`: why nothing of it can be read,
    empty if it can."""

    @property
    def unread(self) -> str: ...

    async def read_again(self) -> None:
        """Read all of it if that has failed so far."""
        ...

    def read_everything(self) -> DisclosureState: ...

    async def carry_out(self, wish: ViewOrder) -> OrderOutcome:
        """Carry out an order, and return when every front knows its outcome."""
        ...

    async def versions(self, script: str) -> Sequence[Script]:
        """Return the versions of a script that are kept, the oldest first. Raises MetaMCPError."""
        ...


class ViewStore(ScriptStore, Protocol):
    """Store of views, tool sets and scripts."""

    def endpoints(self) -> Mapping[str, Exposure]:
        """Return the exposure of each endpoint; the default endpoint is the first."""
        ...

    def tools(self, server: str) -> frozenset[str]:
        """Return the tools that the server offered last, also in an earlier run; empty if they are
        not known."""
        ...

    def list_quarantined(self) -> frozenset[Pair]:
        """Return the tools in quarantine; no view contains them."""
        ...


class KeyStore(Protocol):
    """Store of API keys. Each method raises MetaMCPError with the reason why it cannot be done,
    which is a LookupError too if a name is not known, and a ValueError if the order is wrong."""

    def find_valid_key(self, text: str) -> KeySpec | None:
        """Return the key with this text if it is valid now."""
        ...

    async def list_keys(self, names: Sequence[str], after: str = "") -> KeyList:
        """Return the keys with these ids or names; without names the next ones after an id."""
        ...

    async def read_key_use(self, name: str) -> KeyUse:
        """Return what ends when the key with this id or name does."""
        ...

    async def carry_out_order(self, order: KeyOrder, by: str) -> KeyChanged:
        """Carry out an order of `by`, and return when every front has applied it."""
        ...

    async def rotate_pepper(self, grace: str) -> PepperRotated:
        """Make a new pepper. The valid keys end after `grace`."""
        ...


class SettingsStore(Protocol):
    """The configuration in force, its files, and what is approved. Each coroutine may raise
    NotNow."""

    @property
    def config(self) -> Config:
        """Configuration in force, with settings that are set for a time."""
        ...

    @property
    def written_config(self) -> Config:
        """The same without settings that are set for a time."""
        ...

    async def plan_reload(self) -> tuple[ReloadPlan, Config]:
        """Return what a reload would do, and the configuration in the files. Raises
        config.ConfigInvalid."""
        ...

    def list_drifted_servers(self) -> Sequence[str]:
        """Return the servers with tools that are not as approved."""
        ...

    async def drift(self, server: str) -> tuple[Sequence[ToolDrift], str]:
        """Return the tools of a server that are not as approved, with both definitions, and the
        mark of what it offers now."""
        ...

    def has_lock_entry(self, server: str) -> bool:
        """Whether `metamcp.lock` in force has an entry of a server."""
        ...

    async def approve(self, server: str, tool: str, expect: str) -> int:
        """Approve what a server offers now, all of it or one tool. `expect`: mark of what was
        looked at. Return the number of its approved tools. Raises ReloadRefused and
        config.ConfigInvalid."""
        ...


class GatewayControl(Protocol):
    """The gateway, as far as the control socket can watch and steer it.

    An order that is not a coroutine returns at once; `status` and the journal show its outcome.
    Orders are all-or-nothing: with one unknown name nothing is ordered. Each may raise NotNow.
    """

    @property
    def journal(self) -> Journal: ...

    @property
    def logs(self) -> ServerLogs: ...

    @property
    def shelf(self) -> ViewStore: ...

    @property
    def keys(self) -> KeyStore: ...

    @property
    def settings(self) -> SettingsStore: ...

    @property
    def sessions(self) -> ConsoleSessions:
        """Sessions of browsers."""
        ...

    def service(self, kind: type[T]) -> T:
        """Return the service of a feature."""
        ...

    def figures(self) -> Mapping[str, object]:
        """Return figures of features that no event reports, by the kind of news."""
        ...

    def on_keys_changed(self) -> None:
        """API keys were created or have ended."""
        ...

    def status(self, names: Collection[str] | None = None) -> GatewayStatus:
        """Return the status of now. `names`: only these servers are in it, those that exist."""
        ...

    def count_waiting(self) -> Mapping[str, int]:
        """Return how many runs and calls wait for a person, by kind."""
        ...

    def longest_s(self) -> dict[str, float]:
        """Return the seconds of the longest call so far, by server."""
        ...

    def latencies(self) -> dict[str, tuple[int, ...]]:
        """Return the numbers of requests so far by how long they took: by server, one count per
        bucket of `BUCKETS_S`."""
        ...

    def views(self) -> Sequence[ViewStats]:
        """Return the figures of all views, as the fronts last reported them; they report every two
        seconds."""
        ...

    def tree(self) -> ConfigTree:
        """Return the workspaces, with their namespaces, endpoints and servers."""
        ...

    def particulars(self, name: str) -> ServerDetails:
        """Return the particulars of a server that `status` shows at this moment."""
        ...

    def start(self, names: Sequence[str]) -> None:
        """Start servers. Raises UnknownName."""
        ...

    def stop(self, names: Sequence[str], by: str) -> None:
        """Stop servers. `by`: caller whose decision outlasts the gateway; empty: it does not.
        Raises UnknownName."""
        ...

    def restart(self, names: Sequence[str], worker: str = "") -> None:
        """Restart servers, in another process of the worker that they share if it is named. Raises
        UnknownName."""
        ...

    def drain(self, names: Sequence[str], by: str, *, yes: bool) -> None:
        """Keep new calls from servers that are ready (`yes`), or let new calls reach them again.
        `by`: caller. Raises UnknownName."""
        ...

    def trial(self, name: str, rights: set[DeniedRight] | None) -> None:
        """Restart a server without its sandbox, and add the rights that it uses and would lack in
        it; None: restart it in its sandbox. Raises UnknownName."""
        ...

    def quarantine(self, names: Sequence[str], reason: str, by: str) -> None:
        """Stop servers, so that only an operator starts them again. `by`: caller. Raises
        UnknownName."""
        ...

    async def save_decisions(self) -> str:
        """Return when the disk has what was decided until now. Return a sentence if it does not get
        that, else an empty text."""
        ...

    def signal(self, name: str, number: int) -> int:
        """Send a signal to the server's own process, and return its id. Raises UnknownName, and
        NotNow if the server has no process."""
        ...

    def override(self, name: str, settings: Mapping[str, str], for_s: float, by: str) -> None:
        """Override these settings of a server that `status` shows for `for_s` seconds; with an
        empty name, levels of the log (`config.overrides`). `by`: caller. Raises
        config.ConfigInvalid."""
        ...

    def as_written(self, name: str) -> tuple[OverriddenSetting, ...]:
        """End all overrides of a server, and return them. `name`: as in `override`."""
        ...

    async def stacks(self, name: str) -> str:
        """Return the stacks of all threads in the server's worker; the server's log gets them too.
        Raises UnknownName and NotNow."""
        ...

    async def calls(self, names: Sequence[str], slow_s: float) -> CallsUnderWay:
        """Return the calls in flight to these servers, or to all; only calls that have taken
        `slow_s` seconds. Raises UnknownName."""
        ...

    async def reach_fronts(self) -> None:
        """Return when each front has taken in what it was sent until now, or gives no answer."""
        ...

    async def path(self, query: PathQuery) -> CallPath:
        """Return what would happen to a call of a tool, as far as a front knows. Raises NotNow."""
        ...

    async def tools(self, query: ToolQuery) -> ShownTools:
        """Return tools of an endpoint, as a front knows them. Raises NotNow."""
        ...

    def tool_stats(self) -> Mapping[str, ToolStats]:
        """Return how often tools were called, by server."""
        ...

    async def roll(self) -> None:
        """Replace the process of each front, one after the other, without a gap. Raises NotNow."""
        ...

    async def upgrade(self, on_execute: Callable[[Upgrade], None]) -> None:
        """Let the program that is installed now take over. `on_execute` is called at the last
        moment; then this call does not return. Raises NotNow."""
        ...

    async def reload(self, dry_run: bool, expect: str | None, yes: bool = False) -> ReloadPlan:
        """Read the configuration again and apply it. `dry_run`: only make the plan; `expect`: hash
        that the plan must have; `yes`: the caller confirms what needs confirmation. Raises
        config.ConfigInvalid and ReloadRefused."""
        ...


class ControlStream(Protocol):
    """Connection to the client, as a verb sees it."""

    @property
    def caller(self) -> str:
        """Client that asks, as the journal names it."""
        ...

    @property
    def session(self) -> ConsoleSession | None:
        """Session of the console for which the client asks; None if it asks for its user."""
        ...

    @property
    def uid(self) -> int:
        """Id of the user who asks, -1 where the system does not report it."""
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
        """End the `wait_for_wake` that waits now, or else the next one."""
        ...

    async def wait_for_wake(self, timeout_s: float | None) -> None:
        """Wait for `wake`, at most `timeout_s` seconds. Raises PeerGone if the client has left."""
        ...


def find_servers(gateway: GatewayControl, names: Sequence[str]) -> list[ServerStatus]:
    """Return the status of the named servers. Raises UnknownName."""
    servers = {server.name: server for server in gateway.status().servers}
    unknown = [name for name in names if name not in servers]
    if unknown:
        raise UnknownName(unknown, servers)
    return [servers[name] for name in names]


async def read_store(store: ScriptStore) -> DisclosureState:
    """Return all that is stored. Raises ProtocolError if it cannot be read, now either."""
    if store.unread:
        await store.read_again()
    if store.unread:
        raise ProtocolError(Exit.FAILED, store.unread)
    return store.read_everything()


async def unsaved_warning(gateway: GatewayControl) -> dict[str, str]:
    """Return, as a member of an answer, the sentence that a decision does not outlast a restart;
    nothing if it does."""
    warning = await gateway.save_decisions()
    return {"warning": warning} if warning else {}


class ChangeParams(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a verb that changes something."""


class NoParams(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Verb(Struct, frozen=True):
    """Verb of the control socket. `run` gets the parameters as a value of `params`. `least`: lowest
    role that may use the verb; unless it is given, the highest. `reads`: it changes nothing.
    `about`: further words for the audit from the parameters and the result; they are never
    secret. `of_machine`: holders of API keys, who may be on any machine, may not use it."""

    params: type[Struct]
    run: Callable[[GatewayControl, ControlStream, Any], Awaitable[object]]
    least: Role = Role.ADMIN
    reads: bool = False
    about: Callable[[Any, Any], Sequence[str]] = lambda params, result: ()
    of_machine: bool = False
