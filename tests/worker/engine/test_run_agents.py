"""Agents and suggestions in the true process of the engine."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.engine import models_io
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import AiSettings, EngineOn, OrderDone
from tests.waiting import until
from tests.worker.engine.engine_process import connected, engine
from tests.worker.engine.model_server import KEY, Fails, Line, ModelServer, Sends, Waits, call, run
from tests.worker.engine.notes_front import NotesFront
from tests.worker.sandbox.sandboxes import sandboxes

pytestmark = pytest.mark.process
AGENT = pytest.mark.promise("M49")
SUGGESTION = pytest.mark.promise("M51")
BOTH = pytest.mark.parametrize("provider", ["openai", "anthropic"])

SOON = {"Retry-After": "0"}
WORKFLOW = {"name": "monday", "steps": [{"call": "notes.list_notes"}]}
RULE = Raw(codec.dump(
    {"name": "notes", "keywords": ["note"], "match": "any", "template": WORKFLOW}
))  # fmt: skip
MILK = """
const names = await mcp.servers.notes.list_notes();
const texts = await Promise.all(names.map((name) => mcp.servers.notes.read_note({ name })));
return texts.filter((text) => text.includes("milk"));
"""


def spec(folder: Path, server: ModelServer | None = None, provider: Any = "openai") -> EngineOn:
    ai = None
    if server is not None:
        ai = AiSettings(provider=provider, url=server.base, model="small", key=KEY)
    return EngineOn(journal=str(folder / "workflows.db"), ai=ai, rules=(RULE,))


def ordered(
    connector: socket.socket, notes: NotesFront, *order: Any, **fields: Any
) -> tuple[OrderDone, list[str]]:
    async def main() -> tuple[OrderDone, list[str]]:
        async with connected(connector, notes) as front:
            done = await front.order(*order, **fields)
            return done, [one.message for one in front.told]

    return asyncio.run(main())


@AGENT
@BOTH
def test_an_agent_gets_over_a_bad_model_and_bad_code_to_its_result(
    tmp_path: Path, provider: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script: list[Line] = [
        Fails(429, headers=SOON), Sends(b"<html>"), call("search_tools", query="notes"),
        call("read_all_notes"), run("return await mcp.cal()"), run(MILK), call("finish"),
    ]  # fmt: skip
    with (
        sandboxes() as code,
        ModelServer(script) as server,
        engine(spec(tmp_path, server, provider)) as running,
    ):
        notes = NotesFront(code.front())
        done, told = ordered(running.connector, notes, "agent", {"task": "milk?"})
    found = codec.value(done.structured)
    assert (found["ended"], found["steps"]) == ("finished", 5)
    assert found["result"] == ["buy milk", "milk again"]
    assert told == [
        "step 1: search_tools", "step 2: read_all_notes", "step 3: run_code", "step 4: run_code",
        "step 5: finish",
    ]  # fmt: skip
    out, err = capfd.readouterr()
    assert KEY not in out + err + codec.dump(done).decode()


@AGENT
def test_who_leaves_ends_the_request_to_the_model_and_the_others_go_on(tmp_path: Path) -> None:
    with (
        ModelServer([Waits(), call("finish", result=1)]) as server,
        engine(spec(tmp_path, server)) as running,
    ):

        async def main() -> OrderDone:
            async with connected(running.connector, NotesFront()) as front:
                first = front.begin("agent", {"task": "x"})
                await asyncio.to_thread(until, lambda: list(server.asked), "it has asked")
                front.leave(first)
                assert await asyncio.to_thread(server.left.wait, 10)
                return await front.order("agent", {"task": "y"})

        assert codec.value(asyncio.run(main()).structured)["result"] == 1


@AGENT
def test_a_front_that_goes_ends_its_agents(tmp_path: Path) -> None:
    with (
        ModelServer([Waits()]) as server,
        engine(spec(tmp_path, server)) as running,
    ):

        async def main() -> None:
            async with connected(running.connector, NotesFront()) as front:
                front.begin("agent", {"task": "x"})
                await asyncio.to_thread(until, lambda: list(server.asked), "it has asked")

        asyncio.run(main())
        assert server.left.wait(10)


@AGENT
def test_a_model_is_switched_on_and_off_while_the_engine_runs(tmp_path: Path) -> None:
    with (
        ModelServer([call("finish", result=1)]) as server,
        engine(spec(tmp_path)) as running,
    ):

        def ended() -> str:
            done, _ = ordered(running.connector, NotesFront(), "agent", {"task": "x"})
            return str(codec.value(done.structured)["ended"])

        assert ended() == "no_model"
        running.configure(spec(tmp_path, server))
        until(lambda: ended() == "finished", "the model is asked")
        running.configure(spec(tmp_path))
        until(lambda: ended() == "no_model", "there is no model")


@SUGGESTION
def test_a_workflow_is_suggested_by_a_rule_and_refined_by_the_model_of_the_client(
    tmp_path: Path,
) -> None:
    refined = {**WORKFLOW, "name": "refined"}
    notes = NotesFront()
    notes.model = lambda params: {"content": {"type": "text", "text": codec.dump(refined).decode()}}
    with engine(spec(tmp_path)) as running:
        by_rule, _ = ordered(running.connector, notes, "suggest", {"task": "my notes"})
        task = {"task": "my notes", "refine": True}
        by_model, _ = ordered(running.connector, notes, "suggest", task, samples=True)
        alone, _ = ordered(running.connector, notes, "suggest", task)
    assert codec.value(by_rule.structured)["definition"] == WORKFLOW
    assert codec.value(by_model.structured)["definition"] == refined
    assert models_io.HOW in alone.text
    assert codec.value(alone.structured)["source"] == "rule"
