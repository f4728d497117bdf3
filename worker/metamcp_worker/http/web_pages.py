"""Page that a browser gets at `/`, and the OpenAPI document of an endpoint's tools.

Owns: the words of the page, which says what this is and how to connect; the paths, schemas and
statuses of the document (`document`). Never: access, servers, calling tools (`rest`). A browser is
not a client of MCP.
"""

import re
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import quote

from msgspec import Raw, Struct

from metamcp_worker.http.request_head import Head
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import EndpointSpec

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>MetaMCP</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 sans-serif; max-width: 44em; \
margin: 2em auto; padding: 0 1em }} pre {{ overflow: auto }}</style>
<h1>MetaMCP {version}</h1>
<p>A gateway for the Model Context Protocol: one endpoint in front of many MCP servers. It speaks
with MCP clients; a browser sees only this page.</p>
<h2>Connect a client</h2>
<p>The URL:</p>
<pre>{urls}</pre>
<p>Claude Code:</p>
<pre>claude mcp add --transport http metamcp {first}</pre>
<p>Other clients:</p>
<pre>{{"mcpServers": {{"metamcp": {{"type": "http", "url": "{first}"}}}}}}</pre>
<p><code>metamcp install CLIENT</code> writes it into the client's file for you.</p>
<h2>Look at the gateway</h2>
<p><code>metamcp status</code> shows which servers run, <code>metamcp doctor</code> what stands in
the way.</p>
</html>
"""


def is_page_request(head: Head) -> bool:
    """Whether this is the request of a browser for the page."""
    if head.method != "GET" or head.target.partition(b"?")[0] != b"/":
        return False
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in head.headers)


def page(version: str, base: str, endpoints: Iterable[EndpointSpec]) -> bytes:
    """Return the page. `base`: scheme and host of its URLs, as the browser wrote them, checked."""
    # The default one first, by its short path.
    paths = [
        "/mcp" if endpoint.default else f"{endpoint.base}/mcp"
        for endpoint in sorted(endpoints, key=lambda endpoint: not endpoint.default)
    ]
    urls = [f"{base}{path}" for path in paths] or ["no endpoint is configured"]
    return _PAGE.format(version=version, urls="\n".join(urls), first=urls[0]).encode()


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
#: How a request carries an API key or a token.
_BEARER = {"type": "http", "scheme": "bearer"}
#: Meaning of each status, except success and a failed tool.
_STATUSES = {
    "400": "The arguments are not a JSON object, or the server does not accept them.",
    "401": "A valid credential is needed.",
    "403": "The tool is in quarantine: it is not as it was approved; or a scope is missing.",
    "404": "There is no such tool.",
    "413": "The arguments or the result are too large.",
    "415": "The arguments are not sent as JSON.",
    "429": "A limit is reached; Retry-After says when to try again.",
    "501": "The tool needs a client that can be asked something.",
    "502": "The server of the tool is not there, or failed.",
    "503": "The gateway or the server has too much to do; try again later.",
    "504": "The server did not answer in time.",
}


class OpenApiTool(Struct, frozen=True):
    """Tool in the document. `name`: as the endpoint exposes it; `definition`: raw members of the
    server's own definition."""

    name: str
    definition: dict[str, Raw]


def document(
    endpoint: EndpointSpec, tools: Iterable[OpenApiTool], version: str, instructions: str | None
) -> bytes:
    """Return the OpenAPI document of these tools. `version`: of the gateway."""
    title = f"Tools of the endpoint {endpoint.name}"
    info: dict[str, object] = {"title": title, "version": version}
    if instructions:
        info["description"] = instructions
    paths: dict[str, object] = {}
    schemas = dict(_SHARED)
    for number, tool in enumerate(tools, 1):
        # Keys that are made up end with a digit, which no other key does.
        fits = _KEY.fullmatch(tool.name)
        arguments = f"{tool.name}.input" if fits else f"input.{number}"
        result = f"{tool.name}.output" if fits else f"output.{number}"
        schemas[arguments] = _schema(tool, "inputSchema", arguments) or _ANY_OBJECT
        output = _schema(tool, "outputSchema", result)
        if output is not None:
            schemas[result] = output
        operation = _operation(tool, arguments, result if output is not None else "")
        paths["/" + quote(tool.name, safe="")] = {"post": operation}
    openapi: dict[str, object] = {
        "openapi": VERSION,
        "info": info,
        "servers": [{"url": f"{endpoint.base}/api"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if endpoint.auth:
        openapi["components"] = {"schemas": schemas, "securitySchemes": {"credential": _BEARER}}
        openapi["security"] = [{"credential": []}]
    return codec.dump(openapi)


def _operation(tool: OpenApiTool, arguments: str, output: str) -> dict[str, object]:
    """Return the operation of a tool. `arguments`, `output`: keys of its schemas, the latter empty
    if there is none."""
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
    return {**operation, "requestBody": {"content": body, "required": True}, "responses": responses}


def _json(schema: object) -> dict[str, object]:
    return {"application/json": {"schema": schema}}


def _schema(tool: OpenApiTool, member: str, key: str) -> object | None:
    """Return the schema, with references that fit its place under this key; None if there is none
    that can be read."""
    raw = bytes(tool.definition.get(member, b""))
    if not raw.startswith(b"{"):
        return None
    if b'"$ref"' in raw and "$id" not in codec.level(raw):
        return _at_home(codec.value(raw), _SCHEMAS + key)
    return Raw(raw)


def _at_home(schema: Json, root: str) -> Json:
    """Return the same schema with `root` for the place that it calls `#`."""
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
