"""`metamcp workflow`: check, draw and run workflows.

Owns: these verbs at the prompt. Never: what a definition may hold (`metamcp_worker.engine`).

`check`, `graph` and `schema` need no gateway. YAML and CEL are imported when a verb runs.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Raw, structs

from metamcp_supervisor.calls import tool_form
from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import CommandRefused, Group, gateway_options
from metamcp_supervisor.cli.progress import steps
from metamcp_supervisor.cli.show import PrintedTable, picture, printable
from metamcp_supervisor.control import client
from metamcp_supervisor.verbs import Exit
from metamcp_supervisor.wording.recorded_calls import pretty
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import SHIPPED, GraphStep
from metamcp_worker.ipc.process_names import DEFAULT

if TYPE_CHECKING:
    from metamcp_worker.engine.workflow import Workflow
    from metamcp_worker.ipc.engine_runs import LoadedFiles

FOLDER = "workflows"
"""Folder that is checked when no file is named."""
LABEL_CHARACTERS_MAX = 60
"""Maximum characters of a step in a drawing."""
WORDS = {
    "validate": "did you mean 'check'?",
    "lint": "did you mean 'check'?",
    "draw": "did you mean 'graph'?",
    "add": "a workflow is a file; 'workflows' of the configuration names it",
}
ALONE = "No gateway runs, so the rules alone were asked, and no model."
ORDER_S_MAX = 7 * 86_400.0
"""Maximum seconds that a verb waits for the engine between two notifications."""
CHANGES = frozenset(
    {"workflow/run", "workflow/cancel", "workflow/decide", "workflow/answer", "suggest"}
)
"""Orders of the verb `workflow-change`; the others change nothing, and ask no model."""


class EngineOrders:
    """Orders of a verb to the engine of the running gateway."""

    def __init__(self, runtime_dir: str | None, endpoint: str, *, as_json: bool) -> None:
        self.as_json = as_json
        self._runtime_dir = runtime_dir
        self._endpoint = endpoint

    def __call__(self, method: str, params: Mapping[str, object]) -> None:
        """Give the order of this method, and print its outcome."""
        _tell(self.give(method, params), as_json=self.as_json)

    def give(self, method: str, params: Mapping[str, object]) -> Mapping[str, Any]:
        """Return the outcome of an order, with its progress on stderr."""
        order = {"method": method, "params": params, "endpoint": self._endpoint}
        verb = "workflow-change" if method in CHANGES else "workflow"
        with client.connect_here(self._runtime_dir) as gateway, steps() as tell:

            def on_notification(kind: str, raw: bytes) -> None:
                notice: dict[str, Any] = codec.value(raw)
                tell(*(str(notice.get(key, "")) for key in ("message", "step", "state")))

            raw = gateway.call(verb, order, timeout_s=ORDER_S_MAX, heard=on_notification)
        outcome: dict[str, Any] = codec.value(raw)
        return outcome


def at_gateway(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of verbs that give an order to the engine of the running gateway."""

    def run_command(
        runtime_dir: str | None, endpoint: str, *, as_json: bool, **options: object
    ) -> None:
        command(EngineOrders(runtime_dir, endpoint, as_json=as_json), **options)

    for option in (
        gateway_options("runtime_dir"),
        click.option("--endpoint", default="", metavar="NAME", help="Else the default one."),
        json_option,
    ):
        run_command = option(run_command)
    return functools.wraps(command)(run_command)


