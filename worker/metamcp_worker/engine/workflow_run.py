"""Runs of workflows: states, what follows after a failure or a crash, and what is reported of them.

Owns: words of states, the scope of expressions, decisions about attempts, questions to people and
their answers, idempotency keys, the mask of secrets, arguments and answers of orders. Never: the
journal (`run_journal`), carrying out steps (`workflow_run_io`).

A step runs at least once. A step whose end is not in the journal has been interrupted: it runs
again if that does no harm, else a person decides.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Raw, Struct, json
from msgspec.structs import replace

from metamcp_worker.cel import expressions
from metamcp_worker.cel.expressions import VALUE_BYTES_MAX, ExpressionError, is_list, is_map
from metamcp_worker.engine.workflow import (
    AnyStep,
    CallStep,
    CodeStep,
    ElicitStep,
    Step,
    duration_ms,
)
from metamcp_worker.ipc import codec, parameters
from metamcp_worker.ipc.engine_runs import PARKED, HostDone, OrderDone, RunOwner, Trouble

RunStatus: TypeAlias = Literal[
    "queued", "running", "waiting", "needs_decision", "needs_answer", "done", "failed", "cancelled"
]
StepStatus: TypeAlias = Literal[
    "running", "waiting", "needs_decision", "needs_answer", "done", "failed", "skipped", "cancelled"
]
Decision: TypeAlias = Literal["retry", "skip", "fail"]
OPEN: Final = frozenset({"queued", "running", "waiting"}) | PARKED
"""Words for runs that have not ended."""
RESULT_BYTES_MAX = VALUE_BYTES_MAX
"""Maximum bytes of the result of a step, which is kept in its row."""
RUN_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of all results of a run, which the engine has in memory."""
RUNS_SHOWN_MAX = 1000
STEPS_SHOWN_MAX = 1000
"""Maximum number of steps in the answer to `workflow/status`."""
BACKOFF_S_MAX = 3600.0
INTERRUPTIONS_MAX = 5
"""Maximum attempts of a step in a row that are interrupted by the end of a process."""
SECRET_CHARACTERS_MIN = 4
"""Shorter secrets are not masked: they would stand in any text."""
ERROR_CHARACTERS_MAX = 2000
MESSAGE_CHARACTERS_MAX = 65_536
"""Maximum characters of a question, with the values of its expressions."""
LINE_CHARACTERS_MAX = 120
"""Maximum characters of a question in a list of runs."""
MASK = "[secret]"


class RunRecord(Struct, frozen=True, kw_only=True):
    """Run, as in the journal. `hash`: of its definition; `inputs`, `output`: JSON, without secrets;
    `step`: path of the step that failed or waits for a person; `error`: why, or what it asks;
    `created`, `ended`: seconds since the epoch, 0 if it has not ended."""

    id: str
    name: str
    hash: str
    owner: RunOwner
    inputs: bytes = b"{}"
    status: RunStatus = "queued"
    step: str = ""
    error: str = ""
    output: bytes = b"null"
    created: float = 0.0
    ended: float = 0.0


class StepRecord(Struct, frozen=True):
    """Step, as in the journal. `attempt`: number of the last one; `key`: idempotency key; `output`:
    JSON, of `steps.ID` when it is done, of the end of a `wait` or an `Elicitation` before."""

    path: str
    attempt: int = 0
    status: StepStatus = "running"
    key: str = ""
    output: bytes = b"null"
    error: str = ""


class Elicitation(Struct, frozen=True):
    """Question of a step. `until`: seconds since the epoch, None for any time."""

    message: str
    schema: Raw
    until: float | None = None

    @property
    def params(self) -> dict[str, object]:
        """Parameters of `elicitation/create`."""
        return {"message": self.message, "requestedSchema": self.schema}


class RunQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `workflow/status` and `workflow/cancel`. With `workflow/status`, `wait`: for the
    end of the run; `ask`: have the client answer what the run asks, if it can."""

    run: str
    wait: bool = False
    ask: bool = False


class GraphQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `workflow/graph`: one of a workflow of the configuration and a run."""

    name: str = ""
    run: str = ""


