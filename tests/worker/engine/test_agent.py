"""What an agent does next, how it ends, and what it answers without a model."""

import re
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from metamcp_worker.engine import agent
from metamcp_worker.engine.agent import Agent, AgentEnd, AskFront, AskModel
from metamcp_worker.engine.models import ModelAnswer, ModelTurn, OutcomeTurn, ToolUse
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import AgentArguments, AiSettings, HostDone
from tests.house import ROOT

pytestmark = pytest.mark.promise("M49")

AI = AiSettings(provider="openai", url="http://h", model="m", input_price=1.0, output_price=10.0)
TOOLS = [{"name": "notes__read", "server": "notes", "tool": "read", "description": "Read a note."}]
DESCRIBED = {
    "exposedName": "notes__read",
    "typescript": "declare function call(name: string): Promise<unknown>;",
    "definition": {
        "inputSchema": {
            "properties": {"name": {"type": "string"}, "deep": {"type": "boolean"}},
            "required": ["name"],
        }
    },
}


def made(settings: AiSettings = AI, **given: Any) -> Agent:
    return Agent(
        codec.decode_as(AgentArguments, codec.dump({"task": "read it", **given})), settings
    )


def says(*calls: tuple[str, Any], text: str = "", stop: Any = "") -> ModelAnswer:
    uses = tuple(
        ToolUse(f"u{number}", name, Raw(codec.dump(given)))
        for number, (name, given) in enumerate(calls)
    )
    return ModelAnswer(ModelTurn(text, uses), stop, 100, 10)


def done(value: object) -> HostDone:
    return HostDone(call=1, result=Raw(codec.dump(value)))


def after(machine: Agent, *answers: ModelAnswer) -> AskModel | AskFront | AgentEnd:
    """What is next when the model has said these, one after the other."""
    for answer in answers:
        assert isinstance(machine.next(), AskModel)
        machine.on_model_answer(answer)
    return machine.next()


def ended(machine: Agent) -> dict[str, Any]:
    end = machine.next()
    assert isinstance(end, AgentEnd)
    return {
        **codec.value(end.to_done(3).structured),
        "text": end.text,
        "failed": end.to_done(3).failed,
    }


def outcomes(machine: Agent) -> Sequence[str]:
    """The answers to calls that the model gets next."""
    asked = machine.next()
    assert isinstance(asked, AskModel)
    turn = asked.prompt.turns[-1]
    assert isinstance(turn, OutcomeTurn)
    return [one.text for one in turn.outcomes]


def test_an_agent_stops_where_the_user_has_not_agreed() -> None:
    machine = made()
    after(machine, says(("run_code", {"code": "x"}), ("finish", {"result": 1})))
    machine.on_front_answer(
        done({"failure": "consent", "message": "it wanted to call a_t, and was not to"})
    )
    found = ended(machine)
    assert (found["ended"], found["failed"], found["code"]) == ("consent", True, "x")
    assert found["text"].startswith("The agent stopped: it wanted to call a_t, and was not to.\n")


def test_a_task_goes_from_the_search_over_the_code_to_the_result() -> None:
    machine = made()
    assert after(machine, says(("search_tools", {"query": "note"}))) == AskFront("tools", "note")
    machine.on_front_answer(done(TOOLS))
    assert outcomes(machine) == ["notes__read: Read a note."]
    machine.on_model_answer(says(("describe_tool", {"name": "notes__read"})))
    assert machine.next() == AskFront("describe", "notes__read")
    machine.on_front_answer(done(DESCRIBED))
    assert outcomes(machine) == [DESCRIBED["typescript"]]
    machine.on_model_answer(says(("run_code", {"code": "return 42"})))
    asked = machine.next()
    assert isinstance(asked, AskFront)
    assert (asked.kind, codec.value(asked.arguments)) == ("code", {"code": "return 42"})
    assert machine.doing == "step 3: run_code"
    machine.on_front_answer(done({"value": {"n": 42}, "logs": [], "calls": 0, "ms": 1}))
    machine.next()
    machine.on_model_answer(says(("finish", {})))
    found = ended(machine)
    assert (found["ended"], found["result"], found["code"]) == ("finished", {"n": 42}, "return 42")
    assert (found["steps"], found["tokens"], found["cost"]) == (4, 440, 0.0008)
    assert [one["tool"] for one in found["transcript"]] == [
        "search_tools", "describe_tool", "run_code",
    ]  # fmt: skip
    assert found["text"] == '{"n":42}\n(4 steps, 440 tokens, cost 0.0008)'


