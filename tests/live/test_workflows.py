"""Workflows of real clients: steps on several servers, progress, and the end of any process."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.raw import Raw
from tests.live.test_audit import records
from tests.live.test_code_mode import WithKey
from tests.live.test_keys import keys
from tests.waiting import until
from tests.worker.engine.postgres import PASSWORD, postgres

pytestmark = [pytest.mark.live, pytest.mark.promise("M52")]

JOURNAL = str(ROOT / "tests" / "fakes" / "journal_server.py")
KILLS = 4
EXTRA = """
[endpoints.default]
namespace = "default"
builtins = ["workflows"]
"""
TWO = """
name: two
inputs:
  text: {type: string}
  pause: {type: string, default: 0s}
steps:
  - id: first
    call: one.echo
    with: {text: "${{ inputs.text }}"}
  - wait: ${{ inputs.pause }}
  - id: both
    parallel:
      - call: two.echo
        with: {text: "${{ steps.first.result.text + '!' }}"}
      - call: one.echo
        with: {text: b}
  - output: {first: "${{ steps.first.result.text }}", second: "${{ steps.both.result[0].text }}"}
"""
ASKS = """
name: asks
steps:
  - id: name
    elicit: {message: Your name?, schema: {type: object, properties: {name: {type: string}}}}
  - output: hello ${{ steps.name.result.name }}
