"""The tables `[ai]` and `[engine]` of metamcp.toml, `ai_api` of a foreign file, and the keys
`builtins` and `results` of an endpoint.

Owns: keys, their limits, the defaults of `ai_api`. Never: single values
(`document.Table`), files of workflows (`workflow_files`), models and runs (`engine`).
"""

from dataclasses import replace
from typing import Literal, cast

from metamcp_supervisor.config import program, sections
from metamcp_supervisor.config.config import AiConfig, EngineConfig, ResultsConfig
from metamcp_supervisor.config.document import Table, shorten
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.references import ReferenceResolver
from metamcp_supervisor.config.show import password
from metamcp_supervisor.config.units import size_text
from metamcp_worker.ipc import frames

KEYS = {"openai": "${env:OPENAI_API_KEY:-}", "anthropic": "${env:ANTHROPIC_API_KEY:-}"}
"""Key for `ai_api` without one, by provider: the variable that the provider's own clients use."""
SCHEMES = ("postgresql://", "postgres://")
MODELS = {"openai": "gpt-4.1-mini", "anthropic": "claude-sonnet-4-5"}
"""Model for `ai_api` without one, by provider."""


def read_ai(table: Table, resolving: ReferenceResolver) -> AiConfig:
    settings = AiConfig(**table.settings(), model=table.text("model") or "")
    connected = _read_connection(settings, table, resolving)
    for key in ("url", "model"):
        if not table.has(key):
            table.findings.error(table.site, f"has no '{key}'; it names the model that works here")
    return connected


def read_ai_api(table: Table | None, resolving: ReferenceResolver) -> AiConfig | None:
    """Read `ai_api` of a foreign file, which has no model and takes the key from the environment.
    Keys of other programs in it have no effect."""
    if table is None:
        return None
    provider = (table.text("provider") or "openai").lower()
    if provider not in KEYS:
        reason = f"'{shorten(provider)}' is not a provider; {hint(provider, KEYS)}"
        table.findings.add_warning(table.site, f"is left out: {reason}")
        return None
    address = next((key for key in ("endpoint", "url") if table.has(key)), None)
    if address is None:
        table.findings.add_warning(table.site, "is left out: it has no 'endpoint'")
        return None
    values = {
        "url": table.values[address],
        "key": table.values.get("key") or table.values.get("api_key") or KEYS[provider],
    }
    model = table.text("model") or MODELS[provider]
    settings = AiConfig(provider=cast("Literal['openai', 'anthropic']", provider), model=model)
    return _read_connection(settings, Table(values, table.site, table.findings), resolving)


def read_engine(table: Table, resolving: ReferenceResolver) -> EngineConfig:
    settings = table.settings()
    database, written = _database(table, resolving)
    return EngineConfig(
        **settings,
        database=database,
        database_written=written,
        referred=tuple(filter(None, resolving.secrets)),
    )


def _database(table: Table, resolving: ReferenceResolver) -> tuple[str, str]:
    """Return the URL of the database, and as written; empty without one."""
    written = table.text("database")
    if written is None:
        return "", ""
    site = table.site.at("database")
    url = resolving.value(written, site)
    resolving.report(table.findings)
    if url is not None and not url.startswith(SCHEMES):
        table.error("database", "must begin with postgresql://")
    program.warn_of_literal("PGPASSWORD", password(written), site, table)
    program.warn_of_short([password(url or ""), *resolving.secrets], table)
    return url or "", written


def builtins(table: Table) -> tuple[str, ...]:
    """Return the families of built-in tools that an endpoint names."""
    return (table.choices("builtins") if table.values.get("builtins") else None) or ()


def results(table: Table) -> ResultsConfig | None:
    """Return how an endpoint keeps large results, in its table `results`; None without it."""
    inner = table.table("results", "endpoints.*.results")
    if inner is None:
        return None
    results = ResultsConfig(**inner.settings())
    if results.max_bytes > frames.MESSAGE_BYTES_MAX:
        inner.error("max", f"is at most {size_text(frames.MESSAGE_BYTES_MAX)}")
    if results.total_bytes < results.max_bytes:
        inner.error("total", "is less than 'max', so that no result fits")
    return results


def _read_connection(ai: AiConfig, table: Table, resolving: ReferenceResolver) -> AiConfig:
    """Return the settings with the keys `url` and `key` of a table."""
    url, written = sections.read_url(table, "url", resolving)
    key = table.text("key")
    token = None if key is None else resolving.value(key, table.site.at("key"))
    if token and not (token.isascii() and token.isprintable() and token.strip()):
        table.error("key", "has a character in it that no key has")
    if len(ai.model) > sections.MODEL_CHARACTERS_MAX:
        table.error("model", f"is longer than {sections.MODEL_CHARACTERS_MAX} characters")
    if key is not None:
        program.warn_of_literal("AI_KEY", key, table.site.at("key"), table)
    sections.warn_of_plain_text(table, "url", url, secrets=bool(token))
    program.warn_of_short([token or "", *resolving.secrets], table)
    resolving.report(table.findings)
    return replace(
        ai,
        url=url or "",
        url_written=written or "",
        key=token or "",
        key_written=key or "",
        referred=tuple(filter(None, resolving.secrets)),
    )
