"""Page of the audit: records that fit a question, one record, the check of the chain, the export.

Owns: the filter, columns, the sentence about the chain. Never: which records there are (`audit`).
"""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.audit.audit_orders import (
    RECORDS_MAX,
    SEARCHED_MAX,
    AuditPage,
    AuditRecords,
)
from metamcp_supervisor.audit.audit_segments import ChainCheckResult
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console import keys_page
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
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
        record = codec.decode_as(AuditRecords, raw).records[0]
        return one_record(codec.value(record), await keys_page.names(ask, request.role))
    query = request.query
    chain = None
    if query.get("chain"):
        chain = codec.decode_as(ChainCheckResult, await ask("audit-verify", timeout_s=CHECK_S))
    try:
        raw = await ask("audit", parse_filter(query, time.time()), timeout_s=ASK_S)
    except Failed as error:
        if error.exit != Exit.UNKNOWN_NAME:
            raise
        return [ui.build_heading("Audit"), h.p(class_="empty")[ui.shorten(str(error))]]
    records, names = codec.decode_as(AuditRecords, raw), await keys_page.names(ask, request.role)
    return record_list(records, chain, request, names)


async def iter_record_lines(ask: Ask) -> AsyncIterator[bytes]:
    """Yield all records as lines of JSON, the oldest first, a page of them at a time. Raises
    Failed."""
    after, more = 0, True
    while more:
        raw = await ask("audit-export", {"after": after}, timeout_s=ASK_S)
        page = codec.decode_as(AuditPage, raw)
        yield b"".join(b"%b\n" % bytes(record) for record in page.records)
        if page.records:
            after = codec.value(page.records[-1])["seq"]
        more = page.more


def parse_filter(query: Mapping[str, str], now: float) -> dict[str, object]:
    """Return the question of a filter. `now`: seconds since the epoch."""
    span, limit = query.get("span", ""), query.get("limit", "")
    params: dict[str, object] = {
        name: query[name] for name in ("key", "server", "tool", "workspace") if query.get(name)
    }
    for name, words in (("event", audit_records.ALL_EVENTS), ("outcome", audit_records.OUTCOMES)):
        if query.get(name) in words:
            params[name] = query[name]
    if span.isdecimal():
        params["since"] = now - int(span[:10])
    until = query.get("until", "")[:20]
    if until.replace(".", "", 1).isdecimal():
        params["until"] = float(until)
    count = int(limit[:6]) if limit.isdecimal() else LINES
    return {**params, "limit": min(max(count, 1), RECORDS_MAX)}


def record_list(
    result: AuditRecords,
    chain: ChainCheckResult | None,
    request: PageRequest,
    names: Mapping[str, str] = {},
) -> Node:
    """Return the records, the newest first, with the filter above them. `names`: of API keys, by
    their ids."""
    rows = [_row(codec.value(record), names) for record in reversed(result.records)]
    query = dict(request.query)
    return [
        ui.build_heading(
            "Audit",
            h.p["Records form a chain: a changed or missing one breaks it."],
        ),
        h.div(class_="beside")[
            ui.link(ui.address("audit", query={**query, "chain": "1"}), "Check the chain"),
            bool(query.get("until"))
            and ui.link(ui.address("audit", query={**query, "until": ""}), "The newest records"),
            request.role >= Role.DEVELOPER
            and h.button(type="button", data_download="/download/audit", data_name="audit.jsonl")[
                "Download all records"
            ],
        ],
        chain is not None and chain_notice(chain),
        _filter(query),
        ui.table(
            "Records, the newest first", HEADS, rows, empty="No record fits.", numbers=NUMBERS
        ),
        _older(result, query),
    ]


