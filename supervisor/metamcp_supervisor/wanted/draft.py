"""What one configuration file says, before it is put together with the others.

Owns: the values of that step. Never: reading them (`parse`, `shapes`), joining them (`assemble`).
"""

from dataclasses import dataclass
from pathlib import Path

from metamcp_supervisor.wanted.config import (
    Address,
    AnyAddress,
    Endpoint,
    Log,
    Metrics,
    Recording,
    Server,
    Traces,
)
from metamcp_supervisor.wanted.document import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDraft:
    """The settings of `[gateway]` that one source has, each with its place."""

    listen: tuple[Address, Site] | None = None
    ops_listen: tuple[AnyAddress, Site] | None = None
    fronts: int | None = None
    watch: bool | None = None
    state_dir: Path | None = None
    runtime_dir: Path | None = None
    drain_delay_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDraft:
    """`server` is None for one that is known by name only: `left_out` when it is skipped with a
    warning, otherwise because it has errors."""

    name: str
    site: Site
    server: Server | None = None
    left_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceDraft:
    """`servers`: None for every server. `disabled`: (server, tool, place)."""

    name: str
    site: Site
    servers: tuple[str, ...] | None
    disabled: tuple[tuple[str, str, Site], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDraft:
    """`sse`: as it is written, None when it is not."""

    site: Site
    endpoint: Endpoint
    sse: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    site: Site
    includes: tuple[tuple[str, Site], ...] = ()
    gateway: GatewayDraft = GatewayDraft()
    log: Log | None = None
    recording: Recording | None = None
    metrics: Metrics | None = None
    traces: Traces | None = None
    servers: tuple[ServerDraft, ...] = ()
    namespaces: tuple[NamespaceDraft, ...] = ()
    endpoints: tuple[EndpointDraft, ...] = ()
