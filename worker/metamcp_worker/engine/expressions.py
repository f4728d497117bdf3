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

    def told(self, why: str) -> str:
        """Return the sentence why it has no value."""
        return f"'{shown(self.text)}' has no value: {why}"


def is_map(value: object) -> TypeGuard[dict[str, object]]:
    """Whether a value of plain data is a map."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a value of plain data is a list."""
    return isinstance(value, list)


@lru_cache(CACHED_MAX)
def parts(text: str) -> tuple[str | Expression, ...]:
    """Split a text into texts and expressions. Raises ExpressionError."""
    found: list[str | Expression] = []
    done = 0
    while (start := text.find("${{", done)) >= 0:
        if start > done:
            found.append(text[done:start])
        end = _end(text, start + 3)
        found.append(expression(text[start + 3 : end]))
        done = end + 2
    if done < len(text):
        found.append(text[done:])
    return tuple(found)


def condition(text: str) -> Expression:
    """Return the expression of a key that is always one, as `when`: `${{ }}` around it may be left
    out. Raises ExpressionError."""
    found = parts(text)
    if len(found) == 1 and isinstance(found[0], Expression):
        return found[0]
    if "${{" in text:
        raise ExpressionError(f"'{shown(text)}' has text beside its expression; leave it out")
    return expression(text)