def test_calls_of_one_turn_are_made_one_after_the_other() -> None:
    machine = made()
    calls = ("run_code", {"code": "return 1"}), ("finish", {"result": "one"})
    assert isinstance(after(machine, says(*calls)), AskFront)
    machine.on_front_answer(done({"value": 1}))
    assert ended(machine)["result"] == "one"


def test_a_dry_run_ends_with_the_code_and_does_not_run_it() -> None:
    machine = made(dry_run=True)
    after(machine, says(("run_code", {"code": "return mcp.call('x')"})))
    found = ended(machine)
    assert (found["ended"], found["code"], found["failed"]) == (
        "dry_run", "return mcp.call('x')", False,
    )  # fmt: skip


def test_a_failure_of_the_code_goes_back_with_its_sentence_and_place() -> None:
    machine = made()
    after(machine, says(("run_code", {"code": "x"})))
    failure = {"failure": "exception", "message": "x is not defined", "line": 1, "column": 1,
               "stack": "", "logs": ["here"], "calls": 0, "ms": 1}  # fmt: skip
    machine.on_front_answer(done(failure))
    assert outcomes(machine) == [
        'The code failed (exception at line 1, column 1): x is not defined\nLogs: ["here"]'
    ]


def test_what_the_front_refuses_goes_back_in_its_words() -> None:
    machine = made()
    after(machine, says(("describe_tool", {"name": "nots"})))
    machine.on_front_answer(
        HostDone(call=1, trouble="error", error="no tool nots; did you mean notes?")
    )
    assert outcomes(machine) == ["no tool nots; did you mean notes?"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            ("notes__read", {"name": "x"}),
            "You have not got a tool 'notes__read', but search_tools",
        ),
        (("run_code", {"codes": 1}), "run_code was not called: its arguments are wrong"),
        (("finish", {"failed": "yes"}), "finish was not called: its arguments are wrong"),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_with_the_reason(call: Any, words: str) -> None:
    machine = made()
    after(machine, says(call))
    assert outcomes(machine)[0].startswith(words)


def test_a_model_that_only_talks_is_told_to_act_and_then_reported() -> None:
    machine = made()
    for _ in range(agent.RUBBISH_MAX):
        assert isinstance(machine.next(), AskModel)
        machine.on_model_answer(says(text="As a model, I would look first."))
    found = ended(machine)
    assert (found["ended"], found["failed"], found["steps"]) == ("model", True, 3)
    assert "3 answers in a row that cannot be used" in found["text"]
    assert found["transcript"][0]["model"] == "As a model, I would look first."


def test_an_answer_that_was_cut_is_not_carried_out() -> None:
    machine = made()
    after(machine, says(("run_code", {"code": "return 1"}), stop="length"))
    assert "cut at the limit of tokens" in outcomes(machine)[0]


def test_a_refusal_of_the_model_ends_the_agent_with_its_words() -> None:
    machine = made()
    after(machine, says(text="I will not.", stop="refused"))
    assert "The model refuses the task: I will not." in ended(machine)["text"]


def test_a_task_that_cannot_be_done_is_a_failure_with_the_reason() -> None:
    machine = made()
    after(machine, says(("finish", {"failed": True, "result": "there is no note"})))
    found = ended(machine)
    assert (found["ended"], found["result"], found["failed"]) == (
        "failed", "there is no note", True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "reason", "words"),
    [
        ({"steps": 2}, "steps", "within 2 steps (steps)"),
        ({"tokens": 1500}, "tokens", "within 1500 tokens (tokens)"),
        ({"cost": 0.0004}, "cost", "within a cost of 0.0004 (cost)"),
    ],
)
def test_an_endless_loop_ends_at_each_limit_by_its_name(
    limits: dict[str, float], reason: str, words: str
) -> None:
    machine = made(limits=limits)
    for _ in range(AI.steps_max):
        action = machine.next()
        if isinstance(action, AgentEnd):
            break
        if isinstance(action, AskFront):
            machine.on_front_answer(done([]))
        else:
            machine.on_model_answer(says(("search_tools", {"query": "again"})))
    found = ended(machine)
    assert (found["ended"], found["failed"]) == (reason, True)
    assert words in found["text"]


