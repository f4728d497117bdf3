"""Clients of revision 2026-07-28 whose roots decide which process serves them.

Owns: the question for the roots, put to a client as the answer to its call, and what the answer to
it makes of the request that brings it. Never: clients with sessions (`inquiry`).

Such a client has no session in which its roots could be remembered, and two agents may say the same
of themselves. So it is asked in each call of a server that wants roots, and with each question of a
modern server once more: what it answers then is all that is known of it.
"""

from collections.abc import Mapping

from msgspec import Raw

from metamcp_worker.front import mrtr
from metamcp_worker.front.asking import may_be_asked
from metamcp_worker.front.methods import Request
from metamcp_worker.front.mrtr import Wanted
from metamcp_worker.ipc import codec, process_names, roots
from metamcp_worker.ipc.errors import Code, Refused

KEY = "metamcp.roots"
"""Of the question, among those of the server."""
_RESPONSES = "inputResponses"
_REQUESTS = "inputRequests"
_QUESTION = Wanted(roots.METHOD, b"{}")


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


def place(request: Request, principal: str, answer: bytes, directory: str) -> bool:
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
    except roots.Unfit as why:
        raise Refused(Code.INVALID_PARAMS, f"params.{_RESPONSES}.{KEY}: {why}") from None
    request.unasked = False
    return True
