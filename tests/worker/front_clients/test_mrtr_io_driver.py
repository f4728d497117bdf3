"""Calls of handshake-era clients that a modern server wants input for, over real sockets."""

from typing import Any

import pytest
from msgspec.structs import replace

from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call as Waiting
from metamcp_worker.front_clients import mrtr_io
from metamcp_worker.front_clients.mrtr_io import CallRoundTrips, ParkedBudget
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Error, Result
from tests.worker.front.door import MODERN, Door, bodiless, legacy, opened_door
from tests.worker.front.offers import offer, prompt, resource

from ..rawhttp import Client

pytestmark = pytest.mark.process

FORM: dict[str, object] = {
    "method": "elicitation/create",
    "params": {"message": "Name?", "requestedSchema": {}},
}
SAMPLE: dict[str, object] = {
    "method": "sampling/createMessage",
    "params": {"messages": [], "maxTokens": 1},
}
ROOTS = {"method": "roots/list"}
LINK: dict[str, object] = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Go", "url": "https://a.example/x"},
}
CAPABLE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


def wants(state: str = "", **requests: object) -> bytes:
    """A result that asks for input."""
    members: dict[str, object] = {"resultType": "input_required"}
    if requests:
        members["inputRequests"] = requests
    if state:
        members["requestState"] = state
    return codec.dump(members)


async def started(door: Door, **more: object) -> tuple[str, Client, CallFrame]:
    """A session whose call is at the server, which is modern."""
    door.offer(offer("t", protocol=MODERN, prompts=[prompt("p")], resources=[resource("r:1")]))
    session = await door.initialize(**CAPABLE)
    client = await door.call(session, **more)
    return session, client, await door.peer.call()


async def again(door: Door, call: CallFrame, body: bytes) -> CallFrame:
    """The server wants input, and gets the call again."""
    door.peer.write(Result(call.id, body))
    return await door.peer.call()


RESULTS = {
    "roots/list": '{"roots":[] }',
    "elicitation/create": '{"action":"accept","content":{"n":1.0}}',
    "sampling/createMessage": '{"role":"assistant"}',
}


@pytest.mark.promise("M23")
async def test_what_a_modern_server_wants_is_asked_as_requests_and_the_call_goes_on() -> None:
    async with opened_door() as door:
        session, client, call = await started(
            door, arguments={"a": 1.0}, _meta={"a/b": 1, "progressToken": "p"}
        )
        door.peer.write(Result(call.id, wants("s1", who=FORM, said=SAMPLE, where=ROOTS)))
        await client.head()
        for asked in [await client.event() for _ in range(3)]:
            result = RESULTS[asked["method"]]
            assert await door.answer(session, asked, f'"result":{result}') == 202
        again = await door.peer.call()
        assert again.id != call.id
        assert (again.meta, again.caller, again.peer) == (call.meta, call.caller, call.peer)
        assert again.wants_progress
        params = codec.level(again.params)
        assert list(params) == ["name", "arguments", "inputResponses", "requestState"]
        assert (bytes(params["arguments"]), bytes(params["requestState"])) == (
            b'{"a":1.0}',
            b'"s1"',
        )
        answers = codec.level(params["inputResponses"])
        assert {key: bytes(raw).decode() for key, raw in answers.items()} == {
            "who": RESULTS["elicitation/create"],
            "said": RESULTS["sampling/createMessage"],
            "where": RESULTS["roots/list"],
        }
        door.peer.write(Result(again.id, b'{"resultType":"complete","content":[],"x":1.0}'))
        assert (await client.event())["result"]["x"] == 1.0
        assert await client.event() is None


@pytest.mark.parametrize(
    ("method", "params"), [("prompts/get", {"name": "p"}), ("resources/read", {"uri": "r:1"})]
)
async def test_prompts_and_resources_may_want_input_too(
    method: str, params: dict[str, str]
) -> None:
    async with opened_door() as door:
        session, _, _ = await started(door)
        client = await door.connect()
        client.send(legacy(method, params, id=2, session=session))
        call = await door.peer.call()
        door.peer.write(Result(call.id, wants(who=FORM)))
        await client.head()
        await door.answer(session, await client.event(), '"result":{"action":"decline"}')
        retried = await door.peer.call()
        assert (retried.method, codec.value(retried.params)) == (
            method,
            {**params, "inputResponses": {"who": {"action": "decline"}}},
        )
        door.peer.write(Result(retried.id, b"{}"))
        assert (await client.event())["id"] == 2


