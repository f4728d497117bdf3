"""The description of an endpoint's REST paths, for clients that are generated from one.

Owns: the OpenAPI 3.1 document of a list of tools. Never: paths, answers and statuses themselves
(`rest` has them), HTTP.

The schemas of the tools stand in it as the bytes that their servers wrote: OpenAPI 3.1 has the
schemas of JSON Schema 2020-12. Only what refers to its own root is changed, to the place that this
has in the document. (An `$id` would leave it as it is, but few readers of such documents follow
one.)
"""

import re
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import quote

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import EndpointSpec

VERSION = "3.1.0"

Json = dict[str, Any]

_KEY = re.compile(r"[A-Za-z0-9._-]+")
_SCHEMAS = "#/components/schemas/"
_ANY_OBJECT = Raw(b'{"type":"object"}')
#: Keywords that hold values, which may look like schemas, and tables of schemas by any names.
_VALUES = frozenset({"const", "default", "enum", "examples"})
_TABLES = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
#: The parts that all tools share. Keys of tools have a dot in them.
_SHARED: dict[str, object] = {
    "Result": {
        "type": "object",
        "description": "The result of the tool, as its server gave it.",
        "required": ["content"],
        "properties": {
            "content": {"type": "array", "items": {"type": "object"}},
            "structuredContent": {},
            "isError": {"type": "boolean"},
        },
    },
    "Error": {
        "type": "object",
        "description": "Why there is no result.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {
                    "code": {"type": "integer"},
                    "message": {"type": "string"},
                    "data": {},
                },
            }
        },
    },
}
#: What each status means, but for success.
_STATUSES = {
    "400": "The arguments are no JSON object, or the server does not accept them.",
    "403": "The tool is in quarantine: it is not as it was approved.",
    "404": "There is no such tool.",
    "413": "The arguments or the result are too large.",
    "501": "The tool needs a client that can be asked something.",
    "502": "The server of the tool is not there, or failed.",
    "503": "The gateway or the server has too much to do; try again later.",
    "504": "The server did not answer in time.",
}


class Tool(Struct, frozen=True):
    """`name`: as the endpoint exposes it; `definition`: raw members of the server's own."""

    name: str
    definition: dict[str, Raw]


def document(
    endpoint: EndpointSpec, tools: Iterable[Tool], version: str, instructions: str | None
) -> bytes:
    """`version`: of the gateway."""
    title = f"Tools of the endpoint {endpoint.name}"
    info: dict[str, object] = {"title": title, "version": version}
    if instructions:
        info["description"] = instructions
    paths: dict[str, object] = {}
    schemas = dict(_SHARED)
    for number, tool in enumerate(tools, 1):
        # What is made up ends with a digit, which no other key does.
        fits = _KEY.fullmatch(tool.name)
        arguments = f"{tool.name}.input" if fits else f"input.{number}"
        result = f"{tool.name}.output" if fits else f"output.{number}"
        schemas[arguments] = _schema(tool, "inputSchema", arguments) or _ANY_OBJECT
        output = _schema(tool, "outputSchema", result)
        if output is not None:
            schemas[result] = output
        operation = _operation(tool, arguments, result if output is not None else "")
        paths["/" + quote(tool.name, safe="")] = {"post": operation}
    return codec.dump({
        "openapi": VERSION,
        "info": info,
        "servers": [{"url": f"{endpoint.base}/api"}],
        "paths": paths,
        "components": {"schemas": schemas},
    })  # fmt: skip


def _operation(tool: Tool, arguments: str, output: str) -> dict[str, object]:
    """`arguments`, `output`: the keys of its schemas, the latter empty if there is none."""
    operation: dict[str, object] = {"operationId": tool.name}
    for member, source in (("summary", "title"), ("description", "description")):
        text = tool.definition.get(source)
        if text is not None and codec.text(text) is not None:
            operation[member] = text
    result: dict[str, object] = {"$ref": _SCHEMAS + "Result"}
    if output:
        content = {"structuredContent": {"$ref": _SCHEMAS + output}}
        result = {"allOf": [result, {"properties": content}]}
    responses: dict[str, object] = {
        "200": {"description": "The result of the tool.", "content": _json(result)},
        "422": {
            "description": "The tool failed; its result says why.",
            "content": _json({"$ref": _SCHEMAS + "Result"}),
        },
    }
    error = _json({"$ref": _SCHEMAS + "Error"})
    for status, description in _STATUSES.items():
        responses[status] = {"description": description, "content": error}
    body = _json({"$ref": _SCHEMAS + arguments})
    return {**operation, "requestBody": {"content": body}, "responses": responses}


def _json(schema: object) -> dict[str, object]:
    return {"application/json": {"schema": schema}}


def _schema(tool: Tool, member: str, key: str) -> object | None:
    """The schema, at home under this key. None: there is none that can be read."""
    raw = bytes(tool.definition.get(member, b""))
    if not raw.startswith(b"{"):
        return None
    if b'"$ref"' in raw and "$id" not in codec.level(raw):
        return _at_home(codec.value(raw), _SCHEMAS + key)
    return Raw(raw)


def _at_home(schema: Json, root: str) -> Json:
    """The same schema with `root` for the place that it calls `#`."""
    waiting: list[object] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += cast(list[object], node)
        elif isinstance(node, dict):
            members = cast(Json, node)
            reference = members.get("$ref")
            if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
                members["$ref"] = root + reference[1:]
            for keyword, value in members.items():
                if keyword in _TABLES and isinstance(value, dict):
                    waiting += cast(Json, value).values()
                elif keyword not in _VALUES:
                    waiting.append(value)
    return schema
