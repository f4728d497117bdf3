"""Tools as plain HTTP: a list, a description, and a path for each tool.

Owns: these paths, their statuses, the form of their answers. Never: reading bodies, access, the way
to a server, which are the same as for every other client; the OpenAPI document (`web_pages`).

A caller of REST can be asked nothing and hears nothing before its answer, so it declares no
capabilities, and questions of a server are refused.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from urllib.parse import unquote_to_bytes
from weakref import WeakKeyDictionary

from msgspec import Raw

from metamcp_worker.access import gate
from metamcp_worker.access.use_limits import LimitReached
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.mcp_request import ServerNotReady, not_up_yet, out_of_view
from metamcp_worker.front_calls.request_facts import NAME_BYTES_MAX, CallAnswer, McpRequest
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.http import web_pages
from metamcp_worker.http.requests import Pending
from metamcp_worker.http.web_pages import OpenApiTool
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, ProtocolError

DOCUMENT = b"openapi.json"
FAILED = 422
"""Status for a tool that says that it failed. The request was understood and should not be sent
again, as proxies and clients do when the status begins with a 5."""

#: Statuses of errors; the server is the cause of errors with any other code (502).
STATUSES: Mapping[int, int] = {
    Code.PARSE_ERROR: 400,
    Code.INVALID_REQUEST: 400,
    Code.INVALID_PARAMS: 400,
    Code.TOO_LARGE: 413,
    Code.MISSING_CAPABILITY: 501,
    Code.SERVER_DOWN: 502,
    Code.OVERLOADED: 503,
    Code.TIMED_OUT: 504,
}
_PATH = re.compile(rb"(?:/metamcp/[^/?]+)?/api(?:[/?]|$)")
#: Members of a definition that the list shows beside the name.
_SHOWN = ("description", "inputSchema", "outputSchema")
_ALL = "a GET of the path above this one tells all that are in view."
_ASKS = "The tool asks its caller something, and a caller of REST cannot be asked."


class Rest:
    """Answers requests to the REST paths of an endpoint. `lapsed`: refuses a request whose
    credential ended while it waited, and returns False if it may go on."""

    def __init__(self, calls: Calls, lapsed: Callable[[Exchange], bool]) -> None:
        self._lapsed = lapsed
        self._calls = calls
        self._lists: WeakKeyDictionary[View, bytes] = WeakKeyDictionary()
        self._documents: WeakKeyDictionary[View, bytes] = WeakKeyDictionary()

    def answer(
        self, exchange: Exchange, method: str, view: View, version: str, body: bytes
    ) -> Pending:
        """Answer a request. `version`: of the gateway."""
        path = exchange.facts.rest
        try:
            mcp_method = "tools/call" if method == "POST" else "tools/list"
            self._calls.authorize(view, exchange.facts.principal, mcp_method)
            if method == "POST" and path:
                return self._call(exchange, _name(path), body, view, version)
            if method == "GET" and path == DOCUMENT:
                exchange.json(200, self._document(view, version))
            elif method == "GET" and not path:
                began = monotonic()
                exchange.json(200, self._list(view))
                if self._calls.traces is not None:
                    request = _build_request("tools/list", {}, version, exchange)
                    self._calls.traces.on_list(view.whole, request, began)
            else:
                allowed = rest_methods(path)
                text = f"Only {allowed.partition(b',')[0].decode()} is served at this path."
                exchange.json(405, rest_error(Code.INVALID_REQUEST, text), [(b"allow", allowed)])
        except LimitReached as error:
            after = (b"retry-after", b"%d" % max(1, round(error.wait_s)))
            exchange.json(429, rest_error(error.code, error.message), [after])
        except gate.ScopeMissing as error:
            challenge = error.challenge(view.spec.metadata)
            exchange.json(403, rest_error(error.code, error.message), [challenge])
        except ProtocolError as error:
            exchange.json(STATUSES.get(error.code, 502), rest_error(error.code, error.message))
        return None

    def _call(
        self, exchange: Exchange, name: str, body: bytes, view: View, version: str
    ) -> Pending:
        owner = view.merged.tool_named(name)
        if owner is None:
            is_short = len(name.encode()) <= NAME_BYTES_MAX
            if is_short and (server := not_up_yet(view.merged, name)):
                params = {"name": Raw(codec.dump(name))}
                request = _build_request("tools/call", params, version, exchange)
                early = ServerNotReady(server, name, request)
                first = self._calls.first_list(early, view.whole)
                exchange.on_lost = partial(first.cancel, "the client went away")
                again = partial(self._on_server_up, exchange, name, body, view, version, early)
                return exchange.expect(first, again)
            short_name = name[:NAME_BYTES_MAX]
            reason = (
                out_of_view(view.merged, short_name) or f"There is no tool {short_name}; {_ALL}"
            )
            exchange.json(404, rest_error(Code.INVALID_PARAMS, reason))
            return None
        if reason := owner.kept:
            exchange.json(403, rest_error(Code.INVALID_PARAMS, reason))
            return None
        request = _request(name, body, version, exchange)
        call = self._calls.start(view, request, None)
        exchange.on_lost = partial(call.cancel, "the client went away")
        return exchange.expect(call, partial(self._brought, exchange))

    def _on_server_up(
        self,
        exchange: Exchange,
        name: str,
        body: bytes,
        before: View,
        version: str,
        early: ServerNotReady,
        first: CallAnswer | None,
    ) -> Pending:
        """Call the tool after its server has reported what it offers, or refuse the call with the
        reason why the server is not there."""
        exchange.on_lost = None
        if self._lapsed(exchange):
            return None
        view = self._calls.refresh_view(before)
        try:
            if view is not None and early.server not in view.merged.unknown:
                return self._call(exchange, name, body, view, version)
            if first is None or not first.code:
                raise early
            exchange.json(*_render_answer(first))
        except ProtocolError as refused:
            code = refused.code
            exchange.json(STATUSES.get(code, 502), rest_error(code, refused.message))
        return None

    def _brought(self, exchange: Exchange, answer: CallAnswer | None) -> None:
        exchange.on_lost = None
        exchange.json(*_render_answer(answer))

    def _list(self, view: View) -> bytes:
        listing = self._lists.get(view)
        if listing is None:
            tools = [_render_tool(tool) for tool in _tools(view)]
            listing = self._lists[view] = codec.dump({"tools": tools})
        return listing

    def _document(self, view: View, version: str) -> bytes:
        document = self._documents.get(view)
        if document is None:
            document = web_pages.document(view.spec, _tools(view), version, view.instructions)
            self._documents[view] = document
        return document


def rest_methods(path: bytes) -> bytes:
    """Return the methods of the path of a tool, or of another path of REST."""
    return b"POST, OPTIONS" if path and path != DOCUMENT else b"GET, OPTIONS"


def _tools(view: View) -> list[OpenApiTool]:
    definitions = [(entry.key, codec.level(entry.item.raw)) for entry in view.merged.lists["tools"]]
    for _, definition in definitions if view.spec.results is not None else ():
        definition.pop("outputSchema", None)  # a short result in place of a kept one has no such
    return [OpenApiTool(key, definition) for key, definition in definitions]


def _render_tool(tool: OpenApiTool) -> dict[str, object]:
    members = {key: tool.definition[key] for key in _SHOWN if key in tool.definition}
    return {"name": tool.name, **members}


def _name(path: bytes) -> str:
    """Return the name of the tool in this path."""
    return unquote_to_bytes(path).decode(errors="backslashreplace")


def _request(name: str, body: bytes, version: str, exchange: Exchange) -> McpRequest:
    """Return the call of this tool with the arguments in `body`. Raises ProtocolError."""
    try:
        body.decode()
        codec.level(body or b"{}")
    except (codec.Malformed, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        message = f"The body must be a JSON object, the arguments of the tool: {reason}."
        raise ProtocolError(Code.INVALID_PARAMS, message) from None
    params = {"name": Raw(codec.dump(name)), "arguments": Raw(body or b"{}")}
    return _build_request("tools/call", params, version, exchange)


def _build_request(
    method: str, params: dict[str, Raw], version: str, exchange: Exchange
) -> McpRequest:
    caller = codec.dump({
        "clientCapabilities": {}, "clientInfo": {"name": "metamcp-rest", "version": version},
    })  # fmt: skip
    return McpRequest(
        method, params, {}, caller, modern=True, headers=exchange.headers,
        principal=exchange.facts.principal,
    )  # fmt: skip


def _render_answer(answer: CallAnswer | None) -> tuple[int, bytes]:
    """Return status and body for the answer to a call."""
    if answer is None:
        return 503, rest_error(Code.OVERLOADED, "The call was cancelled.")
    if answer.code:
        return STATUSES.get(answer.code, 502), b'{"error":%b}' % answer.body
    body = answer.body
    if b'"isError"' in body or b"input_required" in body:
        members = codec.members(body)
        if codec.text(members.get("resultType", Raw(b"null"))) == "input_required":
            return 501, rest_error(Code.MISSING_CAPABILITY, _ASKS)
        if bytes(members.get("isError", b"")) == b"true":
            return FAILED, body
    return 200, body


def is_rest(target: bytes) -> bool:
    """Whether this is a path for the tools of an endpoint, known or not."""
    return _PATH.match(target) is not None


def rest_error(code: int, message: str) -> bytes:
    """Return an error in the one form that these paths use."""
    return codec.dump({"error": {"code": int(code), "message": message}})
