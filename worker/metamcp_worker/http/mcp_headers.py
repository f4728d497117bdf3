"""Headers with a meaning for MCP: those that repeat values of the body, and W3C trace context.

Owns: the names of the headers, how a value is written into a header, the headers of a client's
requests in each era, which arguments a tool wants repeated as `Mcp-Param-…` and whether it asks for
that properly; reading and writing `traceparent`, and finding all three members of a trace in HTTP
headers. Never: comparing a header with a body, sending, random ids, whether a request is traced
(`front_records/trace`), the content of `tracestate` and `baggage`, which pass as they came.

A modern server compares the headers with the body, and refuses a message in which they differ. So
the headers are created again from each message; headers of a client are never copied.

A `traceparent` that is not exactly right is ignored: spans would get a parent that does not exist.
"""

import base64
import re
from collections.abc import Iterator, Mapping

from msgspec import Raw, Struct

from metamcp_worker.http.request_head import Headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.codec import is_list, is_table

PROTOCOL = "MCP-Protocol-Version"
SESSION = "Mcp-Session-Id"
LAST_EVENT = "Last-Event-ID"
EVENTS = "text/event-stream"
JSON = "application/json"

MESSAGE: Mapping[str, str] = {"Content-Type": JSON, "Accept": f"{JSON}, {EVENTS}"}
"""Headers of every message."""

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
ANNOTATIONS_MAX = 64
"""Maximum number of annotations of one tool, because servers take about a hundred headers."""

