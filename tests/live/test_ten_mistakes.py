"""What gateways get wrong most, one test for each, in every combination of eras in which it can
happen: what is asked, told, cancelled, announced and listed between a client and its server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live.cells import ABLE, CELLS, Asked, called, cells, client, servers, state, text
from tests.live.gateway import Gateway, fake
from tests.live.raw import MODERN
from tests.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({**servers(), "loop": fake("--cursor-loop", "--era", "both")}) as running:
        yield running


QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "elicit": ("elicitation/create", {"action": "accept", "content": {"name": "Ada", "n": 1.5}}),
    "sample": (
        "sampling/createMessage",
        {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m", "x": [1]},
    ),
    "roots": ("roots/list", {"roots": [{"uri": "file:///r", "name": "r", "x": 1.5}]}),
}


@pytest.mark.promise("M23")
@pytest.mark.parametrize("tool", QUESTIONS)
@cells
def test_1_what_a_server_asks_reaches_the_client_and_the_answer_the_server(
    gateway: Gateway, cell: str, tool: str
) -> None:
    method, answer = QUESTIONS[tool]
    asked = Asked(client(gateway, cell, ABLE), called(cell, tool))
    assert asked.question()[0] == method
    result = asked.answer(answer)
    assert json.loads(result["content"][0]["text"]) == answer


@pytest.mark.promise("M23")
@cells
def test_1_a_server_asks_nothing_that_the_client_did_not_declare(
    gateway: Gateway, cell: str
) -> None:
    with client(gateway, cell).ask("tools/call", called(cell, "sample")) as stream:
        before, answer = stream.until(b"1")
    assert before == []
    said = bytes(answer.error or answer.result)
    assert b"input_required" not in said
    assert b"-32601" in said or b"-32021" in said, "the server was told that it cannot"


@pytest.mark.promise("M23")
@cells
def test_2_progress_reaches_the_client_under_its_own_token_before_the_answer(
    gateway: Gateway, cell: str
) -> None:
    asking = client(gateway, cell)
    for token in (b'"7"', b"7"):
        meta = b'"progressToken":' + token
        with asking.ask("tools/call", called(cell, "progress", n=3), meta=meta) as stream:
            before, answer = stream.until(b"1")
        assert [one.method for one in before] == ["notifications/progress"] * 3
        told = [codec.level(one.params) for one in before]
        assert [bytes(one["progress"]) for one in told] == [b"1", b"2", b"3"]
        assert {bytes(one["progressToken"]) for one in told} == {token}
        assert answer.result


@pytest.mark.promise("M23")
@cells
def test_2_log_messages_reach_the_client_that_wants_them(gateway: Gateway, cell: str) -> None:
    modern = CELLS[cell][0] == MODERN
    asking = client(gateway, cell, log_level="warning" if modern else None)
    if not modern:
        assert asking.result("logging/setLevel", b'{"level":"warning"}') == {}
    heard: list[str] = []
    for level in ("debug", "error"):
        with asking.ask("tools/call", called(cell, "log", text=level, level=level)) as stream:
            before, _ = stream.until(b"1")
        assert {one.method for one in before} <= {"notifications/message"}
        heard += [codec.value(one.params)["data"] for one in before]
    assert heard == ["error"]
    if modern:
        quiet = client(gateway, cell).ask("tools/call", called(cell, "log", level="emergency"))
        with quiet as stream:
            assert stream.until(b"1")[0] == []


@pytest.mark.promise("M23")
@cells
def test_3_a_cancelled_call_is_cancelled_at_its_server_and_no_other(
    gateway: Gateway, cell: str
) -> None:
    asking, other = client(gateway, cell), client(gateway, cell)
    # Three calls with one id: two of one server, one of the other.
    elsewhere = next(name for name in CELLS if name[0] == cell[0] and name != cell)
    before, there = cancelled(gateway, cell), cancelled(gateway, elsewhere)
    slow = asking.start("tools/call", called(cell, "sleep", ms=60_000), b'"same"')
    same = other.start("tools/call", called(cell, "sleep", ms=2000), b'"same"')
    third = client(gateway, elsewhere).start(
        "tools/call", called(elsewhere, "sleep", ms=2000), b'"same"'
    )
    until(lambda: gateway.server(CELLS[cell][1])["inflight"] == 2, "both calls are there")
    if asking.era == MODERN:
        slow.close()
    else:
        asking.tell("notifications/cancelled", b'{"requestId":"same","reason":"enough"}')
    for stream in (same.stream(), third.stream()):
        with stream:
            assert stream.until(b'"same"')[1].result
    slow.close()
    until(lambda: len(cancelled(gateway, cell)) == len(before) + 1, "the server heard of it")
    assert cancelled(gateway, elsewhere) == there


def cancelled(gateway: Gateway, cell: str) -> list[Any]:
    """The requests of which the cell's server heard that nobody waits for them."""
    told = state(client(gateway, cell), cell)["told"]
    return [one["params"]["requestId"] for one in told if one["method"].endswith("/cancelled")]


@pytest.mark.promise("M28", "M23")
@cells
def test_4_a_changed_list_is_announced_and_is_the_new_one_then(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell)
    with asking.listen(toolsListChanged=True) as news:
        name = text(asking, cell, "change")
        assert news.next().method == "notifications/tools/list_changed"
        assert f"{CELLS[cell][1]}__{name}" in asking.names()


@pytest.mark.promise("M23")
@cells
def test_4_an_updated_resource_is_told_to_those_who_watch_it(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell)
    uri = "fake://one" if CELLS[cell][1] == "old" else "fake://new/one"
    news = asking.listen(resourceSubscriptions=[uri, "fake://gone"])
    if asking.era != MODERN:
        asking.result("resources/subscribe", codec.dump({"uri": uri}))
    until(lambda: text(asking, cell, "touch", uri="fake://one") == "1", "the server knows of it")
    with news:
        told = news.next()
    assert told.method == "notifications/resources/updated"
    params = codec.value(told.params)
    assert (params["uri"], params["x-kept"]) == (uri, 1.0)
    if asking.era != MODERN:
        asking.result("resources/unsubscribe", codec.dump({"uri": uri}))
    until(lambda: text(asking, cell, "touch", uri="fake://one") == "0", "nobody watches it")


@pytest.mark.promise("M20")
@cells
def test_5_every_page_of_a_list_is_there_once(gateway: Gateway, cell: str) -> None:
    server = CELLS[cell][1]
    names = client(gateway, cell).names()
    ours = [name for name in names if name.startswith(f"{server}__t0")]
    assert ours == [f"{server}__t{number:03}" for number in range(30)]
    assert len(names) == len(set(names))


@pytest.mark.promise("M20", "M98")
@cells
def test_5_a_list_whose_pages_go_round_ends(gateway: Gateway, cell: str) -> None:
    names = client(gateway, cell).names()
    assert len([name for name in names if name == "loop__echo"]) == 1
    broken = client(gateway, cell).answer("tools/list", b'{"cursor":"none of ours"}')
    assert codec.value(broken.error)["code"] == -32602
