"""Verbs about tools: which ones an endpoint has, and who may try one or read recorded calls.

Owns: their parameters, and what the supervisor adds to the answer of a front: calls, errors and
drift. Never: the search and the state of a tool (`builtin_tools.tool_list` of the worker), the call
itself, which a client makes (`calls.endpoint_client`), reading the files of recorded calls.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

from metamcp_supervisor.config.document import shorten
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.path_orders import check_endpoint, key_id, unknown_tool
from metamcp_supervisor.control.services import (
    ChangeParams,
    ControlStream,
    GatewayControl,
    NoParams,
)
from metamcp_supervisor.verbs import VERSION, Exit, ToolList
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.figures import ShownTool, ToolQuery
from metamcp_worker.ipc.records import FOLDER

QUERY_CHARACTERS_MAX = 1000
"""Maximum characters of a query; further ones are ignored, so that the question fits a packet."""
NAME_CHARACTERS_MAX = 256
"""Maximum characters of the name of a tool or server."""


class ToolTry(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `tool-try`. `name`: of the tool, as clients know it; `endpoint`: empty for the
    default one; `replay`: id of the recorded call that is repeated, empty for a new call."""

    name: str
    endpoint: str = ""
    replay: str = ""


class TryPlace(Struct, frozen=True, kw_only=True):
    """Where a call is made. `ca`: file of the authority to trust, empty for those of the system."""

    v: int = VERSION
    endpoint: str
    url: str
    ca: str


class RecordingsShown(Struct, frozen=True, kw_only=True):
    """Where recorded calls are. `folder`: may not exist."""

    v: int = VERSION
    folder: str


async def tool_try(gateway: GatewayControl, line: ControlStream, params: ToolTry) -> object:
    """Return where to call a tool. The client that asked makes the call itself, at an endpoint,
    like every other client. Raises ProtocolError for an unknown endpoint."""
    check_endpoint(gateway, params.endpoint)
    status = gateway.status()
    endpoint = params.endpoint or next(iter(gateway.shelf.endpoints()), "")
    url = status.endpoints.get(endpoint, "")
    if not url:
        raise ProtocolError(Exit.UNKNOWN_NAME, f"the endpoint {endpoint[:64]!r} is not served now")
    once_more = f" as {params.replay[:64]} was" if params.replay else ""
    text = f"{params.name[:NAME_CHARACTERS_MAX]} at {endpoint}{once_more}, by {line.caller}"
    gateway.journal.add("gateway", "replay" if params.replay else "call", text)
    ca = Path(status.state_dir, "tls", "ca.pem")
    there = await asyncio.to_thread(ca.is_file)
    return TryPlace(endpoint=endpoint, url=url, ca=str(ca) if there else "")


def about_try(params: ToolTry, result: object) -> Sequence[str]:
    """Return the words of the audit for a call that somebody tries."""
    return [word for word in (params.endpoint, params.replay) if word]


async def recordings(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    """Return where recorded calls are, for a caller who may read what was said in them."""
    return RecordingsShown(folder=str(Path(gateway.status().state_dir, FOLDER)))


async def tools(gateway: GatewayControl, line: ControlStream, params: ToolQuery) -> object:
    """Return the tools. Raises ProtocolError for unknown names."""
    check_endpoint(gateway, params.endpoint)
    servers = {server.name: server for server in gateway.status().servers}
    if params.key and line.role < Role.OPERATOR:
        raise ProtocolError(Exit.DENIED, "what a key sees needs the role operator")
    if params.server and params.server not in servers:
        message = f"no server is named {params.server[:64]!r}; {hint(params.server, servers)}"
        raise ProtocolError(Exit.UNKNOWN_NAME, message)
    shown_tools = await gateway.tools(
        structs.replace(
            params,
            key=await key_id(gateway, params.key),
            query=params.query[:QUERY_CHARACTERS_MAX],
            server=params.server[:NAME_CHARACTERS_MAX],
            name=params.name[:NAME_CHARACTERS_MAX],
            offset=max(0, params.offset),
        )
    )
    if params.name and not shown_tools.tools and not shown_tools.refused:
        raise unknown_tool(gateway, params.name, shown_tools.endpoint, shown_tools.names)
    counts = _counts(gateway)
    # The particulars of a server take a while to collect, and nearly none has such tools.
    seen = {tool.server for tool in shown_tools.tools}
    drifts = {
        name: _drifts(gateway, name)
        for name, server in servers.items()
        if server.drift and name in seen
    }
    return ToolList(
        endpoint=shown_tools.endpoint,
        tools=tuple(_describe_tool(tool, counts, drifts) for tool in shown_tools.tools),
        more=shown_tools.more,
        refused=shown_tools.refused,
    )


def _counts(gateway: GatewayControl) -> Mapping[tuple[str, str], tuple[int, int]]:
    """Return the calls and errors of each tool that was called."""
    return {
        (server, tool): (calls, errors)
        for server, stats in gateway.tool_stats().items()
        for tool, calls, errors in zip(stats.tools, stats.counts, stats.errors, strict=True)
    }


def _drifts(gateway: GatewayControl, server: str) -> Mapping[str, str]:
    lines = (line.partition(": ") for line in gateway.particulars(server).drift)
    return {tool: words for tool, _, words in lines}


def _describe_tool(
    tool: ShownTool,
    counts: Mapping[tuple[str, str], tuple[int, int]],
    drifts: Mapping[str, Mapping[str, str]],
) -> ShownTool:
    calls, errors = counts.get((tool.server, tool.tool), (0, 0))
    drift = drifts.get(tool.server, {}).get(shorten(tool.tool), "")
    server = process_names.base(tool.server)
    return structs.replace(tool, server=server, calls=calls, errors=errors, drift=drift)
