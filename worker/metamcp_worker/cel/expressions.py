"""Expressions of workflows, `${{ … }}` in CEL, and the values that a step gives to later ones.

Owns: where expressions stand in a text, what they refer to, what is wrong with them before they
run; the value of a path such as `inputs.a.b[0]`. Never: which steps there are (`definition`), the
limits of time and memory of an evaluation (`expressions_io`).

`inputs`, `steps` and the names of `foreach` are variables. A path is followed here; all else is
CEL, whose library takes quadratic time for `map` and `filter` and has no limit of its own. So only
a process that can be killed evaluates it (`expressions_io`).
"""

import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeGuard

import msgspec
from msgspec import Raw, Struct

from metamcp_worker.ipc import codec

if TYPE_CHECKING:
    import cel

Variables: TypeAlias = Mapping[str, object]
"""Values by name: `inputs`: a map; `steps`: by id, each a map of FIELDS; names of `foreach`."""

EXPRESSION_CHARACTERS_MAX = 2000
"""Maximum characters of one expression. More is the work of a step `run_code`."""
VALUE_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes, as JSON, of what an expression is given, and of its value."""
CACHED_MAX = 1024
"""Maximum number of expressions that stay compiled."""
FIELDS: Final = ("result", "text", "error")
"""Members of a step in `steps`."""
_SHOWN_CHARACTERS_MAX = 100

MACROS: Final = frozenset({"all", "exists", "exists_one", "filter", "map"})
FUNCTIONS: Final = frozenset({
    "bytes", "contains", "double", "duration", "dyn", "endsWith", "getDate", "getDayOfMonth",
    "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds", "getMinutes",
    "getMonth", "getSeconds", "has", "int", "matches", "size", "startsWith", "string", "timestamp",
    "type", "uint",
})  # fmt: skip
_WORDS = frozenset({"true", "false", "null", "in"})
RESERVED: Final = _WORDS | {"inputs", "steps", "index"}
"""Names that an item of `foreach` cannot have."""
_TYPES = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"})
_TOKEN = re.compile(
    r"""\s+
    | (?:[bB]?[rR][bB]?)(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
    | [bB]?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3})
    | [bB]?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | [A-Za-z_][A-Za-z0-9_]* | [0-9][A-Za-z0-9_]*(?:\.[0-9][A-Za-z0-9_]*)? | .""",
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PATH = re.compile(
    r"\s*(?P<root>[A-Za-z_][A-Za-z0-9_]*)"
    r"(?P<rest>(?:\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]{1,9}\]|\['[^'\\\n]*'\]|\[\"[^\"\\\n]*\"\])*)\s*",
    re.ASCII,
)
_PART = re.compile(r"\.(?P<name>[A-Za-z_]\w*)|\[(?P<at>[0-9]+)\]|\[['\"](?P<key>[^'\"]*)['\"]\]")


class ExpressionError(Exception):
    """An expression without a value. The text is a sentence with the expression."""


class VariableUse(NamedTuple):
    """Use of a variable. `member`: `a` of `steps.a` or `inputs.a`, empty for the whole; `field`:
    the member of that."""

    root: str
    member: str = ""
    field: str = ""


class Expression(Struct, frozen=True):
    """Expression that stands in a text. `path`: keys and indices after the first name, if it is
    nothing but a path; else None, and it is CEL."""

    text: str
    references: tuple[VariableUse, ...]
    path: tuple[str | int, ...] | None = None

    def describe_problem(self, problem: str) -> str:
        """Return the sentence why it has no value."""
        return f"'{shorten(self.text)}' has no value: {problem}"


def is_map(value: object) -> TypeGuard[dict[str, object]]:
    """Whether a value of plain data is a map."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a value of plain data is a list."""
    return isinstance(value, list)


@lru_cache(CACHED_MAX)
def parts(text: str) -> tuple[str | Expression, ...]:
    """Split a text into texts and expressions. Raises ExpressionError."""
    pieces: list[str | Expression] = []
    done = 0
    while (start := text.find("${{", done)) >= 0:
        if start > done:
            pieces.append(text[done:start])
        end = _end(text, start + 3)
        pieces.append(expression(text[start + 3 : end]))
        done = end + 2
    if done < len(text):
        pieces.append(text[done:])
    return tuple(pieces)


def condition(text: str) -> Expression:
    """Return the expression of a key that is always one, as `when`: `${{ }}` around it may be left
    out. Raises ExpressionError."""
    pieces = parts(text)
    if len(pieces) == 1 and isinstance(pieces[0], Expression):
        return pieces[0]
    if "${{" in text:
        raise ExpressionError(f"'{shorten(text)}' has text beside its expression; leave it out")
    return expression(text)


