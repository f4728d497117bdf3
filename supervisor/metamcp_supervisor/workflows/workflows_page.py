"""Page of the workflows: those of an endpoint, the graph of one, its runs, a run while it goes on.

Owns: the parts of the page, orders about runs, the questions of runs and their answers. Never:
drawing (`workflow_svg`), carrying out runs (the engine).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import htpy as h
from htpy import Element, Node
from msgspec import Raw, Struct

from metamcp_supervisor.calls import tool_form
from metamcp_supervisor.code_mode.scripts_page import example
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.console.try_out import control
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_supervisor.workflows import workflow_svg
from metamcp_supervisor.workflows.workflow_orders import OrderResult
from metamcp_supervisor.workflows.workflow_svg import RunStep, StepQuestion
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import PARKED, ReportedRun, WorkflowGraph

RUNS_MAX = 50
"""Maximum runs on the page, the latest ones."""
POLL = "every 1s"
"""How often the page asks for a run that goes on."""
OPEN = frozenset({"queued", "running", "waiting", "needs_decision", "needs_answer"})
_TONES: Mapping[str, ui.Tone] = {
    "done": "ok", "running": "warn", "queued": "off", "waiting": "warn", "needs_decision": "bad",
    "needs_answer": "warn", "failed": "bad", "cancelled": "off", "skipped": "off",
}  # fmt: skip
_DECISIONS = (
    ("retry", "Retry", "Run the step {} of {} again, although it may have happened?"),
    ("skip", "Skip", "Go on with {1} without the step {0}?"),
    ("fail", "Fail", "Let the step {} of {} fail?"),
)


class WorkflowListed(Struct, frozen=True):
    """Workflow, as the engine lists it. `inputs`: schemas by name."""

    name: str
    description: str = ""
    inputs: dict[str, Any] = {}


class WorkflowsListed(Struct, frozen=True):
    workflows: tuple[WorkflowListed, ...]


class RunListed(ReportedRun, frozen=True):
    """Run of a list, or with all of its steps."""

    output: Raw = Raw(b"null")
    steps: tuple[RunStep, ...] = ()
    question: str = ""


class RunsListed(Struct, frozen=True):
    runs: tuple[RunListed, ...]


async def show(ask: Ask, request: PageRequest) -> Node:
    engine = EngineClient(ask, request.query.get("endpoint", ""))
    if run := request.query.get("run", ""):
        listed_run = codec.decode_as(RunListed, await engine.ask("workflow/status", run=run))
        graph = codec.decode_as(WorkflowGraph, await engine.ask("workflow/graph", run=run))
        return one_run(listed_run, graph, request)
    status = codec.decode_as(GatewayStatus, await ask("status"))
    try:
        raw = await engine.ask("workflows")
    except Failed as error:
        if error.exit != Exit.FAILED:
            raise
        return [ui.build_heading("Workflows"), h.p(class_="empty")[ui.shorten(f"{error}.")]]
    listed = codec.decode_as(WorkflowsListed, raw).workflows
    raw = await engine.ask("workflow/runs", limit=RUNS_MAX)
    runs = codec.decode_as(RunsListed, raw).runs
    if not request.path:
        return workflow_list(listed, runs, list(status.endpoints), request)
    name = request.path[0]
    graph = codec.decode_as(WorkflowGraph, await engine.ask("workflow/graph", name=name))
    chosen = next((workflow for workflow in listed if workflow.name == name), WorkflowListed(name))
    return one_workflow(chosen, graph, [run for run in runs if run.workflow == name], request)


async def change(ask: Ask, request: PageRequest) -> Node:
    form, endpoint = request.form, request.query.get("endpoint", "")
    engine = EngineClient(ask, endpoint, "workflow-change")
    do, run, step = form.get("do", ""), form.get("run", ""), form.get("step", "")
    if do == "run":
        try:
            inputs = codec.decode_as(dict[str, Raw], form.get("inputs", "{}").encode())
        except codec.Malformed as error:
            raise Failed(Exit.USAGE, f"the inputs are not a JSON object: {error}") from None
        name = request.path[0] if request.path else ""
        raw = await engine.ask("workflow/run", name=name, inputs=inputs, wait=False)
        run, text = codec.decode_as(RunListed, raw).run, f"The run of {name} has begun."
    elif do == "cancel":
        await engine.ask("workflow/cancel", run=run)
        text = f"The run {run} is cancelled."
    else:
        await engine.ask("workflow/decide", run=run, step=step, decision=do)
        text = f"The step {step} of run {run}: {do}."
    query = {"endpoint": endpoint, "run": run}
    run_request = PageRequest(role=request.role, path=request.path, query=query)
    return [ui.notice(text), await show(ask, run_request)]


class EngineClient(Struct, frozen=True):
    """Orders to the engine by a verb, for an endpoint."""

    gateway: Ask
    endpoint: str
    verb: str = "workflow"

    async def ask(self, method: str, **params: object) -> Raw:
        """Return the answer to an order. Raises Failed."""
        order = {"method": method, "params": params, "endpoint": self.endpoint}
        done = codec.decode_as(OrderResult, await self.gateway(self.verb, order))
        if done.failed:
            raise Failed(Exit.USAGE, done.text)
        return done.structured


def workflow_list(
    listed: Sequence[WorkflowListed], runs: Sequence[RunListed], endpoints: Sequence[str],
    request: PageRequest,
) -> Node:  # fmt: skip
    """Return the workflows of an endpoint and the latest runs."""
    endpoint = request.query.get("endpoint", "")
    rows: list[list[Node]] = [
        [
            ui.link(_at(workflow.name, endpoint), ui.shorten(workflow.name, 80)),
            ui.shorten(", ".join(workflow.inputs) or "none", 200),
            ui.shorten(workflow.description, 300),
        ]
        for workflow in listed
        if request.query.get("q", "").lower() in f"{workflow.name} {workflow.description}".lower()
    ]
    options = [("", "default"), *((name, name) for name in endpoints)]
    choice = h.label[h.span["Endpoint"], ui.choice("endpoint", options, endpoint)]
    empty = "No workflow is configured for this endpoint, or none fits the filter."
    return [
        ui.build_heading("Workflows", h.p["Steps that the engine carries out to their end."]),
        ui.search("/workflows", request.query, "Name or description", choice),
        ui.table("Workflows", ("Name", "Inputs", "Description"), rows, empty=empty),
        h.h2["Latest runs"],
        run_table(runs, endpoint),
    ]


def run_table(runs: Sequence[RunListed], endpoint: str) -> Element:
    """Return a table of runs, the latest first."""
    rows: list[list[Node]] = [
        [
            ui.link(_at(run.workflow, endpoint, run.run), run.run),
            ui.shorten(run.workflow, 80),
            ui.state(run.status, _TONES.get(run.status, "off")),
            ui.shorten(run.step, 100),
            ui.render_time(run.created),
            ui.ago(run.ended - run.created) if run.ended else "",
            ui.shorten(run.error or run.question, 200),
        ]
        for run in runs
    ]
    heads = ("Run", "Workflow", "State", "Step", "Began", "Took", "Error or question")
    return ui.table("Runs", heads, rows, empty="No run is recorded.")


def one_workflow(
    workflow: WorkflowListed, graph: WorkflowGraph, runs: Sequence[RunListed], request: PageRequest
) -> Node:
    """Return the graph of a workflow, its latest runs and the form of a new one."""
    endpoint = request.query.get("endpoint", "")
    text = json.dumps(example({"properties": workflow.inputs}), ensure_ascii=False, indent=2)
    return [
        ui.build_heading(
            ["Workflow ", ui.shorten(workflow.name, 80)], ui.link("/workflows", "all workflows")
        ),
        graph.description and h.p[ui.shorten(graph.description)],
        workflow_svg.graph(graph.steps, (), f"Steps of {ui.shorten(workflow.name, 80)}"),
        h.h2["Runs"],
        run_table(runs, endpoint),
        request.role >= Role.DEVELOPER
        and [
            h.h2["Run it"],
            ui.form(
                _at(workflow.name, endpoint),
                h.input(type="hidden", name="do", value="run"),
                ui.field("Inputs", h.textarea(name="inputs", rows="5", spellcheck="false")[text]),
                submit="Run",
                confirm=f"Run the workflow {workflow.name}?",
            ),
            ui.code(json.dumps(workflow.inputs, ensure_ascii=False, indent=2), label="Inputs"),
        ],
    ]


def one_run(run: RunListed, graph: WorkflowGraph, request: PageRequest) -> Node:
    """Return a run; while it goes on, the browser asks for it again."""
    endpoint = request.query.get("endpoint", "")
    path = _at(run.workflow, endpoint, run.run)
    goes_on = run.status in OPEN
    polls = {
        "hx-get": f"/f{path}", "hx-trigger": POLL, "hx-select": "#run", "hx-target": "#run",
        "hx-swap": "outerMorph",
    }  # fmt: skip
    name = ui.shorten(run.workflow, 80)
    return [
        ui.build_heading(["Run of ", name], ui.link(_at(run.workflow, endpoint), "the workflow")),
        h.section(polls if goes_on else {}, id="run")[
            ui.pairs(
                [
                    ("Run", h.code[run.run]),
                    ("State", ui.state(run.status, _TONES.get(run.status, "off"))),
                    ("Began", ui.render_time(run.created)),
                    ("Took", ui.ago(run.ended - run.created) if run.ended else "goes on"),
                    *([("Error", ui.shorten(run.error))] if run.error else []),
                    *(
                        [
                            (
                                "Question",
                                [ui.shorten(run.question), " ", ui.link("/approvals", "answer")],
                            )
                        ]
                        if run.question
                        else []
                    ),
                ]
            ),
            request.role >= Role.DEVELOPER and goes_on and _orders(run, path),
            workflow_svg.graph(graph.steps, run.steps, f"Steps of the run, {run.status}"),
            _steps(run),
            not goes_on and ui.code(_pretty(run.output), copy=True, label="Output"),
        ],
    ]


def _orders(run: RunListed, path: str) -> Element:
    """Return the buttons for a run that goes on."""
    parked = [step.step for step in run.steps if step.status == "needs_decision"]
    return h.div(class_="beside")[
        ui.action(
            path, "Cancel the run", {"do": "cancel", "run": run.run}, danger=True,
            confirm=f"Cancel the run {run.run} of {run.workflow}?",
        ),
        [
            ui.action(
                path, f"{label} {ui.shorten(step, 60)}", {"do": do, "run": run.run, "step": step},
                confirm=question.format(step, run.workflow),
            )
            for step in parked
            for do, label, question in _DECISIONS
        ],
    ]  # fmt: skip


async def find_waiting_runs(ask: Ask) -> list[RunListed]:
    """Return the runs that wait for a person, with their steps. Raises Failed."""
    status = codec.decode_as(GatewayStatus, await ask("status"))
    engine, runs = EngineClient(ask, ""), list[RunListed]()
    for word in sorted(PARKED):
        if any(role.counts.get(word) for role in status.roles):  # else no engine may be there
            raw = await engine.ask("workflow/runs", status=word, limit=RUNS_MAX)
            runs += codec.decode_as(RunsListed, raw).runs
    return [
        codec.decode_as(RunListed, await engine.ask("workflow/status", run=run.run)) for run in runs
    ]


async def answer(ask: Ask, form: Mapping[str, str]) -> str:
    """Answer the question of a step with the fields of its form, and return what came of it. Raises
    Failed."""
    run, step, content = form.get("run", ""), form.get("step", ""), dict[str, object]()
    accepts = form.get("do") == "answer"
    if accepts:
        raw = await EngineClient(ask, "").ask("workflow/status", run=run)
        schema = next(
            (listed_step.question.schema for listed_step in codec.decode_as(RunListed, raw).steps
             if listed_step.step == step and listed_step.question is not None), {},
        )  # fmt: skip
        texts = {name[2:]: text for name, text in form.items() if name.startswith("q.")}
        try:
            content = tool_form.arguments(schema, tool_form.collect_texts(schema, texts))
        except tool_form.ArgumentsUnfit as error:
            raise Failed(Exit.USAGE, "the answer is wrong", error.problems) from None
    action = "accept" if accepts else "decline"
    engine = EngineClient(ask, "", "workflow-change")
    await engine.ask("workflow/answer", run=run, step=step, action=action, content=content)
    return f"The question of step {step} of run {run} is {'answered' if accepts else 'declined'}."


async def show_waiting(ask: Ask, request: PageRequest) -> Node:
    return questions(await find_waiting_runs(ask), request)


def questions(runs: Sequence[RunListed], request: PageRequest) -> Node:
    """Return the questions of runs, each with the form of its answer, and links to the runs that
    need a decision."""
    question_forms = [
        _question(run, step.step, step.question, request)
        for run in runs
        for step in run.steps
        if step.question is not None
    ]
    parked = [
        h.p[
            ui.link(
                _at(run.workflow, "", run.run), ui.shorten(f"{run.workflow}: {step.step}", 200)
            ),
            " needs a decision: ", ui.shorten(step.error, 300),
        ]
        for run in runs
        for step in run.steps
        if step.status == "needs_decision"
    ]  # fmt: skip
    empty = h.p(class_="empty")["No run of a workflow waits for a person."]
    return [h.h2["Workflows that wait"], [*question_forms, *parked] or empty]


def _question(run: RunListed, step: str, question: StepQuestion, request: PageRequest) -> Element:
    order = {"run": run.run, "step": step}
    hidden = [h.input(type="hidden", name=name, value=value) for name, value in order.items()]
    return h.section(class_="question")[
        h.h3[ui.shorten(f"{run.workflow}: {step}", 200)],
        h.p[ui.shorten(question.message)],
        h.p["Run ", ui.link(_at(run.workflow, "", run.run), run.run), ", began ",
            ui.render_time(run.created)],
        request.role >= Role.DEVELOPER
        and [
            ui.form(
                "/approvals", hidden, h.input(type="hidden", name="do", value="answer"),
                [control(field, "", "q.") for field in tool_form.fields(question.schema)],
                submit="Answer",
            ),
            ui.action(
                "/approvals", "Decline", {**order, "do": "decline"}, danger=True,
                confirm=f"Decline the question of step {step} of {run.workflow}?",
            ),
        ],
    ]  # fmt: skip


def _steps(run: RunListed) -> Element:
    rows = [
        [
            ui.shorten(step.step, 200),
            ui.state(step.status, _TONES.get(step.status, "off")),
            str(step.attempts),
            ui.shorten(step.error, 500),
        ]
        for step in run.steps
    ]
    heads = ("Step", "State", "Attempts", "Error")
    return ui.table("Steps", heads, rows, empty="No step has begun.", numbers=("Attempts",))


def _pretty(raw: Raw) -> str:
    return json.dumps(codec.value(raw), ensure_ascii=False, indent=2)


def _at(name: str, endpoint: str, run: str = "") -> str:
    return ui.address("workflows", name, query={"endpoint": endpoint, "run": run})


PAGE = Page(
    name="workflows", title="Workflows", show=show, change=change, least=Role.OPERATOR,
    live=("runs",), after="calls", waiting=show_waiting,
    answers={"answer": answer, "decline": answer},
)  # fmt: skip