def _tell(outcome: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the outcome of an order."""
    if as_json:
        errors.tell(**outcome["structured"])
    else:
        lines = "\n".join(map(printable, pretty(Raw(outcome["text"].encode()))))
        click.echo(lines, err=outcome["failed"])
    if outcome["failed"]:
        raise SystemExit(Exit.FAILED)


file_argument = click.argument("file", metavar="FILE")


@click.group("workflow", cls=Group, words=WORDS)
def workflow_() -> None:
    """Check, draw and run workflows."""


@workflow_.command()
@click.argument("files", metavar="[FILE]…", nargs=-1)
@json_option
def check(files: tuple[str, ...], as_json: bool) -> None:
    """Check files of workflows, and report every problem at once (exit code 65).

    A FILE may be a folder, or metamcp:NAME for a workflow that is shipped; without one, the folder
    `workflows` is checked.
    """
    loaded = _load_files(files or (FOLDER,))
    names = sorted(loaded.definitions.get(DEFAULT, {}))
    problems = [printable(str(problem)) for problem in loaded.problems]
    if as_json:
        errors.tell(ok=not problems, workflows=names, problems=problems)
    else:
        for problem in problems:
            click.echo(problem, err=True)
    if problems:
        raise SystemExit(Exit.CONFIG)
    if not as_json:
        count = "1 workflow" if len(names) == 1 else f"{len(names)} workflows"
        click.echo(": ".join(filter(None, ("ok", count, ", ".join(names)))))


@workflow_.command()
@file_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "mermaid"]),
    default="text",
    help="For a terminal, or a diagram for Markdown.",
)
@json_option
def graph(file: str, form: str, as_json: bool) -> None:
    """Draw the steps of a workflow."""
    from metamcp_worker.engine.definition import parse

    definitions = _sound(file).definitions.get(DEFAULT, {})
    drawn: dict[str, str] = {}
    for name, data in definitions.items():
        workflow, _ = parse(codec.value(bytes(data)))
        assert workflow is not None
        drawn[name] = "\n".join(_mermaid(workflow) if form == "mermaid" else _text(workflow))
    if as_json:
        errors.tell(format=form, graphs=drawn)
    else:
        click.echo("\n\n".join(drawn.values()))


@workflow_.command()
def schema() -> None:
    """Print a JSON schema of workflow definitions, for editors."""
    from metamcp_worker.engine.definition_schema import schema as made

    click.echo(codec.dump(made()).decode())


@workflow_.command()
@click.argument("name", metavar="NAME|FILE")
@click.option("--input", "given", multiple=True, metavar="NAME=VALUE", help="JSON, or a text.")
@errors.args_option(
    "inputs", "All inputs, as an object.", cls=errors.RenamedOption, before=("--inputs",)
)
@click.option("--no-wait", is_flag=True, help="Print the id of the run at once.")
@at_gateway
def run(
    ask: EngineOrders, name: str, given: tuple[str, ...], inputs: bytes | None, no_wait: bool
) -> None:
    """Run a workflow of the running gateway, or one of a file, and print its output."""
    values = codec.decode_as(dict[str, object], inputs or b"{}")
    for each in given:
        key, equals, text = each.partition("=")
        if not equals:
            raise click.UsageError(f"--input {each!r} has no '='; write --input NAME=VALUE")
        values[key] = _value(text)
    from metamcp_worker.engine.load import SUFFIXES

    subject: dict[str, object] = {"name": name}
    if Path(name).suffix in SUFFIXES:
        definitions = list(_sound(name).definitions.get(DEFAULT, {}).values())
        if len(definitions) != 1:
            raise CommandRefused(f"{name} has no workflow", Exit.CONFIG)
        subject = {"definition": Raw(bytes(definitions[0]))}
    outcome = ask.give("workflow/run", {**subject, "inputs": values, "wait": not no_wait})
    _tell(outcome if no_wait else _answer_questions(ask, outcome), as_json=ask.as_json)


def _answer_questions(ask: EngineOrders, outcome: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the outcome of a run whose questions the person at the terminal answers."""
    from metamcp_supervisor.calls.tool_call import ELICIT, InputQuestion
    from metamcp_supervisor.cli.call import ask_person

    while errors.at_terminal() and (questions := _questions(outcome)):
        step, each = next(iter(questions.items()))
        question = InputQuestion(
            key=step, method=ELICIT, message=each["message"], schema=each["schema"]
        )
        answer = ask_person(question, "The workflow")
        if answer["action"] == "cancel":
            break
        run_id = outcome["structured"]["run"]
        reply = ask.give("workflow/answer", {**answer, "run": run_id, "step": step, "wait": True})
        if refused := reply["failed"] and not reply["structured"]:
            click.echo(printable(reply["text"]), err=True)
        outcome = ask.give("workflow/status", {"run": run_id}) if refused else reply
    return outcome


@workflow_.command("list")
@at_gateway
def list_(ask: EngineOrders) -> None:
    """List the workflows of the running gateway."""
    ask("workflows", {})


@workflow_.command()
@click.option("--status", metavar="STATUS", help="Only those, for example needs_decision.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="At most so many.",
)
@at_gateway
def runs(ask: EngineOrders, status: str | None, limit: int) -> None:
    """List the latest runs."""
    ask("workflow/runs", {"limit": limit} | ({"status": status} if status else {}))


@workflow_.command("show")
@click.argument("run_id", metavar="RUN")
@at_gateway
def show_(ask: EngineOrders, run_id: str) -> None:
    """Show a run: its steps, and its output or what it waits for."""
    outcome = ask.give("workflow/status", {"run": run_id})
    rows = [
        (each["step"], each["status"], str(each["attempts"]), printable(each.get("error", "")))
        for each in outcome["structured"].get("steps", ())
    ]
    if rows and not ask.as_json:
        picture(
            PrintedTable(
                ("STEP", "STATE", "ATTEMPTS", "ERROR"), rows, right=frozenset({"ATTEMPTS"})
            )
        )
        click.echo()
    _tell(outcome, as_json=ask.as_json)


@workflow_.command()
@click.argument("run_id", metavar="RUN")
@at_gateway
def cancel(ask: EngineOrders, run_id: str) -> None:
    """Cancel a run."""
    ask("workflow/cancel", {"run": run_id})


@workflow_.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step", metavar="STEP")
@click.argument("decision", type=click.Choice(["retry", "skip", "fail"]))
@at_gateway
def decide(ask: EngineOrders, run_id: str, step: str, decision: str) -> None:
    """Say how a run goes on whose step may have happened or not."""
    ask("workflow/decide", {"run": run_id, "step": step, "decision": decision})


@workflow_.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step", metavar="STEP")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE…]")
@click.option("--decline", is_flag=True, help="Say no: the step fails.")
@at_gateway
def answer(
    ask: EngineOrders, run_id: str, step: str, words: tuple[str, ...], decline: bool
) -> None:
    """Answer the question of a step that waits for somebody.

    The schema of the question says what kind of value each key has, as with 'metamcp call'.
    """
    if decline:
        if words:
            raise click.UsageError("--decline takes no values.")
        ask("workflow/answer", {"run": run_id, "step": step, "action": "decline"})
        return
    outcome = ask.give("workflow/status", {"run": run_id})
    if outcome["failed"]:
        _tell(outcome, as_json=ask.as_json)
    schema = tool_form.table(_questions(outcome).get(step, {}).get("schema"))
    try:
        content = tool_form.arguments(schema, tool_form.split(words))
    except tool_form.ArgumentsUnfit as unfit:
        how = tool_form.usage(f"workflow answer {run_id} {step}", schema)
        raise client.Failed(Exit.USAGE, "the answer is wrong", (*unfit.problems, how)) from None
    ask("workflow/answer", {"run": run_id, "step": step, "content": content})


