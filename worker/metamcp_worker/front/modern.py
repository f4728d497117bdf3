"""Revision 2026-07-28: requests that stand alone.

Owns: what such a request must carry and in which order that is checked, discovery, subscriptions,
and the rule that a client cancels by going away. Never: sessions, lists, the way to a server.
"""

import base64
import binascii
import re
from collections.abc import Mapping

from msgspec import Raw, Struct

from metamcp_worker import codec
from metamcp_worker.codec import Envelope
from metamcp_worker.errors import HTTP_STATUS, Code, Refused
from metamcp_worker.front import answers, inbound
from metamcp_worker.front.calls import Calls, Request
from metamcp_worker.front.exchange import Exchange
from metamcp_worker.front.guard import Facts
from metamcp_worker.front.questions import Question
from metamcp_worker.front.session import HANDSHAKE_VERSIONS
from metamcp_worker.front.views import CACHE_HINTS, LIST_METHODS, View

VERSIONS: tuple[str, ...] = ("2026-07-28",)
SUPPORTED = (*VERSIONS, *HANDSHAKE_VERSIONS)
"""What a client reads wherever revisions are listed, best first: one that speaks none of this era
learns from it that `initialize` would be understood."""

_PREFIX = "io.modelcontextprotocol/"
PROTOCOL_VERSION = _PREFIX + "protocolVersion"
_CAPABILITIES = _PREFIX + "clientCapabilities"
_CLIENT_INFO = _PREFIX + "clientInfo"
_LOG_LEVEL = _PREFIX + "logLevel"
STAMP = (PROTOCOL_VERSION, _CAPABILITIES, _CLIENT_INFO, _LOG_LEVEL)
"""The members of `_meta` that a request of this era says who asks with."""
_SUBSCRIPTION = _PREFIX + "subscriptionId"
_SERVER_INFO = _PREFIX + "serverInfo"

#: Which parameter `Mcp-Name` repeats.
_NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
#: Methods of the handshake era that this one has not; no server may make them exist here.
_GONE = frozenset({
    "initialize", "logging/setLevel", "ping", "resources/subscribe", "resources/unsubscribe",
    "tasks/list", "tasks/result",
})  # fmt: skip
#: What one may subscribe to, and the notification for it.
_SUBSCRIPTIONS = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
_SENTINEL = re.compile(r"=\?base64\?(?P<payload>.*)\?=", re.DOTALL)
_NONE = Raw()


class Asked(Struct, gc=False):
    """A request that passed every check. `token`: the raw progress token, or empty."""

    params: dict[str, Raw]
    meta: dict[str, Raw]
    caller: bytes
    token: bytes = b""


