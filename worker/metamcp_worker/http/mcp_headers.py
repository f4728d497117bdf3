"""Headers of revision 2026-07-28 that repeat values of the body; the sender writes them.

Owns: how a value is written into a header, which parameter `Mcp-Name` repeats, which arguments a
tool wants repeated as `Mcp-Param-…` and whether it asks for that properly. Never: comparing a
header with a body, sending.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Raw

from metamcp_worker.ipc import codec

#: Parameter that `Mcp-Name` repeats, by method.
NAMED: Mapping[str, str] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
NUMBER_BITS_MAX = 4096
"""Maximum bits of an integer in a header: over a thousand digits."""

_ANNOTATION = "x-mcp-header"
_PLAIN = re.compile(r"[\x20-\x7e]*")
_SENTINEL = re.compile(r"=\?base64\?.*\?=")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REPEATABLE = frozenset({"string", "integer", "boolean"})
#: Keywords of JSON Schema 2020-12 that hold schemas, by the shape of their value. `properties` is
#: not among them: only it leads to arguments that can be found without validating.
_ONE = frozenset({
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_TABLE = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties"})

Json = dict[str, Any]
Path = tuple[str, ...]


class HeaderRuleUnfit(ValueError):
    """Raised for a tool that asks for headers in a way that the specification forbids. The text
    says how."""


def written(value: str) -> str:
    """Return the value for a header: as it is, or as `=?base64?…?=` if it would be changed on the
    way or looks like that form itself."""
    plain = _PLAIN.fullmatch(value) and value == value.strip() and not _SENTINEL.fullmatch(value)
    if plain:
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def routing(method: str, params: Mapping[str, Raw]) -> dict[str, str]:
    """Return `Mcp-Method`, and `Mcp-Name` if the method has it."""
    found = {"Mcp-Method": written(method)}
    subject = params.get(NAMED.get(method, ""))
    text = None if subject is None else codec.text(subject)
    if text is not None:
        found["Mcp-Name"] = written(text)
    return found


def wanted(schema: bytes | Raw) -> dict[Path, str]:
    """Return which arguments this inputSchema wants repeated: their path through `properties`, and
    the name of the header after `Mcp-Param-`. Raises HeaderRuleUnfit and codec.Malformed."""
    raw = bytes(schema)
    if _ANNOTATION.encode() not in raw and b"\\u" not in raw:
        return {}
    found: dict[Path, str] = {}
    for path, position in _positions(codec.value(raw)):
        if _ANNOTATION in position:
            name = _name(path, position)
            if name.lower() in {other.lower() for other in found.values()}:
                raise HeaderRuleUnfit(f"two properties have the {_ANNOTATION} {name}")
            assert path is not None
            found[path] = name
    return found


def repeated(wishes: Mapping[Path, str], arguments: bytes | Raw) -> dict[str, str]:
    """Return the `Mcp-Param-…` headers for these arguments; none for an absent or null one."""
    found: dict[str, str] = {}
    values: object = codec.value(arguments) if wishes and arguments else None
    for path, name in wishes.items():
        text = text_of(at(values, path))
        if text is not None:
            found[f"Mcp-Param-{name}"] = written(text)
    return found


def _positions(root: object) -> Iterator[tuple[Path | None, Json]]:
    """Yield every schema in this schema, with its path through `properties`; None if `properties`
    alone does not lead to it."""
    waiting: list[tuple[Path | None, object]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        schema = cast(Json, node)
        yield path, schema
        for keyword, value in schema.items():
            if keyword in _ONE:
                waiting.append((None, value))
            elif keyword in _LIST and isinstance(value, list):
                waiting.extend((None, one) for one in cast(list[object], value))
            elif keyword in _TABLE and isinstance(value, dict):
                waiting.extend((None, one) for one in cast(Json, value).values())
            elif keyword == "properties" and isinstance(value, dict):
                for name, one in cast(Json, value).items():
                    waiting.append((None if path is None else (*path, name), one))


def _name(path: Path | None, schema: Json) -> str:
    if not path:
        raise HeaderRuleUnfit(
            f"an {_ANNOTATION} stands where no property of the arguments is described"
        )
    where = ".".join(path)
    name = schema[_ANNOTATION]
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise HeaderRuleUnfit(f"the {_ANNOTATION} of property {where} is not the name of a header")
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _REPEATABLE:
        raise HeaderRuleUnfit(
            f"property {where} has an {_ANNOTATION} and is not a string, integer or boolean"
        )
    return name


def at(value: object, path: Path) -> object:
    """Return the argument at this path; None if it is absent."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = cast(Json, value).get(name)
    return value


def text_of(value: object) -> str | None:
    """Return the text of a header for this argument; None if it has no header."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() if value.bit_length() <= NUMBER_BITS_MAX:
            return str(value)
        case float():
            return str(value)
        case _:
            return None
