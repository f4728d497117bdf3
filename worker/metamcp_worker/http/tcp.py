"""What is at the bottom of an exception, in the words of the system.

Owns: the way through the layers that wrapped it up. Never: what is done about it.
"""

import socket
import ssl
from collections.abc import Iterator


def words(error: Exception) -> str:
    """What the innermost error of the system says; else what this one says of itself."""
    text = str(error) or type(error).__name__
    for inner in _inward(error):
        if isinstance(inner, OSError) and inner.strerror:
            text = inner.strerror
    return text


def distrust(error: Exception) -> str:
    """Why there is no TLS with this peer, as what follows "because", or nothing: it did not fail
    for that."""
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
"""Bytes that are none of TLS, as versions of OpenSSL call them."""
_PASSING = (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Not a word about TLS: more is to be read or written, or the connection ended."""


def _inward(error: BaseException) -> Iterator[BaseException]:
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        several = getattr(inner, "exceptions", None)  # of a group: one for each address tried
        inner = several[0] if several else inner.__cause__ or inner.__context__


IDLE_S = 30
"""Of silence before the first probe; below the minute after which the hastiest firewalls forget."""
PROBE_S = 10
PROBES = 4
"""Without an answer: then the connection is broken."""

# Linux and macOS name the time before the first probe differently.
_IDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", 0))

OPTIONS: tuple[tuple[int, int, int], ...] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, _IDLE, IDLE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES),
)
