"""Runs of workflows that wait for people, in a real gateway."""

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests import programs
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.test_metrics import page
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M52")]

EXTRA = """
[endpoints.default]
namespace = "default"
builtins = ["workflows"]
[notify]
command = ["sh", "-c", "echo $METAMCP_NOTIFY_TEXT >> notified"]
"""
ASKS = """
name: asks
steps:
  - id: order
    elicit:
      message: How many?
      schema:
        type: object
        properties: {count: {type: integer, minimum: 1}, note: {type: string}}
        required: [count]
    timeout: 30d
  - output: ${{ steps.order.result.count }} ordered
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    found = Gateway({"one": fake()}, extra=EXTRA)
    (found.folder / "asks.yaml").write_text(ASKS)
    found.config.write_text(f'workflows = ["asks.yaml"]\n{found.config.read_text()}')
    with found as running:
        yield running


def begun(gateway: Gateway) -> str:
    """The id of a run that waits for an answer, begun by a client that cannot be asked."""
    with closing(Client(gateway.port, MODERN)) as client:
        result = client.call("run_workflow", name="asks")["result"]
    assert not result["isError"], result
    assert result["structuredContent"]["status"] == "needs_answer"
    return str(result["structuredContent"]["run"])


def ran(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "metamcp_supervisor", "workflow", *arguments]


def verb(gateway: Gateway, *arguments: str, ok: int = 0) -> str:
    """What `metamcp workflow` prints; its exit code is `ok`."""
    command = [*ran(*arguments), "--runtime-dir", str(gateway.folder / "run")]
    done = programs.run(command)
    assert done.returncode == ok, done
    return done.stdout if ok == 0 else done.stderr


def shown(gateway: Gateway, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(verb(gateway, "show", run, "--json"))
    return found


def waiting(gateway: Gateway) -> dict[str, float]:
    """What waits for people, by kind, on the page of metrics."""
    samples = page(gateway)["metamcp_waiting_for_people"].samples
    return {sample.labels["kind"]: sample.value for sample in samples}


def test_a_run_waits_for_an_answer_over_a_restart_of_the_gateway(gateway: Gateway) -> None:
    run = begun(gateway)
    gateway.stop()
    gateway.start()
    until(lambda: shown(gateway, run)["status"] == "needs_answer", "it waits again")
    listed = verb(gateway, "runs", "--status", "needs_answer")
    assert listed == f"{run} asks needs_answer order: How many?\n"
    assert "How many?" in verb(gateway, "show", run)
    until(lambda: "1 run of a workflow waits for an answer" in gateway.ctl("status"), "it is told")
    until(lambda: waiting(gateway)["run"] == 1, "the metric says so")
    (event,) = [each for each in gateway.events() if each["what"] == "waiting"]
    assert event["cause"].endswith(f"needs an answer: 'metamcp workflow answer {run} order'")
    notified = gateway.folder / "notified"
    until(lambda: notified.exists() and event["cause"] in notified.read_text(), "a command ran")
    (role,) = [one for one in gateway.status()["roles"] if one["role"] == "engine"]
    assert role["counts"]["needs_answer"] == 1
    assert "answer.count" in verb(gateway, "answer", run, "order", "count=0", ok=1)
    assert "count=INTEGER [note=STRING]" in verb(gateway, "answer", run, "order", "many=1", ok=2)
    verb(gateway, "answer", run, "order", "count=3", "note=soon")
    until(lambda: shown(gateway, run)["status"] == "done", "it goes on by itself")
    assert shown(gateway, run)["output"] == "3 ordered"
    until(lambda: waiting(gateway) == {"run": 0, "consent": 0}, "nothing waits any more")


def test_a_terminal_asks_the_person_who_runs_a_workflow(gateway: Gateway) -> None:
    ours, theirs = pty.openpty()
    command = [*ran("run", "asks"), "--runtime-dir", str(gateway.folder / "run")]
    with (
        subprocess.Popen(
            command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True
        ) as running,
        os.fdopen(ours, "r+b", buffering=0) as screen,
    ):
        os.close(theirs)
        seen = ""
        for prompt, typed in (
            ("asks: How many?", None), ("Answer it?", "y"), ("count", "0"), ("note", ""),
            ("answer.count", None), ("Answer it?", "y"), ("count", "4"), ("note", "soon"),
        ):  # fmt: skip
            while prompt not in seen:
                assert select.select([screen], [], [], 30)[0], f"{prompt!r} is not in {seen!r}"
                seen += screen.read(4096).decode()
            seen = seen.partition(prompt)[2]
            if typed is not None:
                screen.write(f"{typed}\n".encode())
        assert running.stdout is not None
        assert running.stdout.read() == "4 ordered\n"
        assert running.wait(60) == 0


def test_a_later_client_is_asked_when_it_looks_at_the_run(gateway: Gateway) -> None:
    run = begun(gateway)
    params: dict[str, Any] = {
        "name": "workflow_status", "arguments": {"run": run},
        "_meta": {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}},
    }  # fmt: skip
    with closing(Client(gateway.port, MODERN)) as client:
        asked = client.request("tools/call", params)["result"]
        ((key, question),) = asked["inputRequests"].items()
        assert question["params"]["message"] == "How many?"
        answers = {key: {"action": "accept", "content": {"count": 5}}}
        again = {"inputResponses": answers, "requestState": asked["requestState"]}
        assert not client.request("tools/call", {**params, **again})["result"]["isError"]
    until(lambda: shown(gateway, run)["status"] == "done", "it goes on by itself")
    assert shown(gateway, run)["output"] == "5 ordered"


def test_a_person_declines_at_the_prompt(gateway: Gateway) -> None:
    run = begun(gateway)
    verb(gateway, "answer", run, "order", "--decline")
    until(lambda: shown(gateway, run)["status"] == "failed", "the step fails")
    assert shown(gateway, run)["error"] == "the user declined the question"
