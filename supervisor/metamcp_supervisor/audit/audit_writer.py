"""The process that writes the audit, kept alive while something is audited, and the supervisor's
own records.

Owns: when the process runs, its settings, the salt of pseudonyms, records of the journal's events
and of orders. Never: writing records (`metamcp_worker.audit`), records of calls (fronts), the
process itself (`role_process`).

Answers wait while the process does not run. All who have records connect again at once, which
starts the next one; only one that ends again and again is delayed.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import structs

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.roles.role_process import ServiceContext, SocketProcess
from metamcp_supervisor.telemetry.journal import Follower
from metamcp_supervisor.telemetry.metric_names import MetricFamily
from metamcp_supervisor.telemetry.page_rows import Values, by_one
from metamcp_supervisor.verbs import JournalEvent
from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.audit_link import AuditLink
from metamcp_worker.ipc.audit_records import (
    FOLDER,
    ROLE,
    SALT,
    SALT_BYTES,
    SPOOLS,
    AuditFigures,
    AuditOn,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat
from metamcp_worker.ipc.spec import AuditSpec, FrontSpec

AGAIN_S_FIRST = 0.05
AGAIN_S_MAX = 5.0
"""Seconds before the next start, doubled with each end of a process that was not stable."""
END_S_MAX = 60.0
"""Seconds for a process that is replaced to commit what it has."""
CLOSE_S_MAX = 1.0
"""Seconds for the supervisor's own last records."""
SEGMENT_BYTES = 256 * 1024 * 1024

_read = codec.reader(AuditFigures | Heartbeat)


#: Outcomes that have series before their first event.
OUTCOMES = ("records", "lost", "refused")
METRICS = (
    MetricFamily("metamcp_audit_records_total", "counter", ("outcome",),
           "Records of the audit: written, lost (a gap tells of them), or refused by the disk."),
    MetricFamily("metamcp_audit_up", "gauge", (),
           "1 while the process that writes the audit runs; absent if nothing is audited."),
)  # fmt: skip


class AuditWriter(SocketProcess):
    who = ROLE
    loss = "answers wait for the next one"
    end_s_max = END_S_MAX
    off = "nothing is audited any more"
    lasting = True

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context, _read, _order)
        self._records = context.metrics.counter(METRICS[0].name, OUTCOMES)
        self._up: bool | None = None
        self._link: AuditLink[object] | None = None
        self._follower: Follower[JournalEvent] | None = None
        self._leaving_link: asyncio.Task[None] | None = None
        self._salt = b""
        self._last_event = 0
        """Number of the newest event that has a record."""

    def add_settings(self, spec: FrontSpec) -> FrontSpec:
        settings = self._config().audit
        self.adapt()
        if settings.level == audit.OFF:
            return spec
        return structs.replace(
            spec,
            audit=AuditSpec(
                spools=self._spools(),
                level=settings.level,
                required=settings.required,
                salt=self._salt,
            ),
        )

    async def close(self) -> None:
        """Commit the last records, and let the process end."""
        self._closed = True
        self._forget()
        if self._link is not None:
            await self._link.close(CLOSE_S_MAX)
        await super().close()

    # The process

    def _spools(self) -> str:
        """Return the folder of the spools, empty if records wait for the disk."""
        config = self._config()
        if config.audit.durability == "power":
            return ""
        return str(config.gateway.state_dir / FOLDER / SPOOLS)

    def on_settings_changed(self, *, on: bool) -> None:
        if not on:
            self._forget()
            if self._link is not None:
                self._leaving_link = self._loop.create_task(self._link.close())
                self._link = None

    def _listen(self) -> None:
        """Take connections, the supervisor's own first, and follow the journal. The folder may be
        missing or unwritable: the process says so, and so do refused calls."""
        super()._listen()
        if self.connector is None:
            return
        if not self._salt:
            self._salt = _salt(self._config().gateway.state_dir / FOLDER)
        if self._link is None:
            connect, spools = partial(packets.connect, self.connector), self._spools()
            self._link = AuditLink(connect, self._gap, keeps=True, spools=spools)
        if self._follower is None:
            self._journal.ordered = self._add_order
            self._follower = self._journal.follow(self._on_journal_events)
            # The start of the gateway; the program before this one recorded its own events.
            for event in self._journal.since(max(self._journal.inherited, self._last_event)):
                self._add_event(event)

    def _send_first_messages(self) -> None:
        self._up = True
        super()._send_first_messages()

    def _part(self) -> None:
        if self._pid:
            self._up = False
        super()._part()

    def _delay_s(self) -> float:
        return min(AGAIN_S_MAX, AGAIN_S_FIRST * 2.0 ** min(self._failures, 16))

    def _on_message(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, AuditFigures):
            self._count_growth(message.counts, self._records)

    def metric_rows(self) -> Iterator[tuple[str, Values]]:
        if self._up is not None:
            yield METRICS[0].name, by_one(self._records)
            yield METRICS[1].name, [((), self._up)]

    # The supervisor's own records

    def _forget(self) -> None:
        if self._follower is not None:
            self._on_journal_events()
            self._journal.unfollow(self._follower)
            self._follower = None
            self._journal.ordered = lambda sentence: None

    def _on_journal_events(self) -> None:
        follower, link = self._follower, self._link
        if follower is None or link is None:
            return
        for event in follower.take():
            self._add_event(event)
        link.send()  # at once: this turn of the loop may be the last one before another program
        if follower.lagged:
            link.lost += 1
            self._journal.unfollow(follower)
            self._follower = self._journal.follow(self._on_journal_events)

    def _add_event(self, event: JournalEvent) -> None:
        self._last_event = event.seq
        text = f"{event.what}: {event.cause}" if event.cause else event.what
        self._add("gateway", int(event.time * 1e9), event.who, text)

    def _add_order(self, sentence: str) -> None:
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


def _order(config: Config) -> AuditOn | None:
    settings = config.audit
    if settings.level == audit.OFF:
        return None
    return AuditOn(
        folder=str(config.gateway.state_dir / FOLDER), durable=settings.durability == "power",
        retention_s=settings.retention_s, segment_bytes=SEGMENT_BYTES,
    )  # fmt: skip


def _salt(folder: Path) -> bytes:
    """Return the salt of this audit; a new one at its beginning. A salt that cannot be stored
    lasts as long as this gateway."""
    made = secrets.token_bytes(SALT_BYTES)
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / SALT
        if path.exists() and len(stored := path.read_bytes()) == SALT_BYTES:
            return stored
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(made)
    return made