_ANNOTATION = "x-mcp-header"
_PLAIN = re.compile(r"[\x20-\x7e]*")
_SENTINEL = re.compile(r"=\?base64\?.*\?=")
TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""Regular expression of the name of a header."""
_REPEATABLE = frozenset({"string", "integer", "boolean"})
#: Keywords of JSON Schema 2020-12 that hold schemas, by the shape of their value. `properties` is
#: not among them: only it leads to arguments that can be found without validating.
_ONE = frozenset({
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LIST = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_TABLE = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties"})

Path = tuple[str, ...]
Wishes = Mapping[Path, str]
"""Arguments that a tool wants repeated in headers, each with the name of its header behind
`Mcp-Param-`."""


class HeaderRuleUnfit(ValueError):
    """Raised for a tool that asks for headers in a way that the specification forbids. The text
    says how."""


class _Tool(Struct, rename="camel"):
    name: str
    input_schema: Raw = Raw(b"{}")


def encode_value(value: str) -> str:
    """Return the value for a header: as it is, or as `=?base64?…?=` if it would be changed on the
    way or looks like that form itself."""
    plain = _PLAIN.fullmatch(value) and value == value.strip() and not _SENTINEL.fullmatch(value)
    if plain:
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def build_session_headers(session_id: str, protocol: str) -> dict[str, str]:
    """Return the headers of every message in a session of an earlier era. `session_id`: empty if
    the server gave none."""
    headers = {**MESSAGE, PROTOCOL: protocol}
    return {**headers, SESSION: session_id} if session_id else headers


def build_modern_headers(
    protocol: str, method: str, params: Mapping[str, Raw], wishes: Wishes | None = None
) -> dict[str, str]:
    """Return the headers of a request that stands alone, as revision 2026-07-28 has them. `wishes`:
    of the called tool."""
    headers = {**MESSAGE, PROTOCOL: encode_value(protocol), "Mcp-Method": encode_value(method)}
    subject = params.get(NAMED.get(method, "taskId" if method.startswith("tasks/") else ""))
    text = None if subject is None else codec.text(subject)
    if text is not None:
        headers["Mcp-Name"] = encode_value(text)
    if wishes:
        headers |= build_param_headers(wishes, params.get("arguments", Raw()))
    return headers


class ToolHeaders:
    """Headers of requests that stand alone, by what lists of tools say of arguments in headers. At
    most `tools_max` tools are remembered; beyond that all are forgotten and learned again with the
    next list."""

    def __init__(self, tools_max: int) -> None:
        self._tools_max = tools_max
        self._wishes: dict[str, Wishes] = {}

    def headers(self, protocol: str, method: str, params: Mapping[str, Raw]) -> dict[str, str]:
        """Return the headers of this request."""
        called = self._wishes and method == "tools/call"
        name = codec.text(params.get("name", Raw())) if called else None
        return build_modern_headers(protocol, method, params, self._wishes.get(name or ""))

    def learn(self, tool: Raw) -> None:
        """Learn the wishes of one tool of a list. Raises HeaderRuleUnfit."""
        try:
            definition = codec.decode_as(_Tool, tool)
        except codec.Malformed:
            return  # Judging broken definitions is not the task here.
        self._wishes.pop(definition.name, None)
        try:
            wishes = find_header_params(definition.input_schema)
        except codec.Malformed:
            return
        except HeaderRuleUnfit as error:
            raise HeaderRuleUnfit(f"{definition.name[:128]!r}: {error}") from None
        if wishes:
            if len(self._wishes) >= self._tools_max:
                self._wishes.clear()
            self._wishes[definition.name] = wishes

    def forget(self) -> None:
        """Forget all tools, because a list begins."""
        self._wishes.clear()


def find_header_params(schema: bytes | Raw) -> dict[Path, str]:
    """Return which arguments this inputSchema wants repeated: their path through `properties`, and
    the name of the header after `Mcp-Param-`. Raises HeaderRuleUnfit and codec.Malformed."""
    raw = bytes(schema)
    # An escape may hide the word from this look, which spares nearly all tools the next one.
    if _ANNOTATION.encode() not in raw and b"\\u" not in raw:
        return {}
    wishes: dict[Path, str] = {}
    names: set[str] = set()
    for path, position in _positions(codec.value(raw)):
        if _ANNOTATION not in position:
            continue
        if not path:
            raise HeaderRuleUnfit(f"{_ANNOTATION} at a place that has no fixed path of properties")
        location = f"{_ANNOTATION} of {'.'.join(path)[:128]!r}"
        name, kind = position[_ANNOTATION], position.get("type")
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise HeaderRuleUnfit(f"{location} is not the name of a header")
        if not isinstance(kind, str) or kind not in _REPEATABLE:
            raise HeaderRuleUnfit(f"{location}, which is not a string, integer or boolean")
        if name.lower() in names or len(names) >= ANNOTATIONS_MAX:
            raise HeaderRuleUnfit(f"{location} comes twice, or is one of too many")
        names.add(name.lower())
        wishes[path] = name
    return wishes


def build_param_headers(wishes: Wishes, arguments: bytes | Raw) -> dict[str, str]:
    """Return the `Mcp-Param-…` headers for these arguments; none for an absent or null one."""
    headers: dict[str, str] = {}
    for path, name in wishes.items():
        value = _read_at(arguments, path)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # Some servers compare texts and not numbers.
        text = text_of(value)
        if text is not None:
            headers[f"Mcp-Param-{name}"] = encode_value(text)
    return headers


def _positions(root: object) -> Iterator[tuple[Path | None, dict[str, object]]]:
    """Yield every schema in this schema, with its path through `properties`; None if `properties`
    alone does not lead to it. Data, such as examples, is not searched, and references are not
    followed."""
    waiting: list[tuple[Path | None, object]] = [((), root)]
    while waiting:
        path, schema = waiting.pop()
        if not is_table(schema):
            continue
        yield path, schema
        for keyword, value in schema.items():
            if keyword in _LIST and is_list(value):
                waiting.extend((None, subschema) for subschema in value)
            elif keyword in _ONE:
                waiting.append((None, value))
            elif keyword in _TABLE and is_table(value):
                waiting.extend((None, subschema) for subschema in value.values())
            elif keyword == "properties" and is_table(value):
                for name, subschema in value.items():
                    waiting.append((None if path is None else (*path, name), subschema))


def _read_at(arguments: bytes | Raw, path: Path) -> object:
    """Return the argument at this path; None if it is absent or has no value in Python. The other
    arguments stay unread."""
    argument = arguments
    try:
        for name in path:
            argument = codec.level(argument).get(name, Raw(b"null"))
        return codec.value(argument)
    except codec.Malformed:
        return None


def at(value: object, path: Path) -> object:
    """Return the argument at this path; None if it is absent."""
    for name in path:
        if not is_table(value):
            return None
        value = value.get(name)
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
