"""Suggestions: the workflow for a task, by a rule, by a model, or as a sequence of tools.

Owns: which rules match a task, what a definition needs of the catalogue, the prompt for a model,
the sequence without rule and model, the answer. Never: the form of a definition (`definition`),
reading rules (`load`), asking models and fronts (`model_orders`).

Each answer holds a definition that `run_workflow` takes as it is: its form is checked, and its
tools are there.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Raw, Struct

from metamcp_worker.engine import agent, definition, models, workflow
from metamcp_worker.engine.models import Prompt
from metamcp_worker.ipc import codec, parameters
from metamcp_worker.ipc.codec import is_list, is_table
from metamcp_worker.ipc.engine_runs import OrderDone, SuggestionArguments, SuggestionRule

STEPS_MAX = 3
"""Maximum steps of the sequence without rule and model."""
TYPES_MAX = 8
"""Maximum tools that a model gets with their arguments."""
NAMED_MAX = 60
"""Maximum tools that a model gets by name."""
PROBLEMS_TOLD_MAX = 8
"""Maximum problems that a model gets at once."""
TYPE_CHARACTERS_MAX = 4000
"""Maximum characters of the arguments of one tool."""

_OTHER = re.compile(r"[^A-Za-z0-9_]")
_NAME = re.compile(r"[^a-z0-9]+")
_WORD = re.compile(r"[A-Z]?[^\W_A-Z]+|[A-Z]+")
_DEPRECATED = re.compile(r"\bDEPRECATED\b|^\W*[Dd]eprecated\b|\bis deprecated\b")
_SAME = 0.5
"""Share of words that the names of two tools have in common if they do the same."""
_FORM = """\
You write workflows that call tools of MCP servers, as one JSON object and nothing else:
{"name": "lower-case-name", "description": "…", "inputs": {"path": {"type": "string"}},
 "steps": […]}
