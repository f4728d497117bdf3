"""Multi-round-trip requests: results that ask for input, and the requests that bring it.

Owns: reading and writing `input_required` results, the parameters of a retry, the states of modern
servers as their clients get them, the table of what a front has parked until a client comes back
with a state, with its limits (`ParkedEntries`), the gateway's question for the roots of a client,
beside the questions of the server, and its answer. Never: asking, waiting (`mrtr_io`).

A modern server cannot tell clients apart, so it cannot bind its state to one. The gateway does: who
brings another's state gets the answer to a text that means nothing.
"""

import hashlib
from collections.abc import Mapping
from typing import Generic, TypeVar

from msgspec import Raw, Struct

from metamcp_worker.front_calls import task_ids
from metamcp_worker.front_calls.client_questions import may_be_asked
from metamcp_worker.front_calls.request_facts import McpRequest
from metamcp_worker.http.connection_moves import WrongFront
from metamcp_worker.ipc import codec, messages, process_names, roots
from metamcp_worker.ipc.errors import Code, ProtocolError

METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Methods whose results may ask for input (MCP 2026-07-28, basic, multi round-trip requests)."""
ADDED = frozenset({"inputResponses", "requestState"})
"""Members that a retry adds to the parameters of its request."""
ELICIT = "elicitation/create"
REQUESTS_MAX = 64
"""Maximum number of questions in one result; people answer a few."""
KEY_BYTES_MAX = 256
"""Maximum bytes of the name of one question, which travels back with the answer."""
STATE_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a server's state, which is carried to the client and back in each round."""

_MARK = b"input_required"
_NONE = Raw()


class WantedInput(Struct, frozen=True):
    """Question in a result. `params`: a raw object."""

    method: str
    params: bytes


class InputRequired(Struct, frozen=True):
    """Input that a server wants before it goes on: questions, a state, or both. `state`: raw."""

    requests: dict[str, WantedInput]
    state: Raw | None = None


def parse(body: bytes) -> InputRequired | None:
    """Return the input that this raw result asks for; None for any other result. Raises
    codec.Malformed for a result that asks in a way that a client cannot answer."""
    if _MARK not in body:
        return None
    members = codec.level(body)
    if codec.text(members.get("resultType", _NONE)) != _MARK.decode():
        return None
    raw = _get_member(members, "inputRequests")
    state = _get_member(members, "requestState")
    if raw is None and state is None:
        raise codec.Malformed("it asks for input and has neither inputRequests nor requestState")
    if state is not None and len(state) > STATE_BYTES_MAX:
        raise codec.Malformed(f"its requestState has more than {STATE_BYTES_MAX} bytes")
    requests = {} if raw is None else codec.level(raw)
    if len(requests) > REQUESTS_MAX:
        raise codec.Malformed(f"it asks {len(requests)} questions, {REQUESTS_MAX} are allowed")
    return InputRequired(
        {key: _parse_input_request(key, request) for key, request in requests.items()}, state
    )


def retry(
    params: Mapping[str, Raw], responses: Mapping[str, bytes], state: Raw | None
) -> dict[str, Raw]:
    """Return the same parameters with the raw answers to the questions, and the state that came
    with the questions."""
    again = original(params)
    if responses:
        members = {key: Raw(answer) for key, answer in responses.items()}
        again["inputResponses"] = Raw(codec.dump(members))
    if state is not None:
        again["requestState"] = state
    return again


