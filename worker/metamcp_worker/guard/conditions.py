"""Conditions of policies, in CEL: what they refer to, and their values.

Owns: the variables of a condition, what is refused before it runs, which variables are known when
lists are made, the limit of what it reads of a call. Never: the language (`expressions`), what
follows from a value (`policies`).

A condition runs in the front, because another process would cost a call more than all the rest. The
library has no limit of time, so a condition has nothing whose time could be more than linear in
what it reads, and what it reads has a limit.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, cast

from msgspec import Raw, Struct

from metamcp_worker.cel import expressions
from metamcp_worker.cel.expressions import Expression, ExpressionError
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.process_names import DEFAULT
from metamcp_worker.ipc.spec import PrincipalFacts

if TYPE_CHECKING:
    import cel

ThingKind = Literal["tools", "prompts", "resources"]
KINDS: Final[tuple[ThingKind, ...]] = ("tools", "prompts", "resources")
ARGUMENTS: Final = "mcp.tool.arguments"
ANNOTATIONS: Final = "tool.annotations"
CLIENT: Final = frozenset({"client.name", "client.version"})
VARIABLES: Final = (
    "mcp.tool.name", "mcp.tool.target", ARGUMENTS, "mcp.prompt.name", "mcp.prompt.target",
    "mcp.resource.name", "mcp.resource.target", ANNOTATIONS, "client.name", "client.version",
    "principal.id", "principal.name", "principal.workspace", "principal.scopes",
    "endpoint.name", "endpoint.namespace", "source",
)  # fmt: skip
"""Variables of conditions; those that agentgateway has, too, have its names."""
LATE: Final = CLIENT | {ARGUMENTS, "source"}
"""Variables that are known at a call only."""
READ_BYTES_MAX = 64 * 1024
"""Maximum bytes, as JSON, of the arguments that a condition reads, and of annotations."""
DEPTH_MAX = 64
"""Maximum levels of lists and maps in what a condition reads."""
CLIENT_CHARACTERS_MAX = 256
"""Maximum characters of the name and the version of a client; the rest is cut."""
_DEPTHS: Final[Mapping[str, int]] = {
    "mcp": 3, "tool": 2, "client": 2, "principal": 2, "endpoint": 2, "source": 1,
}  # fmt: skip
_GIVEN = "arguments"
"""Variable in place of ARGUMENTS in what is executed: what is below a map is slow to replace."""
_HINTS: Final[Mapping[str, bool]] = {
    "readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True,
}  # fmt: skip
"""Annotations that a tool leaves out, as MCP defines them."""
_SLOW: Final = frozenset({"map", "filter"})
_READABLE: Final[Mapping[str, str]] = MappingProxyType({})


class ConditionError(Exception):
    """Raised for a condition without a value. The text is a sentence without its full stop.
    `unclear`: what readers of JSON take differently in what it reads, else empty."""

    def __init__(self, message: str, unclear: str = "") -> None:
        super().__init__(message)
        self.unclear = unclear


class PolicyTarget(Struct, frozen=True, gc=False):
    """Tool, prompt or resource. `name`: the server's own name or URI; `definition`: raw, of a tool;
    empty for one that no list has."""

    kind: ThingKind
    server: str
    name: str
    definition: bytes = b""


class PolicySubject(Struct, frozen=True):
    """Client as conditions see it: its credential and its place. `endpoint`, `namespace`: names."""

    who: PrincipalFacts
    workspace: str = DEFAULT
    endpoint: str = ""
    namespace: str = ""


class CallContext(Struct, frozen=True, gc=False):
    """Facts that are known at a call only. `arguments`: raw, or empty; `client`: raw JSON that the
    client says of itself; `source`: `client`, `code`, `agent` or `workflow`."""

    arguments: bytes = b""
    client: bytes = b""
    source: str = "client"


class Condition(Struct, frozen=True):
    """Condition that is ready to run. `program`: its text with _GIVEN; `kinds`: of things that it
    is about; `reads`: its variables; `arguments`: names of the arguments that it reads, None for
    all of them."""

    expression: Expression
    program: str
    kinds: tuple[ThingKind, ...]
    reads: frozenset[str]
    arguments: frozenset[str] | None = frozenset()

    @property
    def needs_call(self) -> bool:
        """Whether its value is known at a call only."""
        return not LATE.isdisjoint(self.reads)

    def value(self, variables: "cel.Context", unread: Mapping[str, str] = _READABLE) -> bool:
        """Return its value. `unread`: see `Variables.of`. Raises ConditionFails."""
        if unread:
            for name in ("",) if self.arguments is None else self.arguments:
                if name in unread:
                    reason = unread[name]
                    unclear = reason if reason in codec.UNCLEAR else ""
                    raise ConditionError(self.expression.describe_problem(reason), unclear)
        try:
            result = expressions.program(self.program).execute(variables)
        except KeyError as error:
            raise ConditionError(
                expressions.describe_missing_member(self.expression.text, str(error))
            ) from None
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ConditionError(
                self.expression.describe_problem(expressions.reason(error))
            ) from None
        if isinstance(result, bool):
            return result
        raise ConditionError(self.expression.describe_problem("it is neither true nor false"))


def parse(text: str) -> Condition:
    """Read a condition. Raises ExpressionError, with a sentence."""
    expression = expressions.expression(text)
    tokens = expressions.tokens(expression.text)
    if flaw := _flaw(tokens, expression):
        raise ExpressionError(f"the expression '{expressions.shorten(text)}' {flaw}")
    if flaw := expressions.flaw(expression):
        raise ExpressionError(flaw)
    reads: set[str] = set()
    for use in expression.references:
        depth = _DEPTHS.get(use.root, 1)
        name = ".".join((use.root, use.member, use.field)[:depth])
        if name not in VARIABLES:
            dotted_name = ".".join(filter(None, (use.root, use.member, use.field)))
            flaw = (
                f"refers to '{dotted_name}'; the variables of policies are {', '.join(VARIABLES)}"
            )
            raise ExpressionError(f"the expression '{expressions.shorten(text)}' {flaw}")
        reads.add(name)
    named = {f"{name.split('.')[1]}s" for name in reads if name.startswith("mcp.")}
    named |= {"tools"} if ANNOTATIONS in reads else set()
    about: list[ThingKind] = [kind for kind in KINDS if kind in named]
    kinds = tuple(about) or KINDS
    program, names = expression.text, frozenset[str]()
    if ARGUMENTS in reads:
        program = expressions.replace_path(program, ("mcp", "tool", "arguments"), _GIVEN)
        uses = [use for use in expressions.expression(program).references if use.root == _GIVEN]
        if len(uses) != sum(use.field == "arguments" for use in expression.references):
            flaw = f"must write {ARGUMENTS} with dots"
            raise ExpressionError(f"the expression '{expressions.shorten(text)}' {flaw}")
        reads_all = not all(use.member for use in uses)
        return Condition(
            expression, program, kinds, frozenset(reads),
            None if reads_all else frozenset(use.member for use in uses),
        )  # fmt: skip
    return Condition(expression, program, kinds, frozenset(reads), names)


def _flaw(tokens: Sequence[str], expression: Expression) -> str:
    """Return what policies do not allow of an expression, as the rest of a sentence."""
    for name in expressions.iter_functions(expression.text):
        if name in _SLOW:
            return f"calls '{name}', whose time nothing limits; use 'exists' or 'all'"
        if name not in expressions.FUNCTIONS | expressions.MACROS:
            functions = ", ".join(sorted(expressions.FUNCTIONS | expressions.MACROS - _SLOW))
            return f"calls '{name}', which policies do not have; their functions are {functions}"
    inside: list[bool] = []
    for at, (word, after) in enumerate(pairwise([*tokens, ""])):
        macro = word == "(" and at > 0 and tokens[at - 1] in expressions.MACROS
        if macro and any(inside):
            return "has one of 'all' and 'exists' inside another one, whose time nothing limits"
        if macro and (after in _DEPTHS or after == _GIVEN):
            return f"gives an item the name '{after}', which a variable has"
        if any(inside) and word in _DEPTHS and tokens[at - 1] != ".":
            return f"uses '{word}' inside of 'all' or 'exists', which see their own item alone"
        if word == "(" and tokens[at - 1] == "matches" and not _is_text(after, tokens, at + 2):
            return "calls 'matches' with a pattern that is not a text in quotes"
        if word == "(":
            inside.append(macro)
        elif word == ")" and inside:
            inside.pop()
    return ""


def _is_text(word: str, tokens: Sequence[str], after: int) -> bool:
    quoted = word.lstrip("rR")[:1] in {"'", '"'}
    return quoted and after < len(tokens) and tokens[after] == ")"


def facts(thing: PolicyTarget, subject: PolicySubject) -> dict[str, object]:
    """Return what is known of a thing when lists are made, by the names of VARIABLES; each value
    can be compared."""
    kind, who = thing.kind.removesuffix("s"), subject.who
    return {
        "kind": kind,
        f"mcp.{kind}.name": thing.name,
        f"mcp.{kind}.target": thing.server,
        ANNOTATIONS: _raw_annotations(thing.definition) if kind == "tool" else b"",
        "principal.id": who.id,
        "principal.name": who.name,
        "principal.workspace": subject.workspace,
        "principal.scopes": who.scopes,
        "endpoint.name": subject.endpoint,
        "endpoint.namespace": subject.namespace,
    }


class Variables:
    """Variables of conditions about one thing, created once and filled again for each call.
    `facts`: see there; `conditions`: those that read them."""

    def __init__(self, facts: Mapping[str, object], conditions: Iterable[Condition]) -> None:
        conditions = tuple(conditions)
        self._facts = facts
        self._reads = frozenset(name for condition in conditions for name in condition.reads)
        self._whole = any(condition.arguments is None for condition in conditions)
        self._names = frozenset(
            name for condition in conditions for name in condition.arguments or ()
        )
        self._context: cel.Context | None = None
        self._said: tuple[bytes, str] | None = None

    def build_list_context(self) -> "cel.Context":
        """Return those that are known when lists are made."""
        if self._context is None:
            self._context = expressions.context(_make_list_variables(self._facts, self._reads))
        return self._context

    def of(self, call: CallContext) -> tuple["cel.Context", Mapping[str, str]]:
        """Return all variables for a call, and the arguments that no condition can read, with the
        reasons; under an empty name, why nothing can read all arguments."""
        context = self.build_list_context()
        if self._said != (call.client, call.source):
            if "source" in self._reads:
                context.add_variable("source", call.source)
            if not CLIENT.isdisjoint(self._reads):
                context.add_variable("client", _client(call.client))
            self._said = call.client, call.source
        if ARGUMENTS not in self._reads:
            return context, _READABLE
        arguments, unread = self._read_arguments(call.arguments)
        context.add_variable(_GIVEN, arguments)
        return context, unread

    def _read_arguments(self, raw: bytes) -> tuple[dict[str, object], Mapping[str, str]]:
        try:
            members = codec.exact_level(raw) if raw and raw != b"null" else {}
        except codec.Malformed as error:
            unclear = str(error) in codec.UNCLEAR
            reason = str(error) if unclear else f"the arguments cannot be read: {error}"
            return {}, {"": reason, **dict.fromkeys(self._names, reason)}
        large = self._whole and len(raw) > READ_BYTES_MAX
        unread = {"": _LARGE} if large else dict[str, str]()
        names = members if self._whole and not large else self._names & members.keys()
        values: dict[str, object] = {}
        for name in names:
            try:
                values[name] = _value(members[name])
            except (ConditionError, codec.Malformed) as error:
                unread[name] = unread[""] = str(error)
        return values, unread


def _make_list_variables(facts: Mapping[str, object], reads: Iterable[str]) -> dict[str, object]:
    """Return what is known when lists are made as variables, as far as it is read. Annotations that
    cannot be read are left out, so that conditions that read them fail."""
    variables: dict[str, object] = {}
    principal: dict[str, object] = {}
    endpoint: dict[str, object] = {}
    for name in reads:
        root, _, member = name.partition(".")
        if root == "mcp":
            kind = str(facts["kind"])
            own = {"name": facts[f"mcp.{kind}.name"], "target": facts[f"mcp.{kind}.target"]}
            none: dict[str, object] = {}
            variables["mcp"] = {each: own if each == kind else none for each in _ONE}
        elif root == "principal":
            value = facts[name]
            cel_value = list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value
            principal[member] = cel_value
            variables["principal"] = principal
        elif root == "endpoint":
            endpoint[member] = facts[name]
            variables["endpoint"] = endpoint
        elif root == "tool":
            with contextlib.suppress(ConditionError, codec.Malformed):
                variables["tool"] = {"annotations": _annotations(cast("bytes", facts[ANNOTATIONS]))}
    return variables


_ONE: Final = tuple(kind.removesuffix("s") for kind in KINDS)
_LARGE: Final = f"it reads more than {READ_BYTES_MAX // 1024} KiB of the call"


def _client(raw: bytes) -> dict[str, object]:
    """Return the name and version of a client, as it says itself."""
    info = codec.members(codec.members(raw).get("clientInfo", b""))
    return {
        name: (codec.text(info.get(name, Raw(b'""'))) or "")[:CLIENT_CHARACTERS_MAX]
        for name in ("name", "version")
    }


def _raw_annotations(definition: bytes) -> bytes:
    return bytes(codec.members(definition).get("annotations", b""))


def _annotations(raw: bytes) -> dict[str, object]:
    """Return the annotations of a tool, with the defaults of MCP. Raises ConditionFails and
    codec.Malformed."""
    annotations = codec.level(raw or b"{}") if len(raw) <= READ_BYTES_MAX else None
    if annotations is None:
        raise ConditionError(_LARGE)
    return {**_HINTS, **{name: _value(value) for name, value in annotations.items()}}


def _value(raw: Raw) -> object:
    """Return a value that the library can take. Raises ConditionFails and codec.Malformed."""
    if len(raw) > READ_BYTES_MAX:
        raise ConditionError(_LARGE)
    value: object = codec.exact(raw)
    if len(raw) <= DEPTH_MAX:
        return value
    layer: list[object] = [value]
    for _ in range(DEPTH_MAX):
        layer = [inner for outer in layer for inner in _inside(outer)]
    if layer:
        raise ConditionError(f"what it reads is nested more than {DEPTH_MAX} deep")
    return value


def _inside(value: object) -> Iterable[object]:
    if expressions.is_map(value):
        return value.values()
    return value if expressions.is_list(value) else ()
