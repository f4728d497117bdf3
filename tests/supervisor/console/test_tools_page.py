"""Pages of tools, views and calls: what they say of texts that mean harm, and of values."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import htpy as h
import pytest
from htpy import Node
from msgspec import UNSET, Raw, structs

from metamcp_supervisor.calls.tool_call import HttpExchange
from metamcp_supervisor.calls.tool_form import fields
from metamcp_supervisor.console import calls_page, tools_page, try_out, views_page
from metamcp_supervisor.console.calls_page import RecentCalls
from metamcp_supervisor.console.pages import PageRequest
from metamcp_supervisor.console.views_page import ToolSetDraft
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.tool_orders import TryPlace
from metamcp_supervisor.verbs import (
    CallsUnderWay,
    EquippedView,
    GatewayStatus,
    PathShown,
    ServerStatus,
    ToolList,
    ToolRef,
    ToolSets,
    ToolSetShown,
    ViewShown,
    ViewsShown,
)
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.figures import KEY_NEEDED, CallUnderWay, PathStep, ShownTool
from metamcp_worker.ipc.records import FinishedCall, word
from tests.live.console import Markup

pytestmark = pytest.mark.promise("M107")

EVIL = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202egnp.exe\u200b"
TAGS = {
    "a", "button", "caption", "code", "data", "dd", "details", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "form", "h1", "h2", "header", "input", "label", "legend", "nav",
    "option", "p", "pre", "rect", "select", "small", "span", "summary", "svg", "table", "tbody",
    "td", "textarea", "th", "thead", "time", "tr", "ul", "li",
}  # fmt: skip
SEEN = {"aria-label", "hx-confirm", "title", "placeholder"}
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200b\u202e]")
EVERY = {role.name.lower(): role for role in Role}


def markup(node: Node) -> Markup:
    """The fragment, of which nothing is an element, a script or a character that nobody sees."""
    found = Markup(str(h.fragment[node]))
    assert found.tags <= TAGS
    seen = [*found.texts]
    for _, attrs in found.elements:
        seen += [attrs[name] or "" for name in SEEN & attrs.keys()]
    assert not [one for one in seen if HIDDEN.search(one)]
    for tag, attrs in found.elements:
        for name, value in attrs.items():
            assert name != "style"
            assert not name.startswith("on")
            assert not (name in ("href", "action") and not (value or "").startswith("/"))
            assert not (name.startswith("hx-") and "js:" in (value or "") and name != "hx-confirm")
            assert tag != "img"
    return found


def tool(name: str = "git__log", **more: Any) -> ShownTool:
    plain: dict[str, Any] = {
        "name": name, "server": "git", "tool": "log", "description": "Shows commits.",
        "tokens": 120, "state": "listed", "why": "", "available": True, "reads": True,
        "calls": 7, "errors": 1,
    }  # fmt: skip
    return ShownTool(**{**plain, **more})


def status(*servers: str) -> GatewayStatus:
    return GatewayStatus(
        version="1", pid=1, state="active", up_s=1.0, url="http://127.0.0.1:6270/mcp", ops_url="",
        config_hash="", config_files=(), config_age_s=0.0, nursery_pid=2, fronts=(),
        servers=tuple(
            ServerStatus(name=name, state="ready", phase="ready", generation=1) for name in servers
        ),
        endpoints={"default": "http://127.0.0.1:6270/metamcp/default/mcp", EVIL: "x"},
    )  # fmt: skip


def asked(role: Role = Role.ADMIN, *path: str, **query: str) -> PageRequest:
    return PageRequest(role=role, path=path, query=query)


def call(number: int, **more: Any) -> FinishedCall:
    plain: dict[str, Any] = {
        "id": word(1_790_000_000_000 + number, 0, number), "time": "2026-09-21T13:33:20.000Z",
        "server": "git", "method": "tools/call", "outcome": "ok", "duration_ms": 1.5 * number,
        "front": 0, "call": number, "name": "git__log", "endpoint": "default",
        "protocol": "2026-07-28", "arguments_bytes": 2, "result_bytes": 20,
        "arguments": Raw(b"{}"), "result": Raw(b'{"content":[],"isError":false}'),
    }  # fmt: skip
    return FinishedCall(**{**plain, **more})


def recent(*calls: FinishedCall) -> RecentCalls:
    found = RecentCalls(Path("/nowhere"))
    found.calls.extend(calls)
    return found


# Tools


@pytest.mark.parametrize("role", EVERY.values(), ids=EVERY)
def test_texts_of_servers_make_no_element_on_the_pages_of_tools(role: Role) -> None:
    evil = tool(EVIL, server=EVIL, tool=EVIL, description=EVIL, why=EVIL, drift=EVIL, state=EVIL)
    found = ToolList(endpoint=EVIL, tools=(evil,), more=3, refused=EVIL)
    page = markup(tools_page.render_tools(found, status(EVIL), asked(role, q=EVIL, key=EVIL)))
    assert "<script>" in page.text
    assert "\\x1b[31m\\u{202e}" in page.text
    definition = {
        "description": EVIL,
        "inputSchema": {
            "properties": {
                EVIL: {"type": "string", "title": EVIL, "description": EVIL, "default": EVIL},
                "one": {"enum": [EVIL, "b"]},
                "many": {"type": "array", "items": {"type": "string"}},
            },
            "required": [EVIL],
        },
    }
    request = asked(role, EVIL, endpoint=EVIL)
    form = tools_page.form(evil, definition, request)
    markup(tools_page.page(evil, definition, {EVIL: "listed"}, request, form))


def test_the_table_of_tools_says_where_each_is_visible() -> None:
    found = ToolList(
        endpoint="default",
        tools=(
            tool(),
            tool("git__push", state="callable", reads=False),
            tool("git__old", state="withheld", why="It is in quarantine."),
            tool("away__x", available=False),
            tool("git__new", drift="breaking, words"),
        ),
        more=9,
    )
    page = markup(tools_page.render_tools(found, status("git"), asked()))
    for words in (
        "git__log git listed 120 7 1 Shows commits.", "git__push git callable",
        "It is in quarantine.", "server away", "texts changed, breaking for callers",
        "14 at the endpoint default",
    ):  # fmt: skip
        assert words in page.text
    assert "/tools/git__log?endpoint=default" in page.links()
    assert "/tools?offset=5" in page.links()


@pytest.mark.parametrize(
    ("role", "refused", "said"),
    [
        (Role.OPERATOR, KEY_NEEDED, "in the field “As API key”"),
        (Role.VIEWER, KEY_NEEDED, "The role operator may look as the holder of one."),
        (Role.OPERATOR, "the key is not accepted here", "the key is not accepted here"),
    ],
)
def test_an_endpoint_that_wants_a_key_says_so_and_counts_no_tools(
    role: Role, refused: str, said: str
) -> None:
    found = ToolList(endpoint="team", tools=(), refused=refused)
    page = markup(tools_page.render_tools(found, status(), asked(role)))
    assert said in page.text
    assert not [words for words in ("--key", "0 at", "No tool") if words in page.text]


def test_only_developers_get_a_form_and_only_a_tool_that_may_change_something_asks() -> None:
    definition = {"inputSchema": {"properties": {"n": {"type": "integer"}}}}
    viewer = markup(tools_page.form(tool(), definition, asked(Role.OPERATOR)))
    assert "needs the role developer" in viewer.text
    assert "form" not in viewer.tags
    for reads, question in ((True, None), (False, "Call git__log at the default endpoint?")):
        page = markup(tools_page.form(tool(reads=reads), definition, asked(Role.DEVELOPER)))
        (form,) = (attrs for tag, attrs in page.elements if tag == "form")
        confirm = form.get("hx-confirm")
        assert (confirm is None) is (question is None)
        assert (confirm or "").startswith(question or "")
        assert form["hx-post"] == "/f/tools/git__log"


def test_each_kind_of_argument_has_its_control() -> None:
    schema = {
        "properties": {
            "text": {"type": "string"}, "count": {"type": "integer"}, "on": {"type": "boolean"},
            "mode": {"enum": ["a", "b"]}, "tags": {"type": "array", "items": {"type": "string"}},
            "filter": {"type": "object"},
        },
        "required": ["text"],
    }  # fmt: skip
    page = markup([try_out.control(one, "") for one in fields(schema)])
    kinds = {attrs["name"]: tag for tag, attrs in page.elements if "name" in attrs}
    assert kinds == {
        "a.text": "input", "a.count": "input", "a.on": "select", "a.mode": "select",
        "a.tags": "textarea", "a.filter": "textarea",
    }  # fmt: skip
    assert "text *" in page.text


def test_what_a_call_brought_is_shown_and_can_be_copied_as_commands() -> None:
    result = codec.dump({"content": [{"type": "text", "text": EVIL}], "isError": False})
    place = TryPlace(endpoint="default", url="http://127.0.0.1:6270/mcp", ca="")
    exchange = HttpExchange({"Mcp-Name": "it's"}, b'{"a":1}', 200, b"data: x\n\n")
    tried = try_out.TriedCall(
        tool="git__log", place=place, arguments=b'{"text":"it\'s"}', keyed=True, seconds=0.012,
        exchange=exchange, answer=Envelope(result=Raw(result)),
    )  # fmt: skip
    page = markup(try_out.outcome(tried, asked()))
    assert "It answered after 12 ms." in page.text
    line = """metamcp call git__log --endpoint default --args '{"text":"it'"'"'s"}'"""
    assert line in page.text
    assert "-H 'Mcp-Name: it'\"'\"'s'" in page.text
    assert '-H "Authorization: Bearer $METAMCP_KEY"' in page.text


def test_a_question_of_the_server_is_a_form_that_carries_the_state() -> None:
    result: dict[str, Any] = {
        "resultType": "input_required",
        "requestState": EVIL,
        "inputRequests": {
            "who": {
                "method": "elicitation/create",
                "params": {
                    "message": EVIL,
                    "requestedSchema": {"properties": {"name": {"type": "string"}}},
                },
            },
            "other": {"method": "sampling/createMessage", "params": {}},
        },
    }
    place = TryPlace(endpoint="default", url="http://127.0.0.1:6270/mcp", ca="")
    tried = try_out.TriedCall(
        tool="git__log", place=place, arguments=b"{}", keyed=False, seconds=0.0,
        exchange=HttpExchange({}, b"{}", 200, b"{}"),
        answer=Envelope(result=Raw(codec.dump(result))),
    )  # fmt: skip
    page = markup(try_out.outcome(tried, asked()))
    names = page.fields()
    assert {"json", "asked", "q.who.name", "does.who", "does.other"} <= names.keys()
    assert names["json"] == "{}"
    assert "which a console cannot answer" in page.text


def test_the_way_of_a_call_says_where_it_ends() -> None:
    steps = (PathStep("name", EVIL), PathStep("gate", "no", stops=True))
    path = PathShown(
        endpoint="default", server="git", tool="log", steps=steps, policies=(), decides="",
        effect="deny", runs=False,
    )  # fmt: skip
    page = markup(tools_page.way(path))
    assert "stops here no" in page.text
    assert "Now the call would not run." in page.text


def test_a_tool_that_is_not_as_approved_leads_to_its_approval() -> None:
    drifted = tool("a__b", tool="b/c", drift="breaking")
    for role, found in ((Role.VIEWER, False), (Role.OPERATOR, True)):
        page = markup(tools_page.page(drifted, {}, {}, asked(role, "a__b"), None))
        assert ("/approvals/git/b%2Fc" in page.links()) is found
    way = PathShown(
        endpoint="default", server="git", tool="log", steps=(), policies=(), decides="",
        effect="deny", runs=False,
    )  # fmt: skip
    assert "/approvals/git/x" in markup(tools_page.way(way, "/approvals/git/x")).links()


def test_a_tool_that_clients_do_not_get_has_no_definition_for_them() -> None:
    kept = tool("a__b", state="withheld", drift="compatible, words, in quarantine")
    page = markup(tools_page.page(kept, {}, {}, asked(), tools_page.definition_tab(kept, {})))
    assert "Clients do not get this tool: it is withheld." in page.text
    assert "withheld texts changed, compatible for callers, in quarantine" in page.text


# Views


def view(**more: Any) -> ViewShown:
    plain: dict[str, Any] = {
        "endpoint": "default", "exposure": "search", "principal": "local", "session": "",
        "toolset": "dev", "tools": 8, "tokens": 900, "offered": 40, "everything": 3000,
        "saved": 2100, "saved_percent": 70,
    }  # fmt: skip
    return ViewShown(**{**plain, **more})


def sets(name: str = "dev") -> ToolSets:
    one = ToolSetShown(
        name=name, description=EVIL, tools=(ToolRef("git.log"),), createdAt="", updatedAt=""
    )
    on = EquippedView(toolset=name, endpoint="default", principal="local", session="")
    return ToolSets(toolsets=(one,), equipped=(on,))


@pytest.mark.parametrize("role", EVERY.values(), ids=EVERY)
def test_texts_make_no_element_on_the_pages_of_views(role: Role) -> None:
    evil = view(endpoint=EVIL, principal=EVIL, session=EVIL, toolset=EVIL)
    views = ViewsShown(token_bytes=4, views=(evil, view()))
    page = markup(views_page.overview(views, sets(EVIL), status(), role))
    assert ("form" in page.tags) is (role >= Role.OPERATOR)
    evil_tool = tool(EVIL, server=EVIL, tool=EVIL)
    draft = ToolSetDraft(name=EVIL, description=EVIL, ticked=(EVIL,), filter=EVIL)
    markup(views_page.choose(ToolList(endpoint=EVIL, tools=(evil_tool,), more=1), draft))
    markup(views_page.review([tool()], draft))


def test_views_say_what_clients_have_and_what_it_costs() -> None:
    views = ViewsShown(token_bytes=4, views=(view(),))
    page = markup(views_page.overview(views, sets(), status(), Role.OPERATOR))
    assert "default search clients of this machine dev 8 900 3,000 (40 tools) 70 %" in page.text
    questions = [attrs.get("hx-confirm") for tag, attrs in page.elements if tag == "form"]
    assert "Delete the tool set dev with 1 tools?" in questions
    assert "Put away on default: the tool set dev?" in questions


def test_the_view_of_a_key_leads_to_the_tools_that_its_holder_sees() -> None:
    views = ViewsShown(token_bytes=4, views=(view(principal="key:k1"), view(principal="key:ops")))
    names = {"k1": "laptop"}
    page = markup(views_page.overview(views, sets(), status(), Role.OPERATOR, names))
    assert "laptop (k1)" in page.text
    assert "key:ops" in page.text
    assert {"/tools?endpoint=default&key=k1", "/tools?endpoint=default"} <= set(page.links())


def test_ticks_that_the_filter_hides_stay_in_the_form() -> None:
    draft = ToolSetDraft(name="dev", replaces=True, ticked=("git.log", "web.get"), filter="git")
    found = ToolList(endpoint="default", tools=(tool(), tool("git__x", tool="x")))
    page = markup(views_page.choose(found, draft))
    boxes = [attrs for _, attrs in page.elements if attrs.get("name") == "tool"]
    assert [(one["type"], one["value"], "checked" in one) for one in boxes] == [
        ("hidden", "web.get", False), ("checkbox", "git.log", True), ("checkbox", "git.x", False),
    ]  # fmt: skip
    fields = page.fields()
    assert (fields["name"], fields["replaces"], fields["filter"]) == ("dev", "yes", "git")


def test_the_cost_of_a_set_is_shown_before_it_is_saved() -> None:
    draft = views_page.parse_draft(
        {"name": " dev ", "tool": "git.log\ngit.gone", "replaces": "yes"}
    )
    page = markup(views_page.review([tool(), tool("git__x", tool="x", tokens=360)], draft))
    assert "2 tools, about 120 tokens; everything costs 480, so 75 % are saved." in page.text
    assert "git.gone not offered now" in page.text
    questions = [attrs.get("hx-confirm") for tag, attrs in page.elements if tag == "form"]
    assert questions == ["Save the tool set dev with 2 tools?", None]
    assert views_page.parse_draft({"tool": page.fields()["tool"] or ""}).ticked == draft.ticked


# Calls


@pytest.mark.parametrize("role", EVERY.values(), ids=EVERY)
def test_texts_make_no_element_on_the_pages_of_calls(role: Role) -> None:
    body = Raw(codec.dump({EVIL: EVIL}))
    evil = call(
        1, server=EVIL, name=EVIL, endpoint=EVIL, key=EVIL, protocol=EVIL, outcome=EVIL,
        method=EVIL, arguments=body, result=body,
    )  # fmt: skip
    flying = CallUnderWay(
        server=EVIL, method=EVIL, name=EVIL, endpoint=EVIL, age_s=1.0, state=EVIL, client=EVIL,
        session=EVIL, front=EVIL, progress=False,
    )  # fmt: skip
    under_way = CallsUnderWay(calls=(flying,))
    markup(calls_page.render_calls(recent(evil), under_way, status(EVIL), {"q": ""}, 0.0))
    markup(calls_page.page(evil, recent(evil), role))
    markup(calls_page.render_repeat(evil, EVIL, body))


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({}, [1, 2, 3]),
        ({"q": "log git"}, [1]),
        ({"server": "web"}, [2]),
        ({"outcome": "failed"}, [2, 3]),
        ({"outcome": "tool_error"}, [3]),
        ({"outcome": "refused"}, []),
        ({"key": "k1"}, [3]),
        ({"endpoint": "other"}, []),
        ({"since": "60"}, [3]),
    ],
)
def test_the_filter_keeps_the_calls_that_fit(query: dict[str, str], numbers: list[int]) -> None:
    calls = [
        call(1),
        call(2, server="web", name="web__get", outcome="-10003"),
        call(3, name="x", outcome="tool_error", key="k1", time="2026-09-21T13:40:00Z"),
    ]
    now = datetime(2026, 9, 21, 13, 40, 30, tzinfo=UTC).timestamp()
    assert [one.call for one in calls if calls_page.fits(one, query, now)] == numbers


def test_recorded_calls_of_a_server_are_counted_by_minute() -> None:
    now = datetime(2026, 9, 21, 13, 40, 30, tzinfo=UTC).timestamp()
    times = ("13:30:31", "13:38:00", "13:38:01", "13:40:29")
    calls = [call(n, time=f"2026-09-21T{time}Z") for n, time in enumerate(times, 1)]
    others = [call(8, server="web"), call(9, outcome="refused")]
    counts = calls_page.by_minute(recent(*calls, *others), "git", now)
    assert (len(counts), counts[-10:]) == (30, [1, 0, 0, 0, 0, 0, 0, 2, 0, 1])
    page = markup(calls_page.sparkline(counts))
    assert "1 in the last minute, at most 2 in one of the last 30 minutes" in page.text
    heights = [attrs["height"] for tag, attrs in page.elements if tag == "rect"]
    assert heights[-10:] == ["10", "1", "1", "1", "1", "1", "1", "20", "1", "10"]


def test_minutes_of_which_not_all_calls_are_kept_are_left_out() -> None:
    now = datetime(2026, 9, 21, 13, 40, 30, tzinfo=UTC).timestamp()
    first, second = (call(n, time=f"2026-09-21T13:3{n}:29Z") for n in (7, 8))
    others = [call(9, server="web", time="2026-09-21T13:39:00Z")] * (calls_page.KEPT_MAX - 2)
    assert calls_page.by_minute(recent(first, second, *others), "git", now) == [1, 0, 0]


def test_what_was_said_is_shown_only_if_it_was_recorded() -> None:
    whole = call(1, masked=("arguments",))
    page = markup(calls_page.page(whole, recent(whole), Role.DEVELOPER))
    assert "Arguments (2 bytes, masked)" in page.text
    bare = structs.replace(whole, arguments=UNSET, result=UNSET)
    page = markup(calls_page.page(bare, recent(), Role.DEVELOPER))
    assert 'calls = "full" in [recording] records it' in page.text
    assert "It cannot be repeated" in page.text
    page = markup(calls_page.page(bare, recent(), Role.VIEWER))
    assert "needs the role developer" in page.text
    assert "Repeat" not in page.text


def test_the_page_of_a_refused_call_says_why_and_not_how_long_it_took() -> None:
    why = "Nobody agreed to this call of git/log within 120 s, so it did not run."
    result = Raw(codec.dump({"content": [{"type": "text", "text": why}], "isError": True}))
    refused = call(1, outcome="refused", result=result, key="k1", client="desk")
    page = markup(calls_page.page(refused, recent(refused), Role.DEVELOPER))
    assert why in page.text
    assert "git, which did not get the call" in page.text
    assert "Client desk" in page.text
    assert not [
        words for words in ("generation", "How long it took", "Began") if words in page.text
    ]
    bare = structs.replace(refused, result=UNSET)
    page = markup(calls_page.page(bare, recent(bare), Role.VIEWER))
    assert "What the client was told is not known here" in page.text
    table = calls_page.render_calls(recent(refused), CallsUnderWay(calls=()), status(), {}, 0.0)
    assert "ms" not in markup(table).text


def test_a_call_leads_to_its_key_and_to_the_tool_as_the_holder_sees_it() -> None:
    one = call(1, key="k1", generation=2)
    page = markup(calls_page.page(one, recent(one), Role.OPERATOR, {"k1": "laptop"}))
    assert "laptop (k1)" in page.text
    assert {"/keys/k1", "/tools/git__log?endpoint=default&key=k1"} <= set(page.links())
    assert "generation 2" in page.text
    page = markup(calls_page.page(one, recent(one), Role.DEVELOPER))
    assert "/tools/git__log?endpoint=default" in page.links()


def test_a_call_is_timed_beside_others_of_its_tool() -> None:
    calls = [call(number) for number in range(1, 21)]
    page = markup(calls_page.build_timing_table(calls[0], recent(*calls)))
    assert "This call 1.5ms" in page.text
    assert "Half of 20 calls 15ms" in page.text
    assert "The longest 30ms" in page.text
    widths = [attrs["width"] for tag, attrs in page.elements if tag == "rect"]
    assert (widths[0], widths[-1]) == ("6", "120")


@pytest.mark.parametrize(
    ("ended", "result", "words"),
    [
        ("ok", b'{"content":[],"isError":false}', "The result is the same as before."),
        ("ok", b'{"content":[1],"isError":false}', "The result differs from the recorded one."),
        ("tool_error", b"{}", "It ended with tool_error; the recorded call ended with ok."),
    ],
)
def test_a_repeated_call_is_compared(ended: str, result: bytes, words: str) -> None:
    assert words in markup(calls_page.render_repeat(call(1), ended, Raw(result))).text


def test_only_the_newest_calls_of_a_long_record_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.mkdir()
    lines = [codec.dump(call(number)) + b"\n" for number in range(calls_page.KEPT_MAX * 2 + 5)]
    (folder / "calls-2.jsonl").write_bytes(b"".join(lines[1::2]))
    (folder / "calls-1.jsonl").write_bytes(b"".join(lines[::2]) + b'{"lost":3}\n')
    found = RecentCalls(folder)
    found.refresh()
    numbers = [one.call for one in found.calls]
    assert numbers == list(range(len(lines) - calls_page.KEPT_MAX, len(lines)))
    assert found.lost == 3
    assert {one.arguments for one in found.calls} == {UNSET}
    with (folder / "calls-2.jsonl").open("ab") as file:
        file.write(codec.dump(call(len(lines))) + b"\n")
    found.refresh()
    assert found.calls[-1].call == len(lines)
