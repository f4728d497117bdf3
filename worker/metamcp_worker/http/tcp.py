"""TCP and TLS: the cause of a failed connection in words, and keep-alive of sockets.

Owns: finding the innermost error below the layers of an exception, the sentence for a peer whose
TLS failed, and the socket options that detect a dead connection (`OPTIONS`). Never: reacting to an
error, opening sockets.
"""

import socket
import ssl
from collections.abc import Iterator


def words(error: Exception) -> str:
    """Return the text of the innermost system error; without any, the text of this error."""
    text = str(error) or type(error).__name__
    for inner in _inward(error):
        if isinstance(inner, OSError) and inner.strerror:
            text = inner.strerror
    return text


def distrust(error: Exception) -> str:
    """Why TLS with this peer failed, as the words after "because"; empty for another cause."""
    for inner in _inward(error):
        if isinstance(inner, ssl.SSLCertVerificationError):
            return f"of its certificate: {inner.verify_message.rstrip('.')}"
        if isinstance(inner, _PASSING) or not isinstance(inner, ssl.SSLError):
            continue
        if inner.reason in _NO_TLS:
            return "it does not speak TLS there; is its URL meant to begin with http://?"
        if inner.reason:
            return f"TLS failed: {inner.reason.replace('_', ' ').lower()}"
    return ""


_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
"""Reasons that versions of OpenSSL give if the bytes of the peer are not TLS."""
_PASSING = (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors that are not about TLS: more is to be read or written, or the connection ended."""


def _inward(error: BaseException) -> Iterator[BaseException]:
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        several = getattr(inner, "exceptions", None)  # of a group: one for each address tried
        inner = several[0] if several else inner.__cause__ or inner.__context__


IDLE_S = 30
"""Seconds of silence before the first probe; below the minute after which the strictest firewalls
forget a connection."""
PROBE_S = 10
PROBES = 4
"""Probes without an answer after which the connection is broken."""

# Linux and macOS name the time before the first probe differently.
_IDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", 0))

OPTIONS: tuple[tuple[int, int, int], ...] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, _IDLE, IDLE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES),
)