def original(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the parameters without the members that a retry adds."""
    return {key: raw for key, raw in params.items() if key not in ADDED}


def result(requests: Mapping[str, WantedInput], state: str) -> bytes:
    """Return a raw result that asks these questions; `state` may be empty. Questions of the
    handshake era are converted to this era."""
    members: dict[str, object] = {
        "resultType": _MARK.decode(),
        "inputRequests": {
            key: {"method": request.method, "params": Raw(_modern(request) or b"{}")}
            for key, request in requests.items()
        },
    }
    if state:
        members["requestState"] = state
    return codec.dump(members)


def links(error: bytes) -> dict[str, WantedInput]:
    """Return the questions in a raw error of the handshake era that demands visits to URLs; none if
    they cannot be read."""
    try:
        data = codec.level(codec.level(error).get("data", _NONE))
        elicitations = codec.items(data.get("elicitations", _NONE))[: REQUESTS_MAX + 1]
        modes = [
            codec.text(codec.level(elicitation).get("mode", _NONE)) for elicitation in elicitations
        ]
    except codec.Malformed:
        return {}
    if len(elicitations) > REQUESTS_MAX or any(mode != "url" for mode in modes):
        return {}
    return {
        f"k{at}": WantedInput(ELICIT, bytes(elicitation))
        for at, elicitation in enumerate(elicitations, 1)
    }


def _get_member(members: Mapping[str, Raw], name: str) -> Raw | None:
    raw = members.get(name)
    return None if raw is None or bytes(raw) == b"null" else raw


def _parse_input_request(key: str, raw: Raw) -> WantedInput:
    members = codec.level(raw)
    method = codec.text(members.get("method", _NONE))
    params = bytes(members.get("params", b"{}"))
    if method is None or not params.startswith(b"{") or len(key.encode()) > KEY_BYTES_MAX:
        raise codec.Malformed("one of its inputRequests is not a request with a method and params")
    return WantedInput(method, params)


def _modern(request: WantedInput) -> bytes:
    """Return the parameters without the id of a visit: in this era a server has neither an id nor a
    stream to report that a visit is over."""
    if request.method != ELICIT or b'"elicitationId"' not in request.params:
        return request.params
    members = codec.level(request.params)
    if codec.text(members.get("mode", _NONE)) != "url" or "elicitationId" not in members:
        return request.params
    del members["elicitationId"]
    return codec.dump(members)


T = TypeVar("T")

PARK_S_MAX = 300.0
"""Seconds for a client to come back: as long as a server waits for an answer to its question."""
PARKED_MAX = 1024
"""Maximum number of parked calls in one front."""
CLIENT_PARKED_MAX = PARKED_MAX // 8
"""Maximum number of parked calls of one client in one front; the oldest makes room for a newer one,
so that a client that does not come back takes no places from others."""
CLIENT_SERVER_PARKED_MAX = 64
"""Maximum number of parked calls of one client at one server."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes, in one front, of open questions and of results that wait for their clients."""

DIGEST_BYTES = 16
"""Bytes of the digest of a request. A client cannot find another request with the same digest, and
would gain nothing by it: the server has the first request."""

_PREFIX = "metamcp."
OVER = (
    "The requestState is of no use: it was used before, it has expired, newer calls of its client "
    "took its place, or the server that asked is gone. Send the request again without requestState "
    "and inputResponses."
)
_FOREIGN = (
    "The requestState is not valid: this client did not get it as the answer to this request. Send "
    "the request again without requestState and inputResponses."
)
_ELSEWHERE = (
    "The requestState has expired: the process of the gateway that gave it has ended. Send the "
    "request again without requestState and inputResponses."
)
_OTHER_REQUEST = (
    "The requestState belongs to another request: method and params must be the same as in the "
    "request that was answered with it."
)


class StateBinding(Struct, frozen=True, gc=False):
    """Scope of a state: this principal, this endpoint, this request, this server."""

    principal: str
    endpoint: str
    method: str
    server: str
    digest: bytes

    @property
    def scope(self) -> tuple[bytes, ...]:
        """The same as `task_ids.seal` takes it."""
        principal = self.principal.encode("utf-8", "surrogatepass")
        words = self.endpoint.encode(), self.method.encode(), self.server.encode()
        return b"state", principal, *words, self.digest


def seal_state(key: bytes, bound: StateBinding, body: bytes) -> bytes:
    """Return a raw result in which the state of a server is of use in this scope alone. `key`: see
    `task_ids.seal`. A result without a state stays as it is."""
    try:
        members = codec.level(body)
    except codec.Malformed:
        return body
    state = _get_member(members, "requestState")
    if state is None or codec.text(members.get("resultType", _NONE)) != _MARK.decode():
        return body
    sealed = task_ids.seal(key, bound.scope, bytes(state))
    return codec.dump({**members, "requestState": sealed})


def unseal_state(key: bytes, bound: StateBinding, raw: Raw) -> Raw:
    """Return the state that a server gave, out of what its client brings back. Raises ProtocolError
    for any other text."""
    text = codec.text(raw)
    state = None if text is None else task_ids.unseal(key, bound.scope, text)
    if state is None:
        raise ProtocolError(Code.INVALID_PARAMS, _FOREIGN)
    return Raw(state)


class TooManyParked(Exception):
    """Raised when too much is parked already. The text is a sentence."""


class _Entry(Struct, Generic[T], frozen=True):
    bound: StateBinding
    client: str
    until: float
    kept: T


class ParkedEntries(Generic[T]):
    """Parked things of one front, by state. `front`: a name that no other process has or had."""

    def __init__(self, front: str) -> None:
        self._front = f"{_PREFIX}{front}."
        self._entries: dict[str, _Entry[T]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def find_oldest(self, bound: StateBinding, client: str) -> T | None:
        """Return the oldest call of this client, which must go before one more is parked, if the
        client has its maximum; else None. `client`: the word for the client; clients that do not
        say who they are count as one."""
        whose = (*_holder(bound), client)
        mine = [
            entry
            for entry in self._entries.values()
            if (*_holder(entry.bound), entry.client) == whose
        ]
        here = [entry for entry in mine if entry.bound.server == bound.server]
        if len(here) >= CLIENT_SERVER_PARKED_MAX:
            return here[0].kept
        return mine[0].kept if len(mine) >= CLIENT_PARKED_MAX else None

    def park(self, token: str, bound: StateBinding, client: str, value: T, now: float) -> str:
        """Return the state that brings `value` back, once. `token`: a text that cannot be guessed.
        Raises TooManyParked."""
        if len(self._entries) >= PARKED_MAX:
            raise TooManyParked(
                f"{PARKED_MAX} calls wait for their clients to answer; try again later."
            )
        state = self._front + token
        self._entries[state] = _Entry(bound, client, now + PARK_S_MAX, value)
        return state

    def check_here(self, state: str) -> None:
        """Raise Elsewhere for a state that another front created."""
        maker = None if state.startswith(self._front) else messages.maker(state)
        if maker is not None:
            raise WrongFront(state, maker, ProtocolError(Code.INVALID_PARAMS, _ELSEWHERE))

    def take(self, state: str, bound: StateBinding, now: float) -> T:
        """Return what is parked under this state, and forget it. Raises ProtocolError; then nothing
        has changed."""
        entry = self._entries.get(state)
        if entry is None and not state.startswith(self._front):
            raise ProtocolError(Code.INVALID_PARAMS, _ELSEWHERE)
        if entry is None or entry.until <= now or _holder(entry.bound) != _holder(bound):
            raise ProtocolError(Code.INVALID_PARAMS, OVER)
        if entry.bound != bound:
            raise ProtocolError(Code.INVALID_PARAMS, _OTHER_REQUEST)
        del self._entries[state]
        return entry.kept

    def forget(self, state: str) -> None:
        self._entries.pop(state, None)

    def list_parked(self) -> list[T]:
        return [entry.kept for entry in self._entries.values()]

    def reserve(self, size: int) -> bool:
        """Reserve room for so many bytes, until they are released. Returns False if there is not
        enough."""
        if self._bytes + size > KEPT_BYTES_MAX:
            return False
        self._bytes += size
        return True

    def release(self, size: int) -> None:
        self._bytes -= size


def is_state(text: str | None) -> bool:
    """Whether some front created this state, and not a server."""
    return text is not None and text.startswith(_PREFIX)


def digest(params: Mapping[str, Raw]) -> bytes:
    """Return the digest of what a request asks for, whatever the order of its members. Every call
    that may be interrupted needs a digest, hence the fast one of the safe hashes."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for key in sorted(params):
        if key not in ADDED:
            raw = params[key]
            hasher.update(b"%b%d:" % (codec.dump(key), len(raw)))
            hasher.update(raw)
    return hasher.digest()


def _holder(bound: StateBinding) -> tuple[str, str]:
    return bound.principal, bound.endpoint


ROOTS_KEY = "metamcp.roots"
"""Key of the gateway's question for roots, among the questions of the server."""
_RESPONSES = "inputResponses"
_REQUESTS = "inputRequests"
_ROOTS_QUESTION = WantedInput(roots.METHOD, b"{}")


def ask_roots() -> bytes:
    """Return the raw result that asks the client for its roots."""
    return result({ROOTS_KEY: _ROOTS_QUESTION}, "")


def ask_roots_too(body: bytes) -> bytes:
    """Add the question for roots to the raw result of a server that asks for input; return any
    other result as it is."""
    if parse(body) is None:
        return body
    members = codec.level(body)
    requests = codec.level(members.get(_REQUESTS, Raw(b"{}")))
    requests[ROOTS_KEY] = codec.level(codec.level(ask_roots())[_REQUESTS])[ROOTS_KEY]
    members[_REQUESTS] = Raw(codec.dump(requests))
    return codec.dump(members)


def extract_roots(params: Mapping[str, Raw]) -> tuple[dict[str, Raw], bytes]:
    """Return the parameters of a request without the answer to the gateway's question, and this raw
    answer; empty if there is none."""
    remaining = dict(params)
    responses = codec.members(remaining.get(_RESPONSES, b""))
    answer = bytes(responses.pop(ROOTS_KEY, b""))
    if answer and responses:
        remaining[_RESPONSES] = Raw(codec.dump(responses))
    elif answer:
        del remaining[_RESPONSES]
    return remaining, answer


def place_roots(request: McpRequest, principal: str, answer: bytes, directory: str) -> bool:
    """Write into the request the roots of its client and the words that depend on them. `answer`:
    to the gateway's question. Returns False if the client has to be asked first. Raises
    ProtocolError."""
    rooted = may_be_asked(request.caller, roots.METHOD, b"")
    if rooted and not answer and request.method in METHODS:
        return False
    try:
        if answer:
            request.rooted = process_names.of_rooted(request.who, roots.uris(answer))
        request.roots = roots.effective(answer, directory)
        request.project = process_names.of_project(
            principal, roots.uris(request.roots or roots.NONE)
        )
    except roots.RootsUnfit as error:
        raise ProtocolError(
            Code.INVALID_PARAMS, f"params.{_RESPONSES}.{ROOTS_KEY}: {error}"
        ) from None
    request.unasked = False
    return True
