"""The configuration in force, and how a new one replaces it.

Owns: reading the files again, whether the new configuration may be applied, applying it, noticing
changed files, and when settings for a time (overrides) end. Never: the difference between two
configurations (`config.reload`), which settings can be overridden (`config.overrides`), what a
server does about a change (`servers.server_io`), parsing (`config.sources`).

A new configuration is applied as a whole or not at all, and reloads run one after the other.
Overrides of servers survive a reload; overrides of log levels do not. Both survive a restart.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import structs
from msgspec.structs import replace

from metamcp_supervisor import runtime
from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.approval.lock import Lock
from metamcp_supervisor.approval.lock_drift import ToolDrift
from metamcp_supervisor.config import overrides
from metamcp_supervisor.config.config import Config, ConfigInvalid
from metamcp_supervisor.config.confirmation import NotConfirmed, refuse_empty_config
from metamcp_supervisor.config.files import FileChangeDetector, read_stamped, stamp_files
from metamcp_supervisor.config.overrides import GATEWAY, Override, TimedOverrides, text_of
from metamcp_supervisor.config.reload import find_stopping_errors, fingerprint, plan, with_overrides
from metamcp_supervisor.config.show import server_table
from metamcp_supervisor.control.services import NotNow, ReloadRefused, Unconfirmed
from metamcp_supervisor.control.set_signal import SET_S_MAX
from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.processes import limits
from metamcp_supervisor.servers import specs
from metamcp_supervisor.servers.decisions import SET
from metamcp_supervisor.servers.quarantine_io import ApprovalRefused, ReloadDraft
from metamcp_supervisor.servers.server_io import ServerManager
from metamcp_supervisor.systemd.sd_service import Service
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.traces import Traces
from metamcp_supervisor.verbs import Decision, OverriddenSetting, ReloadPlan
from metamcp_worker.ipc import process_names
from metamcp_worker.runtime import logs
from metamcp_worker.runtime.masking import SecretMasker

WATCH_S = 0.5
"""Seconds between two checks of the files."""
SPOILT = (
    "a server that runs would be stopped by a mistake in its configuration; the old one stays in"
    " force, and 'metamcp reload --yes' applies the new one"
)

ConfigContent = tuple[Config, Lock | None]
"""Configuration and content of its lock file, None without one."""

Ask = Callable[[str, str], None]
"""Function that shows an operator a question; the answer yes applies the plan with this hash."""


def nobody(question: str, plan: str) -> None:
    """Show the question to no operator: the default of `Ask`."""


class Reloads:
    """Reloads of one gateway. `config`: configuration in force; `hash`: of the configuration in the
    files. `load`: reads the files again. `permit`: raises NotConfirmed for a configuration whose
    commands may not be started, unless its second argument confirms them. `ask`: asks an operator
    when a reload without a waiting caller needs a yes. `check`: raises NotNow while nothing may be
    changed. Each reload reads `metamcp.lock`, too."""

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        permit: Callable[[Config, bool], None],
        check: Callable[[], None],
        *,
        fronts: Fronts,
        manager: ServerManager,
        service: Service,
        metrics: Metrics,
        journal: Journal,
        traces: Traces,
    ) -> None:
        self.config = self._written = config
        self._stamps = stamp_files(_list_files(config))
        """Stamps of the files from before they were read."""
        self._overrides = TimedOverrides()
        self._ending: asyncio.TimerHandle | None = None
        self.hash = fingerprint(config)
        self.refused = ""
        """Why the last reload was refused; empty if it was applied."""
        self._loop = asyncio.get_running_loop()
        self.read_at = self._loop.time()
        self._load = load
        self._permit = permit
        self.ask: Ask = nobody
        self.processes: Callable[[], list[int]] = list
        """Process ids of the nursery and the fronts, which need the limit of open files of the
        supervisor."""
        self._check = check
        self._fronts = fronts
        self._manager = manager
        self._service = service
        self._metrics = metrics
        self._journal = journal
        self._traces = traces
        self._changing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._speak()

    def begin(self, hangup: asyncio.Event) -> None:
        """Put the first configuration into force. From now on `hangup` asks for a reload, and so
        does a changed file if `watch` is set."""
        self._provide()
        self._await_end()
        self._drop_decisions()
        self._manager.copies.tune()  # workers of the previous program log as that program did
        self._metrics.on_reload(self.config.metrics, time.time())
        self._attend(self._reload_on(hangup), "hang-ups")
        if self.config.gateway.watch:
            self._attend(self._watch(), "changed files")

    @property
    def written_config(self) -> Config:
        """Configuration in the files, without overrides."""
        return self._written

    @property
    def busy(self) -> bool:
        """Whether a reload is under way."""
        return self._changing.locked()

    async def close(self) -> None:
        self._no_end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def reload(self, dry_run: bool, expect: str | None, yes: bool = False) -> ReloadPlan:
        """Read the files and apply them. `dry_run`: only make the plan; `expect`: hash that the
        plan must have; `yes`: the operator confirms the new configuration. Raises ConfigInvalid,
        NotNow and ReloadRefused; then nothing has changed."""
        try:
            reload_plan = await self._run_reload(dry_run, expect, yes)
        except (ConfigInvalid, ReloadRefused) as error:
            if not dry_run:
                self.refused = _sentence(error)
            raise
        self.refused = "" if reload_plan.applied else self.refused
        return reload_plan

    async def _run_reload(self, dry_run: bool, expect: str | None, yes: bool) -> ReloadPlan:
        async with self._changing, self._service.report_reload(announced=not dry_run):
            self._check()
            new, draft, reload_plan = await self._make_plan(dry_run=dry_run, yes=yes)
            if expect is not None and expect != reload_plan.hash:
                raise ReloadRefused(
                    f"the plan is {reload_plan.hash} now and not {expect}: the files have changed"
                    " since; look at it again with 'metamcp ctl reload --dry-run'"
                )
            refusal = await asyncio.to_thread(self._refusal, new, yes and not dry_run)
            if not dry_run:
                if refusal is not None:
                    raise Unconfirmed(str(refusal), refusal.question, reload_plan.hash)
                if new.unrun:  # now the commands in it may run
                    new, draft, reload_plan = await self._make_plan(dry_run=dry_run, yes=yes)
                if new.unrun:
                    raise ReloadRefused("the files changed while they were confirmed; try again")
                self._check()  # reading took its time
                self._manager.approvals.adopt(draft)
                self._apply(new, reload_plan)
            question = "" if refusal is None else refusal.question
            mistakes = tuple(map(str, new.problems))
            return structs.replace(
                reload_plan, applied=not dry_run, question=question, mistakes=mistakes
            )

    async def plan_reload(self) -> tuple[ReloadPlan, Config]:
        """Return what a reload would do, and the configuration in the files. Raises ConfigInvalid
        and NotNow."""
        async with self._changing:
            self._check()
            new, _, reload_plan = await self._make_plan(dry_run=True, yes=False)
            refusal = await asyncio.to_thread(self._refusal, new, False)
            question = "" if refusal is None else refusal.question
            return structs.replace(reload_plan, question=question), new

    def list_drifted_servers(self) -> tuple[str, ...]:
        """Return the servers with tools that are not as approved."""
        return tuple(sorted(self._manager.approvals.drift))

    async def drift(self, server: str) -> tuple[tuple[ToolDrift, ...], str]:
        """Return the tools of a server that are not as approved, with both definitions, and the
        mark of what it offers now."""
        return await self._manager.approvals.compare_tools(server)

    def has_lock_entry(self, server: str) -> bool:
        """Whether `metamcp.lock` in force has an entry of a server."""
        return process_names.base(server) in self._manager.approvals.lock.servers

    async def approve(self, server: str, tool: str, expect: str) -> int:
        """Approve what a server offers now, all of it or one tool, in `metamcp.lock` and in force.
        `expect`: mark of what was looked at (`Pinned.offer`). Return the number of tools that are
        approved for the server. Raises NotNow, ReloadRefused and ConfigInvalid; then nothing has
        changed."""
        async with self._changing:
            self._check()
            path, approvals = lock_io.find_lock_path(self.config), self._manager.approvals
            there = await asyncio.to_thread(lock_io.load, path) or Lock()
            try:
                entry = await approvals.approval(there, server, tool, expect)
                now = await approvals.approval(approvals.lock, server, tool, expect)
                await asyncio.to_thread(lock_io.save, path, Lock({**there.servers, server: entry}))
            except OSError as error:
                raise ReloadRefused(f"{path} cannot be written: {error.strerror}") from None
            except ApprovalRefused as refusal:
                raise ReloadRefused(str(refusal)) from None
            lock = Lock({**approvals.lock.servers, server: now})
            approvals.adopt(await approvals.draft(self.config, lock))
            self._fronts.reconfigure()
            return len(now.tools)

    async def _make_plan(
        self, *, dry_run: bool, yes: bool
    ) -> tuple[Config, ReloadDraft, ReloadPlan]:
        """Read the files, and return what a reload would do. Raises ConfigInvalid."""
        try:
            content, stamps = await asyncio.to_thread(read_stamped, self._read, self._stamps)
            if not dry_run:
                self._stamps = stamps
            if isinstance(content, ConfigInvalid):
                raise content
            new, lock = content
            if not yes and (problems := find_stopping_errors(self._written, new)):
                raise ConfigInvalid(problems, new.files, SPOILT)
        except ConfigInvalid:
            if not dry_run:
                self._metrics.on_reload(None, time.time())
            raise
        draft = await self._manager.approvals.draft(new, lock)
        reload_plan = with_overrides(plan(self._written, new), self._overrides)
        return new, draft, self._manager.approvals.with_lock_change(reload_plan, draft)

    def _refusal(self, new: Config, yes: bool) -> NotConfirmed | None:
        """Return the reason why `new` needs a yes that was not given, or None."""
        if self._written.servers and not new.servers and not yes:
            return refuse_empty_config(self._written.servers)
        try:
            self._permit(new, yes)
        except NotConfirmed as refusal:
            return refusal
        return None

    def _read(self) -> tuple[ConfigContent | ConfigInvalid, tuple[Path, ...]]:
        """Read the configuration and its lock file; return them, or what is wrong, and the files
        to watch."""
        try:
            new = self._load()
            return (new, lock_io.load(lock_io.find_lock_path(new))), _list_files(new)
        except ConfigInvalid as error:
            return error, (*self._stamps, *error.files)

    def _apply(self, new: Config, reload_plan: ReloadPlan) -> None:
        """Put `new` into force; this cannot be refused any more."""
        for warning in (
            warning for warning in new.warnings if warning not in self._written.warnings
        ):
            self._journal.add("gateway", "note", str(warning))
        # Settings of [gateway], like addresses and directories, stay until the gateway restarts.
        self._written = replace(new, gateway=self.config.gateway)
        levels_set, self._overrides = self._overrides.of(GATEWAY), self._overrides.restrict_to(new)
        self.config = self._overrides.apply(self._written)
        self.hash = fingerprint(self._written)
        self.read_at = self._loop.time()
        self._speak()
        self._provide()
        self._fronts.reconfigure()
        for change in reload_plan.changes:
            if change.action == "add" and change.server in new.servers:
                self._manager.add(self.config.servers[change.server])
            elif change.action == "remove" and change.server in self._manager.entries:
                self._manager.remove(change.server)
            elif change.action in ("restart", "in-place") and change.server in new.servers:
                server, restart = self.config.servers[change.server], change.action == "restart"
                self._manager.change(server, restart=restart)
        self._drop_decisions()
        self._metrics.on_reload(self.config.metrics, time.time())
        self._journal.add("gateway", "reloaded", f"plan {reload_plan.hash}")
        for override in levels_set:
            self._journal.add(
                "gateway", "set over", self._describe_end(override, "the files were read anew")
            )

    def _provide(self) -> None:
        """Raise the limit of open files to the number that this configuration needs, or write to
        the journal what follows from a lower limit."""
        servers = len(self.config.servers)
        files = limits.files_needed(servers, self.config.gateway.fronts)
        limit = runtime.allow_files(files, self.processes())
        if limit < files:
            self._journal.add("gateway", "descriptors", limits.too_few_files(files, limit, servers))

    def _speak(self) -> None:
        """Set log levels, masking of secrets and tracing as in the configuration in force."""
        spec = specs.own_log_spec(self.config)
        logs.tune(spec)
        self._manager.copies.tune()
        self._journal.shown = SecretMasker(spec.secrets).text
        self._traces.adjust(self.config.traces)

    # Settings for a time

    def overridden(self, server: str = GATEWAY) -> tuple[OverriddenSetting, ...]:
        """Return the overrides of this server or GATEWAY, each with its end in seconds since the
        epoch."""
        if server != GATEWAY and server not in self._written.servers:  # it is being removed
            return ()
        since = time.time() - self._loop.time()
        return tuple(
            OverriddenSetting(
                key=each.key, value=each.text, written=self._as_in_file(each),
                until=since + each.ends,
                who=decision.who if decision else "", when=decision.when if decision else 0.0,
            )
            for each in self._overrides.of(server)
            for decision in [self._manager.decisions.find(server, each.key)]
        )  # fmt: skip

    def override(self, server: str, settings: Mapping[str, str], for_s: float, by: str) -> None:
        """Override these settings for `for_s` seconds. `by`: caller. Raises ConfigInvalid and
        NotNow; then nothing has changed."""
        self._check()
        name = self._check_server(server)
        ends = self._loop.time() + for_s
        if name == GATEWAY:
            self._overrides = self._overrides.set_levels(self.config.log, settings, ends)
        else:
            self._overrides = self._overrides.set(self.config.servers[name], settings, ends)
        self._record((each for each in self._overrides.of(name) if each.key in settings), by)
        self._tune([server])

    def as_written(self, server: str) -> tuple[OverriddenSetting, ...]:
        """End all overrides of this server or GATEWAY, and return them. Raises NotNow."""
        self._check()
        overridden = self.overridden(server)
        self._overrides = self._overrides.without(self._check_server(server))
        self._tune([server])
        return overridden

    def take_snapshot(self) -> tuple[tuple[str, str, str, float], ...]:
        """Return all overrides for the program after this one: server, setting, value, end."""
        return tuple((each.server, each.key, each.text, each.ends) for each in self._overrides.all)

    def recall(self) -> None:
        """Continue with the overrides of an earlier run that has ended. Call this before anything
        runs without them."""
        now, wall = self._loop.time(), time.time()
        self.go_on([
            # The clock of the machine may have been set back meanwhile.
            (each.server, each.key, each.value, now + min(each.ends - wall, SET_S_MAX))
            for each in self._manager.decisions.list_settings()
            if each.ends > wall
        ])  # fmt: skip

    def record_all(self, who: str) -> None:
        """Record all overrides, which the previous program handed over without a record."""
        self._record(self._overrides.all, who)

    def _record(self, overrides: Iterable[Override], who: str) -> None:
        since = time.time() - self._loop.time()
        for each in overrides:
            setting, ends = f"{each.key}={each.text}", since + each.ends
            decision = Decision(server=each.server, kind=SET, who=who, setting=setting, ends=ends)
            self._manager.decisions.put(decision)

    def _drop_decisions(self) -> None:
        """Drop the decisions that are over, of servers and of settings."""
        settings = {(each.server, each.key) for each in self._overrides.all}
        self._manager.decisions.retain(self.config.servers, settings)

    def go_on(self, rows: Sequence[tuple[str, str, str, float]]) -> None:
        """Continue with the overrides of the previous program. Call this before any other part of
        its state is taken over."""
        settings: dict[str, dict[str, tuple[str, float]]] = {}
        for server, key, text, ends in rows:
            settings.setdefault(server, {})[key] = text, ends
        for name, each in settings.items():
            try:
                if name == GATEWAY:
                    for key, (text, ends) in each.items():
                        log = self._written.log
                        self._overrides = self._overrides.set_levels(log, {key: text}, ends)
                elif name in self._written.servers:
                    self._overrides = self._overrides.restore(self._written.servers[name], each)
            except ConfigInvalid as error:
                reason = f"it is not possible any more: {error}"
                self._journal.add(name or "gateway", "set over", reason)
        self.config = self._overrides.apply(self._written)
        self._speak()

    def _check_server(self, server: str) -> str:
        """Return `server`, if it is configured or GATEWAY. Raises NotNow."""
        if server != GATEWAY and server not in self.config.servers:
            if process_names.parse_client(server):
                raise NotNow(
                    f"{server} has the settings of '{process_names.base(server)}': set them there"
                )
            raise NotNow(f"{server} is not configured any more")
        return server

    def _tune(self, servers: Iterable[str]) -> None:
        """Put changed overrides of these servers into force; they do not need a restart."""
        self.config = self._overrides.apply(self._written)
        self._speak()
        self._drop_decisions()
        self._fronts.reconfigure()
        for name in servers:
            if name in self.config.servers and name in self._manager.entries:
                self._manager.change(self.config.servers[name], restart=False)
        self._await_end()

    def _await_end(self) -> None:
        self._no_end()
        if (end := self._overrides.next_end()) is not None:
            self._ending = self._loop.call_at(end, self._end)

    def _end(self) -> None:
        """End the overrides whose time is over."""
        now = self._loop.time()
        over = self._overrides.list_expired(now)
        self._overrides = self._overrides.after(now)
        self._tune(dict.fromkeys(each.server for each in over))
        for each in over:
            who = each.server or "gateway"
            self._journal.add(who, "set over", self._describe_end(each, "its time is over"))

    def _describe_end(self, override: Override, reason: str) -> str:
        return f"{override.key} is {self._as_in_file(override)} again: {reason}"

    def _as_in_file(self, each: Override) -> str:
        if each.server == GATEWAY:
            return overrides.level_text(self._written.log, each.key)
        return text_of(server_table(self._written.servers[each.server]), each.key)

    def _no_end(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    # Reloads without a waiting caller

    def _attend(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            text = f"{task.get_name()} are not attended to any more: {error!r}"
            self._journal.add("gateway", "bug", text)

    async def _reload_on(self, hangup: asyncio.Event) -> None:
        """Reload on hang-ups: once for all hang-ups until the reload begins, also for those before
        the gateway was up."""
        while True:
            await hangup.wait()
            hangup.clear()
            await self._reload_unasked()

    async def _watch(self) -> None:
        """Reload when a file has changed, once for each state of the files that lasts."""
        stamps, detector = None, FileChangeDetector({})
        while True:
            if stamps is not self._stamps:  # the files were read
                stamps = self._stamps
                detector = FileChangeDetector(stamps)
            await asyncio.sleep(WATCH_S)
            now = await asyncio.to_thread(stamp_files, stamps)
            if stamps is self._stamps and detector.look(now, self._loop.time()):
                detector = FileChangeDetector(now)
                await self._reload_unasked()

    async def _reload_unasked(self) -> None:
        """Reload; write errors to the journal, because no caller waits for the result."""
        try:
            await self.reload(dry_run=False, expect=None)
        except (ConfigInvalid, ReloadRefused, NotNow) as error:
            self._journal.add("gateway", "reload refused", str(error))
            if isinstance(error, Unconfirmed):
                self.ask(error.question, error.plan)
        except Exception as error:  # noqa: BLE001 - the root of a task
            self._journal.add("gateway", "bug", f"a reload broke off: {error!r}")


def _sentence(error: ConfigInvalid | ReloadRefused) -> str:
    if not isinstance(error, ConfigInvalid):
        return str(error)
    more = len(error.problems) - 1
    return f"{error.problems[0]}{f' (and {more} more)' if more else ''}"


def _list_files(config: Config) -> tuple[Path, ...]:
    return (*config.files, *config.workflows.files, lock_io.find_lock_path(config))
