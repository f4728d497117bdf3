"""A gateway of one process with servers that are only numbers: enough to be watched and steered."""

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from metamcp_supervisor.approval.lock_drift import ToolDrift
from metamcp_supervisor.config.config import Config, ConfigInvalid, Log, Problem, Server
from metamcp_supervisor.config.overrides import GATEWAY, TimedOverrides
from metamcp_supervisor.control.console_sessions import ConsoleSessions
from metamcp_supervisor.control.control import Control, ControlLimits
from metamcp_supervisor.control.explain import Tries
from metamcp_supervisor.control.services import NotNow, ReloadRefused, ServerDetails, UnknownName
from metamcp_supervisor.keys.api_keys import ApiKeys
from metamcp_supervisor.store.database import DatabaseFile
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.verbs import (
    CallsUnderWay,
    ConfigTree,
    FrontStatus,
    GatewayStatus,
    OverriddenSetting,
    PlannedChange,
    ReloadPlan,
    ServerStatus,
    Upgrade,
)
from metamcp_supervisor.views.ledger import Ledger, OrderImpossible
from metamcp_worker.ipc.consent_records import ConsentGrant, ConsentScope, OpenConsent
from metamcp_worker.ipc.disclosure import (
    DisclosureState,
    Exposure,
    OrderOutcome,
    Pair,
    ViewOrder,
    ViewStats,
)
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.figures import (
    CallPath,
    CallUnderWay,
    PathQuery,
    ShownTools,
    ToolQuery,
    ToolStats,
)
from metamcp_worker.ipc.saved_scripts import Script
from tests.supervisor import configs


def server(name: str, state: str = "ready", **more: object) -> ServerStatus:
    given = {"name": name, "state": state, "phase": state, "generation": 1, "pid": 4121, **more}
    return structs.replace(ServerStatus(name="", state="", phase="", generation=0), **given)


T = TypeVar("T")


class SmallShelf:
    """Tool sets that are forgotten with it. `offered`: the tools of each server."""

    def __init__(self) -> None:
        self.quarantined = frozenset[Pair]()
        self.ledger = Ledger(DisclosureState())
        self.offered = {"git": frozenset({"status", "log"}), "db": frozenset({"query"})}
        self.exposures: dict[str, Exposure] = {
            "desk": "toolset",
            "wide": "all",
            "whole": "servers",
            "program": "code",
        }

    unread = ""

    async def read_again(self) -> None:
        """Nothing has failed."""

    def read_everything(self) -> DisclosureState:
        return self.ledger.read_everything()

    async def carry_out(self, wish: ViewOrder) -> OrderOutcome:
        before = self.ledger.find_view(wish.whose)
        try:
            delta = self.ledger.decide(wish, 1_700_000_000.25)
        except OrderImpossible as why:
            return OrderOutcome(str(why), before, before)
        self.ledger.apply(delta)
        after = self.ledger.find_view(wish.whose)
        return OrderOutcome("", before, after, delta.put, delta.script)

    async def versions(self, script: str) -> tuple[Script, ...]:
        newest = self.ledger.script(script)
        return () if newest is None else (newest,)

    def endpoints(self) -> Mapping[str, Exposure]:
        return self.exposures

    def list_quarantined(self) -> frozenset[Pair]:
        return self.quarantined

    def tools(self, server: str) -> frozenset[str]:
        return self.offered.get(server, frozenset())


class NoConsent(MetaMCPError, LookupError): ...


class SmallConsents:
    """Consent of a gateway without fronts: the test opens questions."""

    def __init__(self) -> None:
        self.open: dict[str, OpenConsent] = {}
        self.given: dict[str, ConsentGrant] = {}
        self.answers: list[tuple[str, ConsentScope | None]] = []

    def questions(self) -> tuple[OpenConsent, ...]:
        return tuple(self.open.values())

    def grants(self) -> tuple[ConsentGrant, ...]:
        return tuple(self.given.values())

    def decide(self, name: str, scope: ConsentScope | None, by: str) -> OpenConsent:
        if name not in self.open:
            raise NoConsent(f"no question {name!r} is open")
        self.answers.append((name, scope))
        return self.open.pop(name)

    def revoke(self, names: Sequence[str]) -> tuple[ConsentGrant, ...]:
        if unknown := set(names) - self.given.keys():
            raise NoConsent(f"no grant is named {sorted(unknown)}")
        return tuple(self.given.pop(name) for name in tuple(names) or tuple(self.given))


