"""Runs of workflows in the true process of the engine, also when it is killed."""

import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from metamcp_worker.ipc.engine_runs import HostAsk, HostDone, Owner
from tests.worker.engine.engines import Engine, Peer, Tool, by_name, echo, engine, result

pytestmark = [pytest.mark.process]
CRASH_RUNS = int(os.environ.get("METAMCP_CRASH_RUNS", "4"))
"""Number of random definitions; the acceptance has 200."""


def workflow(*steps: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"name": "w", "steps": list(steps), **members}


def call(name: str, **members: Any) -> dict[str, Any]:
    return {"id": name, "call": name, "with": {"x": 1}, **members}


@pytest.mark.promise("M52")
def test_a_run_gives_the_results_of_steps_to_later_ones(tmp_path: Path) -> None:
    steps = workflow(
        {"parallel": [call("a"), call("b")]},
        {"foreach": "${{ inputs.list }}", "steps": [{"call": "c", "with": {"y": "${{ item }}"}}]},
        {"output": {"a": "${{ steps.a.result.x }}", "b": "${{ steps.b.result }}"}},
        inputs={"list": {"type": "array"}},
    )
    with engine(tmp_path) as running:
        peer = running.peer()
        found, done = peer.ask("workflow/run", definition=steps, inputs={"list": [1, 2]})
        assert (found["output"], done.failed) == ({"a": 1, "b": {"x": 1}}, False)
        assert by_name([peer]) == {"a": 1, "b": 1, "c": 2}
        assert [one.progress for one in peer.progress] == [1, 2, 3]


def test_a_run_that_fails_names_itself_and_its_step(tmp_path: Path) -> None:
    def wrong(ask: HostAsk) -> HostDone:
        return HostDone(call=ask.call, result=result("no such file", failed=True))

    with engine(tmp_path) as running:
        peer = running.peer({"b": wrong})
        steps = workflow(call("a"), call("b", retry={"attempts": 2, "backoff": "1ms"}), call("c"))
        found, done = peer.ask("workflow/run", definition=steps)
        assert done.failed
        assert found["run"] in done.text
        assert "'b'" in done.text
        assert "no such file" in done.text
        assert by_name([peer]) == {"a": 1, "b": 2}
        assert len({bytes(ask.meta) for ask in peer.asked if ask.name == "b"}) == 1


def test_wrong_inputs_are_told_with_their_path(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        steps = workflow(call("a"), inputs={"n": {"type": "integer"}})
        _, done = running.peer().ask("workflow/run", definition=steps, inputs={"n": "x"})
        assert done.failed
        assert "inputs.n" in done.text


def test_a_client_sees_its_own_runs_and_the_operator_all(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        peer = running.peer()
        found, _ = peer.ask("workflow/run", definition=workflow(call("a")))
        other = running.peer(owner=Owner(endpoint="default", name="other"))
        operator = running.peer(front="", owner=Owner(endpoint="default", name="root"))
        assert other.ask("workflow/status", run=found["run"])[1].failed
        assert other.ask("workflow/runs")[0]["runs"] == []
        assert operator.ask("workflow/status", run=found["run"])[0]["status"] == "done"


def test_a_cancelled_run_calls_nothing_more(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        peer = running.peer()
        steps = workflow({"wait": "1h"}, call("a"))
        found, _ = peer.ask("workflow/run", definition=steps, wait=False)
        assert peer.ask("workflow/cancel", run=found["run"])[0]["status"] == "cancelled"
        assert peer.asked == []


def test_a_connection_with_rubbish_is_closed_alone(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        peer, rude = running.peer(), running.peer()
        rude.sock.sendall(b"\x05\0\0\0hello")
        assert rude.done(1) is None
        assert not peer.ask("workflow/run", definition=workflow(call("a")))[1].failed


@pytest.mark.promise("M52")
def test_secrets_are_in_no_file_and_a_run_without_them_fails_clearly(tmp_path: Path) -> None:
    steps = workflow(
        {"wait": "3s"},
        {"id": "a", "call": "a", "with": {"key": "${{ inputs.key }}"}, "safe": True},
        inputs={"key": {"type": "string", "secret": True}},
    )  # fmt: skip
    with engine(tmp_path) as running:
        peer = running.peer()
        inputs = {"key": "hunter2-hunter2"}
        whole, _ = peer.ask(
            "workflow/run",
            definition=workflow(steps["steps"][1], inputs=steps["inputs"]),
            inputs=inputs,
        )
        assert b"hunter2" in bytes(peer.asked[0].arguments)
        assert whole["output"] == {"key": "[secret]"}
        found, _ = peer.ask("workflow/run", definition=steps, inputs=inputs, wait=False)
        running.kill()
        running.start()
        ended = finished(running.peer(), found["run"])
        assert ended["status"] == "failed"
        assert "secret input 'key'" in ended["error"]
        for file in tmp_path.glob("workflows.db*"):
            assert b"hunter2" not in file.read_bytes()


@pytest.mark.promise("M52")
def test_an_unsafe_step_that_was_interrupted_parks_until_a_decision(tmp_path: Path) -> None:
    with engine(tmp_path) as running:

        def deadly(ask: HostAsk) -> None:
            running.process.kill()

        first = running.peer({"b": deadly})
        order = first.order("workflow/run", definition=workflow(call("a"), call("b"), call("c")))
        assert first.done(order) is None
        running.kill()
        running.start()
        peer = running.peer()
        run = peer.ask("workflow/runs")[0]["runs"][0]["run"]
        parked = finished(peer, run)
        assert (parked["status"], parked["step"]) == ("needs_decision", "b")
        peer.ask("workflow/decide", run=run, step="b", decision="retry")
        assert finished(peer, run, parked=False)["status"] == "done"
        assert by_name([first, peer]) == {"a": 1, "b": 2, "c": 1}
        keys = {bytes(one.meta) for each in (first, peer) for one in each.asked if one.name == "b"}
        assert len(keys) == 1


def finished(peer: Peer, run: str, *, parked: bool = True) -> dict[str, Any]:
    """The run when it has ended, or waits for a decision if `parked`."""
    over = {"done", "failed", "cancelled"} | ({"needs_decision"} if parked else set())
    while True:
        found, _ = peer.ask("workflow/status", run=run)
        if found["status"] in over:
            return found


def made(random_: random.Random) -> tuple[dict[str, Any], set[str], set[str]]:
    """A random definition, the tools that say that they are harmless, and those marked safe."""
    harmless, safe, count = set[str](), set[str](), 0

    def step(depth: int) -> dict[str, Any]:
        nonlocal count
        count += 1
        kind = random_.choice(["call"] * 4 + (["parallel", "foreach", "switch"] if depth else []))
        inner = [step(depth - 1) for _ in range(random_.randint(1, 2))] if kind != "call" else []
        if kind == "parallel":
            return {"parallel": inner}
        if kind == "foreach":
            return {"foreach": [1, 2], "steps": inner}
        if kind == "switch":
            return {"switch": [{"when": "inputs.yes", "steps": inner}]}
        name = f"t{count}"
        sort = random_.choice(["harmless", "safe", "unsafe"])
        harmless.update([name] if sort == "harmless" else [])
        safe.update([name] if sort == "safe" else [])
        return {"call": name, "with": {"n": count}, **({"safe": True} if sort == "safe" else {})}

    steps = [step(2) for _ in range(random_.randint(2, 4))]
    inputs = {"yes": {"type": "boolean", "default": True}}
    return {"name": "w", "inputs": inputs, "steps": steps}, harmless, safe


@pytest.mark.promise("M52")
@pytest.mark.parametrize("seed", range(CRASH_RUNS))
def test_no_kill_loses_a_step_or_repeats_a_completed_one(seed: int) -> None:
    """The engine is killed before and after the answer to random calls, until the run is done."""
    random_ = random.Random(seed)
    definition, harmless, safe = made(random_)
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder)) as plain:
        peer = plain.peer()
        wanted = peer.ask("workflow/run", definition=definition)[0]
        calls = {json.decode(ask.meta)["io.metamcp/idempotency-key"].partition(":")[2]
                 for ask in peer.asked}  # fmt: skip
        rows = peer.ask("workflow/status", run=wanted["run"])[0]["steps"]
        assert {row["step"] for row in rows} == calls
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder)) as running:
        crashed_run(running, random_, definition, harmless, safe, calls)


