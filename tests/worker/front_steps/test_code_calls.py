"""Runs of code in a front: each call of the code is one of its client, and goes the same way."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw, json
from msgspec.structs import replace

from metamcp_worker.access.gate import Principal
from metamcp_worker.builtin_tools.builtin import Run
from metamcp_worker.front_calls.request_facts import CallAnswer, InnerRun, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_calls.server_processes import RootsUnknown
from metamcp_worker.front_steps import code_calls
from metamcp_worker.front_steps.code_calls import ToolNames
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import FRAME, CodeLimits, EndRun, HostReply, RunEnded, StartRun
from metamcp_worker.ipc.disclosure import DisclosureState
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.frames import Error, Notice, QuestionFrame, ReplyFrame, Result
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.saved_scripts import Script
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec, UseLimits
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import Client, answer_of
from tests.worker.front.offers import MODERN, endpoint, offer, tool
from tests.worker.front.sandboxes import Sandboxes

pytestmark = pytest.mark.promise("M47")

SPEC = replace(endpoint("a", "b", style="flat"), exposure="code", code=CodeLimits())
TEXT = b'{"content":[{"type":"text","text":"hello"}]}'
OFFERS = {"a": offer("t", "read-file"), "b": offer("u")}


def asked(arguments: dict[str, Any], *, modern: bool = False, **members: Any) -> McpRequest:
    params = {"name": "run_code", "arguments": arguments}
    made = request("tools/call", codec.dump(params), modern=modern)
    return replace(made, **members)


@asynccontextmanager
async def opened_sandboxes(
    spec: EndpointSpec = SPEC, **offers: Any
) -> AsyncGenerator[tuple[Front, Sandboxes]]:
    async with opened_front(spec, **(offers or OFFERS)) as front:
        sandboxes = Sandboxes()
        sandboxes.attach(front.steps.connectors)
        try:
            yield front, sandboxes
        finally:
            front.steps.code.close()
            await sandboxes.close()


def begin(front: Front, caller: Any = None, **members: Any) -> Call:
    return front.calls.start(front.view, asked({"code": "…"}, **members), caller)


async def outcome(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = codec.value((await answer_of(call)).body)
    return found


async def test_the_code_goes_to_the_sandboxes_and_its_value_comes_back() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        arguments = {"code": "return args.n", "args": {"n": 1}, "timeout_ms": 500}
        call = front.calls.start(front.view, asked(arguments), None)
        start = await sandboxes.read(StartRun)
        assert (start.code, bytes(start.args)) == ("return args.n", b'{"n":1}')
        assert start.limits == CodeLimits(timeout_ms=500)
        sandboxes.write(RunEnded(run=start.run, value=Raw(b'{"x": 1.50}'), logs=("l",), ms=2.5))
        body = (await answer_of(call)).body
        assert b'"value":{"x": 1.50}' in body
        result: dict[str, Any] = codec.value(body)
        expected = {"value": {"x": 1.5}, "logs": ["l"], "calls": 0, "ms": 2.5}
        assert result["structuredContent"] == expected
        assert json.decode(result["content"][0]["text"]) == expected
        assert result["isError"] is False


async def test_a_failure_is_a_sentence_with_its_place_and_what_was_logged() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        call = begin(front)
        run = await sandboxes.started()
        end = RunEnded(
            run=run, failure="exception", message="boom", line=3, column=7, stack="at f (3:7)",
            logs=("one", "two"), calls=4,
        )  # fmt: skip
        sandboxes.write(end)
        result = await outcome(call)
        assert result["isError"]
        assert result["content"][0]["text"] == (
            "The code failed (exception at line 3, column 7): boom\nat f (3:7)\nLogs:\none\ntwo"
        )
        failed = result["structuredContent"]
        assert (failed["failure"], failed["line"], failed["column"]) == ("exception", 3, 7)
        assert (failed["logs"], failed["calls"]) == (["one", "two"], 4)


@pytest.mark.parametrize(
    "wish",
    [
        {"name": "a_t"},
        {"name": "t", "kind": "server", "server": "a"},
        {"name": "read_file", "kind": "server", "server": "a"},
    ],
)
async def test_a_call_of_the_code_reaches_its_server_with_its_arguments(
    wish: dict[str, Any],
) -> None:
    async with opened_sandboxes() as (front, sandboxes):
        call = begin(front, who="w-1", peer=7)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, arguments={"path": "x"}, **wish)
        sent = await front.peers["a"].call()
        named = {"a_t": "t", "read_file": "read-file"}.get(wish["name"], wish["name"])
        assert codec.value(sent.params) == {"name": named, "arguments": {"path": "x"}}
        assert sent.peer == 7
        front.peers["a"].write(Result(sent.id, TEXT))
        reply = await sandboxes.read(HostReply)
        assert (reply.call, bytes(reply.result), reply.error) == (1, TEXT, "")
        sandboxes.write(RunEnded(run=run))
        await answer_of(call)


async def test_calls_of_the_code_run_at_the_same_time() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        begin(front)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        sandboxes.asked(run, 2, "b_u")
        first, second = await front.peers["a"].call(), await front.peers["b"].call()
        front.peers["b"].write(Result(second.id, TEXT))
        assert (await sandboxes.read(HostReply)).call == 2
        front.peers["a"].write(Result(first.id, TEXT))
        assert (await sandboxes.read(HostReply)).call == 1


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"name": "a_tt"}, "did you mean a_t"),
        ({"name": "uu", "kind": "server", "server": "b"}, "Unknown tool: b.uu"),
        ({"name": "t", "kind": "server", "server": "c"}, "server 'c' is not behind"),
    ],
)
async def test_an_unknown_name_is_refused_with_what_there_is(
    wish: dict[str, Any], said: str
) -> None:
    async with opened_sandboxes() as (front, sandboxes):
        begin(front)
        run = await sandboxes.started()
        assert said in (await sandboxes.asks(run, 1, **wish)).error


async def test_an_error_of_a_server_is_its_sentence() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        begin(front)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        sent = await front.peers["a"].call()
        front.peers["a"].write(Error(sent.id, b'{"code":-32000,"message":"no such file"}'))
        assert (await sandboxes.read(HostReply)).error == "no such file"


async def test_a_run_within_a_run_is_refused() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        begin(front)
        run = await sandboxes.started()
        reply = await sandboxes.asks(run, 1, "run_code", arguments={"code": "1"})
        result: dict[str, Any] = codec.value(bytes(reply.result))
        assert result["isError"]
        assert "cannot be called from code" in result["content"][0]["text"]


async def test_a_principal_that_may_not_call_is_refused_within_code_too() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        begin(front, principal=Principal(name="key:x", scopes=frozenset({"mcp:list"})))
        run = await sandboxes.started()
        assert "needs the scope mcp:call" in (await sandboxes.asks(run, 1, "a_t")).error
        assert front.peers["a"].quiet()


async def test_a_credential_that_has_expired_makes_no_further_call() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        begin(front, principal=Principal(name="key:x", expires=1.0))
        run = await sandboxes.started()
        assert "has expired" in (await sandboxes.asks(run, 1, "a_t")).error


async def test_limits_of_use_count_the_calls_of_code() -> None:
    spec = replace(SPEC, limits=UseLimits(calls_per_day=1))
    async with opened_sandboxes(spec) as (front, sandboxes):
        front.steps.configure(
            FrontSpec(version="1", endpoints=(spec,), hosts=(), roles=(sandboxes.role,))
        )
        front.calls.refresh()
        begin(front)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        await front.peers["a"].call()
        assert "limit calls_per_day" in (await sandboxes.asks(run, 2, "a_t")).error


async def test_the_tools_that_code_can_call_are_listed_and_found() -> None:
    async with opened_sandboxes(
        a=offer(tool("t", description="Adds numbers. Twice."), "read-file"), b=offer("u")
    ) as (front, sandboxes):
        begin(front)
        run = await sandboxes.started()
        found = codec.value(bytes((await sandboxes.asks(run, 1, "", kind="tools")).result))
        assert [one["name"] for one in found] == ["a_t", "a_read-file", "b_u"]
        told = {"name": "a_t", "server": "a", "tool": "t", "description": "Adds numbers."}
        assert found[0] == told
        hits = codec.value(bytes((await sandboxes.asks(run, 2, "file", kind="tools")).result))
        assert [one["name"] for one in hits] == ["a_read-file"]


async def test_a_tool_that_cannot_be_called_is_not_listed() -> None:
    spec = replace(SPEC, exposure="search", call_hidden=False)
    async with opened_sandboxes(spec) as (front, sandboxes):
        begin(front)
        run = await sandboxes.started()
        listed = await sandboxes.asks(run, 1, "", kind="tools")
        assert bytes(listed.result) == b"[]"
        assert "not in view" in (await sandboxes.asks(run, 2, "a_t")).error


async def test_a_client_that_goes_ends_the_run_and_its_calls() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        call = begin(front)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        sent = await front.peers["a"].call()
        (shown,) = [one for one, _ in front.calls.under_way() if one is call]
        shown.cancel("the client went away")
        assert (await sandboxes.read(EndRun)).run == run
        assert (await front.peers["a"].cancelled()).id == sent.id
        assert call.answer.is_cancelled()


async def test_calls_that_the_code_did_not_wait_for_are_cancelled_at_its_end() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        call = begin(front)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        sent = await front.peers["a"].call()
        sandboxes.write(RunEnded(run=run))
        assert (await front.peers["a"].cancelled()).id == sent.id
        assert not (await outcome(call))["isError"]


async def test_the_end_of_the_process_ends_its_runs_and_the_next_run_finds_the_next_process() -> (
    None
):
    async with opened_sandboxes() as (front, sandboxes):
        calls = [begin(front), begin(front)]
        await sandboxes.started()
        await sandboxes.started()
        sandboxes.die()
        for call in calls:
            assert (await outcome(call))["structuredContent"]["failure"] == "crashed"
        call = begin(front)
        sandboxes.write(RunEnded(run=await sandboxes.started(), value=Raw(b"1")))
        assert (await outcome(call))["structuredContent"]["value"] == 1
        assert sandboxes.connections == 2


async def test_sandboxes_that_cannot_be_reached_are_a_failure_at_once() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        sandboxes.leave()
        assert (await outcome(begin(front)))["structuredContent"]["failure"] == "crashed"


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x02\0\0\0{]", b"\x02\0\0\0{}"])
async def test_what_cannot_be_read_ends_the_connection(data: bytes) -> None:
    async with opened_sandboxes() as (front, sandboxes):
        call = begin(front)
        await sandboxes.started()
        sandboxes.raw(data)
        assert (await outcome(call))["structuredContent"]["failure"] == "crashed"


@pytest.mark.parametrize("value", [b"[" * 5000 + b"]" * 5000, b'"\xff"', b"}"])
async def test_a_value_that_cannot_be_read_ends_its_own_run_alone(value: bytes) -> None:
    async with opened_sandboxes() as (front, sandboxes):
        call, other = begin(front), begin(front)
        run, second = await sandboxes.started(), await sandboxes.started()
        body = b'{"type":"RunEnded","run":%d,"value":%b}' % (run, value)
        sandboxes.raw(FRAME.pack(len(body)) + body)
        assert (await outcome(call))["structuredContent"]["failure"] == "size"
        assert (await sandboxes.read(EndRun)).run == run
        sandboxes.write(RunEnded(run=second))
        assert not (await outcome(other))["isError"]


def test_an_answer_with_too_many_levels_is_refused_before_the_sandboxes_see_it() -> None:
    most = 0
    for depth in range(1, 2000):
        try:
            codec.check(b"[" * depth + b"]" * depth)
        except codec.Malformed:
            break
        most = depth
    deep = b'{"content":[],"x":' + b"[" * (most - 20) + b"]" * (most - 20) + b"}"
    assert "nested too deeply" in code_calls.reply(1, 1, CallAnswer(deep)).error


async def test_each_call_that_ends_is_progress_for_a_client_that_wants_it() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        client = Client()
        begin(front, client, wants_progress=True)
        run = await sandboxes.started()
        for number in (1, 2):
            sandboxes.asked(run, number, "a_t")
            sent = await front.peers["a"].call()
            assert not sent.wants_progress
            front.peers["a"].write(Result(sent.id, TEXT))
            await sandboxes.read(HostReply)
        assert client.progress == [
            {"progress": 1, "message": "a_t"}, {"progress": 2, "message": "a_t"},
        ]  # fmt: skip


async def test_a_server_that_wants_input_in_a_result_is_refused_with_a_sentence() -> None:
    async with opened_sandboxes(a=offer("t", protocol=MODERN), b=offer("u")) as (front, sandboxes):
        begin(front, modern=True)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        sent = await front.peers["a"].call()
        wants = b'{"resultType":"input_required","inputRequests":{},"requestState":"s"}'
        front.peers["a"].write(Result(sent.id, wants))
        assert (await sandboxes.read(HostReply)).error == code_calls.ASKS


async def test_a_question_of_a_server_goes_to_the_client_of_the_code() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        client = Client()
        begin(front, client)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        sent = await front.peers["a"].call()
        front.peers["a"].write(Notice("notifications/message", b"{}", sent.id))
        front.peers["a"].write(QuestionFrame(sent.id, 1, "elicitation/create", b"{}"))
        question = await client.questions.get()
        assert client.notices == ["notifications/message"]
        question.answer(b'{"action":"accept"}')
        reply = await front.peers["a"].read()
        assert isinstance(reply, ReplyFrame)
        assert bytes(reply.body) == b'{"action":"accept"}'


async def test_a_server_that_has_not_told_its_tools_yet_is_waited_for() -> None:
    spec = replace(SPEC, servers=("a", "b", "late"))
    async with opened_sandboxes(spec) as (front, sandboxes):
        front.calls.server_state(
            ServerState(server="late", state="warming", listed=False, hold_ms=20_000)
        )
        begin(front)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "t", kind="server", server="late")
        sandboxes.asked(run, 2, "a_t")
        await front.peers["a"].call()  # so the other one waits by now
        await front.add("late", offer("t"))
        first = await front.peers["late"].call()
        assert first.method == "tools/list"
        front.peers["late"].write(Result(first.id, b'{"tools":[]}'))
        sent = await front.peers["late"].call()
        assert codec.value(sent.params)["name"] == "t"


async def test_roots_that_decide_on_a_process_are_asked_for_before_the_code_begins() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        news = ServerState(server="a", state="ready", listed=True, by="project")
        front.calls.server_state(news)
        with pytest.raises(RootsUnknown):
            begin(front, unasked=True)
        begin(front, unasked=False)
        await sandboxes.started()


async def test_without_sandboxes_the_tool_says_so() -> None:
    async with opened_front(SPEC, **OFFERS) as front:
        result = await outcome(begin(front))
        assert (result["isError"], "not configured" in result["content"][0]["text"]) == (True, True)


SCRIPT = Run("", "typescript", Raw(b"{}"), script="s", version=1)


def test_scripts_run_three_deep_and_no_deeper() -> None:
    outer = asked({})
    inner = code_calls.base(outer, "1")
    third = code_calls.base(code_calls.base(inner, "2"), "3")
    assert inner.run == InnerRun("1", 1)
    assert third.run == InnerRun("3", 3)
    assert code_calls.refusal(SCRIPT, code_calls.base(inner, "2")) == ""
    assert "3 deep" in code_calls.refusal(SCRIPT, third)


async def test_runs_within_one_run_take_its_place_one_after_the_other() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        front.steps.builtins.disclose(DisclosureState(scripts=(Script("s", 1, "return 1"),)))
        front.calls.refresh()
        call = begin(front)
        outer = await sandboxes.read(StartRun)
        for number in (1, 2, 3):
            sandboxes.asked(outer.run, number, "run_script", arguments={"name": "s"})
        first = await sandboxes.read(StartRun)
        assert (outer.inner, first.inner, first.code) == (False, True, "return 1")
        sandboxes.write(RunEnded(run=first.run, value=Raw(b"1")))
        second = await sandboxes.read(StartRun)
        told = await sandboxes.read(HostReply)
        assert told.call == 1
        assert b'"value":1' in bytes(told.result)
        sandboxes.write(RunEnded(run=outer.run))
        assert (await sandboxes.read(EndRun)).run == second.run
        assert (await sandboxes.read(EndRun)).run not in (outer.run, second.run)
        assert not (await outcome(call))["isError"]


def test_a_call_has_the_trace_of_its_run_and_nothing_else_of_its_meta() -> None:
    meta = {"traceparent": Raw(b'"00-1"'), "own": Raw(b"1")}
    made = code_calls.call(code_calls.base(asked({}, meta=meta), "1"), "a_t", Raw(b"{}"))
    assert set(made.meta) == {"traceparent"}


@pytest.mark.parametrize(
    ("wanted", "most", "found"), [(0, 30_000, 30_000), (500, 30_000, 500), (90_000, 1000, 1000)]
)
def test_a_call_only_lowers_the_time(wanted: int, most: int, found: int) -> None:
    run = Run("", "typescript", Raw(b"{}"), wanted)
    assert code_calls.limits(CodeLimits(timeout_ms=most), run).timeout_ms == found


async def test_a_name_as_it_is_goes_before_one_with_underscores() -> None:
    spec = replace(SPEC, servers=("a-1", "b"))
    offers: dict[str, Any] = {"a-1": offer("x_y", "x.y", "p-q"), "b": offer("u")}
    async with opened_front(spec, **offers) as front:
        names = ToolNames(front.view.legacy)
        assert names.find("a_1", "x_y") == names.find("a-1", "x_y")
        assert names.find("a_1", "x_y") != names.find("a_1", "x.y")
        assert names.find("a_1", "p_q") == names.find("a-1", "p-q")
        with pytest.raises(ProtocolError, match="there are: a-1"):
            names.find("a_2", "p-q")


def test_a_user_who_is_asked_for_an_agent_sees_all_that_will_run() -> None:
    text = f"rm -rf / {'#' * 5000}\u202e"
    said = codec.value(code_calls.consent("a\n__t", Raw(codec.dump({"password": text}))))["message"]
    assert said.startswith(
        "May the agent call a\\u000a__t? It may change or destroy something. With"
    )
    assert f"{'#' * 5000}\\u202e" in said
    for raw in (b'{"a":1,"a":2}', rb'{"a":"\ud83d"}', b'"%b"' % (b"a" * 20_000)):
        with pytest.raises(codec.Malformed):
            code_calls.consent("t", Raw(raw))