class SmallSettings:
    """Settings of a gateway without files, of which nothing drifted."""

    def __init__(self) -> None:
        self.config = self.written_config = configs.config()

    async def plan_reload(self) -> tuple[ReloadPlan, Config]:
        return ReloadPlan(hash="0", changes=(), applied=False), self.config

    def list_drifted_servers(self) -> tuple[str, ...]:
        return ()

    async def drift(self, server: str) -> tuple[tuple[ToolDrift, ...], str]:
        return (), ""

    def has_lock_entry(self, server: str) -> bool:
        return False

    async def approve(self, server: str, tool: str, expect: str) -> int:
        raise ReloadRefused(f"{server} was not seen yet; start it once")


class SmallGateway:
    """A server that is started is ready in the next tick of the loop, one generation later."""

    def __init__(self, *servers: ServerStatus) -> None:
        self.journal = Journal(time.time)
        self.logs = ServerLogs(time.time)
        self.shelf = SmallShelf()
        self.keys = ApiKeys(DatabaseFile(Path("/nowhere")), lambda: None, time.time)
        self.consents = SmallConsents()
        self.services: dict[type, object] = {}
        """Services of features, which a test adds."""
        self.sessions = ConsoleSessions(time.monotonic, self.keys.has)
        self.settings = SmallSettings()
        self.servers = {server.name: server for server in servers}
        self.fronts = (FrontStatus(number=0, pid=77, state="ready", up_s=5.0, connections=2),)
        self.state = "active"
        self.problems: tuple[Problem, ...] = ()
        self.reloads: list[bool] = []
        self.nursery_pid = 76
        self.overrides = TimedOverrides()
        self.signals: list[tuple[str, int]] = []
        self.under_way: tuple[CallUnderWay, ...] = ()
        self.buckets: dict[str, tuple[int, ...]] = {}
        self.shown: tuple[ViewStats, ...] = ()
        self.fault = ""
        self.rows = 0
        """Servers in all statuses so far."""

    def status(self, names: Collection[str] | None = None) -> GatewayStatus:
        if self.fault:
            raise RuntimeError(self.fault)
        return GatewayStatus(
            version="9.9",
            pid=os.getpid(),
            state=self.state,
            up_s=93784.0,
            url="http://127.0.0.1:6270/mcp",
            ops_url="http://127.0.0.1:6271",
            config_hash="7f3c1a2b44",
            config_files=("/etc/metamcp/metamcp.toml",),
            config_age_s=720.0,
            state_dir="/state",
            nursery_pid=self.nursery_pid,
            fronts=self.fronts,
            servers=self._rows(names),
            endpoints={"default": "http://127.0.0.1:6270/mcp"},
            overrides=self._overridden(GATEWAY),
        )

    def _rows(self, names: Collection[str] | None) -> tuple[ServerStatus, ...]:
        found = [one for one in self.servers.values() if names is None or one.name in names]
        self.rows += len(found)
        return tuple(found)

    def particulars(self, name: str) -> ServerDetails:
        return ServerDetails(
            config={"command": ["git-server", "--api-key", "***"], "restart": "on-failure"},
            source=f"metamcp.toml: servers.{name}",
            endpoints=("default",),
            list_hash="91ac0e",
            tries=Tries(failures=3, recent=2),
            hidden={"hunter2secret": "${env:TOKEN}"},
            overrides=self._overridden(name),
        )

    def views(self) -> Sequence[ViewStats]:
        return self.shown

    def tree(self) -> ConfigTree:
        return ConfigTree(workspaces=())

    parked = 0
    """Runs that wait for a person."""

    def count_waiting(self) -> Mapping[str, int]:
        return {"run": self.parked, "consent": len(self.consents.open)}

    def service(self, kind: type[T]) -> T:
        service: Any = self.services[kind]
        return service  # type: ignore[no-any-return]  # it may be a smaller one

    def figures(self) -> Mapping[str, object]:
        return {"approvals": (self.consents.questions(), self.consents.grants())}

    def on_keys_changed(self) -> None: ...

    def longest_s(self) -> dict[str, float]:
        return {}

    def latencies(self) -> dict[str, tuple[int, ...]]:
        return self.buckets

    def signal(self, name: str, number: int) -> int:
        self._known([name])
        if not self.servers[name].pid:
            raise NotNow(f"{name} has no process of its own at this moment")
        self.signals.append((name, number))
        return self.servers[name].pid

    def override(self, name: str, settings: Mapping[str, str], for_s: float, by: str) -> None:
        ends = time.time() + for_s
        if name == GATEWAY:
            self.overrides = self.overrides.set_levels(Log(), settings, ends)
            return
        server = Server(name=name, source="", command=("git-server",))
        self.overrides = self.overrides.set(server, settings, ends)

    def as_written(self, name: str) -> tuple[OverriddenSetting, ...]:
        found, self.overrides = self._overridden(name), self.overrides.without(name)
        return found

    def _overridden(self, name: str) -> tuple[OverriddenSetting, ...]:
        written = "info" if name == GATEWAY else "60s"
        return tuple(
            OverriddenSetting(key=each.key, value=each.text, written=written, until=each.ends)
            for each in self.overrides.of(name)
        )

    async def reach_fronts(self) -> None:
        pass

    async def calls(self, names: Sequence[str], slow_s: float) -> CallsUnderWay:
        self._known(names)
        found = (one for one in self.under_way if one.server in names or not names)
        return CallsUnderWay(
            calls=tuple(one for one in found if one.age_s >= slow_s), silent=("front-1",)
        )

    async def path(self, wanted: PathQuery) -> CallPath:
        raise NotNow("no front answers")

    async def tools(self, wanted: ToolQuery) -> ShownTools:
        raise NotNow("no front answers")

    def tool_stats(self) -> Mapping[str, ToolStats]:
        return {}

    def start(self, names: Sequence[str]) -> None:
        for name in self._known(names):
            if self.servers[name].state not in {"ready", "active"}:
                self._later(name, "ready", 1)

    def stop(self, names: Sequence[str], by: str) -> None:
        for name in self._known(names):
            self._later(name, "stopped", 0)

    def restart(self, names: Sequence[str], worker: str = "") -> None:
        for name in self._known(names):
            self._later(name, "ready", 1)

    def drain(self, names: Sequence[str], by: str, *, yes: bool) -> None:
        self._known(names)

    def trial(self, name: str, rights: object) -> None:
        self._known([name])

    def quarantine(self, names: Sequence[str], why: str, by: str) -> None:
        for name in self._known(names):
            self._later(name, "error", 0)

    unsaved = ""
    """Why the disk does not get what is decided."""

    async def save_decisions(self) -> str:
        return self.unsaved

    async def upgrade(self, told: Callable[[Upgrade], None]) -> None:
        raise NotNow("nothing is changed: there is no other program")

    async def roll(self) -> None:
        pass

    async def stacks(self, name: str) -> str:
        self._known([name])
        return "Thread 1"

    async def reload(self, dry_run: bool, expect: str | None, yes: bool = False) -> ReloadPlan:
        if self.problems:
            raise ConfigInvalid(self.problems)
        changes = (PlannedChange(server="git", action="restart", why="env.GIT_DIR changed"),)
        digest = hashlib.sha256(repr(changes).encode()).hexdigest()[:8]
        if expect not in {None, digest}:
            raise ReloadRefused(f"the plan is {digest} now, not {expect}; look at it again")
        self.reloads.append(dry_run)
        return ReloadPlan(hash=digest, changes=changes, applied=not dry_run)

    def become(self, name: str, state: str, generation: int = 0) -> None:
        old = self.servers[name]
        new = structs.replace(old, state=state, generation=generation or old.generation)
        self.servers[name] = new
        self.journal.add(name, f"{old.state}→{state}", generation=new.generation)

    def _later(self, name: str, state: str, step: int) -> None:
        generation = self.servers[name].generation + step
        asyncio.get_running_loop().call_soon(self.become, name, state, generation)

    def _known(self, names: Sequence[str]) -> Sequence[str]:
        if unknown := [name for name in names if name not in self.servers]:
            raise UnknownName(unknown, self.servers)
        return names


@asynccontextmanager
async def steered(
    *servers: ServerStatus,
    limits: ControlLimits | None = None,
    group: int | None = None,
    mode: int = 0o700,
) -> AsyncGenerator[tuple[SmallGateway, Path], None]:
    """A gateway with its control socket, and the directory of it; a short one, as sockets need.
    `group`: which owns the directory and may share it, as far as `mode` lets it in."""
    directory = Path(tempfile.mkdtemp(prefix="metamcp-", dir="/tmp"))
    os.chmod(directory, mode)
    if group is not None:
        os.chown(directory, -1, group)
    gateway = SmallGateway(*servers)
    control = Control(gateway, directory, "9.9", limits, group)
    try:
        async with asyncio.timeout(30):
            await control.start()
            yield gateway, directory
    finally:
        await control.close()
        shutil.rmtree(directory)