@lru_cache(CACHED_MAX)
def expression(text: str) -> Expression:
    """Return what a text in CEL refers to. Raises ExpressionError."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        most = f"more than {EXPRESSION_CHARACTERS_MAX} characters; use a step run_code"
        raise ExpressionError(f"the expression '{shown(text)}' has {most}")
    source = text.strip()
    if not source:
        raise ExpressionError("an expression is empty; write one between '${{' and '}}'")
    match = _PATH.fullmatch(source)
    if match is None or match["root"] in _WORDS:
        return Expression(source, tuple(_references(source)))
    path: tuple[str | int, ...] = tuple(
        int(one["at"]) if one["at"] else (one["name"] or one["key"] or "")
        for one in _PART.finditer(match["rest"])
    )
    names = [one if isinstance(one, str) else "" for one in path[:2]] + ["", ""]
    return Expression(source, (VariableUse(match["root"], names[0], names[1]),), path)


def flaw(found: Expression) -> str:
    """Return what is wrong with the syntax or the functions of an expression, or an empty string.
    Whether its variables are there is not checked."""
    if found.path is not None:
        return ""
    try:
        program(found.text)
    except ExpressionError as error:
        return str(error)
    from cel import stdlib

    known = MACROS | FUNCTIONS | set(stdlib.STDLIB_FUNCTIONS)
    for name in called(found.text):
        if name not in known:
            return f"the expression '{shown(found.text)}' calls '{name}', which is not a function"
    return ""


def in_text(text: str) -> tuple[Expression, ...]:
    """Return the expressions in a text. Raises ExpressionError."""
    return tuple(one for one in parts(text) if isinstance(one, Expression))


def in_value(value: object) -> Iterator[Expression]:
    """Yield the expressions in all texts of a value of maps and lists. Raises ExpressionError."""
    if isinstance(value, str):
        yield from in_text(value)
    elif is_map(value) or is_list(value):
        for each in value.values() if is_map(value) else value:
            yield from in_value(each)


def filled(value: object, values: Mapping[str, object]) -> object:
    """Return a value with its expressions replaced. `values`: by the text of each expression. A
    text that is nothing but one expression becomes its value; in others, values that are not text
    are written as JSON."""
    if isinstance(value, str):
        found = parts(value)
        if len(found) == 1 and isinstance(found[0], Expression):
            return values[found[0].text]
        texts = (one if isinstance(one, str) else _inside(values[one.text]) for one in found)
        return "".join(texts)
    if is_map(value):
        return {key: filled(each, values) for key, each in value.items()}
    if is_list(value):
        return [filled(each, values) for each in value]
    return value


def followed(found: Expression, variables: Variables) -> object:
    """Return the value of an expression that is a path. Raises ExpressionError."""
    assert found.path is not None
    value: object = dict(variables)
    for key in (found.references[0].root, *found.path):
        if is_map(value) and isinstance(key, str):
            if key not in value:
                raise ExpressionError(missing(found.text, f"'{shown(key)}'"))
            value = value[key]
        elif is_list(value) and isinstance(key, int):
            if key >= len(value):
                raise ExpressionError(missing(found.text, f"item {key}"))
            value = value[key]
        else:
            what = f"{_kind(value)} has no {'item' if isinstance(key, int) else 'member'}"
            raise ExpressionError(f"in '{shown(found.text)}', {what} '{shown(str(key))}'")
    return value


def needed(found: Expression, variables: Variables) -> dict[str, object]:
    """Return the variables that an expression refers to, and of `steps` only the members."""
    use: dict[str, object] = {}
    for one in found.references:
        whole = variables.get(one.root)
        if isinstance(whole, Mapping) and one.member and one.root in {"inputs", "steps"}:
            members = use.setdefault(one.root, {})
            if one.member in whole and isinstance(members, dict):
                members[one.member] = whole[one.member]
        elif one.root in variables:
            use[one.root] = whole
    return use


def step_value(result: Raw | bytes) -> dict[str, object]:
    """Return what `steps.ID` is after a call, from its CallToolResult: `result` as `mcp.call` of
    code mode returns it, `text` as written, `error` the words of the tool if it failed, else
    None."""
    read: object = codec.value(result)
    whole = read if is_map(read) else {}
    content = whole.get("content")
    texts = (one.get("text") for one in (content if is_list(content) else []) if is_map(one))
    text = "\n".join(one for one in texts if isinstance(one, str))
    structured = whole.get("structuredContent")
    if whole.get("isError") is True:
        return {"result": None, "text": text, "error": text or "the tool failed without words"}
    if structured is None:
        return {"result": _parsed(text), "text": text, "error": None}
    if is_map(structured) and list(structured) == ["result"]:
        structured = structured["result"]
    return {"result": structured, "text": text, "error": None}


def step_result(value: object) -> dict[str, object]:
    """Return what `steps.ID` is after a step without a tool, from its value."""
    return {"result": value, "text": _inside(value) if value is not None else "", "error": None}


def _parsed(text: str) -> object:
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
    why = "has no '}}' at its end; add it"
    if limit < len(text):
        why = f"has no '}}}}' within {EXPRESSION_CHARACTERS_MAX} characters; use a step run_code"
    raise ExpressionError(f"'{shown(text[start - 3 : limit])}' {why}")


def tokens(source: str) -> list[str]:
    """Return the tokens of an expression, without blanks."""
    return [one for one in _TOKEN.findall(source) if not one.isspace()]


def replaced(source: str, path: tuple[str, ...], name: str) -> str:
    """Return an expression with a variable in place of a path of names, such as `a.b.c`."""
    found = [one for one in _TOKEN.finditer(source) if not one[0].isspace()]
    words = [one[0] for one in found]
    wanted = [one for part in path for one in (".", part)][1:]
    text, done = "", 0
    for at in range(len(words)):
        if words[at : at + len(wanted)] == wanted and (not at or words[at - 1] != "."):
            text += source[done : found[at].start()] + name
            done = found[at + len(wanted) - 1].end()
    return text + source[done:]


def _references(source: str) -> Iterator[VariableUse]:
    """Yield the variables of an expression, without the names that `map` and so on bring."""
    found = ["", *tokens(source), "", "", "", ""]
    own = {
        found[at + 2]
        for at, token in enumerate(found)
        if token in MACROS and found[at - 1] == "." and found[at + 1] == "("
    }
    for at, token in enumerate(found):
        if not _NAME.fullmatch(token) or found[at - 1] == "." or found[at + 1] == "(":
            continue
        if token in _WORDS or token in own or token in _TYPES:
            continue
        if found[at + 1] == "." and found[at + 3] == "(" and _is_namespace(token):
            continue
        member, after = _member(found, at + 1)
        field, _ = _member(found, after) if member else ("", at)
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


def called(source: str) -> Iterator[str]:
    """Yield the functions and macros that an expression calls."""
    found = ["", "", *tokens(source)]
    for at, (token, after) in enumerate(pairwise(found)):
        if after == "(" and _NAME.fullmatch(token) and token not in _WORDS:
            spaced = found[at - 1] == "." and _is_namespace(found[at - 2])
            yield f"{found[at - 2]}.{token}" if spaced else token


@lru_cache(CACHED_MAX)
def program(text: str) -> "cel.Program":
    """Return the program of an expression. Raises ExpressionError."""
    sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))  # its command line takes 30 MiB
    import cel

    try:
        return cel.compile(text)
    except ValueError as error:
        line = next((one for one in str(error).splitlines() if "ERROR: " in one), "")
        reason = line.partition("ERROR: <input>:")[2].partition(" expecting {")[0]
        where, _, why = reason.partition(": ")
        place = where.replace(":", ", column ")
        why = why.removeprefix("Syntax error: ")
        told = f"line {place}: {why}" if why else "it is nested too deep or not complete"
        raise ExpressionError(f"'{shown(text)}' is not CEL: {told}") from None


def _inside(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def context(variables: Variables) -> "cel.Context":
    """Return a context for `Program.execute`; variables can be added to it again and again."""
    import cel

    return cel.Context(dict(variables))


def reason(error: Exception) -> str:
    """Return the reason in an error of a program that is executed."""
    return str(error).partition(": the operation is not defined")[0].partition(". ")[0]


def missing(text: str, key: str) -> str:
    """Return the sentence about a member that is not there."""
    return f"'{shown(text)}' has no value: {key} is not there; ask with has(…) whether it is there"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    return "a text" if isinstance(value, str) else "a value"


def shown(text: str) -> str:
    """Return an expression for a message: on one line, shortened."""
    plain = " ".join(text.split())
    return (
        plain if len(plain) <= _SHOWN_CHARACTERS_MAX else plain[: _SHOWN_CHARACTERS_MAX - 1] + "…"
    )
