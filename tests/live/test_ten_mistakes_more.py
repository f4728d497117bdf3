"""What gateways get wrong most, one test for each, in every combination of eras in which it can
happen: what becomes of sessions, processes, other clients, errors and definitions."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live import odd
from tests.live.cells import ABLE, CELLS, Asked, called, cells, client, servers, text
from tests.live.gateway import Gateway
from tests.live.raw import LEGACY, MODERN, Raw
from tests.waiting import until

pytestmark = pytest.mark.live

SESSIONS = 300
CLIENTS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    odd_ones = {
        "oddold": odd.entry(folder / "old.json", "legacy"),
        "oddnew": odd.entry(folder / "new.json", "modern"),
    }
    with Gateway({**servers(), **odd_ones}) as running:
        yield running


@pytest.mark.promise("M72")
@cells
def test_6_a_client_goes_on_after_its_server_was_started_anew(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell)
    before = text(asking, cell, "pid")
    lost = codec.value(asking.answer("tools/call", called(cell, "crash")).error)
    assert (lost["code"], lost["data"]["server"]) == (-10001, CELLS[cell][1])
    until(lambda: bool(asking.answer("tools/call", called(cell, "pid")).result), "it is back")
    assert text(asking, cell, "pid") != before


@pytest.mark.promise("M23")
@cells
def test_6_what_a_client_watches_is_asked_for_again_after_a_restart(
    gateway: Gateway, cell: str
) -> None:
    asking = client(gateway, cell)
    uri = "fake://one" if CELLS[cell][1] == "old" else "fake://new/one"
    with asking.listen(resourceSubscriptions=[uri]) as news:
        if asking.era != MODERN:
            asking.result("resources/subscribe", codec.dump({"uri": uri}))
        gateway.ctl("restart", CELLS[cell][1], "--wait")
        until(lambda: text(asking, cell, "touch", uri="fake://one") == "1", "it is watched again")
        while news.next().method != "notifications/resources/updated":
            pass  # The lists may have been others for a moment.


@pytest.mark.promise("M15")
def test_7_sessions_that_nobody_ends_cost_no_process(gateway: Gateway) -> None:
    assert text(client(gateway, "L->L"), "L->L", "echo", text="warm") == "warm"
    before = gateway.left()
    sessions = {Raw(gateway.port, LEGACY).session for _ in range(SESSIONS)}
    assert len(sessions) == SESSIONS
    assert text(client(gateway, "L->M"), "L->M", "echo", text="here") == "here"
    assert gateway.left() == before


@pytest.mark.promise("M21")
@cells
def test_8_clients_with_the_same_ids_and_tokens_get_their_own(gateway: Gateway, cell: str) -> None:
    def one(number: int) -> set[tuple[str, bytes]]:
        asking = client(gateway, cell)
        meta = b'"progressToken":"same"'
        words = f"for {number}"
        seen: set[tuple[str, bytes]] = set()
        for _ in range(10):
            assert text(asking, cell, "echo", text=words) == words
            with asking.ask("tools/call", called(cell, "progress", n=2), meta=meta) as stream:
                seen |= {(one.method or "", bytes(one.id)) for one in stream.until(b"1")[0]}
        return seen

    with ThreadPoolExecutor(CLIENTS) as pool:
        for seen in pool.map(one, range(CLIENTS)):
            assert seen == {("notifications/progress", b"")}


@pytest.mark.promise("M23")
@pytest.mark.parametrize("cell", ["M->M", "L->M"])
def test_8_a_server_hears_of_each_client_what_that_client_says_of_itself(
    gateway: Gateway, cell: str
) -> None:
    able = {"sampling": {}, "experimental": {"x": {"n": 1.5}}}
    mine, other = client(gateway, cell, able), client(gateway, cell)
    declared = json.loads(text(mine, cell, "client"))["capabilities"]
    assert declared == able
    assert json.loads(text(other, cell, "client"))["capabilities"] == {}


@pytest.mark.promise("M23")
@pytest.mark.parametrize("cell", ["M->M", "L->M"])
def test_8_a_question_reaches_the_client_whose_call_it_belongs_to(
    gateway: Gateway, cell: str
) -> None:
    def one(number: int) -> str:
        asked = Asked(client(gateway, cell, ABLE), called(cell, "elicit", message=f"{number}?"))
        _, question = asked.question()
        assert question["message"] == f"{number}?"
        answer = {"action": "accept", "content": {"name": f"for {number}"}}
        found: dict[str, Any] = asked.answer(answer)
        said: str = json.loads(found["content"][0]["text"])["content"]["name"]
        return said

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(one, range(CLIENTS))) == [f"for {n}" for n in range(CLIENTS)]


@pytest.mark.promise("M23")
@cells
def test_8_nobody_gets_the_log_messages_of_another_ones_call(gateway: Gateway, cell: str) -> None:
    other = client(gateway, cell)
    with other.listen(toolsListChanged=True) as news:
        asking = client(gateway, cell, log_level="debug")
        if asking.era != MODERN:
            asking.result("logging/setLevel", b'{"level":"debug"}')
        with asking.ask("tools/call", called(cell, "log", text="mine")) as stream:
            assert [one.method for one in stream.until(b"1")[0]] == ["notifications/message"]
        text(asking, cell, "change")
        assert news.next().method == "notifications/tools/list_changed"


@pytest.mark.promise("M22")
@cells
def test_9_an_error_stays_an_error_and_a_failure_a_result(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell)
    error = codec.value(asking.answer("tools/call", called(cell, "error", code=-31999)).error)
    assert (error["code"], error["data"]["n"], error["x-error"]) == (-31999, 1.0, ["kept"])
    failure = asking.result("tools/call", called(cell, "fail"))
    assert failure["isError"] is True
    assert failure["content"][0]["x-content"] == {"kept": 1}


@pytest.mark.promise("M75")
@cells
def test_9_a_server_that_is_away_is_no_unknown_tool_and_takes_nothing_with_it(
    gateway: Gateway, cell: str
) -> None:
    server = CELLS[cell][1]
    asking = client(gateway, cell)
    gateway.ctl("stop", server, "--wait")
    error = codec.value(asking.answer("tools/call", called(cell, "echo")).error)
    names = asking.names()
    gateway.ctl("start", server, "--wait")
    assert (error["code"], error["data"]["server"]) == (-10001, server)
    assert not [name for name in names if name.startswith(f"{server}__")]
    assert [name for name in names if name.startswith("odd")]
    until(lambda: f"{server}__echo" in asking.names(), "its tools are back")


@pytest.mark.promise("M22")
@cells
def test_10_definitions_and_results_keep_what_nobody_knows(gateway: Gateway, cell: str) -> None:
    server = f"odd{CELLS[cell][1]}"
    asking = client(gateway, cell)
    (tool,) = [
        one
        for one in map(
            codec.level, codec.items(codec.level(asking.answer("tools/list").result)["tools"])
        )
        if codec.text(one["name"]) == f"{server}__odd"
    ]
    theirs = codec.level(odd.TOOLS[0])
    assert {name for name in tool if bytes(tool[name]) != bytes(theirs[name])} == {"name"}
    array = codec.dump({"name": f"{server}__structured"})
    found = codec.level(asking.answer("tools/call", array).result)
    assert bytes(found["content"]) == b"[]"
    assert ("structuredContent" in found) is (cell != "L->M")
