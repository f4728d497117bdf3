"""The one gate: may this principal do this here?

Owns: the decision, made before anything is listed or routed. Never: finding out who the principal
is, finding the owner of a name, and any state.
"""

from metamcp_worker.ipc.errors import Code, ProtocolError

LOCAL = "local"
"""Whoever reaches a listener on the loopback interface: the user of this machine."""


def authorize(principal: str, endpoint: str, method: str, subject: str) -> None:
    """Raises Refused unless `principal` may send `method` about `subject` (a name, a URI or
    nothing) to `endpoint`. The user of this machine may everything."""
    if principal != LOCAL:
        raise ProtocolError(
            Code.INVALID_REQUEST,
            f"{principal} may not send {method} to the endpoint {endpoint}; "
            "ask whoever runs the gateway for access",
        )
