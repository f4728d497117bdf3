"""The process that writes the audit, kept alive while something is audited, and the supervisor's
own records.

Owns: starting the process again whenever it ends, its settings, the salt of pseudonyms, records of
the journal's events and of orders. Never: writing records (`metamcp_worker.audit`), records of
calls (fronts).

Answers wait while the process does not run, so it is started again at once; only one that ends
again and again is delayed.
"""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from metamcp_supervisor.config.config import AuditConfig, Config
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked, WorkerExit
from metamcp_supervisor.telemetry.journal import Follower, Journal
from metamcp_supervisor.verbs import JournalEvent
from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.audit_link import AuditLink
from metamcp_worker.ipc.audit_records import (
    FOLDER,
    SALT,
    SALT_BYTES,
    SOCKET,
    SPOOLS,
    AuditFigures,
    AuditOn,
)
from metamcp_worker.ipc.messages import Beat
from metamcp_worker.ipc.spec import AuditSpec, FrontSpec

WHO = "audit"
"""Name of the process for `ps` and in the journal."""
AGAIN_S_FIRST = 0.05
AGAIN_S_MAX = 5.0
"""Seconds before the next start, doubled with each end within STABLE_S."""
STABLE_S = 10.0
CLOSE_S_MAX = 1.0
"""Seconds for the supervisor's own last records."""
SEGMENT_BYTES = 256 * 1024 * 1024

_read = codec.reader(AuditFigures | Beat)