def test_the_model_knows_its_last_step() -> None:
    machine = made(limits={"steps": 1})
    asked = machine.next()
    assert isinstance(asked, AskModel)
    assert asked.prompt.system.endswith("This is your last step: call finish.")


def test_a_call_lowers_limits_and_never_raises_them() -> None:
    high, low = made(limits={"steps": 999, "timeout": 9999}), made(limits={"timeout": 1.5})
    assert (high.steps_max, high.timeout_s, low.timeout_s) == (20, 300.0, 1.5)
    low.on_timeout()
    assert "within 1.5 s (timeout)" in ended(low)["text"]


def test_a_long_answer_is_cut_for_the_model_and_whole_in_the_result() -> None:
    machine = made()
    after(machine, says(("run_code", {"code": "x"})))
    machine.on_front_answer(done({"value": "y" * 50_000}))
    text = outcomes(machine)[0]
    assert len(text) < agent.TOLD_CHARACTERS_MAX + 100
    assert "let the program return less" in text
    machine.on_model_answer(says(("finish", {})))
    assert ended(machine)["result"] == "y" * 50_000


def test_without_a_model_there_are_the_best_tools_and_a_program_with_their_types() -> None:
    given = agent.skeleton(5, "read */ the\nnote", TOOLS, [Raw(codec.dump(DESCRIBED))], "Do this.")
    found = codec.value(given.structured)
    assert (given.id, given.failed, found["ended"]) == (5, False, "no_model")
    assert "No model is configured, so the task was not carried out. Do this." in given.text
    lines = found["code"].splitlines()
    assert lines[0] == "// Task: read */ the note"
    assert f"// {DESCRIBED['typescript']}" in lines
    assert 'const result1 = await mcp.call("notes__read", {"name":""});' in lines
    assert lines[-1] == "return result1;"
    assert all(re.match(r"//|const |return |$", line) for line in lines)


def test_without_a_model_and_without_tools_there_is_no_code() -> None:
    given = agent.skeleton(5, "x", [], [], "Do this.")
    assert codec.value(given.structured)["code"] == ""
    assert "No tool fits" in given.text


USES = st.builds(
    ToolUse,
    id=st.sampled_from(["a", "b"]),
    name=st.sampled_from([*(tool.name for tool in agent.TOOLS), "other"]),
    arguments=st.sampled_from(
        [Raw(b"{}"), Raw(b'{"query":"x"}'), Raw(b'{"name":"x"}'), Raw(b'{"code":"x"}'), Raw(b"7")]
    ),
    fault=st.sampled_from(["", "not JSON"]),
)
ANSWERS = st.builds(
    ModelAnswer,
    turn=st.builds(ModelTurn, text=st.text(max_size=5), uses=st.lists(USES, max_size=3).map(tuple)),
    stop=st.sampled_from(["", "", "length", "refused"]),
    input_tokens=st.integers(0, 1000),
)
HOST = st.sampled_from(
    [done([]), done({"value": 1}), done({"failure": "size"}), done(7), done("x"),
     HostDone(call=1, trouble="unavailable", error="gone")]
)  # fmt: skip


@given(answers=st.lists(ANSWERS, min_size=8, max_size=8), host=st.lists(HOST, min_size=24))
def test_whatever_model_and_front_say_an_agent_ends_within_its_steps(
    answers: list[ModelAnswer], host: list[HostDone]
) -> None:
    machine = made(limits={"steps": 8})
    said, told = iter(answers), iter(host)
    while not isinstance(action := machine.next(), AgentEnd):
        if isinstance(action, AskModel):
            assert action.prompt.tokens_max > 0
            machine.on_model_answer(next(said))
        else:
            machine.on_front_answer(next(told))
    assert machine.steps <= 8
    assert machine.next() == action
    assert codec.value(action.to_done(1).structured)["ended"] == action.reason


def test_the_docs_tell_why_agents_end() -> None:
    text = (ROOT / "docs/code-mode.md").read_text()
    (table,) = re.findall(r"\| `ended` \|.*?\n\n", text, re.DOTALL)
    told = re.findall(
        r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:-1])
    )
    assert {*told} == {*get_args(agent.Reason), "no_model"}
