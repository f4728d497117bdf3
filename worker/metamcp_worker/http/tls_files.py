"""TLS for the connections of clients: the certificate in force, and new files when they change.

Owns: loading certificate and key, looking for changed files, the handshake of a connection. Never:
making certificates (the supervisor's `certificates`), HTTP, TLS towards servers (`fetch`).

A connection keeps the certificate that it began with. Files that cannot be used are said once, and
the certificate before them stays in force. A process that finds no usable files at its start closes
each connection at once, because a client would wait for the handshake, and takes the files when
they can be used.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable

from metamcp_worker.http import client_limits
from metamcp_worker.ipc.errors import TlsUnfit
from metamcp_worker.ipc.spec import TlsSpec

LOOK_S = 5.0
"""Seconds between two looks at the files."""

log = logging.getLogger("metamcp.http")

_Seen = tuple[tuple[int, int, int], ...]
"""Device, inode and time of change of each file."""


class TlsFiles:
    """Certificate and key in force."""

    def __init__(self, spec: TlsSpec) -> None:
        self._spec = spec
        self._seen: _Seen = ()
        self._context: ssl.SSLContext | None = None
        self._unfit = ""
        """Why the files cannot be used."""
        self.refresh()

    async def accept(
        self,
        loop: asyncio.AbstractEventLoop,
        make: Callable[[], asyncio.BaseProtocol],
        sock: socket.socket,
        handshake_s: float,
    ) -> None:
        """Give an accepted socket its protocol after the handshake, which may last `handshake_s`.
        Raises OSError."""
        if self._context is None:
            sock.close()
            return
        # Without a limit of ours a client that is to go may keep its descriptor for 30 s.
        await loop.connect_accepted_socket(
            make,
            sock,
            ssl=self._context,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=client_limits.LINGER_S,
        )

    async def follow(self) -> None:
        """Take over new files when they change."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.refresh()

    def refresh(self) -> None:
        """Take over the files if they have changed, or could not be used, and can be used now."""
        seen, first = self._look(), not self._seen
        if seen == self._seen and not self._unfit:
            return
        self._seen = seen
        try:
            self._context = context_of(self._spec)
        except TlsUnfit as error:
            if str(error) != self._unfit:
                fallback = "the certificate before it stays in force"
                then = "connections are closed until it can be used"
                log.error("%s; %s", error, then if self._context is None else fallback)
            self._unfit = str(error)
        else:
            self._unfit = ""
            if not first:
                log.info("TLS: new connections get the certificate in %s", self._spec.cert)

    def _look(self) -> _Seen:
        stamps: list[tuple[int, int, int]] = []
        for path in (self._spec.cert, self._spec.key, self._spec.client_ca):
            try:
                seen = os.stat(path) if path else None
            except OSError:
                seen = None
            stamps.append((seen.st_dev, seen.st_ino, seen.st_mtime_ns) if seen else (0, 0, 0))
        return tuple(stamps)


def context_of(spec: TlsSpec) -> ssl.SSLContext:
    """Return the context for these files: TLS 1.2 and newer. Raises TlsUnfit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for path in filter(None, (spec.cert, spec.key, spec.client_ca)):
        try:
            with open(path, "rb"):
                pass
        except FileNotFoundError:
            raise TlsUnfit(f"TLS: {path} does not exist") from None
        except OSError as error:
            raise TlsUnfit(f"TLS: {path} cannot be read: {error.strerror}") from None

    def passphrase() -> str:  # OpenSSL would ask at the terminal, and the gateway would wait
        raise TlsUnfit(f"TLS: {spec.key} has a passphrase; write it without, with mode 0600")

    try:
        context.load_cert_chain(spec.cert, spec.key, passphrase)
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise TlsUnfit(f"TLS: {spec.key} is not the key of {spec.cert}") from None
        problem = f"TLS: {spec.cert} is not a certificate in PEM, or {spec.key} not a key in PEM"
        raise TlsUnfit(problem) from None
    if spec.client_ca:
        try:
            context.load_verify_locations(spec.client_ca)
        except OSError:
            raise TlsUnfit(f"TLS: {spec.client_ca} has no certificates in PEM") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context
