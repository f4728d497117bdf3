"""Definitions of workflows: the keys that they may have, and the workflow that one means.

Owns: keys, limits, which step may refer to which. Never: YAML (`load`), the value of expressions
(`expressions`), what the steps are (`workflow`).

A definition comes as plain data of YAML or JSON. Every problem is reported at once with its path,
such as `steps[2].foreach`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace

from metamcp_worker.cel import expressions
from metamcp_worker.cel.expressions import (
    FIELDS,
    Expression,
    ExpressionError,
    VariableUse,
    is_list,
    is_map,
)
from metamcp_worker.engine.workflow import (
    FAILURES,
    LANGUAGES,
    AiStep,
    AnyStep,
    CallStep,
    CodeStep,
    ElicitStep,
    ForeachStep,
    Language,
    OutputStep,
    ParallelStep,
    Retry,
    Step,
    SwitchCase,
    SwitchStep,
    WaitStep,
    Workflow,
    WorkflowInput,
    duration_ms,
    hint,
    later_ids,
)
from metamcp_worker.ipc import parameters
from metamcp_worker.ipc.engine_runs import DefinitionProblem, Place, shorten

DEFINITION_BYTES_MAX = 256 * 1024
"""Maximum bytes of a definition as JSON."""
DATA_DEPTH_MAX = 48
"""Maximum depth of maps and lists in a definition."""
STEPS_MAX = 500
"""Maximum number of steps, those inside of others among them."""
STEPS_DEPTH_MAX = 8
"""Maximum depth of steps inside of others."""
INPUTS_MAX = 64
EXPRESSIONS_MAX = 2000
BRANCHES_MAX = 32
"""Maximum number of steps in `parallel`, and of cases in `switch`."""
FOREACH_ITEMS_MAX = 10_000
"""Maximum number of items of a `foreach`."""
ATTEMPTS_MAX = 20
BACKOFF_S_MAX = 3600.0
TIMEOUT_S_MAX = 86_400.0
"""Maximum seconds of one attempt of a step."""
ANSWER_S_MAX = 30 * 86_400.0
"""Maximum seconds that `elicit` waits for an answer."""
WAIT_S_MAX = 90 * 86_400.0
NAME_CHARACTERS_MAX = 64
TOOL_CHARACTERS_MAX = 256
TEXT_CHARACTERS_MAX = 2000
"""Maximum characters of a description or a question."""
PROBLEMS_MAX = 100
"""Maximum number of problems that are reported."""

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "call": ("with", "timeout", "retry", "safe", "may_fail"),
    "parallel": (),
    "foreach": ("as", "steps"),
    "switch": (),
    "run_code": ("timeout", "retry", "safe", "may_fail"),
    "ai": ("timeout", "retry", "may_fail"),
    "elicit": ("timeout", "may_fail"),
    "wait": (),
    "output": (),
}
"""Kinds of steps by their key, and the other keys of each. COMMON_KEYS are of all."""
COMMON_KEYS: Final = ("id", "when")
TOP_KEYS: Final = ("name", "description", "inputs", "steps")
RETRY_KEYS: Final = ("attempts", "backoff", "on")
CODE_KEYS: Final = ("code", "language", "args")
AI_KEYS: Final = ("prompt", "schema")
ELICIT_KEYS: Final = ("message", "schema")
CASE_KEYS: Final = ("when", "else", "steps")
_STEP_KEYS: Final = frozenset(
    {*KINDS, *COMMON_KEYS, *(one for keys in KINDS.values() for one in keys)}
)


def parse(data: object) -> tuple[Workflow | None, tuple[DefinitionProblem, ...]]:
    """Return the workflow of plain data, or None and every problem. No data raises an error."""
    if reason := _unfit(data):
        return None, (DefinitionProblem((), reason),)
    reader = _Reader()
    workflow = reader.workflow(data)
    problems = tuple(reader.problems[:PROBLEMS_MAX])
    return (None, problems) if problems else (workflow, ())


def _kind(value: object) -> str:
    names: dict[type, str] = {
        str: "a text", bool: "true or false", int: "a number", float: "a number", dict: "a map",
        list: "a list", type(None): "empty",
    }  # fmt: skip
    return names.get(type(value), "of another type")


def _unfit(data: object) -> str:
    """Return why this is not plain data of a possible size, or an empty string."""
    if not is_map(data):
        return f"a workflow is a map with {', '.join(TOP_KEYS)}, and here is {_kind(data)}"
    pending: list[tuple[object, int]] = [(data, 0)]
    size = 0
    while pending:
        value, depth = pending.pop()
        size += 8 + (len(value) if isinstance(value, str) else 0)
        if depth > DATA_DEPTH_MAX:
            return f"a workflow has maps and lists at most {DATA_DEPTH_MAX} deep, and here are more"
        if size > DEFINITION_BYTES_MAX * 2:
            break
        if isinstance(value, float) and not isfinite(value):
            return "a workflow has a number that is not finite; JSON has none"
        if is_map(value):
            if set(map(type, value)) - {str}:
                return "a workflow has a map with a key that is not a text; put it in quotes"
            size += sum(map(len, value))
            pending += [(each, depth + 1) for each in value.values()]
        elif is_list(value):
            pending += [(each, depth + 1) for each in value]
        elif not isinstance(value, str | int | float | bool | type(None)):
            return f"a workflow has a value that is {_kind(value)}, which JSON does not have"
    try:
        too_large = bool(pending) or len(msgspec.json.encode(data)) > DEFINITION_BYTES_MAX
    except (OverflowError, UnicodeError, ValueError):
        return "a workflow has a text or a number that JSON cannot have"
    return f"a workflow has more than {DEFINITION_BYTES_MAX} bytes" if too_large else ""


class _Scope(Struct, frozen=True):
    """Limits of the references of an expression. `ids`: steps that have ended by then; `names`: of
    `foreach` steps around it; `depth`: of steps; `secrets`: whether secrets may stand here."""

    ids: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    depth: int = 0
    secrets: bool = False


class _Fields(Struct, frozen=True):
    """Step that is read. `value`: its keys; `path`: see Step; `common`: fields of every step."""

    value: dict[str, object]
    place: Place
    path: str
    common: dict[str, Any]

    def at(self, *keys: str | int) -> Place:
        return (*self.place, *keys)


class _Use(Struct, frozen=True):
    place: Place
    found: Expression
    scope: _Scope


class _Reader:
    """Reading of a definition: a wrong value is noted, and reading goes on."""

    def __init__(self) -> None:
        self.problems: list[DefinitionProblem] = []
        self._ids: dict[str, Place] = {}
        self._uses: list[_Use] = []
        self._steps = 0
        self._kinds: Mapping[str, Callable[[_Fields, _Scope], AnyStep | None]] = {
            "call": self._call, "parallel": self._parallel, "foreach": self._foreach,
            "switch": self._switch, "run_code": self._code, "ai": self._ai,
            "elicit": self._elicit, "wait": self._wait, "output": self._output,
        }  # fmt: skip

    def problem(self, pointer: Place, message: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(DefinitionProblem(pointer, message))

    def workflow(self, data: object) -> Workflow:
        top = self._map(data, (), TOP_KEYS)
        if "output" in top:
            self.problem(("output",), "is a step; write it as the last of 'steps'")
        name = self._text(top.get("name"), ("name",), NAME_CHARACTERS_MAX)
        if name and not _NAME.fullmatch(name):
            self.problem(("name",), "has only a-z, 0-9, '-' and '_', and begins with one of a-z0-9")
        about = top.get("description", "")
        text = self._text(about, ("description",), TEXT_CHARACTERS_MAX) if about else ""
        inputs = self._inputs(top.get("inputs"))
        steps = self._list(top.get("steps"), ("steps",), "", _Scope())
        for use in self._uses[:EXPRESSIONS_MAX]:
            self._check(use, inputs)
        if len(self._uses) > EXPRESSIONS_MAX:
            self.problem(("steps",), f"have more than {EXPRESSIONS_MAX} expressions")
        return Workflow(name=name, steps=steps, description=text, inputs=inputs)

    def _inputs(self, value: object) -> dict[str, WorkflowInput]:
        if value is None:
            return {}
        if not is_map(value) or len(value) > INPUTS_MAX:
            message = f"must be a map of at most {INPUTS_MAX} names, each with a JSON Schema"
            self.problem(("inputs",), message)
            return {}
        return {name: self._input(name, schema, ("inputs", name)) for name, schema in value.items()}

    def _input(self, name: str, value: object, pointer: Place) -> WorkflowInput:
        if not _ID.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
            self.problem(pointer, "is not a name; use letters, digits and '_'")
        if not is_map(value):
            self.problem(
                pointer, f"must be a JSON Schema such as {{type: string}}, not {_kind(value)}"
            )
            return WorkflowInput({})
        schema = {key: member for key, member in value.items() if key not in ("default", "secret")}
        secret = value.get("secret", False)
        default: object | UnsetType = value.get("default", UNSET)
        if not isinstance(secret, bool):
            self.problem((*pointer, "secret"), "must be true or false")
        elif secret and default is not UNSET:
            self.problem((*pointer, "default"), "would be a secret in a file; leave it out")
        object_schema = {"type": "object", "properties": {name: schema}}
        text = msgspec.json.encode(object_schema).decode()
        if flaw := parameters.unfit(text):
            flaw = flaw.replace("the parameters have", "has").replace(f"$.properties.{name}", "it")
            self.problem(pointer, flaw.replace(" at it.", " at ").replace(" at it", ""))
        elif default is not UNSET:
            args = Raw(msgspec.json.encode({name: default}))
            if flaw := parameters.wrong(text, args).partition(" (parameters: ")[0]:
                self.problem((*pointer, "default"), f"does not fit: {flaw.replace('args.', '', 1)}")
        return WorkflowInput(schema, default, secret is True)

    def _list(self, value: object, pointer: Place, path: str, scope: _Scope) -> tuple[AnyStep, ...]:
        if not is_list(value) or not value:
            self.problem(pointer, "must be a list with at least one step")
            return ()
        if scope.depth >= STEPS_DEPTH_MAX:
            self.problem(pointer, f"is inside of more than {STEPS_DEPTH_MAX} steps in one another")
            return ()
        steps: list[AnyStep] = []
        ids = scope.ids
        for at, item in enumerate(value):
            here = replace(scope, ids=ids, depth=scope.depth + 1)
            step, own = self._step(item, (*pointer, at), path, here)
            ids |= frozenset({own} - {""}) | later_ids(() if step is None else (step,))
            steps += [] if step is None else [step]
        return tuple(steps)

    def _step(
        self, value: object, pointer: Place, path: str, scope: _Scope
    ) -> tuple[AnyStep | None, str]:
        """Return a step, None if it is wrong, and its id."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            if self._steps == STEPS_MAX + 1:
                self.problem(pointer, f"is one step too many; {STEPS_MAX} are possible")
            return None, ""
        if not is_map(value):
            message = f"must be a map such as {{call: server.tool}}, not {_kind(value)}"
            self.problem(pointer, message)
            return None, ""
        own = self._id(value.get("id"), (*pointer, "id"))
        kinds = [key for key in value if key in KINDS]
        if len(kinds) != 1:
            self._refuse(value, pointer, _STEP_KEYS)
            if kinds:
                self.problem(
                    pointer, f"does {' and '.join(kinds[:3])} at once; make a step of each"
                )
            elif all(key in _STEP_KEYS for key in value):  # else the wrong key has been reported
                self.problem(pointer, f"does nothing; a step has one of {', '.join(KINDS)}")
            return None, own
        kind = kinds[0]
        self._refuse(value, pointer, (kind, *COMMON_KEYS, *KINDS[kind]))
        label = own or str(pointer[-1])
        here = f"{path}/{label}" if path else label
        step = self._read_common(value, Step(path=here, place=pointer, id=own), scope)
        return self._kinds[kind](_Fields(value, pointer, here, asdict(step)), scope), own

    def _id(self, value: object, pointer: Place) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or not _ID.fullmatch(value):
            self.problem(
                pointer, "is not an id; an id has letters, digits and '_', as in 'read_file'"
            )
            return ""
        if len(value) > NAME_CHARACTERS_MAX:
            self.problem(pointer, f"is longer than {NAME_CHARACTERS_MAX} characters")
        elif value in self._ids:
            first = DefinitionProblem(self._ids[value][:-1], "").path
            self.problem(pointer, f"is also the id of {first}; each step has its own")
        else:
            self._ids[value] = pointer
        return value

    def _read_common(self, value: dict[str, object], step: Step, scope: _Scope) -> Step:
        """Return the step with the fields that steps of several kinds have."""
        pointer = step.place
        if "when" in value:
            when = self._condition(value["when"], (*pointer, "when"), scope)
            step = replace(step, when=when)
        if "timeout" in value:
            most = ANSWER_S_MAX if "elicit" in value else TIMEOUT_S_MAX
            timeout_ms = self._duration(value["timeout"], (*pointer, "timeout"), most)
            step = replace(step, timeout_ms=timeout_ms)
        if value.get("retry") == "safe":
            step = replace(step, safe=True)
        elif "retry" in value:
            step = replace(step, retry=self._retry(value["retry"], (*pointer, "retry")))
        for name in ("safe", "may_fail"):
            if name in value:
                step = replace(step, **{name: self._flag(value[name], (*pointer, name))})
        return step

    def _retry(self, value: object, pointer: Place) -> Retry:
        fields = self._map(value, pointer, RETRY_KEYS)
        attempts = fields.get("attempts", 3)
        if type(attempts) is not int or not 1 <= attempts <= ATTEMPTS_MAX:
            self.problem((*pointer, "attempts"), f"must be a number from 1 to {ATTEMPTS_MAX}")
            attempts = 1
        backoff = 1000
        if "backoff" in fields:
            backoff = self._duration(fields["backoff"], (*pointer, "backoff"), BACKOFF_S_MAX)
        written = fields.get("on", list(FAILURES))
        names = written if is_list(written) else [written]
        wrong = [name for name in names if name not in FAILURES]
        if wrong or not names:
            self.problem((*pointer, "on"), f"must be a list of {', '.join(FAILURES)}")
        return Retry(attempts, backoff, tuple(name for name in FAILURES if name in names))

    def _call(self, fields: _Fields, scope: _Scope) -> AnyStep:
        name = self._text(fields.value["call"], fields.at("call"), TOOL_CHARACTERS_MAX)
        if "${{" in name:
            self.problem(fields.at("call"), "is the name of a tool, and cannot be an expression")
        server, dot, tool = name.partition(".")
        if dot and not (server and tool):
            self.problem(fields.at("call"), "must be 'server.tool' or the name of a tool as listed")
        secrets = replace(scope, secrets=True)
        arguments = self._arguments(fields.value.get("with"), fields.at("with"), secrets)
        return CallStep(
            **fields.common, server=server if dot else "", tool=tool or server, arguments=arguments
        )

    def _parallel(self, fields: _Fields, scope: _Scope) -> AnyStep:
        value, pointer = fields.value["parallel"], fields.at("parallel")
        if is_list(value) and len(value) > BRANCHES_MAX:
            self.problem(pointer, f"has more than {BRANCHES_MAX} steps")
            value = value[:BRANCHES_MAX]
        if not is_list(value) or not value:
            return ParallelStep(**fields.common, steps=self._list(value, pointer, "", scope))
        inner = replace(scope, depth=scope.depth + 1)
        read = (
            self._step(item, (*pointer, at), fields.path, inner) for at, item in enumerate(value)
        )
        steps = tuple(step for step, _ in read if step is not None)
        return ParallelStep(**fields.common, steps=steps)

    def _foreach(self, fields: _Fields, scope: _Scope) -> AnyStep:
        items, pointer = fields.value["foreach"], fields.at("foreach")
        name = fields.value.get("as", "item")
        if not isinstance(name, str) or not _ID.fullmatch(name) or name in expressions.RESERVED:
            self.problem(fields.at("as"), "must be a name for each item, as in 'file'")
            name = "item"
        elif name in scope.names:
            around = f"'{name}' is the item of the foreach around it; choose another name with 'as'"
            self.problem(fields.at("as" if "as" in fields.value else "foreach"), around)
        if is_list(items):
            if len(items) > FOREACH_ITEMS_MAX:
                self.problem(pointer, f"has more than {FOREACH_ITEMS_MAX} items")
            self._note(items, pointer, scope)
        else:
            items = self._condition(items, pointer, scope)
        inner = replace(scope, names=(*scope.names, name))
        steps = self._list(fields.value.get("steps"), fields.at("steps"), f"{fields.path}[]", inner)
        return ForeachStep(**fields.common, items=items, name=name, steps=steps)

    def _switch(self, fields: _Fields, scope: _Scope) -> AnyStep:
        value, pointer = fields.value["switch"], fields.at("switch")
        if not is_list(value) or not 0 < len(value) <= BRANCHES_MAX:
            self.problem(
                pointer, f"must be a list of 1 to {BRANCHES_MAX} cases, {{when: …, steps: […]}}"
            )
            value = []
        cases: list[SwitchCase] = []
        for at, item in enumerate(value):
            here = (*pointer, at)
            last = at == len(value) - 1
            case = self._map(item, here, CASE_KEYS)
            when = ""
            if ("when" in case) == ("else" in case):
                self.problem(here, "has either 'when', an expression, or 'else: true'")
            elif "when" in case:
                when = self._condition(case["when"], (*here, "when"), scope)
            elif case["else"] is not True or not last:
                self.problem((*here, "else"), "must be true, and stand in the last case")
            path = f"{fields.path}/case{at}"
            steps = self._list(case.get("steps"), (*here, "steps"), path, scope)
            cases.append(SwitchCase(steps, when))
        return SwitchStep(**fields.common, cases=tuple(cases))

    def _code(self, fields: _Fields, scope: _Scope) -> AnyStep:
        value, pointer = fields.value["run_code"], fields.at("run_code")
        if isinstance(value, str):
            code = self._text(value, pointer, DEFINITION_BYTES_MAX)
            return CodeStep(**fields.common, code=code)
        table = self._map(value, pointer, CODE_KEYS)
        code = self._text(table.get("code"), (*pointer, "code"), DEFINITION_BYTES_MAX)
        language = table.get("language", "typescript")
        if language not in LANGUAGES:
            self.problem((*pointer, "language"), f"must be one of {', '.join(LANGUAGES)}")
        secrets = replace(scope, secrets=True)
        arguments = self._arguments(table.get("args"), (*pointer, "args"), secrets)
        return CodeStep(
            **fields.common, code=code, language=cast("Language", language), arguments=arguments
        )

    def _ai(self, fields: _Fields, scope: _Scope) -> AnyStep:
        value, pointer = fields.value["ai"], fields.at("ai")
        table = {"prompt": value} if isinstance(value, str) else self._map(value, pointer, AI_KEYS)
        prompt = self._text(table.get("prompt"), (*pointer, "prompt"), DEFINITION_BYTES_MAX)
        self._note(prompt, (*pointer, "prompt"), scope)
        schema = self._schema(table["schema"], (*pointer, "schema")) if "schema" in table else None
        return AiStep(**fields.common, prompt=prompt, schema=schema)

    def _elicit(self, fields: _Fields, scope: _Scope) -> AnyStep:
        pointer = fields.at("elicit")
        table = self._map(fields.value["elicit"], pointer, ELICIT_KEYS)
        message = self._text(table.get("message"), (*pointer, "message"), TEXT_CHARACTERS_MAX)
        self._note(message, (*pointer, "message"), scope)
        schema = self._schema(table.get("schema"), (*pointer, "schema"))
        return ElicitStep(**fields.common, message=message, schema=schema)

    def _wait(self, fields: _Fields, scope: _Scope) -> AnyStep:
        value, pointer = fields.value["wait"], fields.at("wait")
        if isinstance(value, str):
            self._note(value, pointer, scope)
            if "${{" not in value:
                self._duration(value, pointer, WAIT_S_MAX)
            return WaitStep(**fields.common, pause=value)
        table = self._map(
            value, pointer, ("until",), "must be a duration such as 5s, or {until: …}"
        )
        until = self._text(table.get("until"), (*pointer, "until"), TEXT_CHARACTERS_MAX)
        self._note(until, (*pointer, "until"), scope)
        if until and "${{" not in until and not _TIME.fullmatch(until):
            self.problem((*pointer, "until"), "must be a time such as 2026-12-01T08:00:00Z")
        return WaitStep(**fields.common, until=until)

    def _output(self, fields: _Fields, scope: _Scope) -> AnyStep:
        value = fields.value["output"]
        self._note(value, fields.at("output"), scope)
        return OutputStep(**fields.common, value=value)

    def _arguments(self, value: object, pointer: Place, scope: _Scope) -> dict[str, object]:
        if value is None:
            return {}
        if not is_map(value):
            self.problem(pointer, f"must be a map of arguments, not {_kind(value)}")
            return {}
        self._note(value, pointer, scope)
        return value

    def _schema(self, value: object, pointer: Place) -> dict[str, object]:
        schema = value if is_map(value) else {}
        if not schema or parameters.unfit(msgspec.json.encode(schema).decode()):
            self.problem(pointer, "must be a JSON Schema of an object, such as {type: object, …}")
        return schema

    def _map(
        self, value: object, pointer: Place, keys: Sequence[str], message: str = ""
    ) -> dict[str, object]:
        if not is_map(value):
            message = message or f"must be a map with {', '.join(keys)}, not {_kind(value)}"
            self.problem(pointer, message)
            return {}
        self._refuse(value, pointer, keys)
        return value

    def _refuse(self, value: dict[str, object], pointer: Place, keys: Collection[str]) -> None:
        for key in value:
            if key in keys or (not pointer and key == "output"):
                continue
            if key in _STEP_KEYS and pointer:
                self.problem((*pointer, key), f"is not for this; {hint('', keys)}")
            else:
                self.problem((*pointer, key), f"is not a key here; {hint(key, keys)}")

    def _text(self, value: object, pointer: Place, characters_max: int) -> str:
        if not isinstance(value, str) or not value.strip():
            self.problem(pointer, "is missing; write a text" if value is None else "must be a text")
            return ""
        if len(value) > characters_max:
            self.problem(pointer, f"is longer than {characters_max} characters")
        return value

    def _flag(self, value: object, pointer: Place) -> bool:
        if not isinstance(value, bool):
            self.problem(pointer, f"must be true or false, not {_kind(value)}")
        return value is True

    def _duration(self, value: object, pointer: Place, most_s: float) -> int:
        value_ms = duration_ms(value) if isinstance(value, str) else None
        if value_ms is None:
            self.problem(pointer, 'must be a duration such as "30s" or "1m30s"')
        elif not 0 < value_ms <= most_s * 1000:
            self.problem(pointer, f"must be more than 0 and at most {most_s:.0f} seconds")
        return value_ms or 0

    def _condition(self, value: object, pointer: Place, scope: _Scope) -> str:
        if not isinstance(value, str):
            self.problem(pointer, "must be an expression, such as ${{ inputs.files }}")
            return ""
        try:
            self._uses.append(_Use(pointer, expressions.condition(value), scope))
        except ExpressionError as error:
            self.problem(pointer, f"is wrong: {error}")
        return value

    def _note(self, value: object, pointer: Place, scope: _Scope) -> None:
        """Note the expressions in a value, which are checked when all steps are known."""
        if is_map(value) or is_list(value):
            for key, member in value.items() if is_map(value) else enumerate(value):
                self._note(member, (*pointer, key), scope)
        elif isinstance(value, str):
            try:
                parsed = expressions.in_text(value)
                self._uses.extend(_Use(pointer, expression, scope) for expression in parsed)
            except ExpressionError as error:
                self.problem(pointer, f"is wrong: {error}")

    def _check(self, use: _Use, inputs: Mapping[str, WorkflowInput]) -> None:
        if flaw := expressions.flaw(use.found):
            self.problem(use.place, f"is wrong: {flaw}")
            return
        for reference in use.found.references:
            if flaw := self._stray(reference, use.scope, inputs):
                self.problem(use.place, f"refers to {flaw}")

    def _stray(
        self, use: VariableUse, scope: _Scope, inputs: Mapping[str, WorkflowInput]
    ) -> str:  # fmt: skip
        """Return what is wrong with a reference, or an empty string."""
        if use.root == "inputs":
            if use.member and use.member not in inputs:
                return f"the input '{shorten(use.member)}'; {hint(use.member, inputs)}"
            secret = any(each.secret for name, each in inputs.items() if use.member in ("", name))
            if secret and not scope.secrets:
                return "a secret input; secrets stand only in 'with' of a call or 'args' of code"
            return ""
        if use.root != "steps":
            roots = ("inputs", "steps", *scope.names, *(["index"] if scope.names else []))
            return "" if use.root in roots else f"'{shorten(use.root)}'; {hint(use.root, roots)}"
        name = use.member
        if not name:
            return "'steps' without the id of a step, as in steps.ID.result"
        if name not in self._ids:
            return f"the step '{shorten(name)}', which is not there; {hint(name, self._ids)}"
        if name not in scope.ids:
            at = DefinitionProblem(self._ids[name][:-1], "").path
            return f"the step '{name}' ({at}), which has not ended by then, or is inside a foreach"
        if use.field and use.field not in FIELDS:
            return f"'{shorten(use.field)}' of a step, which has {', '.join(FIELDS)}"
        return ""
