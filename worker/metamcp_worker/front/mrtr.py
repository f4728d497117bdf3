"""Multi-round-trip requests: results that ask for input, and the requests that bring it.

Owns: reading and writing `input_required` results, and the parameters of a retry. Never: asking,
waiting, what a state means.
"""

from collections.abc import Mapping

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec

METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""What may be answered by asking for input (MCP 2026-07-28, basic, multi round-trip requests)."""
ADDED = frozenset({"inputResponses", "requestState"})
"""What a retry has beside the parameters of its request."""
ELICIT = "elicitation/create"
REQUESTS_MAX = 64
"""Questions in one result; people answer a few."""
KEY_BYTES_MAX = 256
"""Of the name of one question, which travels back with the answer."""
STATE_BYTES_MAX = 1024 * 1024
"""Of a server's state: it is carried to the client and back with each round."""

_MARK = b"input_required"
_NONE = Raw()


class Wanted(Struct, frozen=True):
    """One question. `params`: a raw object."""

    method: str
    params: bytes


class InputRequired(Struct, frozen=True):
    """What a server wants before it goes on. At least one of the two is there; `state`: raw."""

    requests: dict[str, Wanted]
    state: Raw | None = None


def parse(body: bytes) -> InputRequired | None:
    """What this raw result asks for; None for any other result. Raises codec.Malformed for one
    that asks in a way that nobody can answer."""
    if _MARK not in body:
        return None
    members = codec.level(body)
    if codec.text(members.get("resultType", _NONE)) != _MARK.decode():
        return None
    raw = _given(members, "inputRequests")
    state = _given(members, "requestState")
    if raw is None and state is None:
        raise codec.Malformed("it asks for input and has neither inputRequests nor requestState")
    if state is not None and len(state) > STATE_BYTES_MAX:
        raise codec.Malformed(f"its requestState has more than {STATE_BYTES_MAX} bytes")
    requests = {} if raw is None else codec.level(raw)
    if len(requests) > REQUESTS_MAX:
        raise codec.Malformed(f"it asks {len(requests)} questions, {REQUESTS_MAX} are allowed")
    return InputRequired({key: _wanted(key, one) for key, one in requests.items()}, state)


def retry(
    params: Mapping[str, Raw], responses: Mapping[str, bytes], state: Raw | None
) -> dict[str, Raw]:
    """The same parameters with the raw answers to what was asked, and the state that came with
    it."""
    again = original(params)
    if responses:
        members = {key: Raw(answer) for key, answer in responses.items()}
        again["inputResponses"] = Raw(codec.dump(members))
    if state is not None:
        again["requestState"] = state
    return again


def original(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The parameters without what a retry adds to them."""
    return {key: raw for key, raw in params.items() if key not in ADDED}


def result(requests: Mapping[str, Wanted], state: str) -> bytes:
    """A raw result that asks these questions; `state` may be empty. Questions of the handshake era
    become those of this one."""
    members: dict[str, object] = {
        "resultType": _MARK.decode(),
        "inputRequests": {
            key: {"method": one.method, "params": Raw(_modern(one) or b"{}")}
            for key, one in requests.items()
        },
    }
    if state:
        members["requestState"] = state
    return codec.dump(members)


def links(error: bytes) -> dict[str, Wanted]:
    """The questions in a raw error of the handshake era that demands visits to URLs; none if they
    cannot be read."""
    try:
        data = codec.level(codec.level(error).get("data", _NONE))
        found = codec.items(data.get("elicitations", _NONE))[: REQUESTS_MAX + 1]
        modes = [codec.text(codec.level(one).get("mode", _NONE)) for one in found]
    except codec.Malformed:
        return {}
    if len(found) > REQUESTS_MAX or any(mode != "url" for mode in modes):
        return {}
    return {f"k{at}": Wanted(ELICIT, bytes(one)) for at, one in enumerate(found, 1)}


def _given(members: Mapping[str, Raw], name: str) -> Raw | None:
    raw = members.get(name)
    return None if raw is None or bytes(raw) == b"null" else raw


def _wanted(key: str, raw: Raw) -> Wanted:
    members = codec.level(raw)
    method = codec.text(members.get("method", _NONE))
    params = bytes(members.get("params", b"{}"))
    if method is None or not params.startswith(b"{") or len(key.encode()) > KEY_BYTES_MAX:
        raise codec.Malformed("one of its inputRequests is no request with a method and params")
    return Wanted(method, params)


def _modern(one: Wanted) -> bytes:
    """The parameters without what this era has not: there is no id by which a server tells that a
    visit is over, and no stream on which it could."""
    if one.method != ELICIT or b'"elicitationId"' not in one.params:
        return one.params
    members = codec.level(one.params)
    if codec.text(members.get("mode", _NONE)) != "url" or "elicitationId" not in members:
        return one.params
    del members["elicitationId"]
    return codec.dump(members)
