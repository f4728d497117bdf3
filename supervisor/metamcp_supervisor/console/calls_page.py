"""Page of the calls: those under way, recorded calls, and one recorded call that can be repeated.

Owns: the newest recorded calls in memory, the filter, the table, the page of a call, the bars.
Never: the files (`wording.recorded_calls`), who may read what was said in a call (the verb
`recordings`), repeating a call (`calls.endpoint_client`).
"""

import asyncio
import difflib
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import htpy as h
from htpy import Element, Node
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from metamcp_supervisor.calls import tool_call
from metamcp_supervisor.calls.tool_call import CALL, MODERN, RequestForm
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console import keys_page
from metamcp_supervisor.console.fragments import Tone
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.console.try_out import TRY_S
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.tool_orders import RecordingsShown, TryPlace
from metamcp_supervisor.verbs import CallsUnderWay, Exit, GatewayStatus, ToolList
from metamcp_supervisor.wording import columns, recorded_calls
from metamcp_supervisor.wording.recorded_calls import RecordingFollower, RecordingPlace, pretty
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.records import ARGUMENTS, FOLDER, OK, RESULT, FinishedCall

if TYPE_CHECKING:
    from metamcp_supervisor.calls.endpoint_client import EndpointClient

KEPT_MAX = 2000
"""Maximum recorded calls that are kept for the page, without what was said in them."""
TAIL_BYTES = 16 * 1024 * 1024
"""Bytes at the end of each file that are read at first."""
ROWS_MAX = 100
"""Maximum calls in the table; the filter finds others."""
BAR = 120
"""Width of a bar for the longest duration, in pixels."""
MINUTES = 30
"""Minutes of a sparkline."""
MINUTE_WIDTH, SPARK = 5, 20
"""Width of a minute and height of a sparkline, in pixels."""
DIFF_LINES_MAX = 1000
HEADS = (
    "When", "Tool", "Server", "Outcome", "Took", "Of the longest", "Bytes in", "Bytes out",
    "Endpoint", "API key",
)  # fmt: skip
UNDER_WAY = ("Tool", "Server", "State", "For", "Endpoint", "Client")
REFUSED = "refused"
"""Outcome of a call that a rule or a person refused; the time in which somebody was asked is not
recorded."""
SINCE = (("", "all"), ("600", "10 minutes"), ("3600", "an hour"), ("86400", "a day"))
OUTCOMES = (
    ("", "all"), ("ok", "ok"), ("failed", "failed"), ("tool_error", "tool_error"),
    ("refused", "refused"), ("cancelled", "cancelled"),
)  # fmt: skip


