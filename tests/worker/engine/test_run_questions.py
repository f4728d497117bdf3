"""Questions of workflows to people, in the true process of the engine, also when it is killed."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw, json

from metamcp_worker.ipc.engine_runs import HostAsk, HostDone, RunOwner
from tests.worker.engine.engines import engine
from tests.worker.engine.test_workflow_runs import call, finished, reached, workflow

pytestmark = [pytest.mark.process, pytest.mark.promise("M52")]

ASK: dict[str, Any] = {
    "id": "name",
    "elicit": {
        "message": "Who is ${{ inputs.who }}?",
        "schema": {
            "type": "object",
            "properties": {"age": {"type": "integer"}},
            "required": ["age"],
        },
    },
}


def asks(*steps: dict[str, Any], **members: Any) -> dict[str, Any]:
    inputs = {"who": {"type": "string", "default": "Ada"}}
    return workflow({**ASK, **members}, *steps, {"output": "${{ steps.name }}"}, inputs=inputs)


def test_a_question_that_nobody_can_be_asked_waits_for_an_answer_over_a_crash(
    tmp_path: Path,
) -> None:
    with engine(tmp_path) as running:
        peer = running.peer()
        begun, done = peer.ask("workflow/run", definition=asks(), wait=False)
        run = begun["run"]
        assert not done.failed
        reached(peer, lambda found: found["status"] == "needs_answer")
        running.kill()
        running.start()
        peer, operator = running.peer(), running.peer(front="")
        found = reached(peer, lambda found: found["status"] == "needs_answer")
        assert (found["step"], found["question"], found["error"]) == ("name", "Who is Ada?", "")
        question = found["steps"][0]["question"]
        assert question == {
            "message": "Who is Ada?", "schema": ASK["elicit"]["schema"], "until": None,
        }  # fmt: skip
        listed = operator.ask("workflow/runs", status="needs_answer")[1].text
        assert listed == f"{run} w needs_answer name: Who is Ada?"
        for wrong, why in (
            ({"step": "age", "content": {}}, "does not wait for an answer; these do: name"),
            ({"step": "name", "content": {"age": "x"}}, "answer.age"),
            ({"step": "name"}, "answer has no 'age'"),
        ):
            refused = operator.ask("workflow/answer", run=run, **wrong)[1]
            assert refused.failed
            assert why in refused.text, refused.text
        _, refused = operator.ask("workflow/decide", run=run, step="name", decision="skip")
        assert "does not wait for a decision" in refused.text
        other = running.peer(owner=RunOwner(endpoint="default", name="other"))
        assert "No run" in other.ask("workflow/answer", run=run, step="name")[1].text
        operator.ask("workflow/answer", run=run, step="name", content={"age": 36})
        running.kill()
        running.start()
        peer = running.peer()
        assert finished(peer, run)["output"]["result"] == {"age": 36}
        again = peer.ask("workflow/answer", run=run, step="name", content={"age": 37})[1]
        assert again.failed
        assert "does not wait for an answer" in again.text


def test_a_question_is_declined_or_answered_only_once(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        peer = running.peer(front="")
        found, done = peer.ask("workflow/run", definition=asks(may_fail=True))
        assert found["status"] == "needs_answer"
        assert "metamcp workflow answer" in done.text
        orders = [
            peer.order("workflow/answer", run=found["run"], step="name", action="decline"),
            peer.order("workflow/answer", run=found["run"], step="name", content={"age": 36}),
        ]
        first, second = [peer.done(each) for each in orders]
        assert first is not None
        assert second is not None
        assert (first.failed, second.failed) == (False, True)
        error = finished(peer, found["run"])["output"]["error"]
        assert error == "the user declined the question"


def test_the_time_of_a_question_goes_on_over_a_crash(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        peer = running.peer()
        peer.ask("workflow/run", definition=asks(timeout="2s"), wait=False)
        found = reached(peer, lambda found: found["status"] == "needs_answer")
        running.kill()
        running.start()
        ended = finished(running.peer(), found["run"], parked=False)
        assert (ended["status"], ended["step"]) == ("failed", "name")
        assert ended["error"] == "the step did not end within 2 s"


def test_a_question_is_left_to_others_when_its_client_cannot_answer(tmp_path: Path) -> None:
    held: list[HostAsk] = []
    with engine(tmp_path) as running:
        peer = running.peer({"": held.append})
        order = peer.order("workflow/run", definition=asks())
        reached(peer, lambda _: bool(held))
        peer.send(HostDone(call=held[0].call, trouble="unavailable", error="it is away"))
        done = peer.done(order)
        assert done is not None
        found: dict[str, Any] = json.decode(done.structured)
        assert (found["status"], done.failed) == ("needs_answer", False)
        peer.ask("workflow/answer", run=found["run"], step="name", content={"age": 36})
        assert finished(peer, found["run"])["status"] == "done"


@pytest.mark.parametrize("action", ["accept", "cancel"])
def test_a_later_client_is_asked_when_it_looks_at_its_run(tmp_path: Path, action: str) -> None:
    def answer(ask: HostAsk) -> HostDone:
        result = Raw(json.encode({"action": action, "content": {"age": 36}}))
        return HostDone(call=ask.call, result=result)

    with engine(tmp_path) as running:
        first, later = running.peer(), running.peer({"": answer})
        run = first.ask("workflow/run", definition=asks(), wait=False)[0]["run"]
        reached(first, lambda found: found["status"] == "needs_answer")
        assert later.ask("workflow/status", run=run)[0]["status"] == "needs_answer"
        assert later.asked == []
        later.ask("workflow/status", run=run, ask=True)
        assert [one.kind for one in later.asked] == ["elicit"]
        if action == "accept":
            assert finished(later, run)["output"]["result"] == {"age": 36}
        else:
            assert later.ask("workflow/status", run=run)[0]["status"] == "needs_answer"


def test_a_question_that_somebody_else_answered_is_withdrawn(tmp_path: Path) -> None:
    held: list[HostAsk] = []
    with engine(tmp_path) as running:
        peer, operator = running.peer({"": held.append}), running.peer(front="")
        order = peer.order("workflow/run", definition=asks())
        run = reached(peer, lambda _: bool(held))["run"]
        operator.ask("workflow/answer", run=run, step="name", content={"age": 36})
        done = peer.done(order)
        assert done is not None
        assert json.decode(done.structured)["output"]["result"] == {"age": 36}
        assert [one.call for one in peer.dropped] == [held[0].call]


def test_a_failure_ends_a_question_beside_it(tmp_path: Path) -> None:
    held: list[HostAsk] = []
    with engine(tmp_path) as running:
        peer = running.peer({"b": held.append})
        definition = asks()
        definition["steps"][0] = {"parallel": [ASK, call("b")]}
        begun, _ = peer.ask("workflow/run", definition=definition, wait=False)
        reached(peer, lambda found: bool(held) and len(found["steps"]) == 2)
        peer.send(HostDone(call=held[0].call, trouble="error", error="no such file"))
        ended = finished(peer, begun["run"], parked=False)
        assert (ended["status"], ended["step"]) == ("failed", "0/b")
