"""A call through `call_tool`: for the server, and for who looks, it is a call like any other."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import Result
from tests.worker.front.called import opened_front, request
from tests.worker.front.callers import answer_of
from tests.worker.front.offers import endpoint, offer

SPEC = replace(endpoint("a", "b"), exposure="search")
ARGUMENTS = b'{"n": 1.50, "s":"\\u00e9"}'
RESULT = b'{"content":[], "x-own": 1.0}'


def asked(name: str, *, modern: bool = True) -> McpRequest:
    params = b'{"name":"call_tool","arguments":{"name":"%b","arguments":%b}}'
    found = request("tools/call", params % (name.encode(), ARGUMENTS))
    found.modern = modern
    return found


class Counting:
    """Which calls began, and which are over."""

    def __init__(self) -> None:
        self.begun_: list[tuple[str, str]] = []
        self.over: list[str] = []

    def on_call_start(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw], run: str
    ) -> None:
        self.begun_.append((call.server, subject))

    def on_call_end(
        self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str
    ) -> None:
        self.over.append(call.server)


@pytest.mark.promise("M37", "M22")
@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("name", ["a__t", "a.t"])
async def test_arguments_and_result_cross_as_the_bytes_that_they_are(
    name: str, *, modern: bool
) -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("u")) as front:
        call = front.calls.start(front.view, asked(name, modern=modern), None)
        sent = await front.peers["a"].call()
        params = codec.level(sent.params)
        assert bytes(params["name"]) == b'"t"'
        assert bytes(params["arguments"]) == ARGUMENTS
        front.peers["a"].write(Result(sent.id, RESULT))
        answer = await answer_of(call)
        assert (answer.code, b'"x-own": 1.0' in answer.body) == (0, True)


async def test_it_is_one_call_and_that_of_its_server() -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("u")) as front:
        witness = Counting()
        front.calls.observers = (witness,)
        call = front.calls.start(front.view, asked("a.t"), None)
        sent = await front.peers["a"].call()
        front.peers["a"].write(Result(sent.id, RESULT))
        await answer_of(call)
        assert witness.begun_ == [("a", "a__t")]
        assert witness.over == ["a"]
        (figures,) = front.stats.tools()
        assert (figures.server, figures.tools, figures.counts) == ("a", ("t",), (1,))


async def test_what_a_built_in_tool_answers_itself_is_one_call_too() -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("u")) as front:
        witness = Counting()
        front.calls.observers = (witness,)
        call = front.calls.start(front.view, asked("a.nothing"), None)
        result: dict[str, Any] = codec.value((await answer_of(call)).body)
        assert result["isError"]
        assert witness.begun_ == [("_gateway", "call_tool")]
        assert witness.over == ["_gateway"]
