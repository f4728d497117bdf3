"""Agents and suggestions against the scripted model over HTTP, with code in the true sandbox."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Literal

import pytest
from msgspec import Raw

from metamcp_worker.engine import models_io
from metamcp_worker.engine.model_orders import run_agent, suggest
from metamcp_worker.engine.models import NoAnswer
from metamcp_worker.engine.models_io import Models
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import AiSettings, EngineOrder, OrderDone
from tests.waiting import until
from tests.worker.engine.model_server import (
    KEY,
    Fails,
    Line,
    ModelServer,
    Says,
    Sends,
    Waits,
    call,
    run,
)
from tests.worker.engine.notes_front import OWNER, NotesFront
from tests.worker.sandbox.sandboxes import Sandboxes, sandboxes

pytestmark = pytest.mark.process
AGENT = pytest.mark.promise("M49")
SUGGESTION = pytest.mark.promise("M51")
BOTH = pytest.mark.parametrize("provider", ["openai", "anthropic"])

SOON = {"Retry-After": "0"}
MILK = """
const names: string[] = await mcp.call("notes__list_notes");
const texts = await Promise.all(names.map((name) => mcp.call("notes__read_note", { name })));
return texts.filter((text) => text.includes("milk")).length;
"""
WAY: list[Line] = [
    call("search_tools", query="notes"),
    call("describe_tool", name="notes__read_note"),
    run(MILK),
    call("finish", result={"notes": 2}),
]
WORKFLOW = {
    "name": "monday",
    "steps": [{"call": "notes.read_note", "with": {"name": "monday"}}],
}
RULE = Raw(codec.dump(
    {"name": "notes", "keywords": ["note"], "match": "any", "template": WORKFLOW}
))  # fmt: skip


@pytest.fixture(scope="module")
def processes() -> Generator[Sandboxes, None, None]:
    with sandboxes() as found:
        yield found


@pytest.fixture
def front(processes: Sandboxes) -> NotesFront:
    return NotesFront(processes.front())


def settings(server: ModelServer, provider: Any = "openai", **limits: Any) -> AiSettings:
    return AiSettings(provider=provider, url=server.base, model="small", key=KEY, **limits)


class Told:
    """Progress of an order."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float, str]] = []

    @property
    def numbers(self) -> list[float]:
        return [step for step, _, _ in self.steps]

    def __call__(self, progress: float, total: float, message: str) -> None:
        self.steps.append((progress, total, message))


def ordered(
    front: NotesFront,
    ai: AiSettings | None,
    params: dict[str, Any],
    *,
    method: Literal["agent", "suggest"] = "agent",
    samples: bool = False,
    rules: tuple[Raw, ...] = (),
) -> tuple[OrderDone, Told]:
    """What the engine answers to an order, and the progress that it told."""

    async def main() -> tuple[OrderDone, Told]:
        models, told = Models(), Told()
        models.configure(ai)
        order = EngineOrder(
            id=7, method=method, owner=OWNER, progress=True, params=Raw(codec.dump(params)),
            samples=samples,
        )  # fmt: skip
        try:
            if method == "suggest":
                return await suggest(order, front, told, models, rules), told
            return await run_agent(order, front, told, models), told
        finally:
            await models.close()

    return asyncio.run(main())


def structured(done: OrderDone) -> dict[str, Any]:
    return {**codec.value(done.structured), "text": done.text, "failed": done.failed}


@AGENT
@BOTH
def test_a_task_is_carried_out_with_real_code(front: NotesFront, provider: str) -> None:
    with ModelServer(WAY) as server:
        done, told = ordered(front, settings(server, provider), {"task": "how many on milk?"})
    found = structured(done)
    assert (done.id, found["ended"], found["result"]) == (7, "finished", {"notes": 2})
    assert (found["steps"], found["tokens"], found["code"]) == (4, 440, MILK)
    assert front.asked == [("tools", "notes"), ("describe", "notes__read_note"), ("code", "")]
    ran = next(one for one in found["transcript"] if one.get("tool") == "run_code")
    assert codec.value(ran["answer"].encode())["value"] == 2
    assert told.numbers == [1, 2, 3, 4]
    assert told.steps[2] == (3.0, 20.0, "step 3: run_code")
    assert "how many on milk?" in codec.dump(server.asked[0]).decode()