def _older(result: AuditRecords, query: Mapping[str, str]) -> Node:
    """Return how many records were searched, and how to come to older ones."""
    searched = f"{ui.amount(result.searched)} records were searched, the newest first"
    if result.whole:
        return h.p[f"{searched}."]
    if result.searched >= SEARCHED_MAX or not result.records:
        command = h.code["metamcp audit list"]
        return h.p[f"{searched}; older ones were not. ", command, " searches them all."]
    # Microseconds, rounded up: a record may come twice, and none is left out.
    until = -(-int(codec.value(result.records[0])["ts"]) // 1000)
    seconds, microseconds = divmod(until, 1_000_000)
    older_query = {**query, "until": f"{seconds}.{microseconds:06}", "chain": ""}
    return h.p[f"{searched}. ", ui.link(ui.address("audit", query=older_query), "Older records")]


def chain_notice(proof: ChainCheckResult) -> Element:
    """Return the outcome of the check of the chain."""
    if proof.broken is not None:
        text = f"The chain is broken at record {proof.broken.seq}: {proof.broken.why}."
        return ui.notice(text, "bad")
    files = "1 file" if proof.segments == 1 else f"{ui.amount(proof.segments)} files"
    text = f"The chain is verified up to record {proof.last}: {ui.amount(proof.records)} records"
    checkpoint = f"{proof.last}:{proof.last_hash}"
    return h.div[
        ui.notice(f"{text} in {files}."),
        ui.code(checkpoint, copy=True, label="Checkpoint"),
        h.p[
            "Keep this checkpoint on another machine. If somebody rewrites the chain here, the"
            " command below fails with it."
        ],
        ui.code(f"metamcp audit verify --expect {checkpoint}", copy=True, label="Check it later"),
    ]


def one_record(members: Mapping[str, Any], names: Mapping[str, str] = {}) -> Node:
    """Return all of one record. `names`: as of `record_list`."""
    bodies = {name: str(members[name]) for name in ("arguments", "result") if members.get(name)}
    others = [(name, value) for name, value in members.items() if name not in bodies]
    return [
        ui.build_heading(f"Record {members.get('seq', '')}", ui.link("/audit", "all records")),
        ui.pairs((ui.shorten(name, 60), _value(name, value, names)) for name, value in others),
        [ui.code(text, copy=True, label=name) for name, text in bodies.items()],
    ]


def _value(name: str, value: Any, names: Mapping[str, str]) -> Node:
    if name == "key":
        return keys_page.render_holder(str(value), names)
    return ui.render_time(value / 1e9) if name == "ts" else ui.shorten(str(value), 2000)


def _row(record: Mapping[str, Any], names: Mapping[str, str]) -> Sequence[Node]:
    def text(*names: str) -> str:
        return next((str(record[name]) for name in names if record.get(name)), "")

    subject = text("exposed", "uri", "method", "text", "segment")
    outcome = text("outcome")
    if outcome == "refused" and record.get("consent"):
        subject = f"{subject}: {record['consent']}"
    return [
        ui.link(ui.address("audit", str(record["seq"])), str(record["seq"])),
        ui.render_time(record["ts"] / 1e9),
        ui.shorten(text("event"), 40),
        _render_actor(record, names),
        ui.shorten(text("server"), 80),
        ui.shorten(subject or (f"{record['count']} lost" if record.get("count") else ""), 200),
        outcome and ui.state(outcome, _TONES.get(outcome, "bad")),
        f"{record['ms']:.1f} ms" if record.get("ms") and outcome != "refused" else "",
    ]


def _render_actor(record: Mapping[str, Any], names: Mapping[str, str]) -> Node:
    key = str(record.get("key", ""))
    if key in names:
        return keys_page.render_holder(key, names)
    return ui.shorten(str(record.get("who") or record.get("principal") or key), 80)


def _filter(query: Mapping[str, str]) -> Element:
    def words(name: str, label: str, choices: Sequence[str]) -> Element:
        options = [("", "Any"), *((word, word) for word in choices)]
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


PAGE = Page(
    name="audit", title="Audit", show=show, least=Role.OPERATOR, after="approvals",
    export=iter_record_lines,
)  # fmt: skip
