"""Values that a request of a client and its call carry through a front.

Owns: the destination of a path, the refusal of a head, the checked message, the origin of its call
and the answer, the name that a client gives itself. Never: what is done with them.

A module that is compiled cannot define a msgspec Struct, so the classes stand here.
"""

from typing import Final

from msgspec import Raw, Struct

from metamcp_worker.access.gate import USER, Principal
from metamcp_worker.guard.guard_rules import CallSource
from metamcp_worker.http.request_head import Headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code

MCP: Final = "mcp"
SSE: Final = "sse"
MESSAGES: Final = "messages"
API: Final = "api"
METADATA: Final = "metadata"
"""Kinds of paths."""
NAME_BYTES_MAX = 128
"""Maximum bytes of the name of a tool or prompt, as the protocol recommends; no endpoint exposes a
longer name."""


class HttpRefused(Exception):
    """Raised for a request that is refused by HTTP, not by the protocol. `reason`: a word for the
    counters; `headers`: further ones of the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        reason: str,
        code: int = Code.INVALID_REQUEST,
        headers: Headers = (),
    ) -> None:
        super().__init__(message)
        self.headers = headers
        self.status = status
        self.message = message
        self.reason = reason
        self.code = code


class Route(Struct, frozen=True, gc=False):
    """Destination of a path: an endpoint, and one of the kinds above."""

    endpoint: str
    kind: str = MCP


class KnownEntry(Struct, frozen=True, gc=False):
    """Result of the door that is kept with a head. `until`: seconds since the epoch."""

    version: int
    until: float
    principal: Principal


class InnerRun(Struct, frozen=True):
    """Run of code that a request comes from. `id`: of the run; `depth`: runs around the request, 0
    if it comes from a run of the engine and not from code; `allowed`: tools that the user of an
    agent has agreed to, None if nobody has to agree; `source`: who began the outermost run."""

    id: str
    depth: int = 1
    allowed: set[str] | None = None
    source: CallSource = "code"


class McpRequest(Struct):
    """Request of a client, of either era.

    `params`: without `_meta`, in the client's order. `meta`: members of `_meta` that are not for
    the gateway. `caller`: raw `{"clientInfo": …, "clientCapabilities": …, "logLevel": …}`, or
    empty. `wants_progress`: the request came with a progress token. `peer`: as in
    `frames.CallFrame`. `who`, `rooted`, `project`, `unasked`: as in
    `server_processes.ProcessClient`. `roots`: raw answer to `roots/list` with the client's roots,
    or with the folder that it works in; empty if none are known. `version`: revision that the
    client speaks, empty without one. `headers`: HTTP headers of the request. `principal`: its
    sender. `run`: of the code that makes this call, for its client. `id`: raw, of the request;
    empty for one that is not JSON-RPC of a client.
    """

    method: str
    params: dict[str, Raw]
    meta: dict[str, Raw]
    caller: bytes
    modern: bool
    wants_progress: bool = False
    peer: int = 0
    who: str = ""
    rooted: str = ""
    project: str = ""
    unasked: bool = False
    roots: bytes = b""
    version: str = ""
    headers: Headers = ()
    principal: Principal = USER
    run: InnerRun | None = None
    id: bytes = b""


class CheckedRequest(Struct, gc=False):
    """Request that passed every check. `caller`: as in `frames.CallFrame`; `token`: raw progress
    token, or empty; `level`: of the log messages that the client wants, None for none; `identity`:
    raw JSON that the client says of itself; `headers`: of HTTP. `digest`: of `params` (`mrtr`), if
    they are not kept until the answer because they are large."""

    params: dict[str, Raw]
    meta: dict[str, Raw]
    caller: bytes
    token: bytes = b""
    level: str | None = None
    identity: bytes = b""
    headers: Headers = ()
    digest: bytes = b""


class ClientStamp(Struct, frozen=True, gc=False):
    """Result of checking a `_meta` with nothing but what a client says of itself in each of its
    requests, so that the same bytes need not be checked again. `version`: revision of the protocol;
    the others as in `CheckedRequest`."""

    version: str
    caller: bytes
    level: str | None
    identity: bytes


class CallAnswer(Struct, frozen=True, gc=False):
    """Answer to a call. `code`: 0 for a result, else the JSON-RPC code of the error in `body`."""

    body: bytes
    code: int = 0


class CallOrigin(Struct, frozen=True, gc=False):
    """Origin and subject of a call, for operators. `name`: of its tool or prompt, as the client
    knows it; `said`: raw JSON that the client says of itself; `who`: the word for the client;
    `version`: revision that it speaks. `tool`: the server's own name of the tool, raw JSON if it is
    bytes, empty for other methods. `principal`: who sent it."""

    endpoint: str
    name: str
    said: bytes
    who: str
    progress: bool
    version: str = ""
    tool: str | bytes = ""
    principal: Principal = USER


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
