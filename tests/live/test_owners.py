"""What belongs to one client is of no use to another: tasks, over the true binary."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests import programs
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M60")]

TASKS = "io.modelcontextprotocol/tasks"
ABLE: dict[str, Any] = {"extensions": {TASKS: {}}}
EXTRA = """
[gateway]
auth = "keys"
[namespaces]
default = { servers = ["*"] }
old = { servers = ["old"] }
new = { servers = ["new"] }
[endpoints]
default = { namespace = "default" }
old = { namespace = "old", naming = { style = "bare" } }
new = { namespace = "new", naming = { style = "bare" } }
open = { namespace = "old", naming = { style = "bare" }, auth = "none" }
"""
SERVERS = {
    "old": fake("--era", "legacy", "--tasks"),
    "new": fake("--era", "modern", "--tasks"),
}
where = pytest.mark.parametrize("alone", [True, False], ids=["alone", "among others"])
which = pytest.mark.parametrize("server", ["old", "new"])


def made_key(gateway: Gateway, name: str) -> str:
    command = [*gateway.command("keys"), "create", name, "--json"]
    done = programs.run(command, check=True)
    key: str = json.loads(done.stdout)["key"]
    return key


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS, extra=EXTRA) as running:
        yield running


@pytest.fixture(scope="module")
def keys(gateway: Gateway) -> tuple[str, str]:
    """Of alice and of bob."""
    return made_key(gateway, "alice"), made_key(gateway, "bob")


def client(gateway: Gateway, key: str, server: str, *, alone: bool) -> Raw:
    era = LEGACY if server == "old" else MODERN
    path = f"/metamcp/{server}/mcp" if alone else "/mcp"
    return Raw(gateway.port, era, path, ABLE if era == MODERN else None, key=key)


def started(asking: Raw, server: str, *, alone: bool, ms: int) -> str:
    """The id of a task that lasts so long."""
    name = "task" if alone else f"{server}__task"
    params: dict[str, Any] = {"name": name, "arguments": {"ms": ms, "text": "PIN-1234"}}
    if asking.era != MODERN:
        params["task"] = {"ttl": 60_000}
    result: dict[str, Any] = asking.result("tools/call", codec.dump(params))
    task: str = (result["task"] if asking.era != MODERN else result)["taskId"]
    return task


def answered(asking: Raw, method: str, task: str) -> bytes:
    """The raw error that a request about a task gets, without the id that it names."""
    answer = asking.answer(method, codec.dump({"taskId": task}))
    assert not answer.result, bytes(answer.result)
    return bytes(answer.error).replace(task.encode(), b"")


def status(asking: Raw, task: str) -> str:
    found: str = asking.result("tasks/get", codec.dump({"taskId": task}))["status"]
    return found


@where
@which
def test_the_task_of_another_key_is_an_unknown_task(
    gateway: Gateway, keys: tuple[str, str], server: str, alone: bool
) -> None:
    alice, bob = (client(gateway, key, server, alone=alone) for key in keys)
    task = started(alice, server, alone=alone, ms=60_000)
    unknown = task[:-1] + ("A" if task[-1] != "A" else "B")
    own = "result" if server == "old" else "update"
    for method in ("tasks/get", "tasks/cancel", f"tasks/{own}"):
        foreign = answered(bob, method, task)
        assert foreign == answered(bob, method, unknown) == answered(bob, method, "task-1")
        assert b"PIN-1234" not in foreign
    assert status(alice, task) == "working"
    alice.result("tasks/cancel", codec.dump({"taskId": task}))
    assert status(alice, task) == "cancelled"


def test_how_a_task_goes_on_is_told_to_its_owner_alone(
    gateway: Gateway, keys: tuple[str, str]
) -> None:
    alice, bob = (client(gateway, key, "new", alone=True) for key in keys)
    task = started(alice, "new", alone=True, ms=60_000)
    wanted = codec.dump({"notifications": {"taskIds": [task]}})
    with bob.ask("subscriptions/listen", wanted) as none, alice.listen(taskIds=[task]) as hers:
        assert codec.value(none.next().params)["notifications"] == {}
        alice.result("tasks/cancel", codec.dump({"taskId": task}))
        assert codec.value(hers.next().params)["taskId"] == task


def test_a_list_has_the_tasks_of_its_key(gateway: Gateway, keys: tuple[str, str]) -> None:
    alice, bob = (client(gateway, key, "old", alone=True) for key in keys)
    anybody = Raw(gateway.port, LEGACY, "/metamcp/open/mcp")
    tasks = {one: started(one, "old", alone=True, ms=0) for one in (alice, bob, anybody)}

    def listed(asking: Raw) -> set[str]:
        return {one["taskId"] for one in asking.result("tasks/list")["tasks"]}

    for asking, task in tasks.items():
        mine = listed(asking)
        assert task in mine
        for one in mine:
            assert status(asking, one) in ("working", "completed", "cancelled")
    assert listed(alice).isdisjoint(listed(bob) | listed(anybody))
    assert listed(bob).isdisjoint(listed(anybody))
    assert "owner" not in alice.result("tasks/list")["tasks"][0]


def test_a_task_is_found_after_its_front_was_killed(
    gateway: Gateway, keys: tuple[str, str]
) -> None:
    old, new = (client(gateway, keys[0], one, alone=False) for one in ("old", "new"))
    alone = client(gateway, keys[0], "old", alone=True)
    tasks = [
        (asking, started(asking, server, alone=asking is alone, ms=60_000))
        for asking, server in ((old, "old"), (new, "new"), (alone, "old"))
    ]
    before = gateway.status()["fronts"][0]["pid"]
    os.kill(before, signal.SIGKILL)

    def back() -> bool:
        front = gateway.status()["fronts"][0]
        return bool(front["pid"] != before and front["state"] == "ready")

    until(back, "another front serves")
    for asking, task in tasks:
        assert status(asking, task) == "working"
    assert tasks[2][1] in {one["taskId"] for one in alone.result("tasks/list")["tasks"]}


def test_ids_mean_the_same_to_the_next_gateway_on_the_state_directory() -> None:
    """The server is a new one and has no such task: the id reaches it, and no other id does."""
    with Gateway(SERVERS, extra=EXTRA) as running:
        key = made_key(running, "alice")
        task = started(client(running, key, "old", alone=True), "old", alone=True, ms=0)
        running.stop()
        running.start()
        running.wait_ready()
        running.wait("old")
        asking = client(running, key, "old", alone=True)
        assert b"no task task-" in answered(asking, "tasks/get", task)
        assert b"Unknown task" in answered(asking, "tasks/get", task[:-2])