@pytest.mark.promise("M23")
async def test_a_visit_to_a_url_gets_the_id_that_clients_of_this_era_expect() -> None:
    async with opened_door() as door:
        session, client, call = await started(door)
        door.peer.write(Result(call.id, wants(one=LINK, two=LINK)))
        await client.head()
        questions = [await client.event() for _ in range(2)]
        ids = {question["params"].pop("elicitationId") for question in questions}
        assert len(ids) == 2
        assert [question["params"] for question in questions] == [LINK["params"]] * 2
        for question in questions:
            await door.answer(session, question, '"result":{"action":"accept"}')
        assert b'"one":{"action":"accept"}' in (await door.peer.call()).params


async def test_each_round_carries_the_newest_answers_and_state_only() -> None:
    async with opened_door() as door:
        session, client, call = await started(door)
        door.peer.write(Result(call.id, wants("s1", one=FORM)))
        await client.head()
        await door.answer(session, await client.event(), '"result":{"n":1}')
        call = await door.peer.call()
        door.peer.write(Result(call.id, wants(two=FORM)))
        await door.answer(session, await client.event(), '"result":{"n":2}')
        call = await door.peer.call()
        assert codec.value(call.params) == {"name": "t", "inputResponses": {"two": {"n": 2}}}


async def test_a_server_that_only_wants_to_be_asked_again_is_but_not_for_ever() -> None:
    async with opened_door() as door:
        _, client, call = await started(door)
        for number in range(mrtr_io.ROUNDS_MAX):
            call = await again(door, call, wants(f"s{number}"))
            assert codec.value(call.params) == {"name": "t", "requestState": f"s{number}"}
        door.peer.write(Result(call.id, wants("s")))
        reply = await client.reply()  # nothing was told in between, so it is plain JSON
        assert reply.outcome == (200, -32603)
        assert "more than 10 times" in reply.message
        assert door.peer.quiet()


async def test_after_as_many_rounds_as_there_may_be_the_result_still_counts() -> None:
    async with opened_door() as door:
        _, client, call = await started(door)
        for _ in range(mrtr_io.ROUNDS_MAX):
            call = await again(door, call, wants("s"))
        door.peer.write(Result(call.id, b'{"n":1}'))
        assert (await client.reply()).json["result"] == {"n": 1}


@pytest.mark.promise("M23")
async def test_an_error_of_the_client_ends_the_call_with_that_error() -> None:
    async with opened_door() as door:
        session, client, call = await started(door)
        door.peer.write(Result(call.id, wants(one=FORM, two=FORM)))
        await client.head()
        first, second = await client.event(), await client.event()
        error = '{"code":-5,"message":"no","x":1.0}'
        await door.answer(session, first, f'"error":{error}')
        assert (await client.event())["params"]["requestId"] == second["id"]  # not wanted any more
        assert (await client.event())["error"] == codec.value(error.encode())
        await door.answer(session, second, '"result":{}')
        assert door.stats.refusals == {"stray_answer": 1}
        assert door.peer.quiet()


@pytest.mark.promise("M23")
async def test_a_server_that_asks_what_was_not_declared_fails_the_call_and_nobody_is_asked() -> (
    None
):
    async with opened_door() as door:
        door.offer(offer("t", protocol=MODERN))
        session = await door.initialize(elicitation={})
        client = await door.call(session)
        call = await door.peer.call()
        door.peer.write(Result(call.id, wants(who=FORM, said=SAMPLE)))
        reply = await client.reply()
        assert reply.outcome == (200, -32021)
        assert "sampling/createMessage" in reply.message


@pytest.mark.parametrize("body", [wants(), wants(who={"params": {}}), wants(who=1)])
async def test_a_result_that_asks_in_a_way_nobody_can_answer_fails_the_call(body: bytes) -> None:
    async with opened_door() as door:
        _, client, call = await started(door)
        door.peer.write(Result(call.id, body))
        assert (await client.reply()).outcome == (200, -32603)


async def test_a_result_that_only_mentions_the_word_passes_as_it_is() -> None:
    async with opened_door() as door:
        _, client, call = await started(door)
        body = b'{"content":[{"type":"text","text":"input_required"}], "x":1.0}'
        door.peer.write(Result(call.id, body))
        assert (await client.reply()).body.endswith(body + b"}")


