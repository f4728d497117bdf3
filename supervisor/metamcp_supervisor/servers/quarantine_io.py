"""Tools that differ from their approved definitions: found in new catalogues, and held back.

Owns: the lock and the first catalogues of servers while the gateway runs, the order in which
catalogues are judged, the file of first catalogues, the sentences in the journal. Never: the
decision (`quarantine`), the reaction of a front, `metamcp.lock` itself, which people write.

Before a catalogue goes to the fronts, they learn which tools of it they must hold back: all that
are not known to be approved. A thread then judges the catalogue, and harmless tools are released. A
single task does that for all servers, and only this task writes the file.
"""

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw

from metamcp_supervisor.approval import lock as locks
from metamcp_supervisor.approval import lock_drift, lock_io
from metamcp_supervisor.approval.lock import Lock, LockedServer
from metamcp_supervisor.approval.lock_drift import QuarantinedTool, ToolDrift
from metamcp_supervisor.approval.quarantine import QuarantineDecision, QuarantineState, counts
from metamcp_supervisor.backoff import EntryRateLimiter, left_out
from metamcp_supervisor.config.config import Config, ConfigInvalid, Pinning
from metamcp_supervisor.config.document import shorten
from metamcp_supervisor.servers.catalogues import Catalogues
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import ReloadPlan
from metamcp_worker.ipc import codec, process_names, server_catalog
from metamcp_worker.ipc.errors import MetaMCPError

TOLD_MAX = 6
"""Maximum number of journal entries of one server in a minute; further ones are only counted."""
TOOLS_TOLD_MAX = 50
"""Maximum number of changed tools of one server that are named; 'metamcp tools' names all."""
MARK_DIGITS = 16
"""Hexadecimal digits of the mark of a catalogue."""
RETRY_S = 0.5
"""Seconds until a judgement is tried again that failed for lack of a descriptor."""


class ReloadDraft(NamedTuple):
    """The result of a reload with changed files, not in force yet. `judged`: by server, for the
    catalogue in `data`; `changed`: the lock is different."""

    pins: QuarantineState
    judged: Mapping[str, QuarantineDecision]
    data: Mapping[str, bytes]
    changed: bool


class ApprovalRefused(MetaMCPError):
    """Raised for an approval that cannot be. The text is a sentence."""


