"""HTTP headers of requests to a server: the parts of a message that they repeat.

Owns: names and encoding of the headers of MCP, the values that tools want mirrored in headers,
which configured headers are not sent. Never: sending, sessions, the meaning of an answer.

A modern server compares the headers with the body, and refuses a message in which they differ. So
the headers are created again from each message; headers of a client are never copied.
"""

import base64
import re
from collections.abc import Iterator, Mapping

from msgspec import Raw, Struct

from metamcp_worker.child.jsonrpc_lines import MODERN
from metamcp_worker.child.lists import ITEM_BYTES_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.codec import is_list, is_table
from metamcp_worker.ipc.errors import TooLarge

PROTOCOL = "MCP-Protocol-Version"
SESSION = "Mcp-Session-Id"
LAST_EVENT = "Last-Event-ID"
EVENTS = "text/event-stream"
JSON = "application/json"

MESSAGE: Mapping[str, str] = {"Content-Type": JSON, "Accept": f"{JSON}, {EVENTS}"}
"""Headers of every message."""
INITIALIZE: Mapping[str, str] = {**MESSAGE, "Mcp-Method": "initialize"}
"""Headers of `initialize`. A modern server wants the method there too, before it refuses this
request."""

HEADERS_BYTES_MAX = 48 * 1024
"""Maximum bytes of the headers built from one message. Servers take 8 to 64 KiB, and would refuse
longer headers."""
ANNOTATIONS_MAX = 64
"""Maximum number of annotations of one tool, because servers take about a hundred headers."""
ANNOTATED_MAX = 2000
"""Maximum number of tools whose annotations are remembered; beyond that all are forgotten and
learned again with the next list."""

_NAMED = frozenset({"prompts/get", "resources/read", "tools/call"})
_PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|\Z")
_SENTINEL = re.compile(r"=\?base64\?.*\?=", re.DOTALL)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_MARK = "x-mcp-header"
_TYPES = {"string", "integer", "boolean"}

#: Headers of one connection or of the protocol, where configured values would contradict ours.
_OURS = frozenset({
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type",
    "host", "keep-alive", "last-event-id", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade",
})  # fmt: skip