"""
KEYED = """
[gateway]
auth = "keys"
[audit]
[endpoints.default]
namespace = "default"
builtins = ["workflows"]
"""
PARTED = {
    "name": "parted",
    "steps": [
        {"id": "before", "call": "one.echo", "with": {"text": "a"}},
        {"wait": "2s"},
        {"id": "after", "call": "one.echo", "with": {"text": "b"}},
        {"id": "other", "call": "two.echo", "with": {"text": "c"}, "may_fail": True},
        {"output": "${{ steps.other.error }}"},
    ],
}


def made(extra: str = EXTRA) -> Gateway:
    found = Gateway({"one": fake(), "two": fake()}, extra=extra)
    (found.folder / "flows").mkdir()
    (found.folder / "flows" / "two.yaml").write_text(TWO)
    (found.folder / "flows" / "asks.yaml").write_text(ASKS)
    found.config.write_text(f'workflows = ["flows"]\n{found.config.read_text()}')
    return found


@pytest.fixture(scope="module")
def shared() -> Iterator[Gateway]:
    with made() as found:
        yield found


@pytest.fixture
def gateway(shared: Gateway) -> Gateway:
    """The gateway of all tests that end no more of it than comes back."""
    shared.wait_ready()
    return shared


def engine(gateway: Gateway) -> int:
    """The process of the engine, 0 without one."""
    roles: list[dict[str, Any]] = gateway.status()["roles"]
    return next(int(one["pid"]) for one in roles if one["role"] == "engine")


def run(client: Client, **arguments: Any) -> dict[str, Any]:
    result = client.call("run_workflow", name="two", **arguments)["result"]
    assert not result["isError"], result
    found: dict[str, Any] = result["structuredContent"]
    return found


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_a_run_calls_several_servers_and_tells_its_progress(gateway: Gateway, era: str) -> None:
    with closing(Client(gateway.port, era)) as client:
        assert run(client, inputs={"text": "hi"})["output"] == {"first": "hi", "second": "hi!"}
        wrong = client.call("run_workflow", name="two", inputs={"text": 1})["result"]
        assert wrong["isError"]
        assert "inputs.text" in wrong["content"][0]["text"]
        params = {
            "name": "run_workflow", "arguments": {"name": "two", "inputs": {"text": "x"}},
            "_meta": {**(client.meta() if era == MODERN else {}), "progressToken": 7},
        }  # fmt: skip
        message = {"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params}
        events = client.post(json.dumps(message).encode(), "tools/call", "run_workflow").decode()
        assert "notifications/progress" in events
        assert "first" in events


def test_a_step_asks_the_client_that_waits_for_the_run(gateway: Gateway) -> None:
    able = "io.modelcontextprotocol/clientCapabilities"
    with closing(Client(gateway.port, MODERN)) as client:
        params: dict[str, Any] = {
            "name": "run_workflow", "arguments": {"name": "asks"},
            "_meta": {able: {"elicitation": {"form": {}}}},
        }  # fmt: skip
        asked = client.request("tools/call", params)["result"]
        ((key, question),) = asked["inputRequests"].items()
        assert question["params"]["message"] == "Your name?"
        answers = {key: {"action": "accept", "content": {"name": "Ada"}}}
        again = {"inputResponses": answers, "requestState": asked["requestState"]}
        done = client.request("tools/call", {**params, **again})["result"]
        assert done["structuredContent"]["output"] == "hello Ada"


def asked(client: Raw, method: str, **params: Any) -> dict[str, Any]:
    """The result of a request of a client with tasks, or its error."""
    answer = client.answer(method, codec.dump(params))
    found: dict[str, Any] = codec.value(answer.result or answer.error)
    return found


def step(client: Raw, task: str) -> str:
    """What the gateway says about the step of a run."""
    return str(asked(client, "tasks/get", taskId=task)["statusMessage"])


def begun(client: Raw, **inputs: str) -> dict[str, Any]:
    """What a client gets that begins a run of `two` as a task."""
    given = {"name": "two", "inputs": inputs}
    return asked(client, "tools/call", name="run_workflow", arguments=given, task={"ttl": 60_000})


def test_a_client_with_tasks_takes_a_run_as_one(gateway: Gateway) -> None:
    client = Raw(gateway.port, LEGACY)
    earlier = [one["taskId"] for one in asked(client, "tasks/list")["tasks"]]
    assert client.initialized["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
    listed = {one["name"]: one for one in asked(client, "tools/list")["tools"]}
    assert listed["run_workflow"]["execution"] == {"taskSupport": "optional"}
    begin = begun(client, text="hi", pause="1s")["task"]
    task = begin["taskId"]
    assert begin["status"] == "working"
    result = asked(client, "tasks/result", taskId=task)  # waits for the end
    assert result["structuredContent"]["output"] == {"first": "hi", "second": "hi!"}
    assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task}
    ended = asked(client, "tasks/get", taskId=task)
    assert (ended["status"], ended["createdAt"]) == ("completed", begin["createdAt"])
    other = begun(client, text="hi", pause="1h")["task"]["taskId"]
    assert asked(client, "tasks/cancel", taskId=other)["status"] == "cancelled"
    assert asked(client, "tasks/result", taskId=other)["isError"]
    tasks = [one["taskId"] for one in asked(client, "tasks/list")["tasks"]]
    assert tasks == [other, task, *earlier]
    for refused, why in (
        (asked(client, "tasks/cancel", taskId=other), "has ended already"),
        (asked(client, "tasks/get", taskId="metamcp-run-0"), "No run has the id"),
        (begun(client, number="1"), "inputs.number"),
    ):
        assert refused["code"] == -32602
        assert why in refused["message"]


def test_a_client_without_tasks_waits_for_a_run_as_before(gateway: Gateway) -> None:
    modern = Raw(gateway.port, MODERN)
    assert "tasks" not in asked(modern, "server/discover")["capabilities"]
    result = begun(modern, text="hi")
    assert result["structuredContent"]["status"] == "done"
    task = f"metamcp-run-{result['structuredContent']['run']}"
    assert asked(modern, "tasks/get", taskId=task)["code"] == -32601


@pytest.mark.parametrize("victim", ["engine", "front"])
def test_a_task_goes_on_after_the_end_of_a_process(gateway: Gateway, victim: str) -> None:
    client = Raw(gateway.port, LEGACY)
    task = begun(client, text="hi", pause="2s")["task"]["taskId"]
    # A call in flight may have happened, and then somebody has to decide.
    until(lambda: "waiting" in step(client, task), "the first call is over")

    def process() -> int:
        return engine(gateway) if victim == "engine" else gateway.status()["fronts"][0]["pid"]

    pid = process()
    os.kill(pid, signal.SIGKILL)
    until(lambda: process() not in (0, pid), "it is another process")
    result = asked(Raw(gateway.port, LEGACY), "tasks/result", taskId=task)
    assert result["structuredContent"]["output"] == {"first": "hi", "second": "hi!"}


@pytest.mark.parametrize("tool", ["roots", "elicit", "sample"])
def test_a_server_that_asks_the_client_of_a_run_that_nobody_waits_for_is_answered(
    gateway: Gateway, tool: str
) -> None:
    asks = {"name": "asking", "steps": [{"id": "ask", "call": f"one.{tool}"}]}

    with closing(Client(gateway.port, MODERN)) as client:
        result = client.call("run_workflow", definition=asks, wait=False)["result"]
        begun = result["structuredContent"]["run"]

        def status() -> dict[str, Any]:
            found: dict[str, Any] = client.call("workflow_status", run=begun)["result"]
            return dict(found["structuredContent"])

        until(lambda: status()["status"] != "running", "the run has ended", 10)
        assert (status()["status"], status()["step"]) == ("failed", "ask")
        assert status()["error"].startswith("the client has no ")


@pytest.mark.parametrize("victim", ["engine", "front", "gateway"])
def test_a_run_goes_on_after_the_end_of_a_process(gateway: Gateway, victim: str) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        begun = run(client, inputs={"text": "hi", "pause": "2s"}, wait=False)["run"]

        def steps() -> dict[str, str]:
            found = client.call("workflow_status", run=begun)["result"]["structuredContent"]
            return {one["step"]: one["status"] for one in found["steps"]}

        until(lambda: steps().get("first") == "done", "the first step is done")
    if victim == "gateway":
        assert gateway.process is not None
        gateway.process.kill()
        gateway.process.wait(timeout=30)
        until(lambda: not gateway.left(), "everything has ended")
        gateway.start()
    else:
        pid = engine(gateway) if victim == "engine" else gateway.status()["fronts"][0]["pid"]
        os.kill(pid, signal.SIGKILL)

    def ended() -> dict[str, Any]:
        try:
            with closing(Client(gateway.port, MODERN)) as client:
                answer = client.call("workflow_status", run=begun)
        except OSError:
            return {}
        found: dict[str, Any] = answer.get("result", {}).get("structuredContent") or {}
        return found if found.get("status") == "done" else {}

    until(lambda: bool(ended()), "the run is done")
    found = ended()
    assert found["output"] == {"first": "hi", "second": "hi!"}
    assert {one["step"]: one["attempts"] for one in found["steps"]}["first"] == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["gateway", "workers", "front"])
def test_a_step_in_flight_at_a_kill_runs_again_or_waits_for_a_decision(
    tmp_path: Path, victim: str
) -> None:
    """Of processes that are killed at the same time, each may see the end of the others first."""
    names = [f"{tool}{number}" for tool in ("look", "put", "pay") for number in range(2)]
    servers = {
        name: {"command": [sys.executable, JOURNAL, str(tmp_path / name)], "write": [str(tmp_path)]}
        for name in names
    }
    with Gateway(servers, extra=EXTRA) as gateway:
        for number in range(KILLS):
            text, gate = f"{number}", tmp_path / f"gate{number}"
            runs = begin_gated(gateway, names, text, gate)
            until(partial(are_called, tmp_path, text, names), "all are in flight")
            if victim == "gateway":
                assert gateway.process is not None
                gateway.process.kill()
                gateway.process.wait(timeout=30)
                until(lambda: not gateway.left(), "everything has ended")
                gate.touch()
                gateway.start()
            else:
                shown = gateway.status()
                workers = [server["worker_pid"] for server in shown["servers"]]
                fronts = [front["pid"] for front in shown["fronts"]]
                for pid in workers if victim == "workers" else fronts:
                    os.kill(pid, signal.SIGKILL)
                gate.touch()
            gateway.wait_ready()
            with closing(Client(gateway.port, MODERN)) as client:
                found = until(partial(settled, client, runs), "no step is under way")
            for name, (status, error) in found.items():
                unsafe = name.startswith("pay")
                assert status == ("needs_decision" if unsafe else "done"), error
                assert calls(tmp_path, text, name) == (1 if unsafe else 2)


def begin_gated(gateway: Gateway, names: list[str], text: str, gate: Path) -> dict[str, str]:
    """Runs with a step each that ends when the gate is open, by the name of its server."""
    runs: dict[str, str] = {}
    with closing(Client(gateway.port, MODERN)) as client:
        for name in names:
            step = {"call": f"{name}.{name[:-1]}", "with": {"text": text, "gate": str(gate)}}
            definition = {"name": "gated", "steps": [step]}
            begun = client.call("run_workflow", definition=definition, wait=False)["result"]
            runs[name] = begun["structuredContent"]["run"]
    return runs


def calls(folder: Path, text: str, name: str) -> int:
    """How many calls with this text a server has written down."""
    journal = folder / name
    lines = journal.read_text().splitlines() if journal.exists() else []
    return lines.count(f"{name[:-1]} {text}")


def are_called(folder: Path, text: str, names: list[str]) -> bool:
    return all(calls(folder, text, name) for name in names)


def settled(client: Client, runs: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The states and errors of all runs, by name; none while one of them does something."""
    states: dict[str, tuple[str, str]] = {}
    for name, run in runs.items():
        found = client.call("workflow_status", run=run)["result"]["structuredContent"]
        if found["status"] in {"queued", "running", "waiting"}:
            return {}
        states[name] = found["status"], found["error"]
    return states