class RecentCalls:
    """The newest recorded calls of a folder, the oldest first, without what was said in them.
    `lost`: number of calls that could not be written. Used from one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: deque[FinishedCall] = deque(maxlen=KEPT_MAX)
        self.lost = 0
        self._following = RecordingFollower(folder, TAIL_BYTES)

    def refresh(self) -> None:
        """Read what was recorded since the last time. Raises Failed."""
        news: list[FinishedCall] = []
        for line in self._following.news():
            self.lost += line.lost
            if line.call is not None:
                news.append(structs.replace(line.call, arguments=UNSET, result=UNSET))
            if len(news) >= KEPT_MAX:
                self._take(news)
                news.clear()
        if news:
            self._take(news)

    def _take(self, news: Iterable[FinishedCall]) -> None:
        """Keep the newest of all; files of several fronts overlap in time."""
        calls = sorted([*self.calls, *news], key=lambda call: call.id)
        self.calls = deque(calls, maxlen=KEPT_MAX)


_recent: dict[str, RecentCalls] = {}
_turn = asyncio.Lock()


async def recent_calls(state_dir: str) -> RecentCalls:
    """Return the newest calls that are recorded in a state directory. Raises Failed."""
    async with _turn:
        recent = _recent.get(state_dir)
        if recent is None:
            _recent.clear()  # of a gateway with another state directory, before an upgrade
            recent = _recent[state_dir] = RecentCalls(Path(state_dir, FOLDER))
        await asyncio.to_thread(recent.refresh)
        return recent


async def show(ask: Ask, request: PageRequest) -> Node:
    status = codec.decode_as(GatewayStatus, await ask("status"))
    if request.path:
        return await _one(ask, request, status)
    under_way = codec.decode_as(CallsUnderWay, await ask("calls"))
    recent = await recent_calls(status.state_dir)
    now = datetime.now().astimezone().timestamp()
    names = await keys_page.names(ask, request.role)
    return render_calls(recent, under_way, status, request.query, now, names)


async def change(ask: Ask, request: PageRequest) -> Node:
    """Make a recorded call once more, and show how the result differs."""
    from metamcp_supervisor.bridge.http_client import Trust
    from metamcp_supervisor.calls.endpoint_client import EndpointClient  # loads a lot

    status = codec.decode_as(GatewayStatus, await ask("status"))
    call = await _get_call(ask, request, bodies=True, state_dir=status.state_dir)
    params = recorded_calls.params(call)
    order = {"name": call.name, "endpoint": call.endpoint, "replay": call.id}
    target = codec.decode_as(TryPlace, await ask("tool-try", order))
    key = request.form.get("key", "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise Failed(Exit.USAGE, "the key has characters that no key has")
    form = RequestForm(protocol=call.protocol or MODERN, name="metamcp console")
    async with EndpointClient(target.url, Trust(key, target.ca), form, TRY_S) as client:
        tool = await _tool(ask, client, call) if call.method == CALL else {}
        ended, result = tool_call.outcome_of(await client.ask(call.method, params, tool))
    recent = await recent_calls(status.state_dir)
    names = await keys_page.names(ask, request.role)
    return _keep_part([render_repeat(call, ended, result), page(call, recent, request.role, names)])


async def _tool(ask: Ask, client: "EndpointClient", call: FinishedCall) -> Mapping[str, object]:
    """Return the definition of a tool, also of one that is in no list but may be callable. Raises
    Failed."""
    if (listed := await client.tool(call.name)) is not None:
        return listed
    query = {"endpoint": call.endpoint, "name": call.name}
    tool_list = codec.decode_as(ToolList, await ask("tools", query))
    if not tool_list.tools:
        raise Failed(Exit.UNKNOWN_NAME, f"the endpoint lists no tool {call.name!r}")
    definition: Mapping[str, object] = codec.value(tool_list.tools[0].definition)
    return definition


async def _one(ask: Ask, request: PageRequest, status: GatewayStatus) -> Node:
    bodies = request.role >= Role.DEVELOPER
    call = await _get_call(ask, request, bodies=bodies, state_dir=status.state_dir)
    names = await keys_page.names(ask, request.role)
    return _keep_part(page(call, await recent_calls(status.state_dir), request.role, names))


def _keep_part(node: Node) -> Element:
    """Return a part that news of the gateway do not replace: a call that is over does not
    change."""
    return h.div(data_keep=True)[node]


async def _get_call(
    ask: Ask, request: PageRequest, *, bodies: bool, state_dir: str
) -> FinishedCall:
    """Return a recorded call; with what was said in it, if the gateway allows that. Raises
    Failed."""
    if len(request.path) != 1:
        raise Failed(Exit.UNKNOWN_NAME, "this page does not exist; calls are listed at /calls")
    folder = Path(state_dir, FOLDER)
    if bodies:
        folder = Path(codec.decode_as(RecordingsShown, await ask("recordings")).folder)
    location = RecordingPlace(folder)
    call = await asyncio.to_thread(recorded_calls.find, location, request.path[0])
    return call if bodies else structs.replace(call, arguments=UNSET, result=UNSET)


# The list


def render_calls(
    recent: RecentCalls,
    under_way: CallsUnderWay,
    status: GatewayStatus,
    query: Mapping[str, str],
    now: float,
    names: Mapping[str, str] = {},
) -> Node:
    """Return the tables of calls under way and of recorded calls. `now`: since the epoch; `names`:
    of API keys, by their ids."""
    fitting = [call for call in reversed(recent.calls) if fits(call, query, now)]
    calls = fitting[:ROWS_MAX]
    longest = max((call.duration_ms for call in calls), default=0.0)
    return [
        ui.build_heading("Calls"),
        _under_way(under_way),
        h.h2["Recorded calls"],
        _filter(status, query),
        recent.lost > 0 and ui.notice(f"{recent.lost} calls could not be written.", "warn"),
        ui.table(
            "Recorded calls, the newest first",
            HEADS,
            [_row(call, longest, names) for call in calls],
            empty=_why_none(recent),
            numbers=("Took", "Bytes in", "Bytes out"),
        ),
        len(fitting) > len(calls)
        and h.p[f"{ui.amount(len(fitting) - len(calls))} more; the filter finds them."],
    ]


def _why_none(recent: RecentCalls) -> str:
    if recent.calls:
        return f"None of the last {ui.amount(len(recent.calls))} recorded calls fits."
    return (
        'No call is recorded. Calls are if [recording] has the line calls = "metadata"; "full"'
        " records what is said, too."
    )


def fits(call: FinishedCall, query: Mapping[str, str], now: float) -> bool:
    """Whether a call fits the filter."""
    outcome, since = query.get("outcome", ""), query.get("since", "")
    words = query.get("q", "").lower().split()
    text = f"{call.name} {call.method} {call.id}".lower()
    return (
        all(word in text for word in words)
        and query.get("server", "") in ("", call.server)
        and query.get("endpoint", "") in ("", call.endpoint)
        and query.get("key", "") in ("", call.key)
        and (outcome in ("", call.outcome) or (outcome == "failed" and call.has_failed))
        and (not since.isdecimal() or _began(call) >= now - int(since[:12]))
    )


def _filter(status: GatewayStatus, query: Mapping[str, str]) -> Node:
    servers = [("", "all"), *((each.name, ui.shorten(each.name, 80)) for each in status.servers)]
    endpoints = [("", "all"), *((name, ui.shorten(name, 80)) for name in status.endpoints)]
    key = h.input(type="text", name="key", value=query.get("key", ""), maxlength=100)
    return ui.search(
        "/calls",
        query,
        "Tool or id",
        ui.field("Server", ui.choice("server", servers, query.get("server", ""))),
        ui.field("Endpoint", ui.choice("endpoint", endpoints, query.get("endpoint", ""))),
        ui.field("Outcome", ui.choice("outcome", OUTCOMES, query.get("outcome", ""))),
        ui.field("Within", ui.choice("since", SINCE, query.get("since", ""))),
        ui.field("Id of an API key", key),
    )


def _under_way(under_way: CallsUnderWay) -> Node:
    rows = [
        (
            ui.shorten(call.name or call.method, 200),
            ui.shorten(call.server, 100),
            ui.state(call.state, "ok" if call.state == "running" else "warn"),
            ui.ago(call.age_s),
            ui.shorten(call.endpoint, 100),
            ui.shorten(call.client, 100),
        )
        for call in under_way.calls[:ROWS_MAX]
    ]
    more = under_way.more + max(0, len(under_way.calls) - ROWS_MAX)
    return [
        h.h2["Under way"],
        ui.table("Calls, the longest first", UNDER_WAY, rows, empty="No call is under way."),
        more > 0 and h.p[f"{ui.amount(more)} more; 'metamcp ctl calls' shows them."],
    ]


def _row(call: FinishedCall, longest: float, names: Mapping[str, str]) -> Sequence[Node]:
    refused = call.outcome == REFUSED
    return (
        ui.link(ui.address("calls", call.id), ui.render_time(_began(call))),
        ui.shorten(call.name or call.method, 200),
        ui.shorten(call.server, 100),
        _outcome(call),
        "" if refused else columns.latency(call.duration_ms / 1000),
        None if refused else bar(call.duration_ms, longest),
        ui.amount(call.arguments_bytes),
        ui.amount(call.result_bytes),
        ui.shorten(call.endpoint, 100),
        keys_page.render_holder(call.key, names),
    )


def _outcome(call: FinishedCall) -> Element:
    tone: Tone = "ok" if call.outcome == OK else "bad" if call.has_failed else "off"
    return ui.state(recorded_calls.outcome(call), tone)


def _began(call: FinishedCall) -> float:
    try:
        return datetime.fromisoformat(call.time).timestamp()
    except ValueError:
        return 0.0


def by_minute(recent: RecentCalls, server: str, now: float) -> list[int]:
    """Return how many recorded calls reached a server in each of the last minutes, the oldest
    first; as far back as all calls are kept. `now`: seconds since the epoch."""
    calls = recent.calls
    is_complete = len(calls) < KEPT_MAX
    minutes = MINUTES if is_complete else min(MINUTES, max(1, int((now - _began(calls[0])) / 60)))
    counts = [0] * minutes
    for call in calls:
        if call.server == server and call.outcome != REFUSED:
            ago = int(max(0.0, now - _began(call)) / 60)
            if ago < minutes:
                counts[-1 - ago] += 1
    return counts


def sparkline(counts: Sequence[int]) -> Node:
    """Return a bar for each minute; the text beside it says the last and the most. `counts`: not
    all zero."""
    most, width = max(counts), str(len(counts) * MINUTE_WIDTH)
    heights = [max(1, math.ceil(SPARK * count / most)) for count in counts]
    bars = [
        h.rect(
            x=str(at * MINUTE_WIDTH), y=str(SPARK - height), width=str(MINUTE_WIDTH - 1),
            height=str(height), fill="currentColor",
        )
        for at, height in enumerate(heights)
    ]  # fmt: skip
    text = (
        f" {ui.amount(counts[-1])} in the last minute, at most {ui.amount(most)} in one of the"
        f" last {len(counts)} minutes"
    )
    frame = f"0 0 {width} {SPARK}"
    return [h.svg(width=width, height=str(SPARK), viewBox=frame, aria_hidden="true")[bars], text]


def bar(duration_ms: float, longest_ms: float) -> Node:
    """Return a bar whose length is the share of the longest duration; text beside it says it."""
    width = max(1, round(BAR * duration_ms / longest_ms)) if longest_ms > 0 else 1
    return h.svg(width=str(BAR), height="8", viewBox=f"0 0 {BAR} 8", aria_hidden="true")[
        h.rect(width=str(width), height="8", rx="2", fill="currentColor")
    ]


# One call


class _Body(Struct, frozen=True):
    title: str
    what: str
    body: Raw | UnsetType
    size: int


def page(
    call: FinishedCall, recent: RecentCalls, role: Role, names: Mapping[str, str] = {}
) -> Node:
    """Return the page of a recorded call. `names`: of API keys, by their ids."""
    bodies = [
        _Body("Arguments", ARGUMENTS, call.arguments, call.arguments_bytes),
        _Body("Result", RESULT, call.result, call.result_bytes),
    ]
    seen = {"endpoint": call.endpoint, "key": call.key if call.key in names else ""}
    tool = ui.link(ui.address("tools", call.name, query=seen), ui.shorten(call.name, 200))
    generation = recorded_calls.describe_generation(call)
    return [
        ui.build_heading(ui.shorten(call.name or call.method, 200), _outcome(call)),
        call.outcome == REFUSED and _refusal(call),
        ui.pairs(
            [
                ("Id", h.code[call.id]),
                ("Refused" if call.outcome == REFUSED else "Began", ui.render_time(_began(call))),
                ("Method", ui.shorten(call.method, 80)),
                ("Tool", tool if call.method == CALL else ui.shorten(call.name, 500)),
                ("Server", f"{ui.shorten(call.server, 100)}, {generation}"),
                ("Endpoint", ui.shorten(call.endpoint, 100) or "none"),
                ("API key", keys_page.render_holder(call.key, names) or "none"),
                ("Client", ui.shorten(call.client, 100) or "not known"),
                ("Protocol", ui.shorten(call.protocol, 40) or "none"),
                ("Front", f"{call.front}, as call {call.call}"),
            ]
        ),
        call.outcome != REFUSED and build_timing_table(call, recent),
        role >= Role.DEVELOPER and _repeat(call),
        [_render_body(body, call, role) for body in bodies],
    ]


def _refusal(call: FinishedCall) -> Node:
    """Return the reason that the client of a refused call got, if it was recorded."""
    text = ""
    if call.result is not UNSET and RESULT not in call.cut:
        result = call.result
        text = " ".join(block.text for block in tool_call.parts(result) if block.text)
        text = text or ("" if call.method == CALL else codec.error_object(result).message)
    return ui.notice(
        ui.shorten(text, 500)
        or "MetaMCP refused this call before its server got it: a rule, or a person who was asked."
        " What the client was told is not known here; the audit says why, if [audit] is on.",
        "warn",
    )


def build_timing_table(call: FinishedCall, recent: RecentCalls) -> Node:
    """Return how long a call took beside other recorded calls of the same tool."""
    same = call.server, call.name
    others = sorted(
        other.duration_ms for other in recent.calls if (other.server, other.name) == same
    )
    rows = [("This call", call.duration_ms)]
    if len(others) > 1:
        rows.append((f"Half of {len(others)} calls", others[(len(others) - 1) // 2]))
        rows.append(("95 % of them", others[(len(others) * 95 - 1) // 100]))
        rows.append(("The longest", others[-1]))
    longest = max(duration for _, duration in rows)
    return ui.table(
        "How long it took, at the front",
        ("Of", "Time", "Of the longest"),
        [(name, columns.latency(took / 1000), bar(took, longest)) for name, took in rows],
        empty="",
        numbers=("Time",),
    )


def _repeat(call: FinishedCall) -> Node:
    try:
        recorded_calls.params(call)
    except Failed as error:
        return h.p(class_="empty")[f"It cannot be repeated: {ui.shorten(str(error), 300)}."]
    path = ui.address("calls", call.id)
    key = h.input(type="password", name="key", autocomplete="off", maxlength=500)
    ask = f"Call {call.name or call.method} at {call.endpoint} again? It may change something."
    return h.details[
        h.summary["Repeat it"],
        ui.form(
            path,
            ui.field("API key", key, "Only if the endpoint wants one. It is used once."),
            submit="Repeat the call",
            confirm=ask,
        ),
    ]


def _render_body(body: _Body, call: FinishedCall, role: Role) -> Node:
    reductions = {"cut": call.cut, "masked": call.masked}
    marks = [word for word, fields in reductions.items() if body.what in fields]
    head = h.h2[", ".join([f"{body.title} ({ui.amount(body.size)} bytes", *marks]) + ")"]
    if body.body is not UNSET:
        return [head, ui.code("\n".join(pretty(body.body)), copy=True, label=body.title)]
    if role < Role.DEVELOPER:
        return [head, h.p(class_="empty")["To read it needs the role developer."]]
    text = 'Not recorded: calls = "full" in [recording] records it.' if body.size else "Empty."
    return [head, h.p(class_="empty")[text]]


def render_repeat(call: FinishedCall, ended: str, result: Raw) -> Node:
    """Return how a repeated call ended, and how its result differs from the recorded one."""
    if ended != call.outcome:
        text = f"It ended with {ended}; the recorded call ended with {call.outcome}."
        return [ui.notice(text, "warn"), _result(result)]
    is_complete = call.result is not UNSET and RESULT not in call.cut and RESULT not in call.masked
    if not is_complete or call.result is UNSET:
        text = f"It ended as before ({ended}). The recorded result is not whole."
        return [ui.notice(text), _result(result)]
    lines = list(_differences(call.result, result))
    if not lines:
        return [ui.notice("The result is the same as before."), _result(result)]
    return [
        ui.notice("The result differs from the recorded one.", "warn"),
        ui.code("\n".join(lines), label="Recorded (-) and now (+)"),
        _result(result),
    ]


def _differences(before: Raw, now: Raw) -> Iterator[str]:
    lines = difflib.unified_diff(pretty(before), pretty(now), "recorded", "now", lineterm="")
    for _, line in zip(range(DIFF_LINES_MAX), lines, strict=False):
        yield line


def _result(result: Raw) -> Element:
    text = json.dumps(codec.value(result), indent=2, ensure_ascii=False)
    return h.details[h.summary["The result now"], ui.code(text, copy=True, label="Result")]


PAGE = Page(name="calls", title="Calls", show=show, change=change, live=("calls", "times"))
