"""Headers with a meaning for MCP: those that repeat values of the body, and W3C trace context.

Owns: how a value is written into a header, which parameter `Mcp-Name` repeats, which arguments a
tool wants repeated as `Mcp-Param-…` and whether it asks for that properly; reading and writing
`traceparent`, and finding all three members of a trace in HTTP headers. Never: comparing a header
with a body, sending, random ids, whether a request is traced (`front/trace`), the content of
`tracestate` and `baggage`, which pass as they came.

A `traceparent` that is not exactly right is ignored: spans would get a parent that does not exist.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Raw, Struct

from metamcp_worker.http.request_head import Headers
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


def encode_value(value: str) -> str:
    """Return the value for a header: as it is, or as `=?base64?…?=` if it would be changed on the
    way or looks like that form itself."""
    plain = _PLAIN.fullmatch(value) and value == value.strip() and not _SENTINEL.fullmatch(value)
    if plain:
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def build_routing_headers(method: str, params: Mapping[str, Raw]) -> dict[str, str]:
    """Return `Mcp-Method`, and `Mcp-Name` if the method has it."""
    headers = {"Mcp-Method": encode_value(method)}
    subject = params.get(NAMED.get(method, ""))
    text = None if subject is None else codec.text(subject)
    if text is not None:
        headers["Mcp-Name"] = encode_value(text)
    return headers


def find_header_params(schema: bytes | Raw) -> dict[Path, str]:
    """Return which arguments this inputSchema wants repeated: their path through `properties`, and
    the name of the header after `Mcp-Param-`. Raises HeaderRuleUnfit and codec.Malformed."""
    raw = bytes(schema)
    if _ANNOTATION.encode() not in raw and b"\\u" not in raw:
        return {}
    names: dict[Path, str] = {}
    for path, position in _positions(codec.value(raw)):
        if _ANNOTATION in position:
            name = _name(path, position)
            if name.lower() in {other.lower() for other in names.values()}:
                raise HeaderRuleUnfit(f"two properties have the {_ANNOTATION} {name}")
            assert path is not None
            names[path] = name
    return names


def build_param_headers(wishes: Mapping[Path, str], arguments: bytes | Raw) -> dict[str, str]:
    """Return the `Mcp-Param-…` headers for these arguments; none for an absent or null one."""
    headers: dict[str, str] = {}
    values: object = codec.value(arguments) if wishes and arguments else None
    for path, name in wishes.items():
        text = text_of(at(values, path))
        if text is not None:
            headers[f"Mcp-Param-{name}"] = encode_value(text)
    return headers


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
                waiting.extend((None, subschema) for subschema in cast(list[object], value))
            elif keyword in _TABLE and isinstance(value, dict):
                waiting.extend((None, subschema) for subschema in cast(Json, value).values())
            elif keyword == "properties" and isinstance(value, dict):
                for name, subschema in cast(Json, value).items():
                    waiting.append((None if path is None else (*path, name), subschema))


def _name(path: Path | None, schema: Json) -> str:
    if not path:
        raise HeaderRuleUnfit(
            f"an {_ANNOTATION} stands where no property of the arguments is described"
        )
    property_path = ".".join(path)
    name = schema[_ANNOTATION]
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise HeaderRuleUnfit(
            f"the {_ANNOTATION} of property {property_path} is not the name of a header"
        )
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _REPEATABLE:
        raise HeaderRuleUnfit(
            f"property {property_path} has an {_ANNOTATION} and is not a string, integer or boolean"
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


TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
"""Members of `params._meta`, without a prefix (MCP 2026-07-28), and names of HTTP headers."""
KEYS = (TRACEPARENT, TRACESTATE, BAGGAGE)
TRACE_BYTES, SPAN_BYTES = 16, 8
SAMPLED = 0x01
_RANDOM = 0x02
"""Flag: the trace id is random. Only the process that began the trace can promise that, so the flag
passes as it came."""
STATE_CHARACTERS_MAX = 512
"""Maximum characters of a `tracestate` in spans: every process has to pass on that much. A longer
one goes to the server only."""

_VERSION = "00"
_CHARACTERS = 55
"""Length of a `traceparent` of version 00; later versions may have more after a hyphen."""
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<rest>-.*)?"
)
_HEADERS = {key.encode(): key for key in KEYS}
_PRINTABLE = re.compile(rb"[\t -~]{1,8192}")


class TraceContext(Struct, frozen=True, gc=False):
    """Place in a trace. `trace_id`: 32 digits, `span_id`: 16 digits, hexadecimal in lower case;
    `flags`: those that are known here."""

    trace_id: str
    span_id: str
    flags: int

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def child(self, span_id: str) -> "TraceContext":
        return TraceContext(self.trace_id, span_id, self.flags)


def parsed_traceparent(text: str) -> TraceContext | None:
    """Read a `traceparent`; None if it is not valid."""
    match = _FORM.fullmatch(text)
    if match is None or match["version"] == "ff":
        return None
    if match["version"] == _VERSION and len(text) != _CHARACTERS:
        return None
    if not int(match["trace"], 16) or not int(match["span"], 16):
        return None
    flags = int(match["flags"], 16) & (SAMPLED | _RANDOM)
    return TraceContext(match["trace"], match["span"], flags)


def traceparent(context: TraceContext) -> str:
    """Write a `traceparent`, in the version that is known here."""
    return f"{_VERSION}-{context.trace_id}-{context.span_id}-{context.flags:02x}"


def trace_headers(headers: Headers) -> Mapping[str, str]:
    """Return the members in HTTP headers, by their keys; repeated headers are joined. A value with
    characters that a header cannot have is left out."""
    members: dict[str, str] = {}
    for name, value in headers:
        key = _HEADERS.get(name)
        stripped = value.strip()
        if key is not None and _PRINTABLE.fullmatch(stripped):
            members[key] = (
                f"{members[key]},{stripped.decode()}" if key in members else stripped.decode()
            )
    return members