def test_another_gateway_ends_the_run_of_one_that_is_killed() -> None:
    with postgres() as server, ExitStack() as stack:
        database = server.url.replace(PASSWORD, "${env:RUNS_PASSWORD}")
        extra = f'{EXTRA}\n[engine]\ndatabase = "{database}"\n'
        one, other = made(extra), made(extra)
        for each in (one, other):
            each.environ["RUNS_PASSWORD"] = PASSWORD
            stack.enter_context(each)
        with closing(Client(one.port, MODERN)) as client:
            begun = run(client, inputs={"text": "hi", "pause": "2s"}, wait=False)["run"]
        client = stack.enter_context(closing(Client(other.port, MODERN)))

        def found() -> dict[str, Any]:
            answer = client.call("workflow_status", run=begun)["result"]
            status: dict[str, Any] = answer.get("structuredContent") or {}
            return status

        until(lambda: found().get("status") == "waiting", "the first step is done")
        assert one.process is not None
        one.process.kill()
        one.process.wait(timeout=30)
        until(lambda: found().get("status") == "done", "the run is done")
        assert found()["output"] == {"first": "hi", "second": "hi!"}
        assert {step["attempts"] for step in found()["steps"]} == {1}
        server.stop()
        until(
            lambda: "tries again" in str(other.status()["roles"]), "the status says what is missed"
        )
        assert client.text("one__echo", text="hi") == "hi"
        refused = client.call("workflow_status", run=begun)["result"]
        assert refused["isError"]
        told = [refused, other.status(), other.log.read_text(), other.journal()]
        assert PASSWORD not in json.dumps(told)


