"""Identity and roots of clients of revision 2026-07-28, which has no sessions.

Owns: the numbers of these clients (`frames.CallFrame.peer`) and their words (`process_names`); the
question for their roots, beside the questions of the server, and its answer; the name that a client
of either era gives itself. Never: sessions and their numbers, permissions, which process serves a
client (`server_processes`). Requests of one principal to one endpoint with the same identity count
as one client: a legacy server on a pipe does not say in which call it asks a question, so the
question goes to the only client that it can mean.
"""

import itertools
from collections.abc import Mapping

from msgspec import Raw, Struct

from metamcp_worker.front import mrtr
from metamcp_worker.front.client_questions import may_be_asked
from metamcp_worker.front.mrtr import WantedInput
from metamcp_worker.front.request_facts import McpRequest
from metamcp_worker.ipc import codec, frames, process_names, roots
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.process_names import IDENTITY_BYTES_MAX

FIRST = 2**31
"""First number of these clients; sessions have the numbers below."""
PEERS_MAX = 4096
"""Maximum number of known clients; beyond this limit all are forgotten and get new numbers."""


class ModernClient(Struct, frozen=True, gc=False):
    """Client without a session. `number`: as in `frames.CallFrame.peer`; `who`: its word
    (`process_names`)."""

    number: int = 0
    who: str = ""


NOBODY = ModernClient()
"""Client of a request that stands alone."""


class Peers:
    """Known clients of one front."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes], ModernClient] = {}
        self._next = itertools.count(FIRST)

    def find(self, principal: str, endpoint: str, identity: bytes) -> ModernClient:
        """Return the client. `identity`: raw JSON that the client sends about itself in each
        request; empty if it does not identify itself, and then the result is `NOBODY`."""
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
"""Key of the gateway's question for roots, among the questions of the server."""
_RESPONSES = "inputResponses"
_REQUESTS = "inputRequests"
_QUESTION = WantedInput(roots.METHOD, b"{}")


def asks() -> bytes:
    """Return the raw result that asks the client for its roots."""
    return mrtr.result({KEY: _QUESTION}, "")


def asks_too(body: bytes) -> bytes:
    """Add the question for roots to the raw result of a server that asks for input; return any
    other result as it is."""
    if mrtr.parse(body) is None:
        return body
    members = codec.level(body)
    requests = codec.level(members.get(_REQUESTS, Raw(b"{}")))
    requests[KEY] = codec.level(codec.level(asks())[_REQUESTS])[KEY]
    members[_REQUESTS] = Raw(codec.dump(requests))
    return codec.dump(members)


def extract_answer(params: Mapping[str, Raw]) -> tuple[dict[str, Raw], bytes]:
    """Return the parameters of a request without the answer to the gateway's question, and this raw
    answer; empty if there is none."""
    remaining = dict(params)
    try:
        responses = codec.level(remaining.get(_RESPONSES, Raw(b"{}")))
    except codec.Malformed:
        return remaining, b""
    answer = bytes(responses.pop(KEY, b""))
    if answer and responses:
        remaining[_RESPONSES] = Raw(codec.dump(responses))
    elif answer:
        del remaining[_RESPONSES]
    return remaining, answer


def place(request: McpRequest, principal: str, answer: bytes, directory: str) -> bool:
    """Write into the request the roots of its client and the words that depend on them. `answer`:
    to the gateway's question. Returns False if the client has to be asked first. Raises
    ProtocolError."""
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
    except roots.RootsUnfit as error:
        raise ProtocolError(Code.INVALID_PARAMS, f"params.{_RESPONSES}.{KEY}: {error}") from None
    request.unasked = False
    return True


CLIENT_CHARACTERS_MAX = 64
"""Maximum characters of the name of a client; some clients put a sentence there."""


class _Info(Struct, frozen=True):
    name: str = ""


class _ClientMeta(Struct, frozen=True, rename="camel"):
    client_info: _Info = _Info()


def client_name(caller: bytes) -> str:
    """Return the name that the client gives itself; empty without one."""
    try:
        return codec.decode_as(_ClientMeta, caller or b"{}").client_info.name[
            :CLIENT_CHARACTERS_MAX
        ]
    except codec.Malformed:
        return ""
