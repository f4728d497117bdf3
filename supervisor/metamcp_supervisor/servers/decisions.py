"""Decisions about servers that last over the end of the gateway.

Owns: `decisions.json` in the state directory, with the servers that are in quarantine, stopped or
drained, and with the settings that are set for a time. Never: carrying a decision out
(`server_io`, `gateway.reload`).

The file is read before the first server starts. A server may be in quarantine by a file that cannot
be read, so every configured server is in quarantine then, until an operator clears it.
"""

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import structs

from metamcp_supervisor.config import files
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import Decision
from metamcp_worker.ipc import codec

FILE = "decisions.json"
BROKEN = "decisions.json.broken"
"""Name of a file that could not be read."""
DECISIONS_MAX = 1000
"""Maximum number of decisions; the file has less than `files.CONFIG_BYTES_MAX` bytes then."""
WHY_CHARACTERS_MAX = 500
ABSENT_S_MAX = 30 * 86_400.0
"""Seconds for which a decision about a server stays that is not configured any more."""
QUARANTINE, STOP, DRAIN, SET = "quarantine", "stop", "drain", "set"
ITSELF = "the gateway"
"""Caller of a decision that the gateway made itself."""
TOO_MANY = f"there are {DECISIONS_MAX} decisions already"


class Decisions:
    """All decisions. Each change is written at once, in a thread; `save` waits for that. `clock`:
    returns seconds since the epoch."""

    def __init__(self, state_dir: Path, journal: Journal, clock: Callable[[], float]) -> None:
        self._path = state_dir / FILE
        self._journal = journal
        self._clock = clock
        self._all: dict[tuple[str, str], Decision] = {}
        """Decisions by server and setting; a decision about a server itself has no setting."""
        self._writer: asyncio.Task[None] | None = None
        self._changed = False
        self.problem = ""
        """Why the disk does not have the decisions of now."""
        self._refused = False
        """Whether a decision was left out since the last `save`."""

    def load(self, servers: Collection[str]) -> bool:
        """Read the file; return whether that was possible. `servers`: names of all that must be in
        quarantine if not. Blocks, so call this only at a start."""
        if not os.path.lexists(self._path):
            return True
        try:
            text, problem = files.owned_text(self._path)
            if problem:
                raise files.FileUnreadable(problem)
            every = codec.decode_as(list[Decision], text.encode())
        except files.FileUnreadable as error:
            self._load_nothing(servers, str(error))
        except codec.Malformed as error:
            self._load_nothing(servers, f"is not a list of decisions: {error}")
        else:
            self._all = {(each.server, each.key): each for each in every}
            return True
        return False

    def _load_nothing(self, servers: Collection[str], problem: str) -> None:
        """Put these servers into quarantine, because the file cannot be read, and move the file
        aside when the new one is on the disk."""
        message = f"perhaps it was in quarantine before: {FILE} {problem}"[:WHY_CHARACTERS_MAX]
        now = self._clock()
        self._all = {
            (name, ""): Decision(server=name, kind=QUARANTINE, who=ITSELF, when=now, why=message)
            for name in servers
        }
        text = f"what operators decided cannot be read: {self._path} {problem}"
        if servers:
            text = f"{text}; every server is in quarantine until 'metamcp ctl clear NAME'"
        broken, new = self._path.with_name(BROKEN), self._path.with_name(f"{FILE}.new")
        try:
            files.replace_file(new, self._encode())
            os.replace(self._path, broken)
            os.replace(new, self._path)
        except OSError as error:
            text = f"{text}; the file stays where it is: {error.strerror}"
        else:
            text = f"{text}; the file is {broken.name} now"
        self._journal.add("gateway", "error", text)

    def find(self, server: str, key: str = "") -> Decision | None:
        """Return the decision about a server itself, or about this setting of it."""
        return self._all.get((server, key))

    def list_servers(self) -> dict[str, Decision]:
        """Return the decisions about servers themselves, by server."""
        return {each.server: each for each in self._all.values() if not each.key}

    def list_settings(self) -> list[Decision]:
        return [each for each in self._all.values() if each.kind == SET and each.key]

    def put(self, decision: Decision) -> None:
        """Add a decision of now, in place of an earlier one about the same."""
        message = decision.why[:WHY_CHARACTERS_MAX]
        decision = structs.replace(decision, when=self._clock(), why=message)
        at = decision.server, decision.key
        if at not in self._all and len(self._all) >= DECISIONS_MAX:
            absent = [each for each in self._all.values() if each.absent]
            if not absent:
                self._refused = True
                self._journal.add(decision.server or "gateway", "note", _format_warning(TOO_MANY))
                return
            oldest = min(absent, key=lambda each: each.absent)
            del self._all[oldest.server, oldest.key]
        self._all[at] = decision
        self._write_soon()

    def lift(self, server: str, *kinds: str) -> None:
        """Remove the decision about a server itself, if it is of one of these kinds."""
        decision = self._all.get((server, ""))
        if decision is not None and decision.kind in kinds:
            del self._all[server, ""]
            self._write_soon()

    def retain(self, servers: Collection[str], settings: Collection[tuple[str, str]]) -> None:
        """Drop decisions that are over: settings that are not among `settings` (server and key),
        and decisions about a server that has not been in the configuration for ABSENT_S_MAX.
        `servers`: names of all that are configured."""
        now, before = self._clock(), self._all
        self._all = {at: each for at, each in before.items() if not each.key or at in settings}
        for at, each in list(self._all.items()):
            absent = 0.0 if each.key or each.server in servers else each.absent or now
            if absent and now - absent > ABSENT_S_MAX:
                del self._all[at]
            elif absent != each.absent:
                self._all[at] = structs.replace(each, absent=absent)
        if self._all != before:
            self._write_soon()

    async def save(self) -> str:
        """Return when the disk has the decisions of now; a sentence if it does not get them, else
        an empty text."""
        if self._writer is not None:
            await asyncio.wait([self._writer])
        problem = TOO_MANY if self._refused else self.problem
        self._refused = False
        return _format_warning(problem) if problem else ""

    @property
    def busy(self) -> bool:
        """Whether the file is being written."""
        return self._writer is not None and not self._writer.done()

    async def close(self) -> None:
        """Wait until the file is written; try it again if that failed before."""
        if self.problem:
            self._write_soon()
        await self.save()

    def _write_soon(self) -> None:
        self._changed = True
        if not self.busy:
            self._writer = asyncio.create_task(self._write(), name="decisions")

    async def _write(self) -> None:
        while self._changed:
            self._changed = False
            try:
                await asyncio.to_thread(_replace, self._path, self._encode())
            except OSError as error:
                self.problem = f"{self._path} cannot be written: {error.strerror}"
                self._journal.add("gateway", "note", _format_warning(self.problem))
            else:
                self.problem = ""

    def _encode(self) -> bytes:
        return codec.dump([*self._all.values()])


def _format_warning(problem: str) -> str:
    return f"this does not outlast a restart of the gateway: {problem}"


def _replace(path: Path, data: bytes) -> None:
    """Write the file, and its entry in the folder, to the disk. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.replace_file(path, data)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