class RunDecision(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `workflow/decide`."""

    run: str
    step: str
    decision: Decision


class RunAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `workflow/answer`. `wait`: for the end of the run, or the next question."""

    run: str
    step: str
    action: Literal["accept", "decline"] = "accept"
    content: Raw = Raw(b"{}")
    wait: bool = False

    @property
    def text(self) -> str:
        """Result of `elicitation/create` for this answer."""
        content = {"content": self.content} if self.action == "accept" else {}
        return json.encode({"action": self.action, **content}).decode()


class RunList(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `workflow/runs`. `status`: empty for all."""

    limit: int = 100
    status: Literal["", RunStatus] = ""


class Scope:
    """Values of expressions at a place. `indices`: of the items around it, outermost first."""

    def __init__(self, inputs: Mapping[str, object], steps: Iterable[str]) -> None:
        self.indices: tuple[int, ...] = ()
        self.steps: dict[str, object] = dict.fromkeys(steps, absent_value())
        self.variables: dict[str, object] = {"inputs": inputs, "steps": self.steps}

    def within(self, name: str, item: object, index: int, steps: Iterable[str]) -> "Scope":
        """Return the scope inside of an item of a `foreach`."""
        inner = Scope({}, steps)
        inner.steps = self.steps | inner.steps
        inner.indices = (*self.indices, index)
        inner.variables = self.variables | {name: item, "index": index, "steps": inner.steps}
        return inner


class StepOutcome(Struct, frozen=True):
    """End of an attempt. `value`: what `steps.ID` is; `trouble` with `error`: there is none.
    `repeatable`: another attempt does no harm; `lost`: a process of the gateway ended with it;
    `down`: something went down with it, perhaps because the gateway ends."""

    value: dict[str, object] = {}
    trouble: Trouble = ""
    error: str = ""
    repeatable: bool = False
    lost: bool = False
    down: bool = False


def next_pause_ms(step: Step, attempt: int, outcome: StepOutcome) -> int | None:
    """Return the milliseconds until another attempt after this failure, None for no other."""
    retry = step.retry
    if attempt >= retry.attempts or outcome.trouble not in retry.on:
        return None
    return min(retry.backoff_ms << (attempt - 1), int(BACKOFF_S_MAX * 1000))


def count_interruptions(count: int, outcome: StepOutcome) -> int:
    """Return how many attempts in a row were interrupted, with this one. After an interruption an
    attempt counts too that did nothing, because its server is not back yet."""
    if outcome.lost or (count and outcome.trouble == "unavailable" and outcome.repeatable):
        return count + 1
    return 0


def is_open(step: Step, outcome: StepOutcome) -> bool:
    """Whether nobody knows if the step has happened, and another attempt may do harm."""
    return outcome.trouble in {"timeout", "unavailable"} and not (step.safe or outcome.repeatable)


def harmless(step: AnyStep) -> bool | None:
    """Whether a step that was interrupted may run again; None if its tool has to be asked."""
    if isinstance(step, CallStep):
        return True if step.safe else None
    return step.safe if isinstance(step, CodeStep) else True


def repeatable(done: HostDone) -> bool:
    """Whether a description of a tool says that it may run twice."""
    if done.trouble:
        return False
    tool: object = codec.value(done.result)
    hints: object = tool.get("annotations") if is_map(tool) else None
    if not is_map(hints):
        return False
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


def of_call(done: HostDone) -> StepOutcome:
    """Return the end of an attempt to call a tool."""
    if done.trouble:
        return _build_trouble(done)
    value = expressions.step_value(done.result)
    if value["error"] is not None:
        return StepOutcome(value, "error", str(value["error"]), done.repeatable)
    return StepOutcome(value)


def of_code(done: HostDone) -> StepOutcome:
    """Return the end of an attempt to run code."""
    if done.trouble:
        return _build_trouble(done)
    read: object = codec.value(done.result)
    members = read if is_map(read) else {}
    failure = members.get("failure")
    if is_map(failure):
        failure = failure.get("failure")
    if failure:
        trouble: Trouble = "timeout" if failure == "timeout" else "error"
        error = members.get("message") or f"the code failed: {failure}"
        return StepOutcome(
            {}, trouble, str(error), repeatable=failure == "busy", down=failure == "crashed"
        )
    return StepOutcome(expressions.step_result(members.get("value")))


def _build_trouble(done: HostDone) -> StepOutcome:
    down = done.trouble == "unavailable"
    return StepOutcome({}, done.trouble, done.error, done.repeatable, lost=done.lost, down=down)


def pause_s(value: object) -> float:
    """Return the seconds of a pause. Raises ExpressionError."""
    ms = duration_ms(value) if isinstance(value, str) else None
    if ms is None and isinstance(value, int | float) and not isinstance(value, bool):
        ms = round(value * 1000)
    if ms is None:
        raise ExpressionError("'wait' is neither a duration such as \"5s\" nor a number")
    return max(ms, 0) / 1000


def build_timeout(step: Step) -> StepOutcome:
    """Return the end of an attempt whose time is over."""
    return StepOutcome({}, "timeout", f"the step did not end within {step.timeout_ms / 1000:g} s")


def build_elicit_row(row: StepRecord, step: ElicitStep, message: str, now: float) -> StepRecord:
    """Return the row of a step that asks. Raises ExpressionError."""
    if len(message) > MESSAGE_CHARACTERS_MAX:
        most = f"{MESSAGE_CHARACTERS_MAX:,}"
        raise ExpressionError(f"the message has more than {most} characters")
    until = now + step.timeout_ms / 1000 if step.timeout_ms else None
    output = json.encode(Elicitation(message, Raw(json.encode(step.schema)), until))
    return replace(row, attempt=1, status="needs_answer", output=output, error="")


def waits_for(row: StepRecord) -> tuple[RunStatus, str]:
    """Return the state of a run in which this step waits for a person, and what it asks."""
    if row.status != "needs_answer":
        return "needs_decision", row.error
    message = json.decode(row.output, type=Elicitation).message
    return "needs_answer", message[:ERROR_CHARACTERS_MAX]


def wrong_answer(row: StepRecord, content: Raw) -> str:
    """Return what is wrong first with an answer by the schema of its question, else an empty
    string. Raises codec.Malformed."""
    if len(content) > RESULT_BYTES_MAX:
        return f"it has more than {RESULT_BYTES_MAX:,} bytes"
    codec.level(content)
    schema = bytes(json.decode(row.output, type=Elicitation).schema).decode()
    problem = parameters.wrong(schema, content)
    return re.sub(r"^args\b", "answer", problem).replace("(parameters: ", "(schema: ")


def action(answer: str) -> str:
    """Return the word of a result of `elicitation/create`; empty for any other text."""
    try:
        result: object = codec.value(answer.encode())
    except codec.Malformed:
        return ""
    return str(result.get("action") or "decline") if is_map(result) else ""


def with_answer(row: StepRecord, answer: str, secrets: Sequence[str]) -> StepRecord:
    """Return the row of a question after an answer: the result of `elicitation/create`, or any
    other text after the end of the run."""
    word = action(answer)
    if word == "accept":
        content: object = codec.value(answer.encode()).get("content")
        output = json.encode(mask_secrets(expressions.step_result(content), secrets))
        if len(output) <= RESULT_BYTES_MAX:
            return replace(row, status="done", output=output, error="")
        error = f"the answer has more than {RESULT_BYTES_MAX:,} bytes"
    elif not word:
        error = "the run failed before somebody answered"
    else:
        error = f"the user {'cancelled' if word == 'cancel' else 'declined'} the question"
    return replace(row, status="failed", output=json.encode(failed_value(error)), error=error)


def with_decision(row: StepRecord, decision: str) -> StepRecord:
    """Return the row of a step after a decision; a `waiting` one makes its next attempt."""
    if decision == "retry":
        return replace(row, status="waiting", error="")
    if decision == "skip":
        return replace(row, status="skipped", output=json.encode(absent_value()))
    return replace(row, status="failed", output=json.encode(failed_value(row.error)))


def failed_value(error: str, text: object = "") -> dict[str, object]:
    """Return what `steps.ID` is after a failure that does not end the run."""
    return {"result": None, "text": text if isinstance(text, str) else "", "error": error}


def absent_value() -> dict[str, object]:
    """Return what `steps.ID` is for a step that did not run."""
    return {"result": None, "text": "", "error": None}


def lost_secret(step: AnyStep, secrets: Iterable[str], inputs: Mapping[str, object]) -> str:
    """Return the sentence why a step cannot run after a crash, because it needs a secret input,
    which was kept nowhere; else an empty string."""
    lost = {name for name in secrets if name not in inputs}
    value = step.arguments if lost and isinstance(step, CallStep | CodeStep) else None
    for expression in expressions.in_value(value):
        for use in expression.references:
            if use.root == "inputs" and (use.member in lost or not use.member):
                name = use.member or sorted(lost)[0]
                problem = "is gone: the engine ended meanwhile, and secrets are kept nowhere"
                return f"the secret input '{name}' {problem}; run the workflow again"
    return ""


def secret_texts(values: Iterable[object]) -> tuple[str, ...]:
    """Return the texts to mask in all that is kept or sent, the longest first."""
    texts: set[str] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if is_map(value):
            pending += value.values()
        elif is_list(value):
            pending += value
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            text = value if isinstance(value, str) else json.encode(value).decode()
            if len(text) >= SECRET_CHARACTERS_MIN:
                texts.add(text)
    return tuple(sorted(texts, key=len, reverse=True))


def mask_secrets(value: object, secrets: Sequence[str]) -> object:
    """Return a value with each secret in its texts, keys and numbers replaced."""
    if not secrets:
        return value
    pattern = re.compile("|".join(map(re.escape, secrets)))

    def clean(element: object) -> object:
        if isinstance(element, str):
            return pattern.sub(MASK, element)
        if is_map(element):
            return {pattern.sub(MASK, key): clean(each) for key, each in element.items()}
        if is_list(element):
            return [clean(each) for each in element]
        if isinstance(element, int | float) and not isinstance(element, bool):
            return MASK if json.encode(element).decode() in secrets else element
        return element

    return clean(value)


def sees(owner: RunOwner, run: RunRecord) -> bool:
    """Whether a client sees a run: its own."""
    of = run.owner
    return (owner.workspace, owner.name, owner.auth) == (of.workspace, of.name, of.auth)


def describe_run(run: RunRecord, steps: Sequence[StepRecord] | None = None) -> dict[str, object]:
    """Return a run for an answer; with its output and its steps if they are given."""
    asks = run.status == "needs_answer"
    members: dict[str, object] = {
        "run": run.id, "workflow": run.name, "status": run.status, "step": run.step,
        "error": "" if asks else run.error, "question": run.error if asks else "",
        "created": run.created, "ended": run.ended or None,
    }  # fmt: skip
    if steps is not None:
        members["output"] = Raw(run.output)
        members["steps"] = [
            {
                "step": step.path,
                "status": step.status,
                "attempts": step.attempt,
                "error": step.error,
            }
            | ({"question": Raw(step.output)} if step.status == "needs_answer" else {})
            for step in steps
        ]
    return members


def line(run: RunRecord) -> str:
    """Return a run for a list: with its step and what it asks, if it waits for a person."""
    summary = f"{run.id} {run.name} {run.status}"
    if run.status not in PARKED:
        return summary
    text = " ".join(run.error.split())
    cut = text if len(text) <= LINE_CHARACTERS_MAX else f"{text[: LINE_CHARACTERS_MAX - 1]}…"
    return f"{summary} {run.step}: {cut}"


def format_run_state(run: RunRecord) -> str:
    """Return the state of a run as a sentence, or its output if it is done."""
    name = f"Run {run.id} of the workflow '{run.name}'"
    at = f" at step '{run.step}'" if run.step else ""
    if run.status == "done":
        output: object = codec.value(run.output)
        return output if isinstance(output, str) else run.output.decode()
    if run.status == "failed":
        return f"{name} failed{at}: {run.error}"
    if run.status == "needs_decision":
        how = "decide 'retry', 'skip' or 'fail' for this step (metamcp workflow decide)"
        return f"{name} needs a decision{at}: {run.error}; {how}"
    if run.status == "needs_answer":
        how = f"'metamcp workflow answer {run.id} {run.step}' answers it"
        return f"{name} needs an answer{at}: {run.error}\n{how}."
    return f"{name} is {run.status}."


def answer(order: int, run: RunRecord, steps: Sequence[StepRecord] = ()) -> OrderDone:
    """Return the answer that describes a run. A run that failed is a failure of the tool."""
    structured = Raw(json.encode(describe_run(run, steps)))
    failed = run.status in {"failed", "cancelled"}
    return OrderDone(id=order, text=format_run_state(run), structured=structured, failed=failed)
