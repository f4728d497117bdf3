"""Exceptions of MetaMCP, and the JSON-RPC error codes of the gateway.

Owns: error codes, their HTTP status in the modern era, and the fields of an error that the gateway
itself makes. Never: errors of servers, which travel as the bytes they came in.

Codes in -32768..-32000 belong to JSON-RPC and MCP and are used only with their meaning there
(MCP 2026-07-28, basic, "Error codes"). The gateway's own codes lie outside that range.
"""

from enum import IntEnum


class Code(IntEnum):
    """JSON-RPC error codes that the gateway may answer with."""

    PARSE_ERROR = -32700
    """The body is not JSON in UTF-8."""
    INVALID_REQUEST = -32600
    """The body is JSON, but not a request of MCP."""
    METHOD_NOT_FOUND = -32601
    """The method does not exist, or the server does not have it."""
    INVALID_PARAMS = -32602
    """A tool, prompt or resource, or an argument of it, does not exist or does not fit."""
    INTERNAL_ERROR = -32603
    """The request could not be carried out; the message says why."""
    HEADER_MISMATCH = -32020
    """A header of the request says something else than its body."""
    MISSING_CAPABILITY = -32021
    """The request needs something that the client did not declare; the error names it."""
    UNSUPPORTED_VERSION = -32022
    """The gateway does not speak this revision. `data.supported` lists those that it speaks."""
    # The gateway's own: outside the reserved range.
    SERVER_DOWN = -10001
    """The server is not available. `data.may_have_run` says whether it may have run the call."""
    OVERLOADED = -10002
    """Too many calls wait, or a limit is reached. `data.retry_after_ms` says when to try again."""
    TIMED_OUT = -10003
    """The server did not answer within its `timeout`."""
    TOO_LARGE = -10004
    """A message is larger than its limit."""
    AUTHORIZATION_NEEDED = -10005
    """The remote server needs authorization by OAuth. `data` says where to give it."""


#: HTTP status of an error answer that starts no stream (MCP 2026-07-28, transports).
HTTP_STATUS: dict[int, int] = {
    Code.PARSE_ERROR: 400,
    Code.INVALID_REQUEST: 400,
    Code.METHOD_NOT_FOUND: 404,
    Code.INVALID_PARAMS: 400,
    Code.HEADER_MISMATCH: 400,
    Code.MISSING_CAPABILITY: 400,
    Code.UNSUPPORTED_VERSION: 400,
}


class MetaMCPError(Exception):
    """Root of all exceptions that MetaMCP raises on purpose."""


class PeerGone(MetaMCPError):
    """Raised when the other end of a pipe or control socket is closed or dead."""


class DescriptorsLost(MetaMCPError):
    """Raised for a packet that came without its descriptors, because this process has no free
    descriptors (MSG_CTRUNC). `data`: the packet."""

    def __init__(self, data: bytes) -> None:
        super().__init__("descriptors were lost: the open-file limit of this process is reached")
        self.data = data


class FrameBroken(MetaMCPError):
    """Raised for a frame that cannot be read: wrong version, unknown kind, or lengths that do not
    add up."""


class TlsUnfit(MetaMCPError):
    """Raised for files of TLS that cannot be used. The text says which and why."""


class TooLarge(MetaMCPError):
    """Raised for a message above its limit."""

    def __init__(self, subject: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{subject} has {size_bytes} bytes, the limit is {limit_bytes}")
        self.limit_bytes = limit_bytes


class PipeFull(MetaMCPError):
    """Raised when the other side does not read fast enough, so that its bounded queue is full."""


class ProtocolError(MetaMCPError):
    """Raised for a request that the gateway answers itself, with a JSON-RPC error.

    `code` is one of `Code`, `data` is raw JSON or empty.
    """

    def __init__(self, code: int, message: str, data: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
