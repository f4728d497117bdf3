"""Engine in a front: its tools become orders, and what runs ask for goes the way of all calls."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw, structs
from msgspec.structs import replace

from metamcp_worker.access.gate import Principal
from metamcp_worker.front_calls.request_facts import CallAnswer, InnerRun, McpRequest
from metamcp_worker.front_calls.server_links import Call, error
from metamcp_worker.front_steps import engine_calls
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import CodeLimits, HoldRun, RunEnded
from metamcp_worker.ipc.engine_runs import (
    AbandonOrder,
    EngineOrder,
    HostDone,
    HostDrop,
    Kind,
    OrderDone,
    OrderProgress,
)
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Error, Result
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.spec import EndpointSpec
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import Client, answer_of
from tests.worker.front.engines import OWNER, Engine
from tests.worker.front.offers import endpoint, offer, tool
from tests.worker.front.sandboxes import Sandboxes

pytestmark = pytest.mark.promise("M36")

BUILTINS = ("catalog", "workflows", "agent")
SPEC = replace(endpoint("a", "b", style="flat"), builtins=BUILTINS, code=CodeLimits())
TEXT = b'{"content":[{"type":"text","text":"hello"}]}'
ASKABLE = b'{"clientCapabilities":{"elicitation":{"form":{}},"sampling":{}}}'
OFFERS = {"a": offer("t", "read-file"), "b": offer("u")}


@pytest.mark.promise("M52")
@pytest.mark.parametrize(
    ("reason", "ran", "code", "lost"),
    [
        ("worker", True, Code.SERVER_DOWN, True),
        ("stopping", True, Code.SERVER_DOWN, True),
        ("front", True, Code.SERVER_DOWN, True),
        ("stopping", False, Code.SERVER_DOWN, False),
        ("exit", True, Code.SERVER_DOWN, False),
        ("signal", True, Code.SERVER_DOWN, False),
        ("worker", True, Code.INTERNAL_ERROR, False),
    ],
)
def test_a_call_that_a_process_of_the_gateway_took_along_is_lost_and_one_of_a_crash_is_not(
    reason: str, ran: bool, code: Code, lost: bool
) -> None:
    answer = error(code, "it went down", {"reason": reason, "may_have_run": ran})
    done = engine_calls.to_host_done(1, answer, repeatable=False)
    assert (done.lost, done.repeatable, done.error) == (lost, not ran, "it went down")


def test_an_error_of_a_server_with_data_of_any_kind_is_passed_on() -> None:
    answer = CallAnswer(b'{"code":-5,"message":"no","data":"worker"}', -5)
    done = engine_calls.to_host_done(1, answer, repeatable=False)
    assert (done.error, done.trouble, done.lost) == ("no", "error", False)


def asked(name: str, arguments: dict[str, Any], **members: Any) -> McpRequest:
    made = request("tools/call", codec.dump({"name": name, "arguments": arguments}), modern=False)
    return replace(made, **members)


@asynccontextmanager
async def opened_engine(
    spec: EndpointSpec = SPEC, *, at_once: bool = False, **offers: Any
) -> AsyncGenerator[tuple[Front, Engine]]:
    async with opened_front(spec, **(offers or OFFERS)) as front:
        engine = Engine()
        engine.attach(front.steps.connectors)
        front.steps.engine.configure(at_once=at_once)
        try:
            yield front, engine
        finally:
            front.steps.engine.close()
            await engine.close()


def begin(front: Front, name: str = "run_agent", client: Any = None, **members: Any) -> Call:
    arguments = members.pop("arguments", {"task": "tidy up"})
    return front.calls.start(front.view, asked(name, arguments, **members), client)


async def outcome(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = codec.value((await answer_of(call)).body)
    return found


@pytest.mark.parametrize(
    ("tool", "arguments", "method"),
    [
        ("run_agent", {"task": "x", "limits": {"steps": 2}}, "agent"),
        ("suggest_workflow", {"task": "x", "refine": True}, "suggest"),
        ("run_workflow", {"name": "w", "inputs": {"a": 1}, "wait": "5s"}, "workflow/run"),
        ("workflow_status", {"run": "r"}, "workflow/status"),
        ("workflow_status", {}, "workflow/runs"),
        ("cancel_workflow", {"run": "r"}, "workflow/cancel"),
        ("list_workflows", {}, "workflows"),
    ],
)
async def test_a_tool_is_an_order_and_its_end_the_result(
    tool: str, arguments: dict[str, Any], method: str
) -> None:
    async with opened_engine() as (front, engine):
        call = begin(front, tool, arguments=arguments)
        order = await engine.read(EngineOrder)
        assert (order.method, order.owner.endpoint, order.owner.name) == (
            method, "default", "local",
        )  # fmt: skip
        more = {"ask": True} if method == "workflow/status" else {}
        assert codec.value(bytes(order.params)) == arguments | more
        assert (order.asks, order.samples, order.progress) == (False, False, False)
        engine.write(OrderDone(id=order.id, text="done", structured=Raw(b'{"x":1}'), failed=True))
        result = await outcome(call)
        assert result["content"] == [{"type": "text", "text": "done"}]
        assert (result["structuredContent"], result["isError"]) == ({"x": 1}, True)


async def test_progress_reaches_a_client_that_wants_it() -> None:
    async with opened_engine() as (front, engine):
        client = Client()
        call = begin(front, client=client, wants_progress=True, caller=ASKABLE)
        order = await engine.read(EngineOrder)
        assert (order.asks, order.samples, order.progress) == (True, True, True)
        engine.write(OrderProgress(id=order.id, progress=1, total=3, message="step"))
        engine.write(OrderDone(id=order.id, text="done"))
        await answer_of(call)
        assert client.progress == [{"progress": 1, "total": 3, "message": "step"}]


async def test_a_client_that_leaves_is_told_to_the_engine() -> None:
    async with opened_engine() as (front, engine):
        call = begin(front)
        order = await engine.read(EngineOrder)
        call.cancel("gone")
        assert (await engine.read(AbandonOrder)).id == order.id


async def test_a_lost_engine_fails_its_orders_with_a_sentence_and_is_met_again() -> None:
    async with opened_engine() as (front, engine):
        call = begin(front, "run_workflow", arguments={"name": "w"})
        await engine.read(EngineOrder)
        engine.die()
        result = await outcome(call)
        assert result["isError"]
        assert "goes on when it is back; workflow_status" in result["content"][0]["text"]
        begin(front)
        assert (await engine.read(EngineOrder)).method == "agent"


async def test_a_front_with_workflows_connects_at_once_and_again() -> None:
    async with opened_engine(at_once=True) as (_, engine):
        await engine.meet()
        engine.die()
        await engine.meet()
        assert not (await engine.asks("catalog")).trouble


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("run_agent", {"task": "x"}, "see [ai]"),
        ("run_workflow", {"name": "w"}, "see the key workflows"),
        ("suggest_workflow", {"task": "x"}, "[suggestions]"),
    ],
)
async def test_without_an_engine_one_sentence_tells_what_to_configure(
    tool: str, arguments: dict[str, Any], said: str
) -> None:
    async with opened_front(SPEC, **OFFERS) as front:
        result = await outcome(begin(front, tool, arguments=arguments))
        assert result["isError"]
        assert said in result["content"][0]["text"]


async def test_agents_and_workflows_do_not_begin_within_a_run() -> None:
    async with opened_engine() as (front, _):
        result = await outcome(begin(front, run=InnerRun("r")))
        assert "cannot be called from code, an agent or a workflow" in result["content"][0]["text"]


@pytest.mark.parametrize(
    "wish", [("call", "a_t", ""), ("server", "t", "a"), ("server", "read_file", "a")]
)
async def test_a_call_of_a_run_reaches_its_server_with_its_key(wish: tuple[Kind, str, str]) -> None:
    async with opened_engine(at_once=True) as (front, engine):
        kind, name, server = wish
        await engine.meet()
        key = {"io.metamcp/idempotency-key": "k1"}
        engine.asked(kind, name, server=server, arguments={"p": 1}, meta=key, run="r1")
        sent = await front.peers["a"].call()
        named = "read-file" if name == "read_file" else "t"
        assert codec.value(sent.params) == {"name": named, "arguments": {"p": 1}}
        assert codec.value(sent.meta) == key
        front.peers["a"].write(Result(sent.id, b'{"isError":true,"content":[]}'))
        done = await engine.read(HostDone)
        assert (done.trouble, done.repeatable) == ("", False)
        assert codec.value(bytes(done.result))["isError"] is True


@pytest.mark.parametrize(
    ("code", "trouble"), [(-32000, "error"), (-10001, "unavailable"), (-10003, "timeout")]
)
async def test_an_error_is_a_trouble_with_its_sentence(code: int, trouble: str) -> None:
    async with opened_engine(at_once=True) as (front, engine):
        await engine.meet()
        engine.asked("call", "a_t")
        sent = await front.peers["a"].call()
        front.peers["a"].write(Error(sent.id, codec.dump({"code": code, "message": "no"})))
        done = await engine.read(HostDone)
        assert (done.trouble, done.error, done.repeatable) == (trouble, "no", False)


async def test_annotations_tell_whether_a_tool_may_run_twice() -> None:
    raw = b'{"name":"t","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}'
    catalogue = structs.replace(offer(), tools=(Raw(raw),))
    async with opened_engine(at_once=True, a=catalogue, b=offer("u")) as (front, engine):
        await engine.meet()
        engine.asked("call", "a_t")
        sent = await front.peers["a"].call()
        front.peers["a"].write(Result(sent.id, TEXT))
        assert (await engine.read(HostDone)).repeatable
        described = await engine.asks("describe", "t", server="a")
        found: dict[str, Any] = codec.value(bytes(described.result))
        assert found["annotations"] == {"readOnlyHint": True}
        assert "typescript" in found


async def test_a_call_whose_time_is_over_is_cancelled() -> None:
    async with opened_engine(at_once=True) as (front, engine):
        await engine.meet()
        done = await engine.asks("call", "a_t", timeout_ms=10)
        assert (done.trouble, done.error) == ("timeout", "the call got no answer in 0.01 s")
        sent = await front.peers["a"].call()
        assert (await front.peers["a"].cancelled()).id == sent.id


async def test_a_dropped_call_is_cancelled() -> None:
    async with opened_engine(at_once=True) as (front, engine):
        await engine.meet()
        number = engine.asked("call", "a_t")
        sent = await front.peers["a"].call()
        engine.write(HostDrop(call=number))
        assert (await front.peers["a"].cancelled()).id == sent.id


async def test_an_owner_is_refused_whose_endpoint_or_key_is_gone_or_that_may_not_call() -> None:
    async with opened_engine(at_once=True) as (front, engine):
        await engine.meet()
        gone = await engine.asks("call", "a_t", owner=replace(OWNER, endpoint="old"))
        assert (gone.trouble, "not served any more" in gone.error) == ("error", True)
        key = replace(OWNER, name="key:x", auth="keys", key="k", scopes=("mcp:list",))
        assert "needs the scope mcp:call" in (await engine.asks("call", "a_t", owner=key)).error
        front.steps.engine.still = lambda who, endpoint, now: who.key != "k"
        assert "was revoked" in (await engine.asks("call", "a_t", owner=key)).error
        assert front.peers["a"].quiet()


async def test_the_principal_of_an_owner_is_the_one_that_began_the_run() -> None:
    async with opened_front(SPEC, **OFFERS) as front:
        key = Principal(
            name="key:x", workspace="default", scopes=frozenset({"mcp:call"}),
            servers=frozenset({"a"}), key="k", auth="keys", expires=5.0,
        )  # fmt: skip
        made = asked("run_agent", {}, principal=key)
        assert engine_calls.principal(engine_calls.owner(front.view, made)) == key


@pytest.mark.promise("M50")
async def test_tools_and_the_catalogue_are_found_also_of_servers_that_are_down() -> None:
    async with opened_engine(at_once=True) as (front, engine):
        await engine.meet()
        front.calls.server_state(ServerState(server="b", state="failed", listed=False))
        front.calls.refresh()
        tools: Any = codec.value(bytes((await engine.asks("tools")).result))
        assert [one["name"] for one in tools] == ["a_t", "a_read-file"]
        found: Any = codec.value(bytes((await engine.asks("catalog")).result))
        first, second = found["servers"]
        assert first["server_id"] == "a"
        assert (first["commands"], len(first["descriptions"])) == (["a_t", "a_read-file"], 2)
        assert (second["commands"], second["available"]) == (["b_u"], False)
        own = await outcome(begin(front, "get_catalog", arguments={}))
        assert own["structuredContent"] == found


@pytest.mark.promise("M50")
async def test_the_catalogue_describes_prompts_and_resources_of_servers_that_are_down_too() -> None:
    said = {"description": "Some words. More of them."}
    kinds: dict[str, list[dict[str, object]]] = {
        "prompts": [{"name": "p", **said}],
        "resources": [{"uri": "x:a", "name": "a", **said}],
        "templates": [{"uriTemplate": "x:{b}", "name": "b", **said}],
    }
    raws: dict[str, Any] = {
        kind: [Raw(codec.dump(one)) for one in found] for kind, found in kinds.items()
    }
    async with opened_front(SPEC, a=offer("t"), b=offer("u", **raws)) as front:

        async def told() -> dict[str, Any]:
            found = await outcome(begin(front, "get_catalog", arguments={"server": "b"}))
            (server,) = found["structuredContent"]["servers"]
            return dict(server)

        up = await told()
        assert [one["description"] for one in up["prompts"]] == ["Some words."]
        assert [one["description"] for one in up["resources"]] == ["Some words."] * 2
        front.calls.server_state(ServerState(server="b", state="failed", listed=False))
        front.calls.refresh()
        assert await told() == {**up, "available": False}


@pytest.mark.parametrize(
    ("kind", "method"),
    [("elicit", "elicitation/create"), ("sample", "sampling/createMessage")],
)
async def test_a_question_of_a_run_goes_to_the_client_that_waits_for_it(
    kind: Kind, method: str
) -> None:
    async with opened_engine() as (front, engine):
        client = Client()
        begin(front, client=client, caller=ASKABLE)
        order = await engine.read(EngineOrder)
        engine.asked(kind, arguments={"message": "?"}, order=order.id)
        question = await client.questions.get()
        assert (question.method, codec.value(question.params)) == (method, {"message": "?"})
        question.answer(b'{"action":"accept"}')
        assert bytes((await engine.read(HostDone)).result) == b'{"action":"accept"}'
        assert (await engine.asks(kind, arguments={"message": "?"})).trouble == "unavailable"


async def test_code_of_a_run_goes_to_the_sandboxes_and_its_result_comes_back() -> None:
    async with opened_engine(at_once=True) as (front, engine):
        await engine.meet()
        sandboxes = Sandboxes()
        sandboxes.attach(front.steps.connectors)
        engine.asked("code", arguments={"code": "return 1"}, run="r1")
        run = await sandboxes.started()
        sandboxes.write(RunEnded(run=run, value=Raw(b"1")))
        done = await engine.read(HostDone)
        assert codec.value(bytes(done.result))["value"] == 1
        wrong = await engine.asks("code", arguments={"cod": "return 1"})
        assert (wrong.trouble, "arguments of run_code" in wrong.error) == ("error", True)
        front.steps.code.close()
        await sandboxes.close()


async def agents_code(
    engine: Engine, sandboxes: Sandboxes, order: int, *, consent: bool = True
) -> int:
    engine.asked("code", arguments={"code": "x"}, order=order, consent=consent)
    return await sandboxes.started()


@asynccontextmanager
async def opened_agents() -> AsyncGenerator[tuple[Front, Engine, Sandboxes]]:
    """A front whose agents have sandboxes, and tools with all annotations."""
    tools = [
        tool(name, annotations={hint: value})
        for name, hint, value in (
            ("reads", "readOnlyHint", True), ("adds", "destructiveHint", False),
            ("deletes", "destructiveHint", True),
        )
    ]  # fmt: skip
    reading = offer("unknown", *tools)
    async with opened_engine(at_once=True, a=reading, b=offer("u")) as (front, engine):
        sandboxes = Sandboxes()
        sandboxes.attach(front.steps.connectors)
        await engine.meet()
        try:
            yield front, engine, sandboxes
        finally:
            front.steps.code.close()
            await sandboxes.close()


@pytest.mark.promise("M49")
async def test_an_agent_reads_and_adds_without_a_question() -> None:
    async with opened_agents() as (front, engine, sandboxes):
        client = Client()
        call = begin(front, client=client, caller=ASKABLE)
        order = await engine.read(EngineOrder)
        run = await agents_code(engine, sandboxes, order.id)
        for number, name in enumerate(("a_reads", "a_adds")):
            sandboxes.asked(run, number, name)
            await front.peers["a"].call()
        assert client.questions.empty()
        call.cancel("over")


@pytest.mark.promise("M49")
@pytest.mark.parametrize("name", ["a_deletes", "a_unknown"])
async def test_a_call_of_an_agent_that_may_destroy_waits_until_the_user_agrees(name: str) -> None:
    async with opened_agents() as (front, engine, sandboxes):
        client, peer = Client(), front.peers["a"]
        call = begin(front, client=client, caller=ASKABLE)
        order = await engine.read(EngineOrder)
        run = await agents_code(engine, sandboxes, order.id)
        sandboxes.asked(run, 1, name, arguments={"path": "/etc"})
        sandboxes.asked(run, 2, name)
        assert await sandboxes.read(HoldRun) == HoldRun(run=run, hold=True)
        question = await client.questions.get()
        assert name in codec.value(question.params)["message"]
        assert '"/etc"' in codec.value(question.params)["message"]
        assert client.questions.empty()
        question.answer(b'{"action":"accept"}')
        sent = await peer.call()
        assert codec.value(sent.params)["arguments"] == {"path": "/etc"}
        second = await client.questions.get()
        second.answer(b'{"action":"accept","content":{"all":true}}')
        await peer.call()
        sandboxes.asked(run, 3, name)
        await peer.call()
        held = [(await sandboxes.read(HoldRun)).hold for _ in range(3)]
        assert held == [False, True, False]
        sandboxes.write(RunEnded(run=run))
        await engine.read(HostDone)
        for _ in range(3):
            await peer.cancelled()
        again = await agents_code(engine, sandboxes, order.id)
        sandboxes.asked(again, 1, name)
        await peer.call()
        assert client.questions.empty()
        call.cancel("over")


@pytest.mark.promise("M49")
@pytest.mark.parametrize(
    ("caller", "answer", "why"),
    [
        (ASKABLE, b'{"action":"decline"}', "the user did not agree"),
        (ASKABLE, b'{"action":"cancel","content":{"all":true}}', "the user did not agree"),
        (b"{}", b"", "the client cannot ask its user"),
    ],
)
async def test_without_a_yes_the_code_of_an_agent_ends_there(
    caller: bytes, answer: bytes, why: str
) -> None:
    async with opened_agents() as (front, engine, sandboxes):
        client = Client()
        call = begin(front, client=client, caller=caller)
        order = await engine.read(EngineOrder)
        run = await agents_code(engine, sandboxes, order.id)
        sandboxes.asked(run, 1, "a_deletes")
        if answer:
            (await client.questions.get()).answer(answer)
        done = codec.value(bytes((await engine.read(HostDone)).result))
        assert done["failure"] == "consent"
        assert done["message"].startswith("it wanted to call a_deletes, ")
        assert why in done["message"]
        assert front.peers["a"].quiet()
        call.cancel("over")


@pytest.mark.promise("M49")
async def test_an_agent_that_needs_no_consent_is_not_stopped() -> None:
    async with opened_agents() as (front, engine, sandboxes):
        run = await agents_code(engine, sandboxes, 0, consent=False)
        sandboxes.asked(run, 1, "a_deletes")
        await front.peers["a"].call()


async def test_a_list_of_everything_begins_with_the_further_tools() -> None:
    async with opened_front(replace(SPEC, builtins=("catalog",)), **OFFERS) as front:
        names = [entry.key for entry in front.view.merged.lists["tools"]]
        assert names == ["get_catalog", "suggest_workflow", "a_t", "a_read-file", "b_u"]
        sent = await front.sent("a", asked("a_t", {}))
        assert codec.value(sent.params)["name"] == "t"


async def test_the_exposure_search_with_code_lists_thirteen_tools() -> None:
    async with opened_front(
        replace(SPEC, exposure="search", builtins=("agent",)), **OFFERS
    ) as front:
        names = [entry.key for entry in front.view.merged.lists["tools"]]
        assert names == [
            "search_tools", "load_tool", "unload_tool", "load_tool_set", "save_tool_set",
            "list_loaded_tools", "describe_tool", "call_tool", "run_code", "save_script",
            "run_script", "list_scripts", "run_agent",
        ]  # fmt: skip


@pytest.mark.parametrize("modern", [False, True])
async def test_the_catalogue_is_a_method_too(modern: bool) -> None:
    async with opened_front(SPEC, **OFFERS) as front:
        made = request("metamcp/get_catalog", b'{"server":"b"}', modern=modern)
        found: Any = codec.value((await answer_of(front.calls.start(front.view, made, None))).body)
        assert [one["server_id"] for one in found["servers"]] == ["b"]
        wrong = request("metamcp/get_catalog", b'{"servers":"b"}', modern=modern)
        answer = await answer_of(front.calls.start(front.view, wrong, None))
        assert (answer.code, b"it takes: server" in answer.body) == (Code.INVALID_REQUEST, True)


async def test_a_suggestion_is_a_method_too() -> None:
    async with opened_engine() as (front, engine):
        made = request("metamcp/suggest_workflow", b'{"task":"x"}')
        call = front.calls.start(front.view, made, None)
        order = await engine.read(EngineOrder)
        assert (order.method, bytes(order.params)) == ("suggest", b'{"task":"x"}')
        engine.write(OrderDone(id=order.id, text="a", structured=Raw(b'{"workflow":{}}')))
        assert codec.value((await answer_of(call)).body) == {
            "resultType": "complete",
            "workflow": {},
        }


async def test_an_endpoint_without_the_family_has_no_such_methods() -> None:
    async with opened_front(replace(SPEC, builtins=()), **OFFERS) as front:
        refusal = front.refusal(request("metamcp/get_catalog", b"{}"))
        assert refusal.code == Code.METHOD_NOT_FOUND