class AuditWriter:
    """`config`: returns the configuration in force. `count`: called with counters of records by
    outcome, as increments, and whether the process runs."""

    def __init__(
        self,
        forker: Forker,
        hearts: Heartbeats,
        journal: Journal,
        config: Callable[[], Config],
        count: Callable[[Mapping[str, int], bool | None], None],
    ) -> None:
        self._forker = forker
        self._hearts = hearts
        self._journal = journal
        self._config = config
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._on: AuditOn | None = None
        self._pid = 0
        self._since = 0.0
        self._failures = 0
        self._channel: packets.Channel | None = None
        self._figures: Mapping[str, int] = {}
        self._launch: asyncio.Task[None] | None = None
        self._leaving: set[int] = set()
        self._link: AuditLink | None = None
        self._follower: Follower[JournalEvent] | None = None
        self._leaving_link: asyncio.Task[None] | None = None
        self._salt = b""
        self._closed = False

    @property
    def pid(self) -> int:
        """Process id, 0 while the process does not run."""
        return self._pid

    def with_audit(self, spec: FrontSpec) -> FrontSpec:
        """Return the specification of fronts with the settings of the audit in force, for which
        the process runs from now on."""
        wanted = self._config().audit
        self._settle()
        if wanted.level == audit.OFF:
            return spec
        return structs.replace(
            spec,
            audit=AuditSpec(
                socket=self._socket(),
                spools=self._spools(),
                level=wanted.level,
                required=wanted.required,
                salt=self._salt,
            ),
        )

    def exited(self, end: WorkerExit) -> bool:
        """A worker ended; return whether it was this process."""
        if end.pid in self._leaving:
            self._leaving.discard(end.pid)
            return True
        if not self._pid or end.pid != self._pid:
            return False
        how = f"signal {end.signal}" if end.signal else f"status {end.code}"
        self._journal.add(WHO, "error", f"it ended with {how}; answers wait for the next one")
        stable = self._loop.time() - self._since > STABLE_S
        self._failures = 0 if stable else self._failures + 1
        self._part()
        self._start()
        return True

    async def close(self) -> None:
        """Commit the last records, and let the process end."""
        self._closed = True
        self._forget()
        if self._link is not None:
            await self._link.close(CLOSE_S_MAX)
        if self._launch is not None:
            self._launch.cancel()
            await asyncio.wait([self._launch])
        self._part()

    # The process

    def _socket(self) -> str:
        return str(Path(self._config().gateway.runtime_dir) / SOCKET)

    def _spools(self) -> str:
        """Return the folder of the spools, empty if records wait for the disk."""
        found = self._config()
        if found.audit.durability == "power":
            return ""
        return str(found.gateway.state_dir / FOLDER / SPOOLS)

    def _settle(self) -> None:
        """Start, end or replace the process, as the configuration says."""
        found = self._config()
        on = _order(found.audit, found.gateway.state_dir / FOLDER, self._socket())
        if self._closed or on == self._on:
            return
        before, self._on = self._on, on
        if before is not None and self._channel is not None:
            self._leaving.add(self._pid)
            self._part()
        if on is None:
            self._forget()
            if self._link is not None:
                self._leaving_link = self._loop.create_task(self._link.close())
                self._link = None
        elif self._prepared(Path(on.folder)):
            self._start()

    def _prepared(self, folder: Path) -> bool:
        """Have a salt, and follow the journal. The folder may be missing or unwritable: the process
        says so, and so do refused calls."""
        if not self._salt:
            self._salt = _salt(folder)
        if self._link is None:
            spools = self._spools()
            self._link = AuditLink(self._socket(), self._gap, keeps=True, spools=spools)
        if self._follower is None:
            self._journal.ordered = self._ordered
            self._follower = self._journal.follow(self._woken)
            for event in self._journal.since(0):  # the start of the gateway
                self._noted(event)
        return True

    def _start(self) -> None:
        if self._launch is None and not self._closed and self._on is not None:
            self._launch = self._loop.create_task(self._started(), name=WHO)

    async def _started(self) -> None:
        worker = None
        while worker is None and self._on is not None:
            if self._failures:
                wait_s = AGAIN_S_FIRST * 2.0 ** min(self._failures, 16)
                await asyncio.sleep(min(AGAIN_S_MAX, wait_s))
            try:
                worker = await self._forker.fork(WHO, WHO)
            except NotForked:
                self._failures += 1
        self._launch = None
        if worker is not None:
            self._begin(worker)

    def _begin(self, worker: ForkedWorker) -> None:
        self._pid, self._figures, self._since = worker.pid, {}, self._loop.time()
        self._channel = packets.Channel(worker.sock, self._packet, self._silent)
        self._hearts.watch(worker.pid, lambda verdict: None)
        self._journal.add(WHO, "ready", f"process {worker.pid}")
        self._count({}, True)
        if self._on is not None:
            self._channel.send(messages.pack(self._on))
        else:
            self._leaving.add(self._pid)
            self._part()

    def _silent(self) -> None:
        if self._pid:
            self._forker.signal(self._pid, signal.SIGKILL)

    def _part(self) -> None:
        """Close the control socket; the process commits what it has and ends."""
        if self._channel is not None:
            self._channel.close()
        if self._pid:
            self._hearts.forget(self._pid)
            self._count({}, False)
        self._channel, self._pid = None, 0

    def _packet(self, data: bytes, fds: list[int]) -> None:
        packets.close_all(fds)
        try:
            message = _read(data)
        except codec.Malformed as error:
            self._journal.add(WHO, "bug", f"it sent something that cannot be read: {error}")
            return
        if isinstance(message, Beat):
            self._hearts.beat(self._pid, WHO, message.lag_ms)
            self._settle()
        else:
            before, self._figures = self._figures, message.counts
            added = {name: n - before.get(name, 0) for name, n in message.counts.items()}
            self._count(added, None)

    # The supervisor's own records

    def _forget(self) -> None:
        if self._follower is not None:
            self._woken()
            self._journal.unfollow(self._follower)
            self._follower = None
            self._journal.ordered = lambda sentence: None

    def _woken(self) -> None:
        follower, link = self._follower, self._link
        if follower is None or link is None:
            return
        for event in follower.take():
            self._noted(event)
        if follower.lagged:
            link.lost += 1
            self._journal.unfollow(follower)
            self._follower = self._journal.follow(self._woken)

    def _noted(self, event: JournalEvent) -> None:
        text = f"{event.what}: {event.cause}" if event.cause else event.what
        self._add("gateway", int(event.time * 1e9), event.who, text)

    def _ordered(self, sentence: str) -> None:
        self._add("order", time.time_ns(), "", sentence)

    def _add(self, event: str, ts: int, who: str, text: str) -> None:
        link = self._link
        if link is None:
            return
        if link.full:
            link.lost += 1
            return
        link.add(
            audit.encoded(
                audit.AuditRecord(
                    ts=ts, n=link.number, origin=link.origin, worker="supervisor", event=event,
                    who=who, text=text.replace("\n", " "),
                )
            )
        )  # fmt: skip

    def _gap(self, number: int, lost: int) -> bytes:
        assert self._link is not None
        return audit.encoded(
            audit.AuditRecord(
                ts=time.time_ns(), n=number, origin=self._link.origin, worker="supervisor",
                event="gap", count=lost,
            )
        )  # fmt: skip


def _order(wanted: AuditConfig, folder: Path, socket: str) -> AuditOn | None:
    if wanted.level == audit.OFF:
        return None
    return AuditOn(
        folder=str(folder), socket=socket, durable=wanted.durability == "power",
        retention_s=wanted.retention_s, segment_bytes=SEGMENT_BYTES,
    )  # fmt: skip


def _salt(folder: Path) -> bytes:
    """Return the salt of this audit; a new one at its beginning. A salt that cannot be stored
    lasts as long as this gateway."""
    made = secrets.token_bytes(SALT_BYTES)
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / SALT
        if path.exists():
            found = path.read_bytes()
            return found if len(found) == SALT_BYTES else made
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(made)
    return made
