"""Questions of a legacy server to a client that cannot be asked in between, over a real socket."""

from typing import Any

import pytest

from metamcp_worker.catalog.uris import URI_BYTES_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Error, Progress, QuestionFrame, ReplyFrame, Result
from tests.worker.front.door import META, Door, modern, opened_door
from tests.worker.front.offers import MODERN, offer, prompt, resource

from ..rawhttp import Client
from ..rawhttp import Reply as Http

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ABLE: dict[str, Any] = {
    **META, CAPABILITIES: {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}},
}  # fmt: skip
FORM = b'{"message":"Name?", "requestedSchema":{"x":1.0}}'
ACCEPT = {"action": "accept", "content": {"name": "Ada", "n": 1.0}}
TOOL: tuple[str, dict[str, Any]] = ("tools/call", {"name": "t", "arguments": {"n": 1.0}})
ASKED: list[tuple[str, dict[str, Any]]] = [
    TOOL, ("prompts/get", {"name": "p"}), ("resources/read", {"uri": "a:b"}),
]  # fmt: skip


async def interrupted(
    door: Door, method: str = TOOL[0], params: dict[str, Any] = TOOL[1], question: bytes = FORM
) -> tuple[Client, CallFrame, dict[str, Any]]:
    """A client whose request was answered with a question; the call; the result."""
    door.offer(offer("t", "u", prompts=[prompt("p")], resources=[resource("a:b")]))
    client = await door.connect()
    client.send(modern(method, params, meta=ABLE))
    call = await door.peer.call()
    door.peer.write(QuestionFrame(call.id, 5, "elicitation/create", question))
    reply = await client.reply()
    assert reply.status == 200
    return client, call, reply.json["result"]


def retry(
    result: dict[str, Any],
    method: str = TOOL[0],
    params: dict[str, Any] = TOOL[1],
    answer: object = ACCEPT,
    meta: dict[str, Any] = ABLE,
) -> bytes:
    params = {**params, "requestState": result["requestState"]}
    if answer is not None:
        params["inputResponses"] = {"k1": answer}
    return modern(method, params, id="again", meta=meta)


@pytest.mark.promise("M23")
@pytest.mark.parametrize(("method", "params"), ASKED)
async def test_a_question_is_the_answer_and_the_retry_goes_on_with_the_call(
    method: str, params: dict[str, Any]
) -> None:
    async with opened_door() as door:
        client, call, result = await interrupted(door, method, params)
        question = {"method": "elicitation/create", "params": codec.value(FORM)}
        assert result["resultType"] == "input_required"
        assert result["inputRequests"] == {"k1": question}
        client.send(retry(result, method, params))
        assert await door.peer.read() == ReplyFrame(5, codec.dump(ACCEPT))
        door.peer.write(Result(call.id, b'{"n":1.0, "resultType":"complete","ttlMs":0}'))
        reply = await client.reply()
        assert reply.json["id"] == "again"
        assert b'"n":1.0, "resultType"' in reply.body


@pytest.mark.promise("M23")
async def test_a_call_may_be_interrupted_again_and_again_and_its_client_may_leave_in_between() -> (
    None
):
    async with opened_door() as door:
        client, call, result = await interrupted(door)
        for number in range(2, 5):
            await client.close()
            client = await door.connect()
            answer = {f"k{number - 1}": ACCEPT}
            params = {**TOOL[1], "inputResponses": answer, "requestState": result["requestState"]}
            client.send(modern("tools/call", params, meta=ABLE))
            assert isinstance(await door.peer.read(), ReplyFrame)
            door.peer.write(QuestionFrame(call.id, 5 + number, "roots/list", b"{}"))
            result = (await client.reply()).json["result"]
            assert list(result["inputRequests"]) == [f"k{number}"]
        assert door.peer.quiet()


