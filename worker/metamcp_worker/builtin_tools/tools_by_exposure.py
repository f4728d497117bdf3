"""Built-in tools of an endpoint: one family for each exposure.

Owns: that table. Never: the tools themselves.
"""

from collections.abc import Mapping

from metamcp_worker.builtin_tools import code_tools, search_tools, servers_tools, toolset_tools
from metamcp_worker.builtin_tools.builtin import ToolFamily
from metamcp_worker.ipc.disclosure import Exposure

_NONE = ToolFamily({}, (), "")
_FAMILIES: Mapping[Exposure, ToolFamily] = {
    "servers": servers_tools.FAMILY,
    "toolset": toolset_tools.FAMILY,
    "search": search_tools.FAMILY,
    "code": code_tools.FAMILY,
}


def of(exposure: Exposure, *, code: bool = False) -> ToolFamily:
    """Return the family of an exposure. `code`: whether the endpoint has code mode."""
    if code and exposure == "search":
        return code_tools.SEARCH_FAMILY
    return _FAMILIES.get(exposure, _NONE)


def names(exposure: Exposure, *, code: bool = False) -> frozenset[str]:
    """Return the names of the built-in tools, which tools of servers cannot have here."""
    return frozenset(of(exposure, code=code).tools)