@AGENT
@BOTH
def test_bad_code_goes_back_with_its_place_until_it_runs(front: NotesFront, provider: str) -> None:
    script = [run("return 1 +"), run('throw new Error("oh")'), run("return 6 * 7"), call("finish")]
    with ModelServer(script) as server:
        done, _ = ordered(front, settings(server, provider), {"task": "what is it?"})
        words = [codec.dump(body["messages"][-1]).decode() for body in server.asked]
    assert structured(done)["result"] == 42
    assert "The code failed (syntax at line 1" in words[1]
    assert "The code failed (exception at line 1, column" in words[2]
    assert "oh" in words[2]


@AGENT
@BOTH
def test_rubbish_is_followed_by_the_right_way(front: NotesFront, provider: str) -> None:
    script = [
        Fails(429, headers=SOON), Sends(b"{]"), Says("Let me think."), call("notes__read_note"),
        Says(calls=[("run_code", "not an object")]), *WAY,
    ]  # fmt: skip
    with ModelServer(script) as server:
        done, _ = ordered(front, settings(server, provider), {"task": "milk?"})
    found = structured(done)
    assert (found["ended"], found["steps"]) == ("model", 3)
    with ModelServer([*script[:4], *WAY]) as server:
        done, _ = ordered(front, settings(server, provider), {"task": "milk?"})
    assert structured(done)["result"] == {"notes": 2}


@AGENT
@pytest.mark.parametrize(
    ("script", "limits", "ended", "words"),
    [
        ([call("search_tools", query="x")], {"steps": 3}, "steps", "within 3 steps"),
        ([call("search_tools", query="x")], {"tokens": 3000}, "tokens", "within 3000 tokens"),
        ([Waits()], {"timeout": 0.3}, "timeout", "within 0.3 s"),
        ([run("for (;;) {}")], {"timeout": 0.5}, "timeout", "within 0.5 s"),
        ([Fails(500, "broken", SOON)], {}, "model", "status 500 (broken)"),
        ([Fails(403)], {}, "model", "[ai] key"),
        ([Says("no")], {}, "model", "3 answers in a row"),
    ],
    ids=["steps", "tokens", "the model hangs", "the code hangs", "500", "403", "words"],
)
def test_what_does_not_end_well_ends_at_a_limit_with_its_reason(
    front: NotesFront, script: list[Line], limits: dict[str, float], ended: str, words: str
) -> None:
    if script == [run("for (;;) {}")]:
        front.silent.add("code")
    with ModelServer(script) as server:
        done, _ = ordered(front, settings(server), {"task": "go", "limits": limits})
    found = structured(done)
    assert (found["failed"], found["ended"]) == (True, ended)
    assert words in found["text"]
    assert KEY not in codec.dump(done).decode()


@AGENT
def test_a_dry_run_runs_nothing(front: NotesFront) -> None:
    with ModelServer(WAY) as server:
        done, _ = ordered(front, settings(server), {"task": "milk?", "dry_run": True})
    found = structured(done)
    assert (found["ended"], found["code"], found["failed"]) == ("dry_run", MILK, False)
    assert "code" not in {kind for kind, _ in front.asked}