#: Keywords of JSON Schema 2020-12 whose values are schemas, lists or maps of schemas. A property
#: below one of them has no place in the arguments that the schema alone shows.
_SCHEMAS = frozenset({
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_MAPS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties"})

Path = tuple[str, ...]


class _Params(Struct, rename="camel"):
    """Members of parameters that are repeated in headers."""

    name: Raw = Raw(b"null")
    uri: Raw = Raw(b"null")
    task_id: Raw = Raw(b"null")
    arguments: Raw = Raw(b"{}")


class _Tool(Struct, rename="camel"):
    name: str
    input_schema: Raw = Raw(b"{}")


def filter_headers(headers: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the configured headers that are sent, and the names of those that cannot be sent."""
    sent: dict[str, str] = {}
    refused: list[str] = []
    for name, value in headers.items():
        low = name.lower()
        if low in _OURS or low.startswith("mcp-") or not _TOKEN.fullmatch(name):
            refused.append(name)
        else:
            sent[name] = value
    return sent, refused


def encode_header(value: str) -> str:
    """Return `value` as a header can carry it: unchanged, or in base64 if it would be damaged."""
    if _PLAIN.fullmatch(value) and not _SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode(errors='replace')).decode()}?="


def session(session_id: str, protocol: str) -> dict[str, str]:
    """Return the headers of every message in a session with a legacy server. `session_id`: empty if
    the server gave none."""
    headers = {**MESSAGE, PROTOCOL: protocol}
    return {**headers, SESSION: session_id} if session_id else headers


class RequestHeaders:
    """Headers for modern servers. Lists of tools say which arguments a tool wants in headers."""

    def __init__(self) -> None:
        self._annotated: dict[str, dict[Path, str]] = {}

    def headers(self, method: str, params: bytes) -> dict[str, str]:
        """Return the headers of this request. Raises TooLarge."""
        headers = {**MESSAGE, PROTOCOL: MODERN, "Mcp-Method": encode_header(method)}
        if method in _NAMED or method.startswith("tasks/"):
            for name, value in self._iter_headers(method, params):
                headers[name] = encode_header(value)
            size = sum(len(name) + len(value) for name, value in headers.items())
            if size > HEADERS_BYTES_MAX:
                raise TooLarge("what a request has to say in its headers", size, HEADERS_BYTES_MAX)
        return headers

    def learn(self, answer: bytes) -> tuple[bytes, list[str]]:
        """Learn the annotations in an answer to `tools/list`. Return the answer without the tools
        whose annotations are invalid, because clients must leave those out, and a sentence about
        each of them."""
        try:
            message = codec.level(answer)
            result = codec.level(message["result"])
            tools = codec.items(result["tools"])
        except (codec.Malformed, KeyError):
            return answer, []
        accepted: list[Raw] = []
        warnings: list[str] = []
        for tool in tools:
            reason = self._take(tool)
            if reason:
                warnings.append(reason)
            else:
                accepted.append(tool)
        if warnings:
            result["tools"] = Raw(codec.dump(accepted))
            message["result"] = Raw(codec.dump(result))
            answer = codec.dump(message)
        return answer, warnings

    def _iter_headers(self, method: str, params: bytes) -> Iterator[tuple[str, str]]:
        try:
            decoded = codec.decode_as(_Params, params)
        except codec.Malformed:
            return
        named = {
            "tools/call": decoded.name,
            "prompts/get": decoded.name,
            "resources/read": decoded.uri,
        }
        name = codec.text(named.get(method, decoded.task_id))
        if name is None:
            return
        yield "Mcp-Name", name
        if method != "tools/call":
            return
        for path, token in self._annotated.get(name, {}).items():
            value = _format_value(_at(decoded.arguments, path))
            if value is not None:
                yield f"Mcp-Param-{token}", value

    def _take(self, raw: Raw) -> str:
        """Learn one tool. Return why it must be left out, or nothing."""
        data = bytes(raw)
        if len(data) > ITEM_BYTES_MAX:
            return ""  # No list takes it, and to look for paths in it could take gigabytes.
        # An escape may hide the word from this look, which spares nearly all tools the next one.
        marked = _MARK.encode() in data or b"\\u" in data
        try:
            tool = codec.decode_as(_Tool, raw)
            schema = codec.value(tool.input_schema) if marked else None
        except codec.Malformed:
            return ""  # Judging broken definitions is not the task here.
        try:
            annotations = _annotations(schema)
        except _Invalid as error:
            return f"left out of tools: {tool.name[:128]!r}: {error}"
        self._annotated.pop(tool.name, None)
        if annotations:
            if len(self._annotated) >= ANNOTATED_MAX:
                self._annotated.clear()
            self._annotated[tool.name] = annotations
        return ""


class _Invalid(ValueError):
    """Annotation that clients must not accept. The text says why."""


def _annotations(schema: object) -> dict[Path, str]:
    """Return the paths in the arguments to the values that go into headers, with the names of the
    headers. Raises _Invalid."""
    annotations: dict[Path, str] = {}
    names: set[str] = set()
    for path, node in _positions(schema):
        if _MARK not in node:
            continue
        if not path:
            raise _Invalid(f"{_MARK} at a place that has no fixed path of properties")
        location = ".".join(path)[:128]
        token, kind = node[_MARK], node.get("type")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise _Invalid(f"{_MARK} of {location!r} is not the name of a header")
        if not isinstance(kind, str) or kind not in _TYPES:
            raise _Invalid(f"{_MARK} of {location!r}, which is not a string, integer or boolean")
        if token.lower() in names or len(names) >= ANNOTATIONS_MAX:
            raise _Invalid(f"{_MARK} of {location!r} comes twice, or is one of too many")
        names.add(token.lower())
        annotations[path] = token
    return annotations


def _positions(schema: object) -> Iterator[tuple[Path | None, dict[str, object]]]:
    """Yield every schema in `schema`, with its path of properties or None if it has none. Data,
    such as examples, is not searched, and references are not followed."""
    todo: list[tuple[Path | None, object]] = [((), schema)]
    while todo:
        path, node = todo.pop()
        if not is_table(node):
            continue
        yield path, node
        for keyword, value in node.items():
            if keyword == "properties" and is_table(value):
                todo += [
                    (path if path is None else (*path, key), subschema)
                    for key, subschema in value.items()
                ]
            elif keyword in _LISTS and is_list(value):
                todo += [(None, subschema) for subschema in value]
            elif keyword in _SCHEMAS:
                todo.append((None, value))
            elif keyword in _MAPS and is_table(value):
                todo += [(None, subschema) for subschema in value.values()]


def _at(arguments: Raw, path: Path) -> Raw:
    """Return the value at this path, or nothing."""
    value = arguments
    for name in path:
        try:
            value = codec.level(value).get(name, Raw())
        except codec.Malformed:
            return Raw()
    return value


def _format_value(raw: Raw) -> str | None:
    """Return a string, a boolean or a number as the text of a header; None for anything else."""
    data = bytes(raw)
    if data in {b"true", b"false"}:
        return data.decode()
    if data.startswith(b'"'):
        return codec.text(raw)
    number = data.decode("ascii", "replace")
    if _INTEGER.fullmatch(number):
        return number
    try:
        value = float(number)
    except ValueError:
        return None
    # Some servers compare texts and not numbers, so 42.0 is sent as 42.
    return str(int(value)) if value.is_integer() else number