class Modern:
    """Answers the POSTs of this era."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def post(self, exchange: Exchange, message: Envelope, view: View, version: str) -> None:
        """`version`: of the gateway. Raises Refused and Declined."""
        raw_id, method = bytes(message.id), message.method
        if not raw_id:
            check_version((exchange.facts.version or b"").decode("latin-1"))
            await exchange.empty(202)
            return
        if method is None:
            raise Refused(Code.INVALID_REQUEST, "This revision has no requests to a client.")
        asked = check(message, exchange.facts)
        del message  # it holds the body
        if method in LIST_METHODS:
            body = view.page(method, asked.params, modern=True)
            await exchange.json(200, answers.result(raw_id, body))
        elif method == "server/discover":
            await exchange.json(200, answers.result(raw_id, discovery(view, version)))
        elif method == "subscriptions/listen":
            await self._listen(exchange, raw_id, asked)
        elif method in _GONE:
            raise Refused(
                Code.METHOD_NOT_FOUND, f"{method} does not exist in revision {VERSIONS[0]}."
            )
        else:
            request = Request(method, asked.params, asked.meta, asked.caller, modern=True)
            calling = self._call(exchange, raw_id, request, asked.token, view)
            del asked, request
            await calling

    async def _call(
        self, exchange: Exchange, raw_id: bytes, request: Request, token: bytes, view: View
    ) -> None:
        request.wants_progress = bool(token) and exchange.facts.accepts_sse
        call = self._calls.start(view, request, _Client(exchange, token))
        del request
        exchange.peer.on_lost = lambda: call.cancel("the client went away")
        try:
            await exchange.relay(call, raw_id, HTTP_STATUS)
        finally:
            exchange.peer.on_lost = None

    async def _listen(self, exchange: Exchange, raw_id: bytes, asked: Asked) -> None:
        wanted = _wanted(asked.params.get("notifications", _NONE))
        exchange.check_stream()
        tag = codec.dump({"_meta": {_SUBSCRIPTION: Raw(raw_id)}})
        done = codec.splice(tag, {"resultType": b'"complete"'})
        stream = exchange.stream(farewell=answers.event(answers.result(raw_id, done)))
        honoured = codec.splice(tag, {"notifications": codec.dump(dict.fromkeys(wanted, True))})
        stream.put(
            answers.event(
                answers.notification("notifications/subscriptions/acknowledged", honoured)
            )
        )
        news = {
            method: answers.event(answers.notification(method, tag)) for method in wanted.values()
        }
        await exchange.stand(stream, exchange.facts.endpoint, news)


class _Client:
    """The client of one request: what comes before its answer goes on the same stream."""

    __slots__ = ("_exchange", "_token")

    def __init__(self, exchange: Exchange, token: bytes) -> None:
        self._exchange = exchange
        self._token = token

    def progressed(self, params: bytes) -> None:
        self._exchange.put(answers.event(answers.progress(self._token, params)))

    def told(self, method: str, params: bytes) -> None:
        self._exchange.put(answers.event(answers.notification(method, params)))

    def asked(self, question: Question) -> None:
        question.refuse("The client of this call cannot be asked.")


def check(message: Envelope, facts: Facts) -> Asked:
    """The checks of this era, in their order. Raises Refused for the first that fails."""
    if facts.repeated:
        raise _mismatch(f"{facts.repeated.decode().title()} came more than once.")
    params, meta = inbound.parameters(message)
    version = meta.pop(PROTOCOL_VERSION, _NONE)
    capabilities = meta.pop(_CAPABILITIES, _NONE)
    if not version or not capabilities:
        wanted = ((PROTOCOL_VERSION, version), (_CAPABILITIES, capabilities))
        missing = " and ".join(key for key, raw in wanted if not raw)
        raise Refused(Code.INVALID_PARAMS, f"params._meta lacks {missing}.")
    if not bytes(capabilities).startswith(b"{"):
        raise Refused(Code.INVALID_PARAMS, f"params._meta: {_CAPABILITIES} must be an object.")
    claimed = "" if facts.version is None else facts.version.decode("latin-1")
    if codec.text(version) != claimed:
        raise _mismatch("MCP-Protocol-Version is not the version in params._meta.")
    if facts.method is None or facts.method.decode("latin-1") != message.method:
        raise _mismatch("Mcp-Method is not the method of the message.")
    named = _NAMED.get(message.method or "")
    if named is not None:
        subject = params.get(named)
        if subject is not None and (facts.name is None or not _same(subject, facts.name)):
            raise _mismatch(f"Mcp-Name is not params.{named}.")
    check_version(claimed)
    token = bytes(meta.pop("progressToken", b""))
    if token and not codec.id_ok(token):
        raise Refused(Code.INVALID_PARAMS, "The progress token must be a string or an integer.")
    caller = _caller(meta.pop(_CLIENT_INFO, _NONE), capabilities, meta.pop(_LOG_LEVEL, _NONE))
    return Asked(params, meta, caller, token)


def check_version(version: str) -> None:
    """Raises Refused for a revision that nobody here speaks, and names those that are."""
    if version not in VERSIONS:
        raise Refused(
            Code.UNSUPPORTED_VERSION,
            "Unsupported protocol version",
            codec.dump({"supported": SUPPORTED, "requested": version}),
        )


def discovery(view: View, version: str) -> bytes:
    """The raw result of `server/discover`."""
    result: dict[str, object] = {
        "resultType": "complete",
        "supportedVersions": SUPPORTED,
        "capabilities": Raw(view.capabilities(modern=True)),
    }
    if view.instructions is not None:
        result["instructions"] = view.instructions
    result |= CACHE_HINTS
    result["_meta"] = {_SERVER_INFO: {"name": "metamcp", "version": version}}
    return codec.dump(result)


def header_text(value: bytes) -> str | None:
    """What a header says: as it is, or what is inside `=?base64?…?=`. None: nothing readable."""
    text = value.decode("latin-1")
    found = _SENTINEL.fullmatch(text)
    if found is None:
        return text
    try:
        decoded = base64.b64decode(found["payload"], validate=True)
        canonical = base64.b64encode(decoded).decode() == found["payload"]
        return decoded.decode() if canonical else None
    except (binascii.Error, ValueError):
        return None


def _same(raw: Raw, header: bytes) -> bool:
    """Does this raw JSON string say what the header says?"""
    body = bytes(raw)
    if body == b'"%b"' % header and b"\\" not in body and not header.startswith(b"=?"):
        return body.isascii()
    text = codec.text(body)
    return text is not None and text == header_text(header)


def _mismatch(message: str) -> Refused:
    return Refused(Code.HEADER_MISMATCH, message)


def _caller(client_info: Raw, capabilities: Raw, log_level: Raw) -> bytes:
    caller = b'{"clientCapabilities":' + bytes(capabilities)
    if client_info:
        caller += b',"clientInfo":' + bytes(client_info)
    if log_level:
        caller += b',"logLevel":' + bytes(log_level)
    return caller + b"}"


def _wanted(raw: Raw) -> Mapping[str, str]:
    """What of a subscription is honoured: its name, and the notification for it."""
    try:
        wishes = codec.level(raw)
    except codec.Malformed:
        raise Refused(Code.INVALID_PARAMS, "params.notifications must be an object.") from None
    return {
        name: method
        for name, method in _SUBSCRIPTIONS.items()
        if bytes(wishes.get(name, b"")) == b"true"
    }
