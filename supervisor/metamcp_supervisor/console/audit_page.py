"""Page of the audit: records that fit a question, one record, the check of the chain, the export.

Owns: the filter, columns, the sentence about the chain. Never: which records there are (`audit`).
"""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.audit_orders import RECORDS_MAX, AuditPage, AuditRecords
from metamcp_supervisor.control.audit_segments import Proof
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import audit_records, codec

CHECK_S = 120.0
"""Seconds for a check of the chain; about a million records take ten."""
ASK_S = 30.0
LINES = 100
"""Number of records on the page."""
SPANS = (("", "Any time"), ("3600", "Last hour"), ("86400", "Last day"), ("604800", "Last week"))
HEADS = ("Number", "Time", "Event", "Who", "Server", "What", "Outcome", "Took")
NUMBERS = ("Number", "Took")
_TONES: Mapping[str, ui.Tone] = {"ok": "ok", "cancelled": "off", "": "off"}


async def show(ask: Ask, request: PageRequest) -> Node:
    if request.path:
        number = int(request.path[0]) if request.path[0].isdecimal() else 0
        raw = await ask("audit-show", {"seq": number}, timeout_s=ASK_S)
        return one_record(codec.value(codec.typed(AuditRecords, raw).records[0]))
    query = request.query
    chain = None
    if query.get("chain"):
        chain = codec.typed(Proof, await ask("audit-verify", timeout_s=CHECK_S))
    try:
        raw = await ask("audit", asked(query, time.time()), timeout_s=ASK_S)
    except Failed as why:
        if why.exit != Exit.UNKNOWN_NAME:
            raise
        return [ui.heading("Audit"), h.p(class_="empty")[ui.shown(str(why))]]
    return record_list(codec.typed(AuditRecords, raw), chain, request)


async def exported(ask: Ask) -> AsyncIterator[bytes]:
    """Yield all records as lines of JSON, the oldest first, a page of them at a time. Raises
    Failed."""
    after, more = 0, True
    while more:
        raw = await ask("audit-export", {"after": after}, timeout_s=ASK_S)
        page = codec.typed(AuditPage, raw)
        yield b"".join(b"%b\n" % bytes(one) for one in page.records)
        if page.records:
            after = codec.value(page.records[-1])["seq"]
        more = page.more


def asked(query: Mapping[str, str], now: float) -> dict[str, object]:
    """Return the question of a filter. `now`: seconds since the epoch."""
    span, limit = query.get("span", ""), query.get("limit", "")
    found: dict[str, object] = {
        name: query[name] for name in ("key", "server", "tool", "workspace") if query.get(name)
    }
    for name, words in (("event", audit_records.ALL_EVENTS), ("outcome", audit_records.OUTCOMES)):
        if query.get(name) in words:
            found[name] = query[name]
    if span.isdecimal():
        found["since"] = now - int(span[:10])
    count = int(limit[:6]) if limit.isdecimal() else LINES
    return {**found, "limit": min(max(count, 1), RECORDS_MAX)}


def record_list(found: AuditRecords, chain: Proof | None, request: PageRequest) -> Node:
    """Return the records, the newest first, with the filter above them."""
    rows = [_row(codec.value(one)) for one in reversed(found.records)]
    query = dict(request.query)
    searched = f"{ui.amount(found.searched)} records were searched, the newest first"
    return [
        ui.heading(
            "Audit",
            h.p["Records form a chain: a changed or missing one breaks it."],
        ),
        chain is not None and chain_notice(chain),
        _filter(query),
        ui.table(
            "Records, the newest first", HEADS, rows, empty="No record fits.", numbers=NUMBERS
        ),
        h.p[searched, "." if found.whole else "; older ones were not."],
        h.div(class_="beside")[
            ui.link(ui.address("audit", query={**query, "chain": "1"}), "Check the chain"),
            request.role >= Role.DEVELOPER
            and h.button(type="button", data_download="/download/audit", data_name="audit.jsonl")[
                "Download all records"
            ],
        ],
    ]


def chain_notice(proof: Proof) -> Element:
    """Return the outcome of the check of the chain."""
    if proof.broken is not None:
        said = f"The chain is broken at record {proof.broken.seq}: {proof.broken.why}."
        return ui.notice(said, "bad")
    files = "1 file" if proof.segments == 1 else f"{ui.amount(proof.segments)} files"
    said = f"The chain is verified up to record {proof.last}: {ui.amount(proof.records)} records"
    return ui.notice(f"{said} in {files}.", details=[f"Checkpoint {proof.last}:{proof.last_hash}"])


def one_record(members: Mapping[str, Any]) -> Node:
    """Return all of one record."""
    bodies = {name: str(members[name]) for name in ("arguments", "result") if members.get(name)}
    rest = [(name, value) for name, value in members.items() if name not in bodies]
    return [
        ui.heading(f"Record {members.get('seq', '')}", ui.link("/audit", "all records")),
        ui.pairs((ui.shown(name, 60), _value(name, value)) for name, value in rest),
        [ui.code(text, copy=True, label=name) for name, text in bodies.items()],
    ]


def _value(name: str, value: Any) -> Node:
    return ui.when(value / 1e9) if name == "ts" else ui.shown(str(value), 2000)


def _row(one: Mapping[str, Any]) -> Sequence[Node]:
    def text(*names: str) -> str:
        return next((str(one[name]) for name in names if one.get(name)), "")

    what = text("exposed", "uri", "method", "text", "segment")
    outcome = text("outcome")
    return [
        ui.link(ui.address("audit", str(one["seq"])), str(one["seq"])),
        ui.when(one["ts"] / 1e9),
        ui.shown(text("event"), 40),
        ui.shown(text("who", "principal", "key"), 80),
        ui.shown(text("server"), 80),
        ui.shown(what or (f"{one['count']} lost" if one.get("count") else ""), 120),
        outcome and ui.state(outcome, _TONES.get(outcome, "bad")),
        f"{one['ms']:.1f} ms" if one.get("ms") else "",
    ]


def _filter(query: Mapping[str, str]) -> Element:
    def words(name: str, label: str, known: Sequence[str]) -> Element:
        options = [("", "Any"), *((word, word) for word in known)]
        return h.label[h.span[label], ui.choice(name, options, query.get(name, ""))]

    def text(name: str, label: str) -> Element:
        value = query.get(name, "")
        return h.label[h.span[label], h.input(name=name, value=value, maxlength=200, size="12")]

    return ui.search(
        "/audit",
        query,
        "Tool",
        text("server", "Server"),
        text("key", "Key or principal"),
        words("event", "Event", audit_records.ALL_EVENTS),
        words("outcome", "Outcome", audit_records.OUTCOMES),
        h.label[h.span["Time"], ui.choice("span", SPANS, query.get("span", ""))],
        name="tool",
    )


PAGE = Page(name="audit", title="Audit", show=show, least=Role.OPERATOR)