@pytest.mark.promise("M23")
async def test_what_is_told_before_a_question_and_behind_it_goes_to_the_request_that_waits() -> (
    None
):
    async with opened_door() as door:
        door.offer(offer("t"))
        client = await door.connect()
        client.send(modern(*TOOL, meta={**ABLE, "progressToken": "first"}))
        call = await door.peer.call()
        door.peer.write(Progress(call.id, b'{"progress":1}'))
        door.peer.write(QuestionFrame(call.id, 5, "elicitation/create", FORM))
        await client.head()
        assert (await client.event())["params"]["progressToken"] == "first"
        result = (await client.event())["result"]
        assert await client.event() is None
        client.send(retry(result, meta={**ABLE, "progressToken": "second"}))
        await door.peer.read()
        door.peer.write(Progress(call.id, b'{"progress":2}'))
        door.peer.write(Result(call.id, b"{}"))
        await client.head()
        assert (await client.event())["params"] == {"progressToken": "second", "progress": 2}
        assert (await client.event())["id"] == "again"


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("method", "params", "meta"),
    [
        (*TOOL, META),
        (*TOOL, {**META, CAPABILITIES: {"roots": {}}}),
        ("example.com/x", {}, ABLE),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}}, ABLE),
    ],
)
async def test_what_cannot_be_asked_is_refused_and_the_call_goes_on(
    method: str, params: dict[str, Any], meta: dict[str, Any]
) -> None:
    async with opened_door() as door:
        door.offer(offer("t", prompts=[prompt("p")]))
        client = await door.connect()
        client.send(modern(method, params, meta=meta))
        call = await door.peer.call()
        door.peer.write(QuestionFrame(call.id, 5, "elicitation/create", FORM))
        reply = await door.peer.read()
        assert isinstance(reply, ReplyFrame)
        assert (reply.question, reply.failed) == (5, True)
        door.peer.write(Result(call.id, b"{}"))
        assert (await client.reply()).json["result"] == {"resultType": "complete"}


def refused(reply: Http) -> str:
    assert reply.outcome == (400, Code.INVALID_PARAMS)
    return reply.message


@pytest.mark.promise("M23")
async def test_a_state_works_once_for_its_request_and_survives_what_is_wrong() -> None:
    async with opened_door() as door:
        client, call, result = await interrupted(door)
        forged = {"requestState": result["requestState"] + "x"}
        other = {**TOOL[1], "arguments": {"n": 2.0}}
        assert "of no use" in refused(await door.ask(retry(forged)))
        assert "another request" in refused(await door.ask(retry(result, params=other)))
        path = "/metamcp/dev/mcp"
        body = {**TOOL[1], "requestState": result["requestState"]}
        elsewhere = modern("tools/call", body, meta=ABLE, path=path)
        assert "of no use" in refused(await door.ask(elsewhere))
        broken = modern("tools/call", {**body, "inputResponses": []}, meta=ABLE)
        assert "inputResponses must be" in refused(await door.ask(broken))
        away = retry({"requestState": "metamcp.another-front.token"})
        assert "has expired" in refused(await door.ask(away))
        client.send(retry(result))
        assert isinstance(await door.peer.read(), ReplyFrame)
        assert "of no use" in refused(await door.ask(retry(result)))
        door.peer.write(Result(call.id, b"{}"))
        assert (await client.reply()).status == 200
        assert door.peer.quiet()


@pytest.mark.parametrize("answer", [None, 7, "x"])
async def test_an_answer_that_is_none_is_asked_for_again(answer: object) -> None:
    async with opened_door() as door:
        client, _, result = await interrupted(door)
        client.send(retry(result, answer=answer))
        again = (await client.reply()).json["result"]
        assert again["inputRequests"] == result["inputRequests"]
        assert again["requestState"] != result["requestState"]
        client.send(retry(again))
        assert isinstance(await door.peer.read(), ReplyFrame)


@pytest.mark.promise("M23")
async def test_a_client_that_goes_away_while_it_waits_ends_the_call() -> None:
    async with opened_door() as door:
        client, call, result = await interrupted(door)
        client.send(retry(result))
        assert isinstance(await door.peer.read(), ReplyFrame)
        await client.close()
        assert (await door.peer.cancelled()).id == call.id
        assert "of no use" in refused(await door.ask(retry(result)))


@pytest.mark.promise("M23")
async def test_a_front_that_ends_ends_the_calls_whose_clients_are_away() -> None:
    async with opened_door() as door:
        _, call, _ = await interrupted(door)
        await door.app.drain(0)
        assert await door.peer.read() == ReplyFrame(5, b'{"action":"cancel"}')
        cancelled = await door.peer.cancelled()
        assert (cancelled.id, cancelled.reason) == (call.id, b"the gateway is stopping")


