"""What a client has in context at the start, under each exposure of an endpoint with these tools.

Owns: the endpoint that is made of a set of tools, and its table. Never: the reckoning, which is the
one of `metamcp tools --tokens`.
"""

from collections.abc import Iterator, Sequence

from msgspec import Raw

from metamcp_supervisor.views import tool_costs
from metamcp_worker.ipc import builtin_definitions
from metamcp_worker.ipc.disclosure import Exposure
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec
from metamcp_worker.search.index import ToolDocument


def savings(documents: Sequence[ToolDocument]) -> dict[Exposure, builtin_definitions.TokenSavings]:
    """By exposure; `shown` is what is in context at the start."""
    tools: dict[str, list[Raw]] = {}
    for document in documents:
        tools.setdefault(document.pair[0], []).append(Raw(document.definition))
    catalogues = {
        server: ServerCatalogue(protocol="2025-11-25", tools=tuple(found))
        for server, found in tools.items()
    }
    endpoint = EndpointSpec(name="default", servers=tuple(catalogues))
    behind = tool_costs.tools(endpoint, catalogues)
    everything = tool_costs.at_start("all", behind)
    return {
        exposure: builtin_definitions.TokenSavings(
            everything, tool_costs.at_start(exposure, behind)
        )
        for exposure in tool_costs.EXPOSURES
    }


def table(documents: Sequence[ToolDocument]) -> Iterator[str]:
    yield "| exposure | definitions at the start | tokens | less than `all` |"
    yield "|---|---|---|---|"
    for exposure, saving in savings(documents).items():
        count = len(builtin_definitions.of(exposure)) or len(documents)
        less = f"{saving.tokens / saving.everything:.1%}"
        yield f"| `{exposure}` | {count} | {saving.shown:,} | {less} |"
