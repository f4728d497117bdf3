"""Quarantine: tools that clients do not get at this moment, because they are not as approved.

Owns: the lock in force, the definitions that servers offered when they were first seen, and the
last decision about each server. Never: files (`approval.lock_io`), the decision itself
(`approval.lock_drift`), notifying fronts, journal and metrics (`quarantine_io`).

A decision has two steps, because judging a large catalogue takes time. `at_once` is cheap: it keeps
back every tool that is not known to be good, and `hold` puts that into force. `judge` changes
nothing and may run in a thread: it finds which tools really drifted and which may pass, and `take`
puts that into force. A definition that was judged is known by its bytes, so that a server which
offers it again is not judged again.

A process for a single client (`process_names`) is judged by the entry of its server.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Raw, Struct
from msgspec.structs import replace

from metamcp_supervisor.approval import lock_drift
from metamcp_supervisor.approval.lock import Lock, LockedServer, fingerprint, folded_server
from metamcp_supervisor.approval.lock_drift import QuarantinedTool, ToolDrift
from metamcp_supervisor.config.config import Pinning
from metamcp_supervisor.telemetry.metric_names import DRIFT
from metamcp_worker.ipc import process_names

AT_ONCE_BYTES_MAX = 64 * 1024
"""Maximum bytes of unknown definitions whose fingerprints `at_once` makes while all clients wait:
less than 10 ms of work, and enough for most servers. If there are more, all unknown definitions are
kept back until they are judged."""

Known = Mapping[bytes, QuarantinedTool | None]
"""Judged definitions by the digest of their bytes: why one is kept back, None if it passes."""


class QuarantineDecision(Struct, frozen=True):
    """Result of judging the catalogue of a server. `kept`: tools to keep back; `first`: definitions
    to remember of a server that was never seen before and is not approved; `known`: the judged
    definitions; `edition`: of the files that the catalogue was compared with."""

    server: str
    drifts: tuple[ToolDrift, ...] = ()
    kept: frozenset[QuarantinedTool] = frozenset()
    first: LockedServer | None = None
    known: Known = {}
    edition: int = 0


class QuarantineEffects(Struct, frozen=True):
    """Effects of a decision. `sentence`: for the journal, empty if it is not new; `fronts`: whether
    the fronts must be notified; `seen`: lock to write to disk, None if it did not change."""

    sentence: str = ""
    fronts: bool = False
    seen: Lock | None = None


class QuarantineState(Struct):
    """State of the quarantine. `seen`: definitions of servers when they were first seen, None if
    they cannot be read: then a server with `enforce` and without an approval is not trusted at
    first sight. `lock`, `pinnings`: from the files; a server without an entry in `pinnings` is not
    judged. `definitions`: the keys of servers in `seen`, where another command under the same name
    is another server (`lock.definitions`)."""

    seen: Lock | None
    lock: Lock | None = None
    pinnings: Mapping[str, Pinning | None] = {}
    definitions: Mapping[str, str] = {}
    edition: int = 0
    _last: dict[str, QuarantineDecision] = {}
    _told: dict[str, str] = {}

    def adopt(
        self,
        lock: Lock | None,
        pinnings: Mapping[str, Pinning | None],
        definitions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Take over files that were read again. Every server has to be judged again; until then the
        last decision about it stays in force."""
        self.lock, self.pinnings, self.definitions = lock, dict(pinnings), definitions
        self.edition += 1
        for name in [name for name in self._last if process_names.base(name) not in pinnings]:
            self.forget(name)

    def draft(
        self,
        lock: Lock | None,
        pinnings: Mapping[str, Pinning | None],
        definitions: Mapping[str, str] = MappingProxyType({}),
    ) -> "QuarantineState":
        """Return a copy that judges servers as they will be judged after `adopt`."""
        return QuarantineState(self.seen, lock, dict(pinnings), definitions, self.edition + 1)

    def mode(self, server: str) -> Pinning:
        """Return the pinning in force for a server."""
        base = process_names.base(server)
        if base not in self.pinnings:
            return "off"
        return lock_drift.mode(self.pinnings[base], locked=self._find_entry(base) is not None)

    def at_once(self, server: str, offered: Iterable[bytes | Raw]) -> QuarantineDecision | None:
        """Keep back every tool that is not known to be good. Return None if this server's tools are
        never kept back. Changes nothing."""
        approved = self._find_approved(server)
        if self.mode(server) != "enforce" or approved is None:
            return None
        last, verdicts = self.last(server), self._find_verdicts(server, self.edition)
        unknown: list[bytes] = []
        quarantined = set[QuarantinedTool]()
        for definition in map(bytes, offered):
            verdict = verdicts.get(_digest(definition), _UNKNOWN)
            if verdict is _UNKNOWN:
                unknown.append(definition)
            elif verdict is not None:
                quarantined.add(verdict)
        few, reason = (
            sum(map(len, unknown)) <= AT_ONCE_BYTES_MAX,
            lock_drift.explain_pending(server),
        )
        for definition in unknown:
            name = lock_drift.name_of(definition)
            due = None if name is None else approved.tools.get(name)
            same = few and due is not None and fingerprint(definition) == due.fingerprint
            if name is not None and not same:
                quarantined.add(QuarantinedTool(server, name, reason))
        return QuarantineDecision(
            server, last.drifts, frozenset(quarantined), None, verdicts, self.edition
        )

    def judge(self, server: str, offered: Sequence[bytes | Raw]) -> QuarantineDecision:
        """Judge the whole catalogue of a server. Changes nothing."""
        edition, pinning = self.edition, self.mode(server)
        if pinning == "off":
            return QuarantineDecision(server, edition=edition)
        approved = self._find_approved(server)
        if approved is None:
            first = None
            if self.seen is not None and not process_names.parse_client(server):
                first = folded_server(lock_drift.approve_tools(LockedServer(), offered, None, {}))
            return QuarantineDecision(server, first=first, edition=edition)
        named = [
            (lock_drift.name_of(definition), _digest(definition), definition)
            for definition in offered
        ]
        drifts = self._drifts(server, approved, named, edition)
        locked = self._find_entry(server) is not None
        quarantined = lock_drift.select_quarantined(drifts, pinning, locked=locked)
        by_name = {each.tool: each for each in quarantined}
        verdicts = {digest: by_name.get(name or "") for name, digest, _ in named}
        return QuarantineDecision(server, drifts, quarantined, None, verdicts, edition)

    def compare_tools(self, server: str, offered: Sequence[bytes | Raw]) -> tuple[ToolDrift, ...]:
        """Compare every tool of a server with what was approved, with both definitions. Changes
        nothing."""
        approved = self._find_approved(server)
        if approved is None or self.mode(server) == "off":
            return ()
        return lock_drift.drifts(server, approved, offered)

    def take(self, judged: QuarantineDecision) -> QuarantineEffects:
        """Put a result of `judge` into force."""
        before = self.last(judged.server)
        drifts = tuple(
            replace(drift, old=None, new=None) for drift in judged.drifts if drift.is_news
        )
        self._last[judged.server] = replace(judged, drifts=drifts)  # definitions are large
        seen, first = None, judged.first
        key = self._key(judged.server)
        if first is not None and self.seen is not None and key not in self.seen.servers:
            seen = self.seen = Lock({**self.seen.servers, key: first})
        sentence = lock_drift.summary(judged.drifts)
        if count := len(judged.kept):
            sentence += f" ({count} in quarantine)"
        news = sentence if sentence != self._told.get(judged.server, "") else ""
        self._told[judged.server] = sentence
        return QuarantineEffects(news, judged.kept != before.kept, seen)

    def hold(self, judged: QuarantineDecision) -> bool:
        """Put a result of `at_once` into force until the server is judged. Return whether the
        fronts must be notified."""
        before = self.last(judged.server)
        self._last[judged.server] = judged
        return judged.kept != before.kept

    def go_on(self, server: str, quarantined: Iterable[QuarantinedTool]) -> None:
        """Keep back the same tools as the program before an upgrade did; the definitions that the
        server offered are not known."""
        self._last[server] = QuarantineDecision(
            server, kept=frozenset(quarantined), edition=self.edition
        )

    def forget(self, server: str) -> None:
        """Drop the decision about a server that no longer exists."""
        self._last.pop(server, None)
        self._told.pop(server, None)

    @property
    def quarantined_tools(self) -> frozenset[QuarantinedTool]:
        """Tools of all servers that are kept back."""
        return frozenset(each for judged in self._last.values() for each in judged.kept)

    @property
    def enforced_servers(self) -> tuple[str, ...]:
        """Servers that may offer only approved tools."""
        return tuple(server for server in self.pinnings if self.mode(server) == "enforce")

    def last(self, server: str) -> QuarantineDecision:
        """Return the last decision about a server."""
        return self._last.get(server) or QuarantineDecision(server)

    def _drifts(
        self,
        server: str,
        approved: LockedServer,
        named: Sequence[tuple[str | None, bytes, bytes | Raw]],
        edition: int,
    ) -> tuple[ToolDrift, ...]:
        """Compare the offered tools with the approved ones. `named`: name, digest and definition of
        each offered tool. A definition that was judged before, and whose name is offered once,
        keeps its result."""
        verdicts = self._find_verdicts(server, edition)
        before = {each.tool: each for each in self.last(server).drifts}
        often = Counter(name for name, _, _ in named)
        stay = {
            name: before.get(name) or ToolDrift(server, name, "same")
            for name, digest, _ in named
            if name is not None and digest in verdicts and often[name] == 1
            if name not in before or before[name].change != "unreadable"
        }
        tools = {name: tool for name, tool in approved.tools.items() if name not in stay}
        others = [definition for name, _, definition in named if name not in stay]
        differences = lock_drift.drifts(server, replace(approved, tools=tools), others)
        return tuple(sorted((*differences, *stay.values()), key=lambda each: each.tool))

    def _find_verdicts(self, server: str, edition: int) -> Known:
        last = self.last(server)
        return last.known if last.edition == edition else _NOTHING

    def _find_entry(self, server: str) -> LockedServer | None:
        """Return the entry of a server in `metamcp.lock`."""
        return None if self.lock is None else self.lock.servers.get(process_names.base(server))

    def _find_approved(self, server: str) -> LockedServer | None:
        """Return the entry that a server is compared with; None: every tool passes."""
        entry = self._find_entry(server)
        if entry is None and self.seen is None:
            return LockedServer() if self.mode(server) == "enforce" else None
        if entry is not None or self.seen is None:
            return entry
        return self.seen.servers.get(self._key(server))

    def _key(self, server: str) -> str:
        base = process_names.base(server)
        return self.definitions.get(base, base)


def counts(judged: QuarantineDecision) -> dict[str, int]:
    """Count the tools that are not as approved, by the words of `metric_names.DRIFT`; counts of 0
    are left out."""
    quarantined_names = {each.tool for each in judged.kept}
    others = [each for each in judged.drifts if each.is_news and each.tool not in quarantined_names]
    harmless = sum(each.harmless for each in others)
    by_word = dict(
        zip(DRIFT, (harmless, len(others) - harmless, len(quarantined_names)), strict=True)
    )
    return {word: count for word, count in by_word.items() if count}


_UNKNOWN = QuarantinedTool("", "", "")
_NOTHING: Known = {}


def _digest(definition: bytes | Raw) -> bytes:
    return hashlib.sha256(definition).digest()
