"""Built-in tools at work: answered in both eras, ordered, told when it is done, never lost."""

from typing import Any

import pytest
from msgspec.structs import replace

from metamcp_worker.access import gate
from metamcp_worker.builtin_tools import servers_tools
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_steps import builtin_calls
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import (
    Activate,
    DisclosureState,
    OrderOutcome,
    ViewContent,
    ViewOrder,
    ViewOwner,
)
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.messages import ServerState
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import answer_of
from tests.worker.front.offers import endpoint, offer

HERE = ViewOwner("default", gate.LOCAL)
SPEC = replace(endpoint("a", "b"), exposure="servers")


def called(name: str, arguments: str = "{}", *, modern: bool = False, who: str = "") -> Any:
    asked = request("tools/call", f'{{"name":"{name}","arguments":{arguments}}}'.encode())
    asked.modern, asked.who = modern, who
    return asked


def read(answer: CallAnswer) -> dict[str, Any]:
    assert answer.code == 0
    found: dict[str, Any] = codec.value(answer.body)
    return found


class Supervisor:
    """What is asked of it, and what it answers."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.asked: list[tuple[int, ViewOrder]] = []
        front.steps.builtins.send = lambda ticket, wish: self.asked.append((ticket, wish))

    def answer(
        self, ticket: int, outcome: OrderOutcome, *views: tuple[ViewOwner, ViewContent]
    ) -> None:
        calls = self._front.calls
        self._front.steps.builtins.disclose(DisclosureState(views))
        calls.refresh()
        self._front.steps.builtins.on_order_outcome(ticket, outcome)


@pytest.mark.promise("M35")
@pytest.mark.parametrize("modern", [False, True])
async def test_the_gateway_tells_its_servers_and_their_states_itself(*, modern: bool) -> None:
    async with opened_front(SPEC, a=offer("t", "u"), b=offer("v")) as front:
        down = ServerState(server="b", state="error", listed=False, message="it exited with 3")
        front.calls.server_state(down)
        front.calls.refresh()
        call = front.calls.start(front.view, called("gateway_status", modern=modern), None)
        result = read(await answer_of(call))
        assert result["structuredContent"]["servers"] == [
            {"name": "a", "state": "ready", "ready": True, "active": False, "tools": 2},
            {
                "name": "b", "state": "error", "ready": False, "active": False, "tools": 1,
                "error": "it exited with 3",
            },
        ]  # fmt: skip
        assert result["isError"] is False
        assert result.get("resultType") == ("complete" if modern else None)
        (figures,) = front.stats.tools()
        assert (figures.server, figures.tools, figures.counts) == (
            "_gateway",
            ("gateway_status",),
            (1,),
        )


@pytest.mark.promise("M35")
async def test_a_client_hears_of_an_activation_when_its_tools_are_in_the_list() -> None:
    async with opened_front(SPEC, a=offer("t", "u"), b=offer("v")) as front:
        supervisor, answered = Supervisor(front), list[bool]()
        call = front.calls.start(front.view, called("gateway_activate", '{"name":"a"}'), None)
        front.calls.lists_changed = lambda changed: answered.append(call.answer.is_done())
        ((ticket, wish),) = supervisor.asked
        assert wish == ViewOrder(HERE, Activate("a"))
        assert not call.answer.is_done()
        shown = ViewContent(servers=("a",))
        supervisor.answer(ticket, OrderOutcome(after=shown), (HERE, shown))
        result = read(await answer_of(call))
        assert result["content"][0]["text"] == "a is active: its 2 tools are in view: a__t, a__u."
        assert result["structuredContent"]["state"] == "active"
        assert answered == [False]  # when the change was told
        assert b"a__t" in front.view.page("tools/list", {}, modern=False)


async def test_an_order_that_failed_is_a_failure_of_the_tool_with_its_reason() -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("v")) as front:
        supervisor = Supervisor(front)
        call = front.calls.start(front.view, called("gateway_activate", '{"name":"a"}'), None)
        supervisor.answer(supervisor.asked[0][0], OrderOutcome(error="the disk is full"))
        result = read(await answer_of(call))
        assert result["isError"]
        assert result["content"][0]["text"] == "Failed to activate a: the disk is full"


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"name":"c"}', "There is no server 'c' behind this endpoint; there are: a, b."),
        ("{}", "missing required field `name`"),
        ('{"name":1}', "Expected `str`"),
        ('{"name":"a","x":1}', "unknown field `x`"),
        ("[]", "it takes: name."),
    ],
)
async def test_wrong_arguments_are_told_and_nothing_is_ordered(arguments: str, said: str) -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("v")) as front:
        supervisor = Supervisor(front)
        call = front.calls.start(front.view, called("gateway_activate", arguments), None)
        result = read(await answer_of(call))
        assert result["isError"]
        assert said in result["content"][0]["text"]
        assert not supervisor.asked


@pytest.mark.promise("M37")
async def test_what_may_not_be_called_out_of_view_is_told_with_what_brings_it_there() -> None:
    async with opened_front(replace(SPEC, call_hidden=False), a=offer("t"), b=offer("v")) as front:
        with pytest.raises(ProtocolError) as refused:
            front.calls.start(front.view, called("a__t"), None)
        assert refused.value.message == (
            "The tool a__t is not in view, and only what is in view may be called here. "
            + servers_tools.GUIDE
        )
        with pytest.raises(ProtocolError) as unknown:
            front.calls.start(front.view, called("a__x"), None)
        assert unknown.value.message == "Unknown tool: a__x"


@pytest.mark.promise("M37")
@pytest.mark.parametrize("hidden", [False, True])
async def test_a_method_that_nobody_knows_goes_to_the_only_server_if_that_may_be_asked(
    *, hidden: bool
) -> None:
    async with opened_front(
        replace(endpoint("a"), exposure="servers", call_hidden=hidden), a=offer("t")
    ) as front:
        asked = request("example.com/echo", b"{}")
        if hidden:
            front.calls.start(front.view, asked, None)
        else:
            with pytest.raises(ProtocolError) as unknown:
                front.calls.start(front.view, asked, None)
            assert unknown.value.code == Code.METHOD_NOT_FOUND


async def test_a_supervisor_that_does_not_answer_in_time_is_told_and_comes_too_late() -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("v")) as front:
        supervisor = Supervisor(front)
        call = front.calls.start(front.view, called("gateway_activate", '{"name":"a"}'), None)
        ((ticket, _),) = supervisor.asked
        front.steps.builtins.on_order_timeout(ticket)
        assert "did not answer in time" in read(await answer_of(call))["content"][0]["text"]
        supervisor.answer(ticket, OrderOutcome())


async def test_more_orders_than_may_wait_are_refused_and_those_that_wait_are_not() -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("v")) as front:
        supervisor = Supervisor(front)

        def activate() -> Call:
            return front.calls.start(front.view, called("gateway_activate", '{"name":"a"}'), None)

        waiting = [activate() for _ in range(builtin_calls.ORDERS_MAX)]
        one_more = read(await answer_of(activate()))
        assert one_more["isError"]
        assert "orders wait already" in one_more["content"][0]["text"]
        for ticket, _ in supervisor.asked:
            supervisor.answer(ticket, OrderOutcome())
        assert not [call for call in waiting if read(await answer_of(call))["isError"]]


async def test_who_goes_away_is_counted_and_what_was_ordered_is_done() -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("v")) as front:
        supervisor = Supervisor(front)
        call = front.calls.start(front.view, called("gateway_activate", '{"name":"a"}'), None)
        call.cancel("the client went away")
        assert await call.answer.wait() is None
        shown = ViewContent(servers=("a",))
        supervisor.answer(supervisor.asked[0][0], OrderOutcome(after=shown), (HERE, shown))
        assert b"a__t" in front.view.page("tools/list", {}, modern=False)
        (figures,) = front.stats.calls()
        assert figures.error_type == "cancelled"
        assert figures.count == 1


@pytest.mark.promise("M37")
async def test_an_order_is_about_the_principals_view_or_that_of_the_session_alone() -> None:
    async with opened_front(replace(SPEC, per_session=True), a=offer("t"), b=offer("v")) as front:
        supervisor = Supervisor(front)
        for modern in (False, True):
            asked = called("gateway_activate", '{"name":"a"}', modern=modern, who="w1")
            front.calls.start(front.view, asked, None)
        assert [wish.whose.session for _, wish in supervisor.asked] == ["w1", ""]


async def test_a_server_that_is_down_is_not_activated_and_the_reason_is_told() -> None:
    async with opened_front(SPEC, a=offer("t"), b=offer("v")) as front:
        supervisor = Supervisor(front)
        down = ServerState(
            server="a", state="error", listed=False, message="it exited with 3",
            retry_after_ms=4000,
        )  # fmt: skip
        front.calls.server_state(down)
        call = front.calls.start(front.view, called("gateway_activate", '{"name":"a"}'), None)
        result = read(await answer_of(call))
        assert result["isError"]
        assert result["content"][0]["text"] == (
            "a was not activated: it is in error: it exited with 3; it is tried again in 4 s."
        )
        assert not supervisor.asked