@lru_cache(CACHED_MAX)
def expression(text: str) -> Expression:
    """Return what a text in CEL refers to. Raises ExpressionError."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        most = f"more than {EXPRESSION_CHARACTERS_MAX} characters; use a step run_code"
        raise ExpressionError(f"the expression '{shorten(text)}' has {most}")
    source = text.strip()
    if not source:
        raise ExpressionError("an expression is empty; write one between '${{' and '}}'")
    match = _PATH.fullmatch(source)
    if match is None or match["root"] in _WORDS:
        return Expression(source, tuple(_references(source)))
    path: tuple[str | int, ...] = tuple(
        int(segment["at"]) if segment["at"] else (segment["name"] or segment["key"] or "")
        for segment in _PART.finditer(match["rest"])
    )
    names = [key if isinstance(key, str) else "" for key in path[:2]] + ["", ""]
    return Expression(source, (VariableUse(match["root"], names[0], names[1]),), path)


def flaw(expression: Expression) -> str:
    """Return what is wrong with the syntax or the functions of an expression, or an empty string.
    Whether its variables are there is not checked."""
    if expression.path is not None:
        return ""
    try:
        program(expression.text)
    except ExpressionError as error:
        return str(error)
    from cel import stdlib

    functions = MACROS | FUNCTIONS | set(stdlib.STDLIB_FUNCTIONS)
    for name in iter_functions(expression.text):
        if name not in functions:
            text = shorten(expression.text)
            return f"the expression '{text}' calls '{name}', which is not a function"
    return ""


def in_text(text: str) -> tuple[Expression, ...]:
    """Return the expressions in a text. Raises ExpressionError."""
    return tuple(piece for piece in parts(text) if isinstance(piece, Expression))


def in_value(value: object) -> Iterator[Expression]:
    """Yield the expressions in all texts of a value of maps and lists. Raises ExpressionError."""
    if isinstance(value, str):
        yield from in_text(value)
    elif is_map(value) or is_list(value):
        for each in value.values() if is_map(value) else value:
            yield from in_value(each)


def replace_expressions(value: object, values: Mapping[str, object]) -> object:
    """Return a value with its expressions replaced. `values`: by the text of each expression. A
    text that is nothing but one expression becomes its value; in others, values that are not text
    are written as JSON."""
    if isinstance(value, str):
        pieces = parts(value)
        if len(pieces) == 1 and isinstance(pieces[0], Expression):
            return values[pieces[0].text]
        texts = (
            piece if isinstance(piece, str) else _inside(values[piece.text]) for piece in pieces
        )
        return "".join(texts)
    if is_map(value):
        return {key: replace_expressions(each, values) for key, each in value.items()}
    if is_list(value):
        return [replace_expressions(each, values) for each in value]
    return value


def resolve_path(expression: Expression, variables: Variables) -> object:
    """Return the value of an expression that is a path. Raises ExpressionError."""
    assert expression.path is not None
    value: object = dict(variables)
    for key in (expression.references[0].root, *expression.path):
        if is_map(value) and isinstance(key, str):
            if key not in value:
                raise ExpressionError(describe_missing_member(expression.text, f"'{shorten(key)}'"))
            value = value[key]
        elif is_list(value) and isinstance(key, int):
            if key >= len(value):
                raise ExpressionError(describe_missing_member(expression.text, f"item {key}"))
            value = value[key]
        else:
            problem = f"{_kind(value)} has no {'item' if isinstance(key, int) else 'member'}"
            raise ExpressionError(
                f"in '{shorten(expression.text)}', {problem} '{shorten(str(key))}'"
            )
    return value


def select_variables(expression: Expression, variables: Variables) -> dict[str, object]:
    """Return the variables that an expression refers to, and of `steps` only the members."""
    use: dict[str, object] = {}
    for reference in expression.references:
        variable = variables.get(reference.root)
        if (
            isinstance(variable, Mapping)
            and reference.member
            and reference.root in {"inputs", "steps"}
        ):
            members = use.setdefault(reference.root, {})
            if reference.member in variable and isinstance(members, dict):
                members[reference.member] = variable[reference.member]
        elif reference.root in variables:
            use[reference.root] = variable
    return use


def step_value(result: Raw | bytes) -> dict[str, object]:
    """Return what `steps.ID` is after a call, from its CallToolResult: `result` as `mcp.call` of
    code mode returns it, `text` as written, `error` the words of the tool if it failed, else
    None."""
    read: object = codec.value(result)
    members = read if is_map(read) else {}
    content = members.get("content")
    texts = (block.get("text") for block in (content if is_list(content) else []) if is_map(block))
    text = "\n".join(block_text for block_text in texts if isinstance(block_text, str))
    structured = members.get("structuredContent")
    if members.get("isError") is True:
        return {"result": None, "text": text, "error": text or "the tool failed without words"}
    if structured is None:
        return {"result": _parse_value(text), "text": text, "error": None}
    if is_map(structured) and list(structured) == ["result"]:
        structured = structured["result"]
    return {"result": structured, "text": text, "error": None}


def step_result(value: object) -> dict[str, object]:
    """Return what `steps.ID` is after a step without a tool, from its value."""
    return {"result": value, "text": _inside(value) if value is not None else "", "error": None}


def _parse_value(text: str) -> object:
    try:
        return codec.value(text.encode())
    except (codec.Malformed, UnicodeError):
        return text


def _end(text: str, start: int) -> int:
    """Return where the `}}` of an expression is that begins here. Raises ExpressionError."""
    depth = 0
    at = start
    limit = min(len(text), start + EXPRESSION_CHARACTERS_MAX + 2)  # so the scan stays short
    while at < limit:
        if depth == 0 and text.startswith("}}", at):
            return at
        match = _TOKEN.match(text, at, limit)
        assert match is not None
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        at = match.end()
    problem = "has no '}}' at its end; add it"
    if limit < len(text):
        problem = (
            f"has no '}}}}' within {EXPRESSION_CHARACTERS_MAX} characters; use a step run_code"
        )
    raise ExpressionError(f"'{shorten(text[start - 3 : limit])}' {problem}")


def tokens(source: str) -> list[str]:
    """Return the tokens of an expression, without blanks."""
    return [token for token in _TOKEN.findall(source) if not token.isspace()]


def replace_path(source: str, path: tuple[str, ...], name: str) -> str:
    """Return an expression with a variable in place of a path of names, such as `a.b.c`."""
    matches = [match for match in _TOKEN.finditer(source) if not match[0].isspace()]
    words = [match[0] for match in matches]
    path_tokens = [token for member in path for token in (".", member)][1:]
    text, done = "", 0
    for at in range(len(words)):
        if words[at : at + len(path_tokens)] == path_tokens and (not at or words[at - 1] != "."):
            text += source[done : matches[at].start()] + name
            done = matches[at + len(path_tokens) - 1].end()
    return text + source[done:]


def _references(source: str) -> Iterator[VariableUse]:
    """Yield the variables of an expression, without the names that `map` and so on bring."""
    padded = ["", *tokens(source), "", "", "", ""]
    own = {
        padded[at + 2]
        for at, token in enumerate(padded)
        if token in MACROS and padded[at - 1] == "." and padded[at + 1] == "("
    }
    for at, token in enumerate(padded):
        if not _NAME.fullmatch(token) or padded[at - 1] == "." or padded[at + 1] == "(":
            continue
        if token in _WORDS or token in own or token in _TYPES:
            continue
        if padded[at + 1] == "." and padded[at + 3] == "(" and _is_namespace(token):
            continue
        member, after = _member(padded, at + 1)
        field, _ = _member(padded, after) if member else ("", at)
        yield VariableUse(token, member, field)


def _is_namespace(name: str) -> bool:
    return name in {"base64", "lists", "math", "sets", "strings"}


def _member(tokens: list[str], at: int) -> tuple[str, int]:
    """Return the name after `.` or in `['…']`, and where the rest begins; empty for others."""
    if tokens[at] == "." and tokens[at + 2] != "(":
        return tokens[at + 1], at + 2
    quoted = tokens[at + 1]
    if tokens[at] == "[" and tokens[at + 2] == "]" and quoted[:1] in {"'", '"'}:
        return quoted[1:-1], at + 3
    return "", at


def iter_functions(source: str) -> Iterator[str]:
    """Yield the functions and macros that an expression calls."""
    padded = ["", "", *tokens(source)]
    for at, (token, after) in enumerate(pairwise(padded)):
        if after == "(" and _NAME.fullmatch(token) and token not in _WORDS:
            spaced = padded[at - 1] == "." and _is_namespace(padded[at - 2])
            yield f"{padded[at - 2]}.{token}" if spaced else token


@lru_cache(CACHED_MAX)
def program(text: str) -> "cel.Program":
    """Return the program of an expression. Raises ExpressionError."""
    sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))  # its command line takes 30 MiB
    import cel

    try:
        return cel.compile(text)
    except ValueError as error:
        line = next((line for line in str(error).splitlines() if "ERROR: " in line), "")
        reason = line.partition("ERROR: <input>:")[2].partition(" expecting {")[0]
        position, _, detail = reason.partition(": ")
        location = position.replace(":", ", column ")
        detail = detail.removeprefix("Syntax error: ")
        problem = (
            f"line {location}: {detail}" if detail else "it is nested too deep or not complete"
        )
        raise ExpressionError(f"'{shorten(text)}' is not CEL: {problem}") from None


def _inside(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def context(variables: Variables) -> "cel.Context":
    """Return a context for `Program.execute`; variables can be added to it again and again."""
    import cel

    return cel.Context(dict(variables))


def reason(error: Exception) -> str:
    """Return the reason in an error of a program that is executed."""
    return str(error).partition(": the operation is not defined")[0].partition(". ")[0]


def describe_missing_member(text: str, key: str) -> str:
    """Return the sentence about a member that is not there."""
    return (
        f"'{shorten(text)}' has no value: {key} is not there; ask with has(…) whether it is there"
    )


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    return "a text" if isinstance(value, str) else "a value"


def shorten(text: str) -> str:
    """Return an expression for a message: on one line, shortened."""
    plain = " ".join(text.split())
    return (
        plain if len(plain) <= _SHOWN_CHARACTERS_MAX else plain[: _SHOWN_CHARACTERS_MAX - 1] + "…"
    )
