"""How the kernel notices that the other end of a silent connection is gone.

Owns: the socket options for that. Never: sockets.

A stream may rightly be silent for days. If the machine at its other end loses power, or a firewall
between forgets the connection, it is silent for ever: only the kernel's own probes tell the two
apart, and without these options it sends the first one after two hours.
"""

import socket

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
