"""Which requests of revision 2026-07-28 come from the same client, as far as a gateway can tell.

Owns: the numbers of these clients, for `frames.Call.peer`, and that their words (`process_names`)
are at hand. Never: sessions and their numbers, who may do what.

A legacy server on a pipe does not say in whose call it asks something, so its question goes to the
client that alone can be meant. This revision has no sessions: one principal that says the same of
itself in each request to one endpoint counts as one client.
"""

import itertools
from collections.abc import Mapping

from msgspec import Raw, Struct

from metamcp_worker.front import mrtr
from metamcp_worker.front.client_questions import may_be_asked
from metamcp_worker.front.mcp_request import McpRequest
from metamcp_worker.front.mrtr import WantedInput
from metamcp_worker.ipc import codec, frames, process_names, roots
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.process_names import IDENTITY_BYTES_MAX

FIRST = 2**31
"""Below it are the numbers of sessions."""
PEERS_MAX = 4096
"""Clients whose number is known; beyond that all get a new one."""


class ModernClient(Struct, frozen=True, gc=False):
    """One client. `number`: as in `frames.Call.peer`; `who`: the word for it (`sharing`)."""

    number: int = 0
    who: str = ""


NOBODY = ModernClient()
"""For a request that stands alone."""


class Peers:
    """The clients of one front."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes], ModernClient] = {}
        self._next = itertools.count(FIRST)

    def find(self, principal: str, endpoint: str, identity: bytes) -> ModernClient:
        """`identity`: raw JSON of what the client says of itself, the same in each of its requests;
        empty if it does not say who it is."""
        key = (principal, endpoint, identity)
        peer = self._known.get(key)
        if peer is not None:
            return peer
        if not identity or len(identity) > IDENTITY_BYTES_MAX:
            return NOBODY
        if len(self._known) >= PEERS_MAX:
            self._known.clear()
        number = FIRST + next(self._next) % FIRST
        peer = self._known[key] = ModernClient(number, process_names.of_client(*key))
        return peer


assert 2 * FIRST - 1 <= frames.NUMBER_MAX  # the largest number has its place in a frame


KEY = "metamcp.roots"
"""Of the question, among those of the server."""
_RESPONSES = "inputResponses"
_REQUESTS = "inputRequests"
_QUESTION = WantedInput(roots.METHOD, b"{}")


def asks() -> bytes:
    """The raw result that asks the client for its roots."""
    return mrtr.result({KEY: _QUESTION}, "")


def asks_too(body: bytes) -> bytes:
    """The raw result of a server that asks for input, and asks for the roots beside that."""
    if mrtr.parse(body) is None:
        return body
    members = codec.level(body)
    requests = codec.level(members.get(_REQUESTS, Raw(b"{}")))
    requests[KEY] = codec.level(codec.level(asks())[_REQUESTS])[KEY]
    members[_REQUESTS] = Raw(codec.dump(requests))
    return codec.dump(members)


def taken(params: Mapping[str, Raw]) -> tuple[dict[str, Raw], bytes]:
    """The parameters of a request without the answer to our question, and that, raw; empty if it
    is not there."""
    left = dict(params)
    try:
        responses = codec.level(left.get(_RESPONSES, Raw(b"{}")))
    except codec.Malformed:
        return left, b""
    found = bytes(responses.pop(KEY, b""))
    if found and responses:
        left[_RESPONSES] = Raw(codec.dump(responses))
    elif found:
        del left[_RESPONSES]
    return left, found


def place(request: McpRequest, principal: str, answer: bytes, directory: str) -> bool:
    """Note in the request which client it is, as far as roots decide that. `answer`: to our
    question. False if the client has to be asked first. Raises Refused."""
    rooted = may_be_asked(request.caller, roots.METHOD, b"")
    if rooted and not answer and request.method in mrtr.METHODS:
        return False
    try:
        if answer:
            request.rooted = process_names.of_rooted(request.who, roots.uris(answer))
        request.roots = roots.effective(answer, directory)
        request.project = process_names.of_project(
            principal, roots.uris(request.roots or roots.NONE)
        )
    except roots.RootsUnfit as why:
        raise ProtocolError(Code.INVALID_PARAMS, f"params.{_RESPONSES}.{KEY}: {why}") from None
    request.unasked = False
    return True
