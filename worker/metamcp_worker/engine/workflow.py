"""Workflows: the steps of a definition without problems, their paths, and the inputs of a run.

Owns: what each kind of step is, the graph of the steps for people, durations. Never: the form of a
definition (`definition`), how steps run.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from metamcp_worker.ipc import codec, parameters
from metamcp_worker.ipc.engine_runs import GraphGroup, GraphStep, Place, shorten

Failure: TypeAlias = Literal["error", "timeout", "unavailable"]
"""Failure that a retry is for: the words of a tool, the end of its time, or no answer at all."""
Language: TypeAlias = Literal["typescript", "javascript", "python"]
FAILURES: Final[tuple[Failure, ...]] = ("error", "timeout", "unavailable")
LANGUAGES: Final[tuple[Language, ...]] = ("typescript", "javascript", "python")


class WorkflowInput(Struct, frozen=True):
    """Input. `schema`: without `default` and `secret`; `default`: UNSET if it is required."""

    schema: dict[str, object]
    default: object = UNSET
    secret: bool = False

    @property
    def is_required(self) -> bool:
        return self.default is UNSET


class Retry(Struct, frozen=True):
    """Attempts of a step. `attempts`: all, the first one too; `backoff_ms`: pause before the
    second, twice as long before each further one; `on`: failures after which it is tried again."""

    attempts: int = 1
    backoff_ms: int = 1000
    on: tuple[Failure, ...] = FAILURES


class Step(Struct, frozen=True, kw_only=True):
    """Step. `path`: unique and stable, `fetch`, `2`, `2/left`, `each[]/read`: the id, or else the
    number in its list, after the path of the step around it; `[]` for each `foreach` around it,
    which `at` fills. A case of a switch counts as `case0`. `when`: an expression, empty for always.
    `safe`: may run twice. `may_fail`: its failure does not end the run. `timeout_ms`: 0 for none of
    its own."""

    path: str
    place: Place
    id: str = ""
    when: str = ""
    timeout_ms: int = 0
    retry: Retry = Retry()
    safe: bool = False
    may_fail: bool = False

    def at(self, indices: Sequence[int]) -> str:
        """Return the path within these items of the `foreach` steps around it, outermost first."""
        path = self.path
        for index in indices:
            path = path.replace("[]", f"[{index}]", 1)
        return path


class CallStep(Step, frozen=True, kw_only=True, tag="call"):
    """Call of a tool. `server`: empty if `tool` is a name as exposed; `arguments`: with
    expressions."""

    tool: str
    server: str = ""
    arguments: dict[str, object] = {}


class ParallelStep(Step, frozen=True, kw_only=True, tag="parallel"):
    """Steps at the same time. Result: a list of theirs."""

    steps: tuple["AnyStep", ...]


class ForeachStep(Step, frozen=True, kw_only=True, tag="foreach"):
    """Steps once for each item, one item after the other. `items`: a list with expressions, or an
    expression (`condition` reads it) for one; `name`: of the item in expressions. Result: a list
    with the result of the last step for each item."""

    items: str | list[object]
    steps: tuple["AnyStep", ...]
    name: str = "item"


class SwitchCase(Struct, frozen=True):
    """Case of a switch. `when`: an expression, empty for `else`."""

    steps: tuple["AnyStep", ...]
    when: str = ""


class SwitchStep(Step, frozen=True, kw_only=True, tag="switch"):
    """Steps of the first case that is true. Result: that of its last step, null without a case."""

    cases: tuple[SwitchCase, ...]


class CodeStep(Step, frozen=True, kw_only=True, tag="run_code"):
    """Run of code. `code`: as it is, without expressions; `arguments`: with expressions."""

    code: str
    language: Language = "typescript"
    arguments: dict[str, object] = {}


class AiStep(Step, frozen=True, kw_only=True, tag="ai"):
    """Question to a model. `prompt`: with expressions; `schema`: of its answer, None for text."""

    prompt: str
    schema: dict[str, object] | None = None


class ElicitStep(Step, frozen=True, kw_only=True, tag="elicit"):
    """Question to the user. `message`: with expressions; `schema`: of the answer."""

    message: str
    schema: dict[str, object]


class WaitStep(Step, frozen=True, kw_only=True, tag="wait"):
    """Pause. `pause`: a duration, or a text with one expression for a duration or a number of
    seconds; empty with `until`: a time of RFC 3339, or a text with one expression for one."""

    pause: str = ""
    until: str = ""


class OutputStep(Step, frozen=True, kw_only=True, tag="output"):
    """Value that is built from others. `value`: with expressions."""

    value: object


AnyStep: TypeAlias = (
    CallStep | ParallelStep | ForeachStep | SwitchStep | CodeStep | AiStep | ElicitStep | WaitStep
    | OutputStep
)  # fmt: skip


class Workflow(Struct, frozen=True):
    """Definition without problems. The output of a run is the result of the last step."""

    name: str
    steps: tuple[AnyStep, ...]
    description: str = ""
    inputs: dict[str, WorkflowInput] = {}

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(
            name for name, workflow_input in self.inputs.items() if workflow_input.secret
        )


def walk(steps: Sequence[AnyStep]) -> Iterator[AnyStep]:
    """Yield all steps, those inside of others too, in the order of the file."""
    for step in steps:
        yield step
        for inner in blocks(step):
            yield from walk(inner)


def blocks(step: AnyStep) -> tuple[tuple[AnyStep, ...], ...]:
    """Return the lists of steps inside a step."""
    if isinstance(step, SwitchStep):
        return tuple(case.steps for case in step.cases)
    return (step.steps,) if isinstance(step, ParallelStep | ForeachStep) else ()


def graph(steps: Sequence[AnyStep]) -> tuple[GraphStep, ...]:
    """Return these steps with all that are inside of them."""
    return tuple(
        GraphStep(path=step.path, kind=_kind(step), text=_text(step), groups=tuple(_groups(step)))
        for step in steps
    )


def _kind(step: AnyStep) -> str:
    return str(step.__struct_config__.tag)


def _groups(step: AnyStep) -> Iterator[GraphGroup]:
    if isinstance(step, SwitchStep):
        for case in step.cases:
            yield GraphGroup(f"when {case.when}" if case.when else "else", graph(case.steps))
        return
    if isinstance(step, ParallelStep):
        yield from (GraphGroup("", graph((branch,))) for branch in step.steps)
        return
    for inner in blocks(step):
        yield GraphGroup("each", graph(inner))


def _text(step: AnyStep) -> str:
    """Return what a step does, on one line."""
    if isinstance(step, CallStep):
        text = f"call {step.server}.{step.tool}" if step.server else f"call {step.tool}"
    elif isinstance(step, ForeachStep):
        text = f"foreach {step.name} in {step.items}"
    elif isinstance(step, WaitStep):
        text = f"wait {step.pause or f'until {step.until}'}"
    elif isinstance(step, AiStep):
        text = f"ai: {step.prompt}"
    elif isinstance(step, ElicitStep):
        text = f"elicit: {step.message}"
    else:
        text = _kind(step)
    text = f"{step.id}: {text}" if step.id else text
    text = " ".join(text.split()) + (f", when {step.when}" if step.when else "")
    most = TEXT_CHARACTERS_MAX
    return text if len(text) <= most else f"{text[: most - 1]}…"


def with_defaults(workflow: Workflow, inputs: Mapping[str, object]) -> dict[str, object]:
    """Return all inputs of a run."""
    defaults = {
        name: workflow_input.default
        for name, workflow_input in workflow.inputs.items()
        if not workflow_input.is_required
    }
    return defaults | dict(inputs)


def wrong_inputs(workflow: Workflow, inputs: Raw | bytes) -> str:
    """Return what is wrong first with the inputs of a run, a JSON object, as a sentence with the
    place in it and in the schema; else an empty string. Values are not repeated. Raises
    codec.Malformed."""
    names = codec.level(inputs)
    for name in names:
        if name not in workflow.inputs:
            advice = hint(name, workflow.inputs)
            return f"inputs.{shorten(name)} is not an input of {workflow.name}; {advice}"
    for name, workflow_input in workflow.inputs.items():
        if workflow_input.is_required and name not in names:
            return f"inputs.{name} is missing, and {workflow.name} cannot run without it"
    properties = {name: workflow_input.schema for name, workflow_input in workflow.inputs.items()}
    schema = msgspec.json.encode({"type": "object", "properties": properties}).decode()
    problem = parameters.wrong(schema, Raw(inputs))
    return re.sub(r"^args\b", "inputs", problem).replace("(parameters: $.properties.", "(inputs: ")


def hint(word: str, names: Collection[str]) -> str:
    """Return the second half of a sentence about an unknown word."""
    if not names:
        return "there are none"
    near = get_close_matches(word[:_WORD_CHARACTERS_MAX], names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(sorted(names)[:12])}"


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of a duration such as `1m30s` or `250ms`; None for other texts."""
    if len(text) > 32 or not _DURATION.fullmatch(text):
        return None
    return round(sum(float(match[1]) * _UNITS_MS[match[2]] for match in _PART.finditer(text)))


def later_ids(steps: Sequence[AnyStep]) -> set[str]:
    """Return the ids that steps after these may use: not those inside of a `foreach`."""
    ids: set[str] = set()
    for step in steps:
        ids |= {step.id} if step.id else set()
        if not isinstance(step, ForeachStep):
            for inner in blocks(step):
                ids |= later_ids(inner)
    return ids


TEXT_CHARACTERS_MAX = 200
"""Maximum characters of the text of a step in a drawing."""
_WORD_CHARACTERS_MAX = 64
_UNITS_MS: Final = {"ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+", re.ASCII)