@AGENT
def test_an_order_that_is_left_leaves_the_model_and_the_front() -> None:
    front = NotesFront()
    front.silent.add("tools")

    async def left(server: ModelServer, reached: Callable[[], bool]) -> None:
        models = Models()
        models.configure(settings(server))
        order = EngineOrder(id=1, method="agent", owner=OWNER, params=Raw(b'{"task":"x"}'))
        task = asyncio.create_task(run_agent(order, front, Told(), models))
        await asyncio.to_thread(until, reached, "it has asked")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await models.close()

    with ModelServer([Waits()]) as server:
        asyncio.run(left(server, lambda: bool(server.asked)))
        assert server.left.wait(10)
    with ModelServer([call("search_tools", query="x")]) as server:
        asyncio.run(left(server, lambda: bool(front.asked)))
    assert front.cancelled == ["tools"]


@AGENT
def test_without_ai_the_model_of_the_client_does_it(front: NotesFront) -> None:
    script = iter(["search_tools", "run_code", "finish"])
    given = {"search_tools": {"query": "notes"}, "run_code": {"code": MILK}, "finish": {}}

    def model(params: dict[str, Any]) -> dict[str, Any]:
        name = next(script)
        text = codec.dump({"tool": name, "arguments": given[name]}).decode()
        return {"role": "assistant", "model": "own", "content": {"type": "text", "text": text}}

    front.model = model
    done, _ = ordered(front, None, {"task": "milk?"}, samples=True)
    found = structured(done)
    assert (found["result"], found["ended"], found["cost"]) == (2, "finished", 0)
    assert found["tokens"] > 0


@AGENT
def test_a_client_that_refuses_to_sample_is_told(front: NotesFront) -> None:
    front.troubles["sample"] = "the user said no"
    done, _ = ordered(front, None, {"task": "milk?"}, samples=True)
    assert "The client's model gave no answer: the user said no" in done.text


@AGENT
def test_without_any_model_there_are_tools_a_program_and_how_to_get_a_model(
    front: NotesFront,
) -> None:
    done, _ = ordered(front, None, {"task": "read a note"})
    found = structured(done)
    assert (found["ended"], found["failed"]) == ("no_model", False)
    assert models_io.HOW in found["text"]
    assert 'await mcp.call("notes__read_note", {"name":""})' in found["code"]
    assert "// declare namespace mcp {" in found["code"]


@AGENT
@pytest.mark.parametrize("params", [{}, {"task": ""}, {"task": "x", "limits": {"stps": 1}}])
def test_wrong_arguments_are_told(params: dict[str, Any]) -> None:
    done, _ = ordered(NotesFront(), None, params)
    assert done.failed
    assert done.text.startswith("The arguments of run_agent are wrong: ")


@SUGGESTION
@BOTH
def test_a_rule_suggests_without_asking_a_model(provider: str) -> None:
    with ModelServer([]) as server:
        done, _ = ordered(
            NotesFront(), settings(server, provider), {"task": "read my notes"},
            method="suggest", rules=(RULE,),
        )  # fmt: skip
        assert server.asked == []
    found = structured(done)
    assert (found["source"], found["rule"], found["definition"]) == ("rule", "notes", WORKFLOW)


@SUGGESTION
@BOTH
def test_a_model_suggests_what_is_checked_and_mended(provider: str) -> None:
    bad = {"name": "x", "steps": [{"call": "notes.raed_note"}]}
    script = [Says("I would read."), Says(codec.dump(bad).decode()),
              Says(f"```json\n{codec.dump(WORKFLOW).decode()}\n```")]  # fmt: skip
    with ModelServer(script) as server:
        done, told = ordered(
            NotesFront(), settings(server, provider), {"task": "do it"}, method="suggest"
        )
        last = codec.dump(server.asked[2]["messages"][-1]).decode()
    found = structured(done)
    assert (found["source"], found["definition"]) == ("model", WORKFLOW)
    assert "did you mean 'notes.read_note'?" in last
    assert told.steps == [(1.0, 2.0, "the model writes a workflow")]


