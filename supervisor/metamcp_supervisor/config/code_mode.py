"""The table `[code]` of metamcp.toml, and the limits of code at an endpoint.

Owns: keys, their limits, the rules between both tables. Never: single values (`document.Table`),
finding the program that runs code (`installation`), the sandboxes (`metamcp_worker.sandbox`).
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from metamcp_supervisor.config.config import CodeConfig, Config, Endpoint
from metamcp_supervisor.config.document import ConfigDraft, ConfigFindings, Table
from metamcp_worker.ipc.code_runs import CodeLimits

_LIMITS = frozenset(CodeLimits.__struct_fields__)


def read(table: Table) -> CodeConfig:
    settings = table.settings()
    limits = {name: settings.pop(name) for name in _LIMITS & settings.keys()}
    return CodeConfig(enabled=True, limits=CodeLimits(**limits), **settings)


def of_endpoint(table: Table) -> Mapping[str, int]:
    """Return the limits of code in the table of an endpoint, by fields of `CodeLimits`."""
    inner = table.table("code", "endpoints.*.code")
    return {} if inner is None else inner.settings()


def limits_of(code: CodeConfig, endpoint: Endpoint) -> CodeLimits | None:
    """Return the limits at an endpoint; None without code mode."""
    return structs.replace(code.limits, **endpoint.code) if code.enabled else None


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
