"""Names of hosts that a listener accepts: `Host` and `Origin` are compared with them.

Owns: how a host is written, with and without a port, and which hosts a list of names allows.
Never: where the list comes from, the answer to a client with another name.
"""

import ipaddress
import re
from collections.abc import Iterable

BLANKS = b" \t"
"""Characters around the value of a header that are not part of it."""
PORT_MAX = 65535
_USUAL_PORTS = (80, 443)
"""Default ports, which URLs leave out."""
_HOST = re.compile(
    rb"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::(?P<port>[0-9]{1,5}))?"
)
_BELOW = b"*."

Place = tuple[bytes, int | None]
"""Host in its usual spelling, and the port if there is one."""


class Hosts:
    """List of allowed names. A name without a port is allowed with every port; `*.example.com`
    stands for all names below example.com. Raises ValueError for anything else."""

    def __init__(self, names: Iterable[str]) -> None:
        self._whole: set[Place] = set()
        self._below: set[Place] = set()
        for name in names:
            written = name.encode()
            place = place_of(written.removeprefix(_BELOW))
            if place is None:
                raise ValueError(name)
            (self._below if written.startswith(_BELOW) else self._whole).add(place)

    def allow(self, place: Place) -> bool:
        host, port = place
        ports = _USUAL_PORTS if port is None else (port,)
        parents = [host[at + 1 :] for at, byte in enumerate(host) if byte == ord(".")]
        return any(
            (host, one) in self._whole or any((parent, one) in self._below for parent in parents)
            for one in (None, *ports)
        )


def place_of(value: bytes) -> Place | None:
    """Return the host in `host` or `host:port`, and the port; None for anything else."""
    found = _HOST.fullmatch(value.strip(BLANKS))
    if found is None or int(found["port"] or 0) > PORT_MAX:
        return None
    host, port = found["host"].lower(), int(found["port"]) if found["port"] else None
    if host.startswith(b"["):
        try:
            host = b"[%b]" % ipaddress.IPv6Address(host[1:-1].decode()).compressed.encode()
        except ValueError:
            return None
    return host, port
