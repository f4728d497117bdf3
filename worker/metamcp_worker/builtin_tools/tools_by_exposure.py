"""Built-in tools of an endpoint: those of its exposure, and further families.

Owns: that table. Never: the tools themselves.
"""

from collections.abc import Mapping
from functools import cache

from metamcp_worker.builtin_tools import (
    code_tools,
    engine_tools,
    search_tools,
    servers_tools,
    toolset_tools,
)
from metamcp_worker.builtin_tools.builtin import ToolFamily
from metamcp_worker.ipc import builtin_definitions
from metamcp_worker.ipc.disclosure import Exposure

_NONE = ToolFamily({}, (), "")
_FAMILIES: Mapping[Exposure, ToolFamily] = {
    "servers": servers_tools.FAMILY,
    "toolset": toolset_tools.FAMILY,
    "search": search_tools.FAMILY,
    "code": code_tools.FAMILY,
}


@cache
def of(exposure: Exposure, *, code: bool = False, builtins: tuple[str, ...] = ()) -> ToolFamily:
    """Return the tools of an endpoint. `code`, `builtins`: as in `builtin_definitions.of`."""
    search = code and exposure == "search"
    own = code_tools.SEARCH_FAMILY if search else _FAMILIES.get(exposure, _NONE)
    if not builtins:
        return own
    found = builtin_definitions.of(exposure, code=code, builtins=builtins)
    more = [engine_tools.TOOLS[tool.name] for tool in found if tool.name not in own.tools]
    tools = {**own.tools, **{tool.name: tool for tool in more}}
    return ToolFamily(tools, (*own.items, *(tool.item() for tool in more)), own.guide)


def names(
    exposure: Exposure, *, code: bool = False, builtins: tuple[str, ...] = ()
) -> frozenset[str]:
    """Return the names of the built-in tools, which tools of servers cannot have here."""
    return frozenset(of(exposure, code=code, builtins=builtins).tools)
