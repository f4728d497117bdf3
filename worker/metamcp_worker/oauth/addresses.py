"""Addresses that the gateway may connect to when a server, and not its operator, names them.

Owns: the kinds of addresses, and which of them a server of one kind may lead to. Never:
resolving names, connecting.

A remote server says in its metadata where to get authorized. Without a rule it could make the
gateway connect to everything that its machine can reach: services of the local network, or the
address at which clouds hand out credentials. So a server on the internet leads to the internet
only; a server in the local network, or on this machine, may name its neighbours as well.
"""

from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_PRIVATE = tuple(
    ip_network(net)
    for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
# These are global for `ipaddress` of some version of Python, but hold an IPv4 address, are old
# site-local ones, or are set aside by IANA (metadata of one cloud is at 192.0.0.192).
_NEVER = tuple(
    ip_network(net)
    for net in (
        "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "fec0::/10",
        "192.0.0.0/24", "192.88.99.0/24", "3fff::/20", "5f00::/16",
    )
)  # fmt: skip


class Reach(IntEnum):
    """Distance of an address from this machine, the nearest first."""

    LOOPBACK = 0
    PRIVATE = 1
    PUBLIC = 2


def reach(address: str) -> Reach | None:
    """Return the reach of an IP address; None for an address that the gateway never connects to
    (link-local, multicast, reserved). Raises ValueError for text that is not an address."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback:
        return Reach.LOOPBACK
    if any(ip in net for net in _PRIVATE):
        return Reach.PRIVATE
    return Reach.PUBLIC if _is_public(ip) else None


def farthest(addresses: list[str]) -> Reach:
    """Return the reach of a server that has these addresses: the farthest, PUBLIC if unknown."""
    return max((_far(reach(each)) for each in addresses), default=Reach.PUBLIC)


def may_lead(server: Reach, address: str) -> bool:
    """Whether a server of this reach may make the gateway connect to this address."""
    address_reach = reach(address)
    return address_reach is not None and address_reach >= server


def is_loopback_name(host: str) -> bool:
    """Whether this host of a URL is this machine, without asking a name server."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return reach(host.strip("[]")) is Reach.LOOPBACK
    except ValueError:
        return False


def _far(address_reach: Reach | None) -> Reach:
    return Reach.PUBLIC if address_reach is None else address_reach


def _is_public(ip: IPv4Address | IPv6Address) -> bool:
    if not ip.is_global or ip.is_multicast or ip.is_reserved:
        return False
    return not any(ip in net for net in _NEVER)
