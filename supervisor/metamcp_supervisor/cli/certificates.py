"""The certificates of remote servers, for `metamcp ctl doctor`.

Owns: a handshake with each, all at once and bounded, and what its certificate means. Never: a
request: nothing that is configured for a server is sent there.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from metamcp_supervisor.cli.finding import Finding
from metamcp_supervisor.config.config import Config

HANDSHAKE_S = 5.0
"""For each address, and for all servers together, since they are asked at once."""
SOON_DAYS = 14
"""Certificates that renew themselves do so earlier."""
HTTPS_PORT = 443
DAY_S = 86_400.0

Peer = tuple[str, int]


class Handshake(Struct, frozen=True):
    """`ends`: when the certificate does, seconds since the epoch. `distrust`: why it is not
    accepted; `trouble`: why there was no handshake; `nameless`: the name has no address."""

    ends: float = 0.0
    distrust: str = ""
    trouble: str = ""
    nameless: bool = False


def certificates(
    config: Config, now: float, context: ssl.SSLContext | None = None
) -> Iterator[Finding]:
    """`now`: seconds since the epoch; `context`: whom to trust, else whom this system trusts."""
    peers: dict[Peer, list[str]] = {}
    for server in config.servers.values():
        if server.enabled and server.url is not None and (peer := _peer(server.url)) is not None:
            peers.setdefault(peer, []).append(server.name)
    if not peers:
        return
    found = _shaken(peers, context or ssl.create_default_context())
    for peer, servers in peers.items():
        handshake = found.get(peer) or Handshake(trouble=f"no answer within {HANDSHAKE_S:g} s")
        if not handshake.nameless:  # `names` says that
            yield judged(f"{peer[0]}:{peer[1]} ({', '.join(servers)})", handshake, now)


def judged(who: str, handshake: Handshake, now: float) -> Finding:
    """What it means."""
    if handshake.distrust:
        advice = "tell who runs it; SSL_CERT_FILE names certificates of your own that count"
        return Finding("certificate", "fail", f"{who}: {handshake.distrust}", advice)
    if handshake.trouble:
        advice = "is it running, and may this machine reach it?"
        return Finding("certificate", "warn", f"{who}: {handshake.trouble}", advice)
    days = int((handshake.ends - now) // DAY_S)
    day = time.strftime("%Y-%m-%d", time.gmtime(handshake.ends))
    text = f"{who} is trusted until {day}, {days} days from now"
    if days < SOON_DAYS:
        return Finding("certificate", "warn", text, "it should have been renewed: tell who runs it")
    return Finding("certificate", "ok", text)


def _peer(url: str) -> Peer | None:
    """Host and port; the rest of a URL may be secret. None for one without TLS."""
    with contextlib.suppress(ValueError):  # a port that is none
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return parts.hostname, parts.port or HTTPS_PORT
    return None


def _shaken(peers: Mapping[Peer, object], context: ssl.SSLContext) -> Mapping[Peer, Handshake]:
    """Those that came to an end in time."""
    found: dict[Peer, Handshake] = {}

    def shake(peer: Peer) -> None:
        found[peer] = _handshake(peer, context)

    # A resolver of the system cannot be interrupted, so it is left behind when time is up.
    threads = [threading.Thread(target=shake, args=(peer,), daemon=True) for peer in peers]
    for thread in threads:
        thread.start()
    end = time.monotonic() + HANDSHAKE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(found)


def _handshake(peer: Peer, context: ssl.SSLContext) -> Handshake:
    try:
        with (
            socket.create_connection(peer, timeout=HANDSHAKE_S) as plain,
            context.wrap_socket(plain, server_hostname=peer[0]) as wrapped,
        ):
            known = wrapped.getpeercert() or {}
            return Handshake(ends=float(ssl.cert_time_to_seconds(str(known["notAfter"]))))
    except ssl.SSLCertVerificationError as error:
        return Handshake(distrust=f"its certificate is not accepted: {error.verify_message}")
    except ssl.SSLError as error:
        return Handshake(distrust=f"no TLS with it: {(error.reason or str(error)).lower()}")
    except (socket.gaierror, UnicodeError):  # the latter: of a name that none can have
        return Handshake(nameless=True)
    except OSError as error:
        return Handshake(trouble=f"cannot be reached: {error.strerror or error}")