@pytest.mark.promise("M23")
async def test_between_peers_of_this_era_states_come_back_and_answers_pass_as_they_are() -> None:
    async with opened_door() as door:
        door.offer(offer("t", protocol=MODERN))
        client = await door.connect()
        given = {**TOOL[1], "inputResponses": {"x": {"n": 1.0}}}
        client.send(modern("tools/call", given, meta=ABLE))
        call = await door.peer.call()
        assert call.params == codec.dump(given)
        door.peer.write(QuestionFrame(call.id, 5, "elicitation/create", FORM))  # not in this era
        assert isinstance(await door.peer.read(), ReplyFrame)
        result = b'{"resultType":"input_required" ,"requestState":"\\u0061", "n":1.0}'
        door.peer.write(Result(call.id, result))
        found = (await client.reply()).json["result"]
        assert (found["resultType"], found["n"]) == ("input_required", 1.0)
        client.send(
            modern("tools/call", given | {"requestState": found["requestState"]}, meta=ABLE)
        )
        call = await door.peer.call()
        assert call.params.endswith(b',"requestState":"\\u0061"}')


async def test_a_legacy_server_never_sees_states_and_answers() -> None:
    async with opened_door() as door:
        given = {**TOOL[1], "requestState": "theirs"}
        assert "of no use" in refused(await door.ask(modern("tools/call", given, meta=ABLE)))
        client = await door.connect()
        answered = {**TOOL[1], "inputResponses": {"k1": ACCEPT}, "requestState": None}
        client.send(modern("tools/call", answered, meta=ABLE))
        assert codec.value((await door.peer.call()).params) == TOOL[1]


VISIT = {"mode": "url", "message": "Sign in", "elicitationId": "e1", "url": "https://a"}


@pytest.mark.promise("M23")
async def test_an_error_that_demands_a_visit_becomes_a_question_and_the_retry_a_new_call() -> None:
    async with opened_door() as door:
        client = await door.connect()
        client.send(modern(*TOOL, meta=ABLE))
        error = {"code": -32042, "message": "visit", "data": {"elicitations": [VISIT]}}
        door.peer.write(Error((await door.peer.call()).id, codec.dump(error)))
        params = {key: value for key, value in VISIT.items() if key != "elicitationId"}
        assert (await client.reply()).json["result"] == {
            "resultType": "input_required",
            "inputRequests": {"k1": {"method": "elicitation/create", "params": params}},
        }
        client.send(modern("tools/call", {**TOOL[1], "inputResponses": {"k1": ACCEPT}}, meta=ABLE))
        call = await door.peer.call()
        assert codec.value(call.params) == TOOL[1]
        door.peer.write(Result(call.id, b"{}"))
        assert (await client.reply()).status == 200


@pytest.mark.parametrize(
    ("elicitations", "outcome"),
    [([VISIT], (400, Code.MISSING_CAPABILITY)), ([], (200, Code.INTERNAL_ERROR))],
)
async def test_a_visit_that_nobody_can_make_is_an_error_of_this_era(
    elicitations: list[Any], outcome: tuple[int, int]
) -> None:
    async with opened_door() as door:
        client = await door.connect()
        client.send(modern(*TOOL, meta={**META, CAPABILITIES: {"elicitation": {}}}))
        data = {"elicitations": elicitations}
        error = {"code": -32042, "message": "visit", "data": data}
        door.peer.write(Error((await door.peer.call()).id, codec.dump(error)))
        reply = await client.reply()
        assert reply.outcome == outcome
        if elicitations:
            needed: dict[str, Any] = {"elicitation": {"url": {}}}
            assert reply.json["error"]["data"] == {"requiredCapabilities": needed}


async def test_a_uri_that_is_too_long_is_looked_for_nowhere() -> None:
    async with opened_door() as door:
        uri = "a:" + "b" * URI_BYTES_MAX
        again = modern("resources/read", {"uri": uri, "requestState": "metamcp.x.y"}, meta=ABLE)
        refused = await door.ask(again)
        assert refused.outcome == (400, -32602)
        assert refused.message.startswith("No resource has a name of more than")
