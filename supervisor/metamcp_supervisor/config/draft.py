"""What one configuration file says, before it is put together with the others.

Owns: the values of that step. Never: reading them (`parse`, `shapes`), joining them (`assemble`).
"""

from dataclasses import dataclass
from pathlib import Path

from metamcp_supervisor.config.config import (
    Address,
    AnyAddress,
    Embeddings,
    Endpoint,
    Log,
    Metrics,
    Recording,
    Server,
    Tool,
    Traces,
)
from metamcp_supervisor.config.document import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDraft:
    """The settings of `[gateway]` that one source has, each with its place."""

    listen: tuple[Address, Site] | None = None
    ops_listen: tuple[AnyAddress, Site] | None = None
    health_listen: tuple[Address, Site] | None = None
    allowed_hosts: tuple[str, ...] | None = None
    fronts: int | None = None
    watch: bool | None = None
    state_dir: Path | None = None
    runtime_dir: Path | None = None
    drain_delay_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDraft:
    """What one place says of one tool. `tool`: the server's own name of it."""

    server: str
    tool: str
    said: Tool
    site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDraft:
    """`server` is None for one that is left out with a warning. `written`: its name in the file,
    where that is no possible one; `name` is the nearest then, or empty. `tools`: as `server` has
    them, with their places."""

    name: str
    site: Site
    server: Server | None = None
    written: str = ""
    tools: tuple[ToolDraft, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceDraft:
    """`servers`: None for those that no other namespace names."""

    name: str
    site: Site
    servers: tuple[str, ...] | None
    description: str = ""
    tools: tuple[ToolDraft, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDraft:
    """`sse`: as it is written, None when it is not."""

    site: Site
    endpoint: Endpoint
    sse: bool | None = None
    tools: tuple[ToolDraft, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    site: Site
    includes: tuple[tuple[str, Site], ...] = ()
    gateway: GatewayDraft = GatewayDraft()
    log: Log | None = None
    recording: Recording | None = None
    metrics: Metrics | None = None
    traces: Traces | None = None
    embeddings: Embeddings | None = None
    servers: tuple[ServerDraft, ...] = ()
    namespaces: tuple[NamespaceDraft, ...] = ()
    endpoints: tuple[EndpointDraft, ...] = ()