@SUGGESTION
def test_a_model_refines_the_draft_of_a_rule() -> None:
    refined = {**WORKFLOW, "name": "refined"}
    with ModelServer([Says(codec.dump(refined).decode())]) as server:
        done, _ = ordered(
            NotesFront(), settings(server), {"task": "my notes", "refine": True},
            method="suggest", rules=(RULE,),
        )  # fmt: skip
        assert "Adapt this definition" in codec.dump(server.asked[0]).decode()
    assert structured(done)["definition"]["name"] == "refined"


@SUGGESTION
@pytest.mark.parametrize("rules", [(), (RULE,)], ids=["no rule", "a rule"])
def test_a_model_that_fails_leaves_the_rule_or_the_tools(rules: tuple[Raw, ...]) -> None:
    with ModelServer([Says("no")]) as server:
        done, _ = ordered(
            NotesFront(), settings(server), {"task": "notes", "refine": True},
            method="suggest", rules=rules,
        )  # fmt: skip
        assert len(server.asked) == models_io.JSON_TRIES_MAX
    found = structured(done)
    assert found["source"] == ("rule" if rules else "tools")
    assert "in 3 tries: the answer has no JSON object" in found["notes"][0]


@SUGGESTION
def test_a_rule_whose_tools_are_not_there_is_passed_over() -> None:
    template = {"name": "x", "steps": [{"call": "git.git_log"}]}
    rule = {"name": "log", "keywords": ["note"], "match": "any", "template": template}
    done, _ = ordered(
        NotesFront(), None, {"task": "a note"}, method="suggest", rules=(Raw(codec.dump(rule)),)
    )
    found = structured(done)
    assert found["source"] == "tools"
    assert "The rule 'log' matches, but there is not the tool 'git.git_log'" in found["notes"][0]
    assert [one["call"] for one in found["definition"]["steps"]] == [
        "notes.list_notes", "notes.read_note",
    ]  # fmt: skip
    assert models_io.HOW in found["text"]


@SUGGESTION
def test_a_front_that_tells_no_tools_is_told() -> None:
    front = NotesFront()
    front.troubles["tools"] = "the key is revoked"
    done, _ = ordered(front, None, {"task": "a note"}, method="suggest")
    assert (done.failed, done.text) == (True, "No tools were found: the key is revoked")


def completed(ai: AiSettings | None, schema: Raw | None, front: NotesFront | None = None) -> Any:
    async def main() -> Raw:
        models = Models()
        models.configure(ai)
        try:
            return await models_io.complete(
                "say", schema, OWNER, 3, front or NotesFront(), models, samples=front is not None
            )
        finally:
            await models.close()

    return codec.value(asyncio.run(main()))


SCHEMA = Raw(b'{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}')


@BOTH
def test_a_step_gets_an_answer_that_fits_its_schema(provider: str) -> None:
    with ModelServer([Says('{"n": "one"}'), Says('{"n": 1}')]) as server:
        assert completed(settings(server, provider), SCHEMA) == {"n": 1}
        last = codec.dump(server.asked[1]["messages"][-1]).decode()
    assert "answer.n is not of the type integer (schema: $.properties.n.type)" in last


def test_a_step_without_a_schema_gets_text() -> None:
    with ModelServer([Says("so it is")]) as server:
        assert completed(settings(server), None) == "so it is"


def test_a_step_whose_model_never_fits_fails_with_the_last_problem() -> None:
    last = r"in 3 tries: answer\.n is not of the type integer"
    with ModelServer([Says('{"n": "one"}')]) as server, pytest.raises(NoAnswer, match=last):
        completed(settings(server), SCHEMA)


def test_a_step_takes_the_model_of_the_client_and_without_one_says_how_to_get_one() -> None:
    front = NotesFront()
    front.model = lambda params: {"content": {"type": "text", "text": '{"n": 5}'}}
    assert completed(None, SCHEMA, front) == {"n": 5}
    with pytest.raises(NoAnswer, match="This step needs a model"):
        completed(None, SCHEMA)
