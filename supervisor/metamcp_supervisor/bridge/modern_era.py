"""The bridge in revision 2026-07-28: requests that stand alone, and the headers that repeat parts.

Owns: learning from lists which headers tools want, listing the tools again when the gateway finds a
header wrong. Never: the form of headers (`mcp_headers`), the table of requests (`http_requests`),
sessions, carrying out an action.

A client on a pipe does not send these headers. So the bridge reads from the lists of tools that
pass by which arguments each tool wants repeated. If that is not enough, or out of date, the gateway
refuses the call before anything has run; then the bridge lists the tools once and sends the call
again.
"""

import contextlib

from msgspec import Raw

from metamcp_supervisor.bridge.http_requests import (
    Action,
    BridgeExchange,
    ExchangePurpose,
    Exchanges,
    Send,
    WriteLine,
)
from metamcp_worker.http.mcp_headers import HeaderRuleUnfit, ToolHeaders
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code

PAGES_MAX = 100
"""Maximum pages of a list of tools; a cursor that leads in a circle ends here."""
WISHES_MAX = 10_000
"""Maximum tools that want headers."""

_PREFIX = "io.modelcontextprotocol/"
VERSION = _PREFIX + "protocolVersion"
_SAID = (VERSION, _PREFIX + "clientCapabilities", _PREFIX + "clientInfo")
_LIST = "tools/list"
_CALL = "tools/call"
_NONE = Raw()


class ModernRequests:
    """Requests of this era, and the headers that tools want."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self._version = ""
        self._tools = ToolHeaders(WISHES_MAX)
        self._refused: list[BridgeExchange] = []
        self._pages = 0

    def send(self, exchange: BridgeExchange, message: Envelope) -> list[Action]:
        """Send a message of the client."""
        params = codec.members(message.params)
        version = codec.text(codec.members(params.get("_meta", _NONE)).get(VERSION, _NONE))
        self._version = version or self._version
        exchange.headers = self._tools.headers(self._version, exchange.method, params)
        return [self._exchanges.send(exchange)]

    def withdraw(self, exchange: BridgeExchange) -> None:
        if exchange in self._refused:
            self._refused.remove(exchange)

    def head(self, exchange: BridgeExchange, status: int) -> None:
        if status < 400:
            exchange.body = b""  # it will not be sent again, and may be large

    def on_answer(
        self, exchange: BridgeExchange, message: Envelope, line: bytes
    ) -> list[Action] | None:
        """Take the answer to a request. Return None if the answer is for the client."""
        if exchange.method == _LIST and b"x-mcp-header" in line:
            self._learn(message.result)
        repeated = exchange.method == _CALL and exchange.body and not exchange.refusal
        if not repeated or codec.error_object(message.error).code != Code.HEADER_MISMATCH:
            return None
        exchange.refusal = line
        self._exchanges.unsend(exchange)
        self._refused.append(exchange)
        return [] if len(self._refused) > 1 else [self._ask(exchange)]

    def on_tools_page(self, exchange: BridgeExchange, message: Envelope) -> list[Action]:
        """Take a page of tools that the bridge asked for."""
        self._exchanges.end_exchange(exchange)
        if self._pages == 1:
            self._tools.forget()
        cursor = self._learn(message.result)
        if cursor and self._refused and self._pages < PAGES_MAX:
            return [self._ask(self._refused[0], cursor)]
        return self._settle()

    def on_list_failed(self, exchange: BridgeExchange) -> list[Action]:
        """Go on without the tools, which cannot be listed."""
        self._exchanges.end_exchange(exchange)
        return self._settle()

    def _settle(self) -> list[Action]:
        """Send the refused calls again if their headers are different now; else answer them with
        the refusal."""
        actions: list[Action] = []
        refused, self._refused = self._refused, []
        for exchange in refused:
            headers = self._tools.headers(self._version, _CALL, _params(exchange))
            if headers != exchange.headers:
                exchange.headers = headers
                actions.append(self._exchanges.send(exchange))
            else:
                self._exchanges.end_exchange(exchange)
                actions.append(WriteLine(exchange.refusal))
        return actions

    def _ask(self, exchange: BridgeExchange, cursor: Raw = _NONE) -> Send:
        """List the tools, with the `_meta` of the client's request."""
        self._pages = self._pages + 1 if cursor else 1
        meta = codec.members(_params(exchange).get("_meta", _NONE))
        params: dict[str, object] = {"_meta": {name: meta[name] for name in _SAID if name in meta}}
        if cursor:
            params["cursor"] = cursor
        body = codec.dump(
            {"jsonrpc": "2.0", "id": "metamcp-connect", "method": _LIST, "params": params}
        )
        listing = BridgeExchange(ExchangePurpose.LIST, body, method=_LIST, modern=True)
        listing.headers = self._tools.headers(self._version, _LIST, {})
        return self._exchanges.send(listing)

    def _learn(self, result: Raw) -> Raw:
        """Keep the headers that the tools of a page want. Return the cursor of the next page."""
        page = codec.members(result)
        try:
            tools = codec.items(page.get("tools", b"[]"))
        except codec.Malformed:
            tools = []
        for tool in tools:
            with contextlib.suppress(HeaderRuleUnfit):  # then no header is checked
                self._tools.learn(tool)
        return page.get("nextCursor", _NONE)


def _params(exchange: BridgeExchange) -> dict[str, Raw]:
    return codec.members(codec.envelope(exchange.body).params)
