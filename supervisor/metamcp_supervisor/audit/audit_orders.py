"""The verbs about the audit: records that fit, one record, proof of the chain, all records.

Owns: their parameters and limits, the form of the answers. Never: reading segments
(`audit_segments`), writing records (`metamcp_worker.audit`).

Segments are read in a thread, because an audit may have millions of records.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from msgspec import Raw, Struct

from metamcp_supervisor.audit import audit_segments
from metamcp_supervisor.audit.audit_segments import (
    AuditFilter,
    AuditQuestion,
    AuditUnread,
    ChainCheckResult,
    StoredRecord,
)
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.services import ControlStream, GatewayControl, Verb
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_worker.ipc import audit_records, codec
from metamcp_worker.ipc.errors import MetaMCPError, ProtocolError

RECORDS_MAX = 200
"""Maximum records of one answer; each has up to two kilobytes without arguments and result."""
SEARCHED_MAX = 500_000
"""Maximum records that one question reads, the newest ones; about two seconds of a processor."""
PAGE_BYTES_MAX = 512 * 1024
"""Maximum bytes of the records in a page of the export, half of a line of the control socket."""
BODIES = ("arguments", "result")
"""Members of a record that need the role of a developer."""

T = TypeVar("T")
P = ParamSpec("P")
_verifying = asyncio.Lock()
"""Held by the only check of a chain at a time, because a check keeps a processor busy."""


class AuditQuery(AuditFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `audit`. `key`: name or id of an API key, or the name of a principal."""

    key: str = ""


class RecordWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `audit-show`."""

    seq: int


class ChainCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `audit-verify`. `expect`: a checkpoint `SEQ:HASH` that must be in the chain."""

    expect: str = ""


class PageWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `audit-export`. `after`: number of the last record that the client has."""

    after: int = 0


class AuditRecords(Struct, frozen=True, kw_only=True):
    """Records of the audit, the newest last, each as `audit_records.to_export_record`. `searched`:
    number of the newest records that were looked at; `whole`: whether these were all."""

    v: int = VERSION
    records: tuple[Raw, ...]
    searched: int
    whole: bool


class AuditPage(Struct, frozen=True, kw_only=True):
    """Part of the export of the audit, the oldest record first. `more`: whether records follow."""

    v: int = VERSION
    records: tuple[Raw, ...]
    more: bool


async def audit(gateway: GatewayControl, line: ControlStream, params: AuditQuery) -> object:
    """Return the newest records that fit, the newest last. Raises ProtocolError."""
    if not 1 <= params.limit <= RECORDS_MAX:
        raise ProtocolError(Exit.USAGE, f"limit is a number from 1 to {RECORDS_MAX}")
    question = AuditQuestion(
        since=params.since, until=params.until, workspace=params.workspace,
        keys=await _keys(gateway, params.key), server=params.server, tool=params.tool,
        event=params.event, outcome=params.outcome, limit=params.limit,
    )  # fmt: skip
    result = await _read(audit_segments.find_records, _folder(gateway), question, SEARCHED_MAX)
    return AuditRecords(
        records=tuple(_format_record(record, bodies=False) for record in result.records),
        searched=result.searched,
        whole=result.whole,
    )


async def show(gateway: GatewayControl, line: ControlStream, params: RecordWanted) -> object:
    """Return one record, for developers with arguments and result. Raises ProtocolError."""
    record = await _read(audit_segments.one, _folder(gateway), params.seq)
    bodies = line.role >= Role.DEVELOPER
    return AuditRecords(records=(_format_record(record, bodies=bodies),), searched=1, whole=True)


async def verify(gateway: GatewayControl, line: ControlStream, params: ChainCheck) -> object:
    """Check the whole chain. Raises ProtocolError."""
    if params.expect and not audit_segments.CHECKPOINT.fullmatch(params.expect):
        raise ProtocolError(Exit.USAGE, audit_segments.CHECKPOINT_FORM)
    async with _verifying:
        proof: ChainCheckResult = await _read(audit_segments.proof, _folder(gateway), params.expect)
    return proof


async def export(gateway: GatewayControl, line: ControlStream, params: PageWanted) -> object:
    """Return the next records with all of their members. Raises ProtocolError."""
    records, more = await _read(audit_segments.page, _folder(gateway), params.after, PAGE_BYTES_MAX)
    if params.after == 0:
        gateway.journal.add("gateway", "audit", f"export begun by {line.caller}")
    return AuditPage(records=tuple(Raw(codec.dump(record)) for record in records), more=more)


def _folder(gateway: GatewayControl) -> Path:
    return Path(gateway.status().state_dir) / audit_records.FOLDER


async def _keys(gateway: GatewayControl, name: str) -> tuple[str, ...]:
    """Return the words by which records name a key or a principal; none for an empty name."""
    if not name:
        return ()
    plain = name.removeprefix("key:")
    try:
        keys = (await gateway.keys.list_keys([plain])).keys
    except MetaMCPError:  # a principal of OAuth, or a key that is revoked
        keys = ()
    return (name, plain, *(key.id for key in keys))


async def _read(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Read segments in a thread. Raises ProtocolError."""
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except AuditUnread as error:
        raise ProtocolError(Exit.of(error), str(error)) from None


def _format_record(record: StoredRecord, *, bodies: bool) -> Raw:
    members = record.to_export_record()
    return Raw(
        codec.dump({name: value for name, value in members.items() if bodies or name not in BODIES})
    )


VERBS = {
    "audit": Verb(AuditQuery, audit, Role.OPERATOR, reads=True),
    "audit-show": Verb(RecordWanted, show, Role.OPERATOR, reads=True),
    "audit-verify": Verb(ChainCheck, verify, Role.OPERATOR, reads=True),
    "audit-export": Verb(PageWanted, export, Role.DEVELOPER, reads=True),
}
