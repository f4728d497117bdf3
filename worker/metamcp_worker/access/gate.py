"""The one gate for requests: whether a principal may send a request to an endpoint.

Owns: the decision, made before anything is listed or routed. Never: finding out who the principal
is, finding the owner of a name, state.
"""

from msgspec import Struct

from metamcp_worker.ipc.errors import Code, ProtocolError

LOCAL = "local"
"""Name of the principal of clients from whom no credential is asked: the user of this machine."""


class Principal(Struct, frozen=True, kw_only=True):
    """Sender of a request. `name`: owner of views, sessions and handles; `workspace`: the only one
    that it may use, empty for any; `scopes`: granted ones, None for all; `servers`: the only ones
    whose tools it may call, None for all; `key`: id of the API key, empty without one; `auth`:
    `none`, `keys` or `oauth`; `expires`: seconds since the epoch at which the credential ends, 0
    for never."""

    name: str
    workspace: str = ""
    scopes: frozenset[str] | None = None
    servers: frozenset[str] | None = None
    key: str = ""
    auth: str = "none"
    expires: float = 0.0


def authorize(principal: str, endpoint: str, method: str, subject: str) -> None:
    """Raise ProtocolError unless `principal` may send `method` about `subject` (a name, a URI or
    nothing) to `endpoint`. The user of this machine may do everything."""
    if principal != LOCAL:
        raise ProtocolError(
            Code.INVALID_REQUEST,
            f"{principal} may not send {method} to the endpoint {endpoint}; "
            "ask whoever runs the gateway for access",
        )
