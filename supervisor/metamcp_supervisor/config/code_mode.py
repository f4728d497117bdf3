"""The table `[code]` of metamcp.toml, and the limits of code at an endpoint.

Owns: keys, their limits, the rules between both tables. Never: single values (`document.Table`),
finding the program that runs code (`installation`), the sandboxes (`metamcp_worker.sandbox`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from msgspec import structs

from metamcp_supervisor.config.config import CodeConfig, Config, Confinement, Endpoint
from metamcp_supervisor.config.document import ConfigDraft, ConfigFindings, Table
from metamcp_supervisor.config.units import duration_text, size_text
from metamcp_worker.ipc.code_runs import CodeLimits

TIMEOUT_S_MAX = 3600.0
"""Maximum seconds of a run; more is the work of a server."""
MEMORY_BYTES_MIN, MEMORY_BYTES_MAX = 32 * 1024 * 1024, 4 * 1024 * 1024 * 1024
"""Limits of `memory_max`: the engine needs about the smaller one for itself."""
OUTPUT_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of what a run returns and writes, a quarter of a frame."""
CALLS_MAX = 100_000
PARALLEL_MAX = 1000
RUNS_MAX = 256
WARM_MAX = 64
"""Maximum number of sandboxes that wait; each takes 9 to 27 MiB."""
IDLE_S_MIN = 1.0


def read(table: Table) -> CodeConfig:
    table.refuse_unknown()
    default = CodeConfig()
    idle_s = table.duration("idle", default=default.idle_s)
    if idle_s < IDLE_S_MIN:
        table.error("idle", f'is too short; the shortest time here is "{IDLE_S_MIN:.0f}s"')
    return CodeConfig(
        enabled=True,
        limits=CodeLimits(**_limits(table)),
        runs_max=table.whole("runs_max", default=default.runs_max, low=1, high=RUNS_MAX),
        warm=table.whole("warm", default=default.warm, low=0, high=WARM_MAX),
        idle_s=idle_s,
        jit=table.flag("jit", default=default.jit),
        confinement=cast("Confinement", table.choice("confinement") or default.confinement),
    )


def of_endpoint(table: Table) -> Mapping[str, int]:
    """Return the limits of code in the table of an endpoint, by fields of `CodeLimits`."""
    inner = table.table("code", "endpoints.*.code")
    if inner is None:
        return {}
    inner.refuse_unknown()
    return _limits(inner)


def limits_of(code: CodeConfig, endpoint: Endpoint) -> CodeLimits | None:
    """Return the limits at an endpoint; None without code mode."""
    return structs.replace(code.limits, **endpoint.code) if code.enabled else None


def to_table(limits: Mapping[str, int]) -> dict[str, object]:
    """Return limits as a user writes them. `limits`: by fields of `CodeLimits`."""
    units: Mapping[str, tuple[str, Callable[[int], object]]] = {
        "timeout": ("timeout_ms", lambda ms: duration_text(ms / 1000)),
        "memory_max": ("memory_bytes", size_text),
        "output_max": ("output_bytes", size_text),
        "calls_max": ("calls", int),
        "parallel_max": ("parallel", int),
    }
    return {key: text(limits[name]) for key, (name, text) in units.items() if name in limits}


def check(
    config: Config, drafts: Sequence[ConfigDraft], lacking: str, findings: ConfigFindings
) -> None:
    """Report code mode that cannot be. `lacking`: why code cannot be run on this machine."""
    main = drafts[0].site
    if config.code.enabled:
        if lacking:
            findings.error(main.at("code"), lacking)
        return
    sites = {each.endpoint.name: each.site for draft in drafts for each in draft.endpoints}
    for name, endpoint in config.endpoints.items():
        site = sites.get(name, main)
        if endpoint.exposure == "code":
            message = (
                '"code" needs the table [code], which switches code mode on; add it, or choose'
            )
            findings.error(site.at("exposure"), f"{message} another exposure")
        if endpoint.code:
            message = "has no effect without the table [code], which switches code mode on; add it"
            findings.error(site.at("code"), message)


def largest_memory(config: Config) -> int:
    """Return the bytes of the largest `memory_max` of any endpoint."""
    general = config.code.limits.memory_bytes
    own: Iterable[int] = (
        each.code.get("memory_bytes", general) for each in config.endpoints.values()
    )
    return max(own, default=general)


def _limits(table: Table) -> dict[str, int]:
    """Return the limits that are written and not wrong, by fields of `CodeLimits`."""
    limits: dict[str, int] = {}
    if table.has("timeout"):
        seconds = table.duration("timeout", default=1.0)
        if seconds > TIMEOUT_S_MAX:
            most = duration_text(TIMEOUT_S_MAX)
            table.error("timeout", f'is too long; the longest time here is "{most}"')
        limits["timeout_ms"] = round(seconds * 1000)
    sizes = (
        ("memory_max", "memory_bytes", MEMORY_BYTES_MIN, MEMORY_BYTES_MAX),
        ("output_max", "output_bytes", 1024, OUTPUT_BYTES_MAX),
    )
    for key, name, low, high in sizes:
        size = table.size(key, low=low)
        if size is not None and size > high:
            table.error(key, f'is too large; the largest size here is "{size_text(high)}"')
        elif size is not None:
            limits[name] = size
    counts = ("calls_max", "calls", CALLS_MAX), ("parallel_max", "parallel", PARALLEL_MAX)
    for key, name, high in counts:
        if table.has(key):
            limits[name] = table.whole(key, default=1, low=1, high=high)
    return limits
