"""Cost of the tools of an endpoint for its clients, as far as the configuration and the offers of
the servers show it.

Owns: which tools an endpoint has, under which names, how large their definitions are in its list,
and what is in context at the start under each exposure. Never: tokens of bytes and
the words of built-in tools (`builtin_definitions`), lists that are sent, which servers are there
(the fronts).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import get_args

from msgspec import Struct

from metamcp_worker.ipc import builtin_definitions, codec, exposed_names, server_catalog, validation
from metamcp_worker.ipc.disclosure import Exposure, Pair
from metamcp_worker.ipc.server_catalog import KeyedDefinition, ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec

EXPOSURES: tuple[Exposure, ...] = get_args(Exposure)


class SizedTool(Struct, frozen=True):
    """Tool of an endpoint. `size`: bytes of its definition, as it is in a list."""

    server: str
    name: str
    exposed: str
    size: int


def tools(
    endpoint: EndpointSpec,
    catalogues: Mapping[str, ServerCatalogue],
    withheld: Collection[Pair] = (),
) -> Sequence[SizedTool]:
    """Return all tools of an endpoint, whether their servers are there or not. `withheld`: tools
    that clients do not get; their names are taken all the same. Other words that the configuration
    gives a tool are not counted, because only a front applies them."""
    definitions = {
        (server, definition.key): definition
        for server in endpoint.servers
        if server in catalogues
        for definition in server_catalog.iter_definitions("tools", catalogues[server].tools)
        if (server, definition.key) not in endpoint.disabled
    }
    for pair in exposed_names.switched_off(endpoint.switches, list(definitions)):
        del definitions[pair]
    own = builtin_definitions.of(
        endpoint.exposure, code=endpoint.code is not None, builtins=endpoint.builtins
    )
    reserved = {tool.name for tool in own}
    exposed = exposed_names.expose(
        list(definitions), endpoint.naming, reserved, _configured_names(endpoint, reserved)
    )
    hidden = {
        (override.server, override.tool) for override in endpoint.overrides if override.hidden
    }
    return [
        SizedTool(*pair, name, _size(definition, name))
        for (pair, definition), name in zip(definitions.items(), exposed, strict=True)
        if pair not in hidden and pair not in withheld and _is_listed(definition)
    ]


def at_start(
    exposure: Exposure,
    tools: Sequence[SizedTool],
    *,
    code: bool = False,
    builtins: tuple[str, ...] = (),
) -> int:
    """Return the tokens that a client has in context before it has asked for anything. `code`:
    whether the endpoint has code mode; `builtins`: families of further built-in tools."""
    listed = sum(tool.size for tool in tools) if exposure == "all" else 0
    own = builtin_definitions.size(exposure, code=code, builtins=builtins)
    return builtin_definitions.tokens_of_bytes(listed + own)


def _configured_names(endpoint: EndpointSpec, reserved: Collection[str]) -> dict[Pair, str]:
    """Return the names that the configuration gives to tools, whatever the rule for names says."""
    pairs: dict[str, Pair] = {}
    for override in endpoint.overrides:
        pair = override.server, override.tool
        if override.name and override.name not in reserved and pair not in endpoint.disabled:
            pairs.setdefault(override.name, pair)
    return {pair: name for name, pair in pairs.items()}


def _is_listed(tool: KeyedDefinition) -> bool:
    fault = validation.fault("tools", tool.raw)
    return fault is None or fault.legacy


def _size(tool: KeyedDefinition, name: str) -> int:
    if name == tool.key:
        return len(tool.raw)
    return builtin_definitions.sent_bytes(tool.raw, tool.raw_key, codec.dump(name))
