"""Catalogues and endpoints for tests, as short as they can be said."""

from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec, NamingSpec

LEGACY, MODERN = "2025-11-25", "2026-07-28"


def tool(name: str, **members: object) -> Raw:
    return Raw(codec.dump({"name": name, **members, "inputSchema": {"type": "object"}}))


def prompt(name: str) -> Raw:
    return Raw(codec.dump({"name": name}))


def resource(uri: str) -> Raw:
    return Raw(codec.dump({"uri": uri, "name": uri}))


def template(uri: str) -> Raw:
    return Raw(codec.dump({"uriTemplate": uri, "name": uri}))


def offer(*tools: str | Raw, protocol: str = LEGACY, **kinds: list[Raw]) -> ServerCatalogue:
    """A server with these tools; the other kinds by their names."""
    return ServerCatalogue(
        protocol=protocol,
        tools=tuple(tool(one) if isinstance(one, str) else one for one in tools),
        prompts=tuple(kinds.get("prompts", ())),
        resources=tuple(kinds.get("resources", ())),
        resourceTemplates=tuple(kinds.get("templates", ())),
    )


def endpoint(
    *servers: str,
    name: str = "default",
    style: str = "namespaced",
    disabled: tuple[tuple[str, str], ...] = (),
) -> EndpointSpec:
    return EndpointSpec(
        name=name, servers=servers, naming=NamingSpec(style=style), disabled=disabled
    )