def _questions(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the questions of a run by step, each with its message and schema."""
    rows = outcome["structured"].get("steps", ())
    return {row["step"]: row["question"] for row in rows if "question" in row}


@workflow_.command()
@click.argument("task", metavar="TASK")
@click.option("--refine", is_flag=True, help="A model adapts what a rule suggests.")
@at_gateway
def suggest(ask: EngineOrders, task: str, refine: bool) -> None:
    """Suggest a workflow for a task.

    Without a running gateway, the rules of the configuration alone suggest, for the tools that the
    servers offered last.
    """
    params = click.get_current_context().params
    try:
        ask("suggest", {"task": task, "refine": refine})
    except client.Failed as failed:
        if failed.exit != Exit.NOT_RUNNING or params["runtime_dir"] is not None or refine:
            raise
        _tell(_by_rule(task), as_json=params["as_json"])


def _by_rule(task: str) -> Mapping[str, Any]:
    """Return what a rule suggests without a gateway. Raises Failed."""
    from metamcp_supervisor.cli import offers
    from metamcp_worker.engine import suggestion
    from metamcp_worker.ipc import server_catalog

    stored = offers.read_offers(None, None, None)
    tools = [
        {"name": f"{server}__{tool.key}", "server": server, "tool": tool.key}
        for server, each in stored.catalogues.items()
        if each is not None
        for tool in server_catalog.iter_definitions("tools", each.tools)
    ]
    rules = [Raw(rule) for rule in stored.config.workflows.rules]
    made = suggestion.by_rule(task, rules, suggestion.ToolRoutes(tools))
    if not made.workflow:
        unseen = [server for server, each in stored.catalogues.items() if each is None]
        more = (f"Not seen yet: {', '.join(unseen)}; start the gateway once.",) if unseen else ()
        text = " ".join((f"{ALONE} None of them fits.", *made.notes, *more))
        raise client.Failed(Exit.FAILED, text)
    done = structs.replace(made, notes=(*made.notes, ALONE)).to_done(0)
    return {"text": done.text, "structured": codec.value(done.structured), "failed": False}


def _value(text: str) -> object:
    try:
        return codec.value(text.encode())
    except codec.Malformed:
        return text


def _load_files(files: Sequence[str]) -> "LoadedFiles":
    """Read files and folders."""
    from metamcp_worker.engine import load

    paths = [file if file.startswith(SHIPPED) else str(Path(file).expanduser()) for file in files]
    return load.load([(DEFAULT, path) for path in paths])


def _sound(file: str) -> "LoadedFiles":
    """Read a file or folder. Raises CommandRefused with all its problems."""
    loaded = _load_files((file,))
    if loaded.problems:
        first, *others = map(str, loaded.problems)
        raise CommandRefused(first, Exit.CONFIG, others)
    return loaded


def _label(step: GraphStep) -> str:
    """Return what a step does, short enough for a drawing."""
    text, most = step.text, LABEL_CHARACTERS_MAX
    return printable(text if len(text) <= most else f"{text[: most - 1]}…")


def _text(workflow: "Workflow") -> Iterator[str]:
    from metamcp_worker.engine.workflow import graph

    inputs = ", ".join(
        f"{name}{'' if parameter.is_required else '?'}{' (secret)' if parameter.secret else ''}"
        for name, parameter in workflow.inputs.items()
    )
    yield f"{workflow.name}({inputs})"
    yield from _tree(graph(workflow.steps), "")


def _tree(steps: Sequence[GraphStep], before: str) -> Iterator[str]:
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        yield f"{before}{'└─' if last else '├─'} {_label(step)}"
        inside = f"{before}{'   ' if last else '│  '}"
        if step.kind == "switch":
            for group in step.groups:
                yield f"{inside}{printable(group.head)}"
                yield from _tree(group.steps, inside)
        else:
            yield from _tree(
                [inner_step for group in step.groups for inner_step in group.steps], inside
            )


def _mermaid(workflow: "Workflow") -> Iterator[str]:
    from metamcp_worker.engine.workflow import graph

    yield "flowchart TD"
    drawing = _Drawing()
    start = drawing.node(f"([{_quote_text(workflow.name)}])")
    ends = drawing.steps(graph(workflow.steps), [(start, "")])
    drawing.join(ends, drawing.node("([end])"))
    yield from drawing.lines


def _quote_text(text: str) -> str:
    plain = text.replace("&", "&amp;").replace('"', "&quot;")
    return f'"{plain.replace("<", "&lt;").replace(">", "&gt;")}"'


class _Drawing:
    """Lines of a flow chart. An end is a node, and the text of the arrow that leaves it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def node(self, shape: str) -> str:
        self._count += 1
        self.lines.append(f"  s{self._count}{shape}")
        return f"s{self._count}"

    def join(self, ends: Sequence[tuple[str, str]], to: str) -> None:
        for node, text in ends:
            self.lines.append(f"  {node} -->{f'|{_quote_text(text)}|' if text else ''} {to}")

    def steps(
        self, steps: Sequence[GraphStep], ends: list[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Draw steps one after the other, and return their ends."""
        for step in steps:
            label = _quote_text(_label(step))
            fork = step.kind == "switch" and len(step.groups) > 1
            node = self.node(f"{{{label}}}" if fork else f"[{label}]")
            self.join(ends, node)
            ends = self._inside(step, node)
        return ends

    def _inside(self, step: GraphStep, node: str) -> list[tuple[str, str]]:
        groups = step.groups
        inner = [end for group in groups for end in self.steps(group.steps, [(node, group.head)])]
        if step.kind == "foreach":
            self.join(inner, node)
            return [(node, "all")]
        complete = step.kind == "parallel" or any(group.head == "else" for group in groups)
        return inner if complete else [*inner, (node, "")]
