"""The requests that the gateway makes to a server on its own account.

Owns: which of them are open and what for, their lines. Never: what they ask, what becomes of the
answers.
"""

from collections.abc import Callable

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import RequestPurpose, ServerRequest
from metamcp_worker.child.jsonrpc_lines import OwnRequest, Stamp

_ONE_AT_A_TIME = frozenset({RequestPurpose.HANDSHAKE, RequestPurpose.LIST, RequestPurpose.PROBE})


class Own:
    """`new_id` gives ids that no other request has. `stamp`: in the words of the revision that is
    spoken; before that is known, the modern one, because the first request is a modern one."""

    def __init__(self, version: str, new_id: Callable[[], bytes]) -> None:
        self.stamp = Stamp(jsonrpc_lines.MODERN, version)
        self._version = version
        self._new_id = new_id
        self._open: dict[bytes, RequestPurpose] = {}

    def met(self, protocol: str) -> None:
        """The server speaks this revision."""
        self.stamp = Stamp(protocol, self._version)

    def ask(self, purpose: RequestPurpose, ask: OwnRequest) -> ServerRequest:
        """The request to send. Of some purposes the one before it is not waited for any more."""
        if purpose in _ONE_AT_A_TIME:
            for key in [key for key, older in self._open.items() if older is purpose]:
                del self._open[key]
        key = self._new_id()
        self._open[key] = purpose
        meta = b"" if ask.method == "initialize" else self.stamp.own(ask.caller)
        line = jsonrpc_lines.request(key, ask.method, ask.params, meta)
        return ServerRequest(key, line, ask.method, ask.params, ask.caller, own=True)

    def knows(self, key: bytes) -> bool:
        """Is this the id of one that is open?"""
        return key in self._open

    def busy(self, before: bytes) -> bool:
        """Is one open that was made before the request of this id, and that takes work? A listen
        stays open for hours, and a probe is none."""
        border = int(before)
        return any(
            int(key) < border and purpose not in {RequestPurpose.LISTEN, RequestPurpose.PROBE}
            for key, purpose in self._open.items()
        )

    def take(self, key: bytes) -> RequestPurpose | None:
        """It is answered, or not waited for any more. What it was for; None if it is not open."""
        return self._open.pop(key, None)