@pytest.mark.promise("M47")
def test_a_run_of_a_key_calls_its_servers_alone_and_each_record_names_the_run() -> None:
    with Gateway({"one": fake(), "two": fake()}, extra=KEYED) as gateway:
        scopes = ("--scope", "mcp:call:one", "--scope", "mcp:list")
        key = keys(gateway, "create", "part", *scopes)

        def status(begun: str) -> dict[str, Any]:
            with closing(WithKey(gateway.port, MODERN, key["key"])) as client:
                result = client.call("workflow_status", run=begun)["result"]
            found: dict[str, Any] = result["structuredContent"]
            return found

        with closing(WithKey(gateway.port, MODERN, key["key"])) as client:
            result = client.call("run_workflow", definition=PARTED, wait=False)["result"]
            begun = result["structuredContent"]["run"]
            until(lambda: status(begun)["status"] == "waiting", "the first call is made")
        os.kill(gateway.status()["fronts"][0]["pid"], signal.SIGKILL)
        gateway.wait_ready()
        until(lambda: status(begun)["status"] not in ("waiting", "running"), "the run has ended")
        assert status(begun)["output"] == (
            "server 'two' is not behind this endpoint; there are: one"
        )

        def own() -> list[tuple[str, ...]]:
            found = [one for _, one in records(gateway) if one.parent == begun]
            return [(one.server, one.tool, one.principal, one.outcome) for one in found]

        wanted = [("one", "echo", f"key:{key['id']}", "ok")] * 2
        until(lambda: len(own()) >= 2, "both calls are recorded")
        assert own() == wanted
