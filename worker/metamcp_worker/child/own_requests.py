"""Requests that the gateway itself makes to a server.

Owns: which of them are open and for which purpose, their lines. Never: their contents, the use of
their answers.
"""

from collections.abc import Callable

from msgspec import Struct

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import RequestPurpose, ServerRequest
from metamcp_worker.child.jsonrpc_lines import MetaBuilder

_ONE_AT_A_TIME = frozenset({RequestPurpose.HANDSHAKE, RequestPurpose.PROBE})


class OwnRequest(Struct, frozen=True):
    """Request of the gateway's own. `params`: a raw object without `_meta`. `caller`: the client on
    whose behalf it is made, as in `frames.CallFrame`, or empty."""

    method: str
    params: bytes = b"{}"
    caller: bytes = b""


class OwnRequests:
    """Open requests of the gateway's own. `new_id`: function that returns an unused id. `stamp`:
    stamp of the revision that is spoken; before that is known, of the modern one, because the first
    request is a modern one. `caller`: the client of a request that names none."""

    def __init__(self, version: str, new_id: Callable[[], bytes], caller: bytes = b"") -> None:
        self.stamp = MetaBuilder(jsonrpc_lines.MODERN, version)
        self._version = version
        self._caller = caller
        self._new_id = new_id
        self._open: dict[bytes, RequestPurpose] = {}

    def set_protocol(self, protocol: str) -> None:
        """Note the revision that the server speaks."""
        self.stamp = MetaBuilder(protocol, self._version)

    def ask(self, purpose: RequestPurpose, ask: OwnRequest) -> ServerRequest:
        """Return the request to send. For some purposes this replaces an earlier request, whose
        answer is ignored from now on."""
        if purpose in _ONE_AT_A_TIME:
            for key in [key for key, older in self._open.items() if older is purpose]:
                del self._open[key]
        key = self._new_id()
        self._open[key] = purpose
        meta = b"" if ask.method == "initialize" else self.stamp.own(ask.caller or self._caller)
        line = jsonrpc_lines.request(key, ask.method, ask.params, meta)
        return ServerRequest(key, line, ask.method, ask.params, ask.caller, own=True)

    def knows(self, key: bytes) -> bool:
        """Whether a request with this id is open."""
        return key in self._open

    def busy(self, before: bytes) -> bool:
        """Whether an open request is work for the server and was made before the request of this
        id. A listen stays open for hours and a probe costs no work, so neither counts."""
        border = int(before)
        return any(
            int(key) < border and purpose not in {RequestPurpose.LISTEN, RequestPurpose.PROBE}
            for key, purpose in self._open.items()
        )

    def take(self, key: bytes) -> RequestPurpose | None:
        """Close a request that was answered, or is not waited for any more. Return its purpose;
        None if it is not open."""
        return self._open.pop(key, None)