def crashed_run(
    running: Engine, random_: random.Random, definition: dict[str, Any], harmless: set[str],
    safe: set[str], calls: set[str],
) -> None:  # fmt: skip
    answered: dict[str, int] = {}
    completed: set[str] = set()
    interrupted: set[str] = set()

    def tool(ask: HostAsk) -> HostDone | None:
        path = json.decode(ask.meta)["io.metamcp/idempotency-key"].partition(":")[2]
        assert path not in completed, f"{path} was completed and is repeated"
        answered[path] = answered.get(path, 0) + 1
        if random_.random() < 0.3 and kills:
            kills.pop()
            running.process.kill()  # inside of the step
            return None
        if random_.random() < 0.2 and kills:
            kills.pop()
            peer.send(echo(ask))
            running.process.kill()  # at its end, which the journal may have or not
            return None
        return echo(ask)

    tools: dict[str, Tool] = {f"t{number}": tool for number in range(100)}
    kills = [1, 2, 3]
    peer = running.peer(tools, harmless=frozenset(harmless))
    order = peer.order("workflow/run", definition=definition)
    run, end = "", peer.done(order)
    while end is None or not run:
        if end is None:
            running.kill()
            running.start()
            peer = running.peer(tools, harmless=frozenset(harmless))
        end = peer.done(peer.order("workflow/runs"))
        if end is not None:
            found = json.decode(end.structured)["runs"]
            if not found:  # killed before the run was taken
                return
            run = found[0]["run"]
    while True:
        end = peer.done(peer.order("workflow/status", run=run))
        if end is None:
            running.kill()
            running.start()
            peer = running.peer(tools, harmless=frozenset(harmless))
            continue
        state = json.decode(end.structured)
        completed |= {row["step"] for row in state["steps"] if row["status"] == "done"}
        if state["status"] == "needs_decision":
            row = next(one for one in state["steps"] if one["step"] == state["step"])
            interrupted.add(row["step"])
            peer.done(peer.order("workflow/decide", run=run, step=row["step"], decision="retry"))
        elif state["status"] == "done":
            break
        else:
            assert state["status"] in {"queued", "running"}, state
    assert set(answered) == calls
    assert {row["step"] for row in state["steps"]} == calls
    decided_only(running, answered, interrupted, harmless | safe)


def decided_only(
    running: Engine, answered: dict[str, int], interrupted: set[str], repeatable: set[str]
) -> None:
    names = {json.decode(ask.meta)["io.metamcp/idempotency-key"].partition(":")[2]: ask.name
             for each in running.peers for ask in each.asked}  # fmt: skip
    for path, times in answered.items():
        if names[path] not in repeatable and times > 1:
            assert path in interrupted, f"{path} is not safe, and ran again without a decision"
    assert not {names[path] for path in interrupted} & repeatable