@pytest.mark.promise("M23")
@pytest.mark.parametrize("how", ["cancel", "goodbye"])
async def test_a_client_that_gives_up_is_asked_no_longer_and_the_call_is_not_sent_again(
    how: str,
) -> None:
    async with opened_door() as door:
        session, client, call = await started(door)
        door.peer.write(Result(call.id, wants(who=FORM)))
        await client.head()
        question = await client.event()
        if how == "cancel":
            params = {"requestId": 1}
            await door.ask(legacy("notifications/cancelled", params, id=None, session=session))
        else:
            await door.ask(bodiless("DELETE", f"Mcp-Session-Id: {session}"))
        assert (await client.event())["params"]["requestId"] == question["id"]
        assert (await client.event())["error"]["code"] == -32800
        assert door.peer.quiet()


async def test_a_cancellation_between_the_rounds_reaches_the_call_that_is_at_the_server() -> None:
    async with opened_door() as door:
        session, client, call = await started(door)
        call = await again(door, call, wants("s"))
        params = {"requestId": 1}
        await door.ask(legacy("notifications/cancelled", params, id=None, session=session))
        assert (await door.peer.cancelled()).id == call.id
        assert (await client.reply()).outcome == (200, -32800)


async def test_an_error_of_the_server_in_a_later_round_is_the_answer() -> None:
    async with opened_door() as door:
        _, client, call = await started(door)
        call = await again(door, call, wants("s"))
        door.peer.write(Error(call.id, b'{"code":-7,"message":"m","x":1}'))
        assert (await client.reply()).json["error"] == {"code": -7, "message": "m", "x": 1}


async def test_a_server_that_goes_down_in_a_later_round_is_the_end_of_the_call() -> None:
    async with opened_door() as door:
        session, client, call = await started(door)
        door.peer.write(Result(call.id, wants(who=FORM)))
        await client.head()
        await door.answer(session, await client.event(), '"result":{}')
        await door.peer.call()
        door.peer.close()
        answer = await client.event()
        assert answer["error"]["data"]["may_have_run"] is True


async def test_a_tool_that_was_switched_off_meanwhile_is_not_called_again() -> None:
    async with opened_door() as door:
        session, client, call = await started(door)
        door.peer.write(Result(call.id, wants(who=FORM)))
        await client.head()
        question = await client.event()
        off = [replace(one, disabled=(("s", "t"),)) for one in door.spec.endpoints]
        door.steps.configure(replace(door.spec, endpoints=tuple(off)))
        door.calls.refresh()
        await door.answer(session, question, '"result":{}')
        assert (await client.event())["error"]["code"] == -32602
        assert door.peer.quiet()


@pytest.mark.parametrize("error", ['{"code":"x"}', "[]", '{"message":"m"}'])
async def test_an_error_of_the_client_that_is_none_ends_the_call_all_the_same(error: str) -> None:
    async with opened_door() as door:
        session, client, call = await started(door)
        door.peer.write(Result(call.id, wants(who=FORM)))
        await client.head()
        await door.answer(session, await client.event(), f'"error":{error}')
        assert (await client.event())["error"] == codec.value(error.encode())


async def test_a_call_that_was_too_large_to_be_kept_is_not_repeated() -> None:
    frame = CallFrame(1, "tools/call", b"{}")
    call = Waiting("s", frame, lambda call, reason: None, 0.0)
    drive = CallRoundTrips(call, None, start=lambda request: call, ask=lambda _: None, mint=str)
    found = await drive.finish(CallAnswer(wants("s")))
    assert found is not None
    assert found.code == Code.OVERLOADED
    plain = CallAnswer(b"{}")
    assert await drive.finish(plain) is plain


@pytest.mark.promise("M98")
async def test_only_so_much_is_kept_of_calls_that_may_have_to_be_repeated() -> None:
    kept = ParkedBudget()
    params = codec.level(b'{"a":"%b"}' % (b"x" * (mrtr_io.KEPT_BYTES_MAX // 2)))
    request = McpRequest("tools/call", params, {}, b"", modern=False)
    first = kept.take(request)
    assert first is not None
    assert kept.take(request) is None
    kept.give(first)
    assert kept.take(request) == first


async def test_a_call_that_is_cancelled_when_its_answer_is_there_asks_nobody() -> None:
    frame = CallFrame(1, "tools/call", b"{}")
    call = Waiting("s", frame, lambda call, reason: None, 0.0)
    caller = b'{"clientCapabilities":{"elicitation":{}}}'
    request = McpRequest("tools/call", {}, {}, caller, modern=False)
    asked: list[Question] = []
    drive = CallRoundTrips(call, request, start=lambda request: call, ask=asked.append, mint=str)
    drive.cancel("the client cancelled it")
    assert await drive.finish(CallAnswer(wants(who=FORM))) is None
    assert not asked
