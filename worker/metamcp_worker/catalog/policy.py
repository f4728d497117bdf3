"""The one gate for requests: whether a principal may send a request to an endpoint.

Owns: the decision, made before anything is listed or routed. Never: finding out who the principal
is, finding the owner of a name, state.
"""

from metamcp_worker.ipc.errors import Code, ProtocolError

LOCAL = "local"
"""Principal of clients that reach a listener on the loopback interface: the user of this
machine."""


def authorize(principal: str, endpoint: str, method: str, subject: str) -> None:
    """Raise ProtocolError unless `principal` may send `method` about `subject` (a name, a URI or
    nothing) to `endpoint`. The user of this machine may do everything."""
    if principal != LOCAL:
        raise ProtocolError(
            Code.INVALID_REQUEST,
            f"{principal} may not send {method} to the endpoint {endpoint}; "
            "ask whoever runs the gateway for access",
        )