inputs: a JSON Schema for each; required unless it has a "default". Kinds of steps:
{"id": "read", "call": "server.tool", "with": {"path": "${{ inputs.path }}"}}
{"parallel": [steps]}
{"id": "each", "foreach": "${{ steps.list.result }}", "as": "file", "steps": [steps]}
{"switch": [{"when": "${{ steps.read.text != '' }}", "steps": […]}, {"else": true, "steps": […]}]}
{"id": "sum", "run_code": {"code": "return args.n + 1", "args": {"n": "${{ inputs.n }}"}}}
{"id": "answer", "ai": {"prompt": "…"}}
{"wait": "5s"}
{"output": {"text": "${{ steps.read.text }}"}}
Expressions are CEL: inputs.NAME, and steps.ID.result, .text, .error of earlier steps. The result \
of the workflow is that of its last step. Use the listed tools alone, and as few steps as the task \
needs."""

Source = Literal["rule", "model", "tools"]


class ToolRoutes:
    """Tools that there are, from lists as of `mcp.tools()`."""

    def __init__(self, tools: Sequence[Mapping[str, str]]) -> None:
        self._exposed = {tool["name"] for tool in tools}
        self._routes = {route(tool): tool for tool in tools if tool.get("server")}
        self._own: dict[str, set[str]] = {}
        for name, tool in self._routes.items():
            self._own.setdefault(tool.get("tool", ""), set()).add(name)

    def find_name(self, name: str) -> str:
        """Return the name of a tool that is there, also of the only one with this own name at
        another server; else an empty string."""
        if name in self._exposed or name in self._routes:
            return name
        alike = self._own.get(name.partition(".")[2], set())
        return next(iter(alike)) if len(alike) == 1 else ""

    def describe_missing_tool(self, name: str) -> str:
        """Return the end of a sentence about a tool that is not there."""
        return f"the tool {name[:64]!r}; {workflow.hint(name, {*self._routes, *self._exposed})}"


class Suggestion(Struct, frozen=True):
    """Suggestion. `by`: name of the rule; `notes`: sentences."""

    workflow: dict[str, Any]
    source: Source
    by: str = ""
    notes: tuple[str, ...] = ()

    def to_done(self, id: int) -> OrderDone:  # noqa: A002 - the message's own name
        whence = {"rule": f"by the rule '{self.by}'", "model": "by the model",
                  "tools": "as a sequence of the tools that fit best"}[self.source]  # fmt: skip
        name, needed = self.workflow["name"], self.workflow.get("inputs", {})
        inputs = [key for key, schema in needed.items() if "default" not in schema]
        lines = [f"Suggested {whence}: the workflow '{name}'.", *self.notes]
        lines.append(
            "run_workflow runs it: give the definition below as 'definition'"
            + (f" and {', '.join(inputs)} as 'inputs'." if inputs else ".")
        )
        written = codec.dump(self.workflow).decode("utf-8", "replace")
        structured = {
            "definition": self.workflow, "source": self.source, "rule": self.by or None,
            "notes": self.notes,
        }  # fmt: skip
        return OrderDone(
            id=id, text="\n".join((*lines, "", written)), structured=Raw(codec.dump(structured))
        )


def match_rules(task: str, rules: Sequence[Raw]) -> list[SuggestionRule]:
    """Return the rules that match a task, those with the most keywords in it first."""
    words = " ".join(task.lower().split())
    matches: list[tuple[int, SuggestionRule]] = []
    for raw in rules:
        rule = codec.decode_as(SuggestionRule, raw)
        hits = sum(_has(words, each) for each in rule.keywords)
        if hits and (rule.match == "any" or hits == len(rule.keywords)):
            matches.append((hits, rule))
    return [rule for _, rule in sorted(matches, key=lambda match: -match[0])]


def _has(words: str, keyword: str) -> bool:
    """Whether a task has a keyword, also with an ending of English."""
    return re.search(rf"(?<!\w){re.escape(keyword)}(?:e?s|ing|ed)?(?!\w)", words) is not None


def adapt_draft(
    draft: Mapping[str, Any], catalogue: ToolRoutes
) -> tuple[dict[str, Any], list[str]]:
    """Return a definition with the tools of this catalogue, and all its problems: ends of
    sentences. A tool that only another server has is taken from there."""
    made = copy.deepcopy(dict(draft))
    problems: list[str] = []
    for step in _steps(made.get("steps"), 0):
        name = step.get("call")
        if isinstance(name, str) and name:
            step["call"] = catalogue.find_name(name) or name
            if not catalogue.find_name(name):
                problems.append(f"there is not {catalogue.describe_missing_tool(name)}")
    _, faults = definition.parse(made)
    return made, [*map(str, faults), *problems]


def by_rule(task: str, rules: Sequence[Raw], catalogue: ToolRoutes) -> Suggestion:
    """Return what the first rule suggests that matches and whose tools are there; without one, no
    workflow."""
    notes: list[str] = []
    for rule in match_rules(task, rules):
        made, problems = adapt_draft(rule.template, catalogue)
        if not problems:
            return Suggestion(made, "rule", rule.name, tuple(notes))
        notes.append(f"The rule '{rule.name}' matches, but {problems[0]}.")
    return Suggestion({}, "rule", notes=tuple(notes))


def fault(draft: Mapping[str, Any], catalogue: ToolRoutes) -> str:
    """Return all problems of a definition as one text, or an empty string."""
    return "; ".join(adapt_draft(draft, catalogue)[1][:PROBLEMS_TOLD_MAX])


def _steps(steps: object, depth: int) -> Iterator[dict[str, Any]]:
    """Yield all steps of a definition that may be of any shape."""
    if not is_list(steps) or depth > definition.STEPS_DEPTH_MAX:
        return
    for step in steps[: definition.STEPS_MAX]:
        if not is_table(step):
            continue
        yield step
        cases = step.get("switch")
        inner = [case.get("steps") for case in cases if is_table(case)] if is_list(cases) else []
        for block in (step.get("parallel"), step.get("steps"), *inner):
            yield from _steps(block, depth + 1)


def prompt(
    arguments: SuggestionArguments,
    best: Sequence[Mapping[str, str]],
    details: Sequence[Raw],
    draft: Mapping[str, Any] | None,
    tokens_max: int,
) -> Prompt:
    """Return the question to a model. `best`: tools that fit the task, best first; `details`: of
    the first of them, as of `describe_tool`; `draft`: what a rule suggests."""
    lines = [f"Task: {arguments.task}", "", "Tools:"]
    lines += [f"{route(hit)}: {hit.get('description', '')}" for hit in best[:NAMED_MAX]]
    lines += ["", "Arguments of the first of them, as TypeScript or JSON Schema:"]
    lines += [agent.format_tool(detail)[:TYPE_CHARACTERS_MAX] for detail in details[:TYPES_MAX]]
    if draft is not None:
        lines += ["", "Adapt this definition to the task:", codec.dump(draft).decode()]
    return models.build_first_prompt(_FORM, "\n".join(lines), tokens_max)


def distinct(
    best: Sequence[Mapping[str, str]], details: Sequence[Raw]
) -> list[tuple[Mapping[str, str], Raw]]:
    """Return the tools that are not called deprecated, each with its arguments. The best stays of
    those that do the same: of one server, with the same required arguments, the same verb and
    names alike."""
    chosen: list[tuple[Mapping[str, str], Raw]] = []
    signatures: list[tuple[str, frozenset[str], list[str]]] = []
    for hit, tool in zip(best, details, strict=False):
        server, words = hit.get("server", ""), _words(hit)
        required = frozenset(agent.required_schemas(tool))
        same = any(
            (server, required) == (its, needs) and _are_alike(words, others)
            for its, needs, others in signatures
        )
        if not same and not _DEPRECATED.search(hit.get("description", "")):
            signatures.append((server, required, words))
            chosen.append((hit, tool))
    return chosen


def _words(tool: Mapping[str, str]) -> list[str]:
    """Return the words in the name of a tool, without those of its server."""
    words = [word.lower() for word in _WORD.findall(tool.get("tool") or tool["name"])]
    server = {word.lower() for word in _WORD.findall(tool.get("server", ""))}
    return [word for word in words if word not in server]


def _are_alike(words: Sequence[str], other: Sequence[str]) -> bool:
    common, union = {*words} & {*other}, {*words} | {*other}
    return words[:1] == other[:1] and len(common) >= _SAME * len(union)


def sequence(
    task: str, best: Sequence[Mapping[str, str]], details: Sequence[Raw]
) -> dict[str, Any]:
    """Return the best tools as steps one after the other; what they require are inputs."""
    inputs: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    for number, (hit, tool) in enumerate(distinct(best, details)[:STEPS_MAX], 1):
        arguments: dict[str, str] = {}
        for name, schema in agent.required_schemas(tool).items():
            key = _identifier(name)
            own = _input(key, schema)
            if inputs.get(key, own) != own:
                key = _identifier(f"step{number}_{key}")
            inputs[key] = own
            arguments[name] = f"${{{{ inputs.{key} }}}}"
        step: dict[str, Any] = {"id": f"step{number}", "call": route(hit)}
        steps.append({**step, "with": arguments} if arguments else step)
    words = _NAME.sub("-", task.lower()).strip("-")[:40].strip("-")
    made: dict[str, Any] = {"name": words or "suggested"}
    made["description"] = " ".join(task.split())[:500]
    if inputs:
        made["inputs"] = inputs
    return {**made, "steps": steps}


def route(tool: Mapping[str, str]) -> str:
    """Return the name of a tool in a workflow."""
    server, own = tool.get("server", ""), tool.get("tool", "")
    return f"{server}.{own}" if server and own and "." not in server else tool["name"]


def _input(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an input: that of the argument, or its type if this has keywords that
    inputs cannot have."""
    input_schema = {key: value for key, value in schema.items() if key not in ("default", "secret")}
    text = codec.dump({"type": "object", "properties": {name: input_schema}}).decode()
    return input_schema if not parameters.unfit(text) else {
        key: schema[key] for key in ("type", "description") if isinstance(schema.get(key), str)
    }  # fmt: skip


def _identifier(name: str) -> str:
    identifier = _OTHER.sub("_", name)[: definition.NAME_CHARACTERS_MAX]
    return (
        identifier if identifier[:1].isalpha() or identifier[:1] == "_" else f"_{identifier}"[:64]
    )
