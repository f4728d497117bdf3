"""Tasks within an era, on endpoints with one server and with several: over the true binary."""

from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M24")]

TASKS = "io.modelcontextprotocol/tasks"
ABLE: dict[str, Any] = {"extensions": {TASKS: {}}}
EXTRA = """
[namespaces]
default = { servers = ["*"] }
old = { servers = ["old"] }
new = { servers = ["new"] }
[endpoints]
default = { namespace = "default" }
old = { namespace = "old", naming = { style = "bare" } }
new = { namespace = "new", naming = { style = "bare" } }
"""
where = pytest.mark.parametrize("alone", [True, False], ids=["alone", "among others"])


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {
        "old": fake("--era", "legacy", "--tasks"),
        "new": fake("--era", "modern", "--tasks"),
        "third": fake("--era", "both", "--tasks"),
    }
    with Gateway(servers, extra=EXTRA) as running:
        yield running


def client(gateway: Gateway, server: str, *, alone: bool) -> Raw:
    era = LEGACY if server == "old" else MODERN
    path = f"/metamcp/{server}/mcp" if alone else "/mcp"
    return Raw(gateway.port, era, path, ABLE if era == MODERN else None)


def started(asking: Raw, server: str, *, alone: bool, ms: int) -> dict[str, Any]:
    """A task that lasts so long."""
    name = "task" if alone else f"{server}__task"
    params: dict[str, Any] = {"name": name, "arguments": {"ms": ms, "text": "made"}}
    if asking.era != MODERN:
        params["task"] = {"ttl": 60_000}
    result: dict[str, Any] = asking.result("tools/call", codec.dump(params))
    found: dict[str, Any] = result["task"] if asking.era != MODERN else result
    return found


def get(asking: Raw, task: str) -> dict[str, Any]:
    found: dict[str, Any] = asking.result("tasks/get", codec.dump({"taskId": task}))
    assert found["taskId"] == task
    return found


@where
def test_a_task_of_the_handshake_era_is_asked_for_until_its_result_is_there(
    gateway: Gateway, alone: bool
) -> None:
    asking = client(gateway, "old", alone=alone)
    task = started(asking, "old", alone=alone, ms=50)["taskId"]
    until(lambda: get(asking, task)["status"] == "completed", "the task is over")
    result = asking.result("tasks/result", codec.dump({"taskId": task}))
    assert result["content"][0]["text"] == "made"
    related = result.get("_meta", {}).get("io.modelcontextprotocol/related-task")
    assert related is None or related["taskId"] == task


@where
def test_a_modern_task_is_asked_for_until_its_result_is_there(
    gateway: Gateway, alone: bool
) -> None:
    asking = client(gateway, "new", alone=alone)
    task = started(asking, "new", alone=alone, ms=50)
    assert task["resultType"] == "task"
    until(lambda: get(asking, task["taskId"])["status"] == "completed", "the task is over")
    assert get(asking, task["taskId"])["result"]["content"][0]["text"] == "made"


@where
@pytest.mark.parametrize("server", ["old", "new"])
def test_a_task_can_be_cancelled(gateway: Gateway, server: str, alone: bool) -> None:
    asking = client(gateway, server, alone=alone)
    task = started(asking, server, alone=alone, ms=60_000)["taskId"]
    asking.result("tasks/cancel", codec.dump({"taskId": task}))
    until(lambda: get(asking, task)["status"] == "cancelled", "the task is cancelled")


@where
def test_how_a_modern_task_goes_on_is_told_to_who_asked(gateway: Gateway, alone: bool) -> None:
    asking = client(gateway, "new", alone=alone)
    task = started(asking, "new", alone=alone, ms=1000)["taskId"]
    with asking.listen(taskIds=[task]) as news:
        told = news.next()
    assert told.method == "notifications/tasks"
    params = codec.value(told.params)
    assert (params["taskId"], params["status"]) == (task, "completed")
    assert params["_meta"]["io.modelcontextprotocol/subscriptionId"] == "l1"


@where
def test_how_a_task_of_the_handshake_era_goes_on_is_told_in_its_session_alone(
    gateway: Gateway, alone: bool
) -> None:
    asking, other = (client(gateway, "old", alone=alone) for _ in range(2))
    with asking.listen() as mine, other.listen() as others:
        first = started(asking, "old", alone=alone, ms=100)["taskId"]
        second = started(other, "old", alone=alone, ms=200)["taskId"]
        for news, task in ((mine, first), (others, second)):
            told = news.next()
            assert told.method == "notifications/tasks/status"
            assert codec.value(told.params)["taskId"] == task


@pytest.mark.parametrize(("era", "server"), [(LEGACY, "new"), (MODERN, "old")])
def test_tasks_are_not_offered_across_the_eras(gateway: Gateway, era: str, server: str) -> None:
    asking = Raw(gateway.port, era, f"/metamcp/{server}/mcp", ABLE)
    if era == MODERN:
        declared = asking.result("server/discover")["capabilities"]
    else:
        declared = asking.initialized["capabilities"]
    assert "tasks" not in declared
    assert TASKS not in declared.get("extensions", {})
    answer = asking.answer("tasks/get", b'{"taskId":"1"}')
    assert codec.value(answer.error)["code"] == -32601
    called = asking.answer("tools/call", b'{"name":"task","arguments":{}}')
    assert b"taskId" not in bytes(called.result or called.error)


def test_lists_of_tasks_are_offered_where_they_are_one_list(gateway: Gateway) -> None:
    alone, among = (client(gateway, "old", alone=alone) for alone in (True, False))
    task = started(alone, "old", alone=True, ms=0)["taskId"]
    listed = alone.result("tasks/list")["tasks"]
    assert task in {one["taskId"] for one in listed}
    assert "list" in alone.initialized["capabilities"]["tasks"]
    assert "list" not in among.initialized["capabilities"]["tasks"]
    assert codec.value(among.answer("tasks/list").error)["code"] == -32601
