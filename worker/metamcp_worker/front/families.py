"""Which built-in tools an endpoint has: one family for each exposure.

Owns: that table. Never: the tools themselves.
"""

from collections.abc import Mapping

from metamcp_worker.disclosure import Exposure
from metamcp_worker.front import activating, equipping, loading
from metamcp_worker.front.builtin import Family

_NONE = Family({}, (), "")
_FAMILIES: Mapping[Exposure, Family] = {
    "servers": activating.FAMILY,
    "toolset": equipping.FAMILY,
    "search": loading.FAMILY,
}


def of(exposure: Exposure) -> Family:
    return _FAMILIES.get(exposure, _NONE)


def names(exposure: Exposure) -> frozenset[str]:
    """What no tool of a server can be called here."""
    return frozenset(of(exposure).tools)
