"""The tables `[ai]` and `[engine]` of metamcp.toml, `ai_api` of a foreign file, and the keys
`builtins` and `results` of an endpoint.

Owns: keys, their limits, the defaults of `ai_api`. Never: single values
(`document.Table`), files of workflows (`workflow_files`), models and runs (`engine`).
"""

from dataclasses import replace
from functools import partial
from typing import Literal, cast

from metamcp_supervisor.config import program, sections
from metamcp_supervisor.config.config import AiConfig, EngineConfig, ResultsConfig
from metamcp_supervisor.config.document import Table, shorten
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.references import ReferenceResolver
from metamcp_supervisor.config.show import password
from metamcp_supervisor.config.units import PAST_S_MAX, size_text
from metamcp_worker.ipc import frames
from metamcp_worker.ipc.spec import RESULT_BYTES_MIN

STEPS_MAX = 1000
TOKENS_MAX = 1_000_000_000
ANSWER_TOKENS_MAX = 1_000_000
PRICE_MAX = 1_000_000.0
"""Maximum of prices and costs, in any currency."""
RUNS_MAX = 10_000
KEEP_S_MIN = 60.0
"""Minimum seconds for which runs are kept: somebody wants to see how they ended."""
KEYS = {"openai": "${env:OPENAI_API_KEY:-}", "anthropic": "${env:ANTHROPIC_API_KEY:-}"}
"""Key for `ai_api` without one, by provider: the variable that the provider's own clients use."""
RESULT_S_MIN, RESULT_S_MAX = 10.0, 7 * 24 * 3600.0
"""Seconds for which an endpoint may keep results."""
SCHEMES = ("postgresql://", "postgres://")
MODELS = {"openai": "gpt-4.1-mini", "anthropic": "claude-sonnet-4-5"}
"""Model for `ai_api` without one, by provider."""


def read_ai(table: Table | None, resolving: ReferenceResolver) -> AiConfig | None:
    """Read `[ai]`; None without it."""
    if table is None:
        return None
    table.refuse_unknown()
    provider = cast("Literal['openai', 'anthropic']", table.choice("provider") or "openai")
    settings = _read_connection(
        AiConfig(provider=provider, model=table.text("model") or ""), table, resolving
    )
    for key in ("url", "model"):
        if not table.has(key):
            table.findings.error(table.site, f"has no '{key}'; it names the model that works here")
    timeout_s = table.duration("timeout", default=settings.timeout_s)
    if timeout_s < 1:
        table.error("timeout", 'is too short; the shortest time here is "1s"')
    whole_number = partial(table.whole, low=1)
    number = partial(table.number, default=0.0, high=PRICE_MAX)
    return replace(
        settings,
        steps_max=whole_number("steps_max", default=settings.steps_max, high=STEPS_MAX),
        tokens_max=whole_number("tokens_max", default=settings.tokens_max, high=TOKENS_MAX),
        answer_tokens_max=whole_number(
            "answer_tokens_max", default=settings.answer_tokens_max, high=ANSWER_TOKENS_MAX
        ),
        timeout_s=timeout_s,
        cost_max=number("cost_max"),
        input_price=number("input_price"),
        output_price=number("output_price"),
        consent=table.flag("consent", default=True),
    )


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


def read_engine(table: Table | None, resolving: ReferenceResolver) -> EngineConfig | None:
    """Read `[engine]`; None without it."""
    if table is None:
        return None
    table.refuse_unknown()
    default = EngineConfig()
    keep_s = table.duration("keep", default=default.keep_s, most_s=PAST_S_MAX)
    if keep_s < KEEP_S_MIN:
        table.error("keep", f'is too short; the shortest time here is "{KEEP_S_MIN:.0f}s"')
    database, written = _database(table, resolving)
    return EngineConfig(
        database=database,
        database_written=written,
        referred=tuple(filter(None, resolving.secrets)),
        keep_s=keep_s,
        sync=cast("Literal['full', 'normal']", table.choice("sync") or default.sync),
        runs_max=table.whole("runs_max", default=default.runs_max, low=1, high=RUNS_MAX),
    )


def _database(table: Table, resolving: ReferenceResolver) -> tuple[str, str]:
    """Return the URL of the database, and as written; empty without one."""
    written = table.text("database")
    if written is None:
        return "", ""
    site = table.site.at("database")
    url = resolving.value(written, site)
    for reference_site, message in resolving.unresolved:
        table.findings.error(reference_site, message)
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
    settings = table.table("results", "endpoints.*.results")
    if settings is None:
        return None
    settings.refuse_unknown()
    default = ResultsConfig()
    max_bytes = settings.size("max", low=RESULT_BYTES_MIN) or default.max_bytes
    total_bytes = settings.size("total", low=RESULT_BYTES_MIN) or default.total_bytes
    keep_s = settings.duration("keep", default=default.keep_s, most_s=RESULT_S_MAX)
    if keep_s < RESULT_S_MIN:
        settings.error("keep", f'is too short; the shortest time here is "{RESULT_S_MIN:.0f}s"')
    if max_bytes > frames.MESSAGE_BYTES_MAX:
        settings.error("max", f"is at most {size_text(frames.MESSAGE_BYTES_MAX)}")
    if total_bytes < max_bytes:
        settings.error("total", "is less than 'max', so that no result fits")
    return ResultsConfig(max_bytes, keep_s, total_bytes)


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
    for reference_site, message in resolving.unresolved:
        table.findings.error(reference_site, message)
    return replace(
        ai,
        url=url or "",
        url_written=written or "",
        key=token or "",
        key_written=key or "",
        referred=tuple(filter(None, resolving.secrets)),
    )