class ToolQuarantine:
    """`tell()`: sends every front the current `quarantined`. `drift`: how many tools are not as
    approved, by server (only servers that have any) and kind (`metric_names.DRIFT`)."""

    def __init__(self, state_dir: Path, journal: Journal, tell: Callable[[], None]) -> None:
        self._state_dir = state_dir
        self._journal = journal
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._pins = QuarantineState(Lock())
        self._data: dict[str, bytes] = {}
        self._waiting: dict[str, bytes] = {}
        self._unsaved: Lock | None = None
        self._announced: dict[str, frozenset[QuarantinedTool]] = {}
        self.drift: dict[str, dict[str, int]] = {}
        self._rations: dict[str, EntryRateLimiter] = {}
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    async def begin(
        self,
        config: Config,
        approved: bytes | None = None,
        offered: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Read the lock file and judge the last catalogues, before any front or server starts.
        `approved`, `offered`: the lock (see `pack_lock`) and the catalogues by server of the
        previous program, which stay in force. Return whether the file has changed since. Raises
        ConfigInvalid."""
        begun = await asyncio.to_thread(self._first, config, approved, offered)
        self._pins, self._data, judged, note, outdated = begun
        if note:
            self._journal.add("gateway", "error", note)
        for each in judged:
            self._take(each, tell=False)
        return outdated

    def on_catalogue(self, server: str, data: bytes) -> None:
        """Take in a new catalogue of a server, before any front gets it. Raises codec.Malformed."""
        if self._data.get(server) == data:  # a restart rarely changes it
            return
        base_data = self._data.get(process_names.base(server))
        # Tools held back count for all processes that offer the same.
        if base_data is not None and base_data == data:
            self.forget(server)
            self._data[server] = base_data
            return
        tools = _tools(data)
        before, self._data[server] = self._data.get(server), data
        if self._pins.mode(server) == "off":
            return
        # Processes that offered the same catalogue still do, and are judged separately now.
        same = [name for name, each in self._data.items() if before is not None and each is before]
        holds = [self._hold(self._pins.at_once(server, tools))]
        holds += [self._hold(self._pins.at_once(name, _tools(self._data[name]))) for name in same]
        if any(holds):
            self._tell()
        self._waiting |= {name: self._data[name] for name in (server, *same)}
        self._work_on()

    def describe_drift(self, server: str) -> tuple[str, ...]:
        """Return a line for each tool of a server that is not as approved, for people."""
        judged = self._pins.last(server)
        quarantined = {each.tool for each in judged.kept}
        lines = [
            f"{shorten(each.tool)}: {each.word}"
            f"{', in quarantine' if each.tool in quarantined else ''}"
            for each in judged.drifts
            if each.is_news
        ]
        more = len(lines) - TOOLS_TOLD_MAX
        return tuple(lines[:TOOLS_TOLD_MAX]) + ((f"and {more} more",) if more > 0 else ())

    def last(self, server: str) -> QuarantineDecision:
        """Return the last judgement about a server."""
        return self._pins.last(server)

    def list_quarantined(self) -> tuple[tuple[str, str, str], ...]:
        """Return server, tool and reason of all tools in quarantine, as in `spec.FrontSpec`."""
        quarantined = self._pins.quarantined_tools
        return tuple(sorted((each.server, each.tool, each.reason) for each in quarantined))

    def enforced_servers(self) -> tuple[str, ...]:
        """Return the servers where only approved tools may be called, as in `spec.FrontSpec`."""
        return self._pins.enforced_servers

    @property
    def quarantined_tools(self) -> frozenset[tuple[str, str]]:
        """Tools in quarantine, as pairs of server and tool."""
        return frozenset((each.server, each.tool) for each in self._pins.quarantined_tools)

    def forget(self, server: str) -> None:
        """Forget a server that is gone, except its first catalogue."""
        for each in (self._data, self._waiting, self._announced, self._rations, self.drift):
            each.pop(server, None)
        quarantined = self._pins.last(server).kept
        self._pins.forget(server)
        if quarantined:
            self._tell()

    # An approval

    @property
    def lock(self) -> Lock:
        """The lock in force; empty without one."""
        return self._pins.lock or Lock()

    async def compare_tools(self, server: str) -> tuple[tuple[ToolDrift, ...], str]:
        """Return the tools of a server that are not as approved, with both definitions, and the
        mark of what the server offers now; neither if that is not known."""
        data = self._data.get(server)
        if data is None:
            return (), ""
        drifts = await asyncio.to_thread(self._pins.compare_tools, server, _tools(data))
        return tuple(each for each in drifts if each.is_news), mark(data)

    async def approval(self, lock: Lock, server: str, tool: str, expect: str) -> LockedServer:
        """Return the entry of a server in `lock` after the approval of all that it offers now, or
        of one tool. Raises ApprovalRefused."""
        data = self._data.get(server)
        if data is None:
            raise ApprovalRefused(f"{server} was not seen yet; start it once")
        if mark(data) != expect:
            raise ApprovalRefused(f"{server} offers something else since; look at it again")
        before = lock.servers.get(server)
        if before is None and tool:
            reason = f"metamcp.lock has no entry of {server}; approve all of its tools"
            raise ApprovalRefused(reason)
        catalogue = server_catalog.unpack(data)
        info = lock_drift.server_info(catalogue.serverInfo)
        return await asyncio.to_thread(
            lock_drift.approve_tools, before or LockedServer(), catalogue.tools, tool or None, info
        )

    # A reload

    async def draft(self, config: Config, lock: Lock | None) -> ReloadDraft:
        """Judge all catalogues by this configuration and this `metamcp.lock`, without putting the
        result in force."""
        return await asyncio.to_thread(_draft, self._pins, lock, config, dict(self._data))

    def with_lock_change(self, plan: ReloadPlan, draft: ReloadDraft) -> ReloadPlan:
        """Return the plan with the changes of the lock added."""
        return (
            lock_drift.with_lock_change(plan, self._pins.lock, draft.pins.lock)
            if draft.changed
            else plan
        )

    def adopt(self, draft: ReloadDraft) -> None:
        """Put a draft in force. The caller must notify the fronts."""
        before = self._pins.lock
        self._pins.adopt(draft.pins.lock, draft.pins.pinnings, draft.pins.definitions)
        if draft.changed:
            difference = locks.difference(before, draft.pins.lock)
            self._journal.add("gateway", lock_io.FILE, difference)
        for server, data in self._data.items():
            judged = draft.judged.get(server)
            if judged is not None and draft.data.get(server) is data:
                self._take(judged, tell=False)
            elif process_names.base(server) in draft.pins.pinnings:  # it came just now
                self._hold(self._pins.at_once(server, _tools(data)))
                self._waiting[server] = data
                self._work_on()

    # An upgrade

    def pack_lock(self) -> bytes:
        """Return the lock in force, compressed; b"" without a lock."""
        lock = self._pins.lock
        return b"" if lock is None else zlib.compress(locks.text(lock).encode())

    def go_on(self, server: str, tools: Iterable[tuple[str, str]]) -> None:
        """Continue to hold back the tools of a process for one client that the previous program
        held back."""
        if process_names.parse_client(server) and (
            quarantined := [QuarantinedTool(server, *each) for each in tools]
        ):
            self._pins.go_on(server, quarantined)

    @property
    def busy(self) -> bool:
        """Whether a catalogue is being judged, or a file is being written."""
        return self._worker is not None and not self._worker.done()

    async def close(self) -> None:
        """Wait until everything is on the disk."""
        self._closed = True
        self._waiting.clear()
        if self._worker is not None:
            await self._worker

    # Judging and saving

    def _first(
        self,
        config: Config,
        approved: bytes | None,
        offered: Mapping[str, bytes] | None,
    ) -> tuple[QuarantineState, dict[str, bytes], list[QuarantineDecision], str, bool]:
        """Load the files and judge the catalogues, for `begin`. Runs in a thread. Raises
        ConfigInvalid."""
        there, outdated = _lock(config, approved)
        note, seen = "", None
        try:
            seen = lock_io.load(self._state_dir / lock_io.SEEN) or Lock()
        except ConfigInvalid as error:
            problem = "; ".join(map(str, error.problems))
            note = (
                f"the file of what servers offered at first cannot be read and is kept: {problem}"
            )
        definitions = locks.definitions(config.servers.values())
        pins = QuarantineState(
            None if seen is None else locks.fold_lock(seen), there, _pinnings(config), definitions
        )
        data: dict[str, bytes] = {}
        if offered is None:
            catalogues = Catalogues(self._state_dir, lambda server, sentence: None)
            for name, server in config.servers.items():
                if pins.mode(name) == "enforce" and (stored := catalogues.load(server)):
                    data[name] = stored
        else:
            data |= {name: each for name, each in offered.items() if pins.mode(name) == "enforce"}
        judged = [_judge_catalogue(pins, name, each) for name, each in data.items()]
        return pins, data, judged, note, outdated

    def _hold(self, judged: QuarantineDecision | None) -> bool:
        """Hold tools back until they are judged. Return whether the fronts must be notified."""
        if judged is None:
            return False
        self._count(judged)
        return self._pins.hold(judged)

    def _count(self, judged: QuarantineDecision) -> None:
        if drift_counts := counts(judged):
            self.drift[judged.server] = drift_counts
        else:
            self.drift.pop(judged.server, None)

    def _take(self, judged: QuarantineDecision, *, tell: bool = True) -> None:
        news = self._pins.take(judged)
        self._count(judged)
        if news.seen is not None:
            self._unsaved = news.seen
            self._work_on()
        if news.fronts and tell:
            self._tell()
        server, quarantined = judged.server, judged.kept
        released = bool(self._announced.get(server)) and not quarantined
        self._announced[server] = quarantined
        if news.sentence:
            self._say(server, "tools drifted", news.sentence)
        elif released:
            self._say(server, "tools released", "nothing of it is in quarantine any more")

    def _say(self, server: str, event: str, cause: str) -> None:
        ration = self._rations.setdefault(server, EntryRateLimiter(TOLD_MAX))
        missing = ration.take(self._loop.time())
        if missing is not None:
            self._journal.add(server, event, cause + left_out(missing))

    def _work_on(self) -> None:
        if not self.busy:
            self._worker = self._loop.create_task(self._work(), name="pinning")

    async def _work(self) -> None:
        while self._waiting or self._unsaved is not None:
            if self._waiting:
                server = next(iter(self._waiting))
                await self._judge(server, self._waiting.pop(server))
            else:
                seen, self._unsaved = self._unsaved, None
                assert seen is not None
                try:
                    await asyncio.to_thread(_save, self._state_dir, seen)
                except OSError as error:
                    problem = f"what servers offered at first could not be kept: {error.strerror}"
                    self._journal.add("gateway", "error", problem)

    async def _judge(self, server: str, data: bytes) -> None:
        try:
            judged = await asyncio.to_thread(_judge_catalogue, self._pins, server, data)
        except OSError as error:  # a module cannot be loaded, as without a free descriptor
            problem = f"its tools are not judged yet, what is kept back stays so: {error.strerror}"
            self._say(server, "error", problem)
            if self._data.get(server) is data and not self._closed:
                self._waiting[server] = data
                await asyncio.sleep(RETRY_S)
            return
        except Exception as error:  # noqa: BLE001 - tools that are held back stay so
            self._journal.add(server, "bug", f"its tools cannot be judged: {error!r}")
            return
        if self._data.get(server) is not data:
            return  # a newer catalogue waits, or the server is gone
        if judged.edition != self._pins.edition:  # judged by files that are not in force any more
            self._waiting[server] = data
        else:
            self._take(judged)


def _pinnings(config: Config) -> dict[str, Pinning | None]:
    return {name: server.pinning for name, server in config.servers.items()}


def _lock(config: Config, approved: bytes | None) -> tuple[Lock | None, bool]:
    """Return the lock in force at first, and whether the file has a different one. Raises
    ConfigInvalid."""
    path = lock_io.find_lock_path(config)
    if approved is None:
        there = lock_io.load(path)
        return None if there is None else locks.fold_lock(there), False
    text = zlib.decompress(approved).decode() if approved else ""
    try:
        before = locks.fold_lock(locks.read(text, str(path))) if text else None
    except ConfigInvalid:  # a different version wrote it in a different format
        there = lock_io.load(path)
        return None if there is None else locks.fold_lock(there), False
    try:
        there = lock_io.load(path)
    except ConfigInvalid:
        return before, True
    return before, text != ("" if there is None else locks.text(there))


def _draft(
    pins: QuarantineState,
    lock: Lock | None,
    config: Config,
    data: Mapping[str, bytes],
) -> ReloadDraft:
    """Judge catalogues for `ToolQuarantine.draft`. Runs in a thread."""
    lock = None if lock is None else locks.fold_lock(lock)
    pinnings = _pinnings(config)
    other = pins.draft(lock, pinnings, locks.definitions(config.servers.values()))
    judged = {
        name: _judge_catalogue(other, name, each)
        for name, each in data.items()
        if process_names.base(name) in pinnings
    }
    return ReloadDraft(other, judged, data, locks.prints(lock) != locks.prints(pins.lock))


def mark(data: bytes) -> str:
    """Return the mark of a catalogue, which stands for what a person has looked at."""
    return hashlib.sha256(data).hexdigest()[:MARK_DIGITS]


def _tools(data: bytes) -> Sequence[bytes | Raw]:
    """Return the tools of a catalogue. Raises codec.Malformed."""
    return server_catalog.unpack(data).tools


def _judge_catalogue(pins: QuarantineState, server: str, data: bytes) -> QuarantineDecision:
    """Judge a catalogue. Runs in a thread."""
    try:
        return pins.judge(server, _tools(data))
    except codec.Malformed:  # it was read once, so this cannot be
        return QuarantineDecision(server, edition=pins.edition)


def _save(state_dir: Path, seen: Lock) -> None:
    """Write the file of first catalogues. Raises OSError."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock_io.save(state_dir / lock_io.SEEN, seen)
