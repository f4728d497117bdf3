"""Tables of metamcp.toml: of a remote server, of the limits of a server, `[log]`, `[recording]`,
`[metrics]`, `[traces]`, `[ai]`, `[code]`; `ai_api` of a foreign file; `code`, `builtins` and
`results` of an endpoint.

Owns: keys, limits and the rules between them; which headers a user may add to every request to a
remote server. Never: single values (`units`, `document.Table`), the program of a local server
(`program`), sending headers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast
from urllib.parse import parse_qsl, urlsplit

from msgspec import structs
from msgspec.structs import replace

from metamcp_supervisor.config import naming, program, sandboxes, units
from metamcp_supervisor.config.config import (
    AiConfig,
    CodeConfig,
    Config,
    Endpoint,
    Era,
    Log,
    ResultsConfig,
    Server,
    TracesConfig,
)
from metamcp_supervisor.config.document import ConfigDraft, ConfigFindings, Table, kind_of, shorten
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.options import option
from metamcp_supervisor.config.program import warn_of_literal
from metamcp_supervisor.config.references import ReferenceResolver, input_variable
from metamcp_supervisor.config.show import looks_secret
from metamcp_supervisor.config.tables import Section
from metamcp_supervisor.config.tools import json_values
from metamcp_supervisor.config.units import size_text
from metamcp_worker.ipc import frames
from metamcp_worker.ipc.code_runs import CodeLimits
from metamcp_worker.ipc.server_catalog import MODERN_SINCE
from metamcp_worker.ipc.spec import Grant, OAuth, UseLimits

URL_BYTES_MAX = 8 * 1024
"""Maximum bytes of a URL; common servers refuse longer ones."""
OPTIONS_MAX = 256
SCOPES_MAX = 64
URL_TRANSPORTS = ("auto", "http", "sse")
"""Transports for a URL; any other name is a transport that a package brings."""

_URL = re.compile(r"[!-\[\]-~]+")
_HOST = re.compile(r"[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\]")
_SCOPE = re.compile(r"[!#-\[\]-~]+")


def is_custom(transport: str) -> bool:
    return transport not in URL_TRANSPORTS


def origin(url: str) -> str:
    """Return scheme, host and port, the parts of a URL that may be shown anywhere. The rest may
    hold secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def read(table: Table, resolving: ReferenceResolver, server: Server) -> Server:
    """Return the server with the settings of a remote one from its table in metamcp.toml."""
    transport = _transport(table)
    _refuse_strays(table, custom=is_custom(transport))
    if table.has("url"):
        oauth, oauth_written = _oauth(table, resolving)
        url, url_written = read_url(table, "url", resolving)
        headers, written = read_headers(table, resolving, lenient=False)
        if oauth is not None and authorizes(written):
            table.error("oauth", "gets the header 'Authorization'; leave one of the two out")
        secrets = bool(written) or oauth is not None
        warn_of_plain_text(table, "url", url, secrets=secrets)
        return replace(
            server, url=url, url_written=url_written, transport=transport, headers=headers,
            headers_written=written, oauth=oauth, oauth_written=oauth_written,
        )  # fmt: skip
    options = table.named_texts("options")
    if len(options) > OPTIONS_MAX:
        table.error("options", f"has more than {OPTIONS_MAX} options")
        options = {}
    site = table.site.at("options")
    return replace(
        server,
        transport=transport,
        options={name: resolving.text(text, site.at(name)) for name, text in options.items()},
        options_written=options,
    )


def authorizes(written: Mapping[str, str]) -> bool:
    """Whether the headers already authorize the gateway."""
    return any(name.lower() == "authorization" for name in written)


def read_url(table: Table, key: str, resolving: ReferenceResolver) -> tuple[str | None, str | None]:
    """Return the URL, and as it is written; None for a URL that is absent or was reported."""
    written, site = table.text(key), table.site.at(key)
    url = None if written is None else resolving.value(written, site)
    if written is None or url is None:
        return None, written
    if fault := url_flaw(url):
        table.findings.error(site, fault)
        return None, written
    for name, value in parse_qsl(written.partition("?")[2]):
        if looks_secret(name):
            warn_of_literal(input_variable(name), value, site, table)
    return url, written


def read_headers(
    table: Table, resolving: ReferenceResolver, *, lenient: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers, and as they are written. `lenient`: leave out reserved headers with a
    warning, because other programs let users write them."""
    site, findings = table.site.at("headers"), table.findings
    headers: dict[str, str] = {}
    written: dict[str, str] = {}
    for name, text in table.named_texts("headers", lenient=lenient).items():
        if fault := flaw(name):
            findings.error(site.at(name), fault)
        elif fault := explain_reserved_header(name):
            (findings.lose if lenient else findings.error)(site.at(name), fault)
        elif name.lower() in {other.lower() for other in written}:
            findings.error(site.at(name), "is there twice; capital letters make no difference")
        else:
            value = resolving.text(text, site.at(name))
            written[name], headers[name] = text, value
            if fault := value_flaw(value):
                findings.error(site.at(name), fault)
            if is_secret(name) or looks_secret(name):
                warn_of_literal(input_variable(name), text, site.at(name), table)
        if len(written) > HEADERS_MAX:
            table.error("headers", f"has more than {HEADERS_MAX} headers")
            break
    if sum(len(name) + len(value) for name, value in headers.items()) > HEADERS_BYTES_MAX:
        table.error("headers", f"have more than {HEADERS_BYTES_MAX} bytes together")
    return headers, written


def url_flaw(url: str) -> str:
    """Return the error in a URL, in words that do not repeat the URL, or an empty string."""
    if len(url) > URL_BYTES_MAX:
        return f"is longer than {URL_BYTES_MAX} bytes"
    if not _URL.fullmatch(url):
        return "has a character in it that no URL has; write it with '%' and two digits"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "has no proper host and port in it"
    if parts.scheme not in {"http", "https"}:
        return 'must begin with "https://" or "http://"'
    if "@" in parts.netloc:
        return "has credentials in it; put them into 'headers', or use 'oauth'"
    if "#" in url:
        return "has a fragment ('#…') in it, which is never sent; leave it out"
    host = parts.netloc if port is None else parts.netloc.rpartition(":")[0]
    if port == 0 or not _HOST.fullmatch(host):
        return "has no proper host and port in it"
    return ""


def _transport(table: Table) -> str:
    """Read `transport`, and check that the other settings fit it."""
    name = table.text("transport")
    if name is None:
        return "auto"
    if table.has("url"):
        if is_custom(name):
            advice = hint(name, URL_TRANSPORTS)
            table.error(
                "transport",
                f"'{shorten(name)}' reaches no URL; {advice} (one that a package brings stands"
                " alone, its settings are in 'options')",
            )
            return "auto"
    elif table.has("command") or table.has("module"):
        table.error("transport", "is for a server with 'url', or stands alone")
    elif not is_custom(name):
        table.error("transport", f"'{name}' is for a server with 'url'; write its URL")
    return name


def _refuse_strays(table: Table, *, custom: bool) -> None:
    """Report settings that have no effect for a server of this kind."""
    for key in ("headers", "oauth"):
        if table.has(key) and not table.has("url"):
            table.error(key, "is for a server with 'url'")
    if table.has("options") and not custom:
        table.error("options", "is for a transport that a package brings")
    for key in ("env", "cwd"):
        if table.has(key) and table.has("url"):
            table.findings.add_warning(
                table.site.at(key), "means nothing for a server that is reached by URL"
            )


def warn_of_plain_text(table: Table, key: str, url: str | None, *, secrets: bool) -> None:
    """Warn if secrets are sent to `url`, the value of `key`, without encryption."""
    if url is None or not secrets:
        return
    parts = urlsplit(url)
    if parts.scheme == "http" and not units.is_loopback(parts.hostname or ""):
        table.findings.add_warning(
            table.site.at(key), "headers and tokens cross the network unencrypted; use https"
        )


def _oauth(table: Table, resolving: ReferenceResolver) -> tuple[OAuth | None, OAuth | None]:
    value = table.values.get("oauth")
    if value is None or isinstance(value, bool):
        return (OAuth(), OAuth()) if value else (None, None)
    if not isinstance(value, dict):
        table.error("oauth", f"must be true or a table, not {kind_of(value)}")
        return None, None
    inner = table.table("oauth", "servers.*.oauth")
    assert inner is not None
    settings = inner.settings()
    made = oauth_of(inner, resolving, grant=settings.get("grant", "authorization_code"))
    oauth, written = (structs.replace(each, **settings) for each in made)
    return oauth, written


def oauth_of(
    table: Table,
    resolving: ReferenceResolver,
    *,
    grant: Grant = "authorization_code",
    keys: tuple[str, str, str] = ("client_id", "client_secret", "client_metadata_url"),
) -> tuple[OAuth, OAuth]:
    """Return the settings, and as they are written. `keys`: names of the three in this file."""
    written = [table.text(key) for key in keys]
    resolved = [
        None if text is None else resolving.value(text, table.site.at(key))
        for key, text in zip(keys, written, strict=True)
    ]
    scopes = scopes_of(table)
    _check_client(table, keys, written, grant)
    if (url := resolved[2]) is not None and (fault := _document_flaw(url)):
        table.error(keys[2], fault)
    if written[1] is not None:
        warn_of_literal("CLIENT_SECRET", written[1], table.site.at(keys[1]), table)
    made, as_written = (
        OAuth(
            client_id=each[0], client_secret=each[1], client_metadata_url=each[2], scopes=scopes
        )
        for each in (resolved, written)
    )  # fmt: skip
    return made, as_written


def scopes_of(table: Table) -> tuple[str, ...]:
    value = table.values.get("scopes")
    foreign = table.section is None and isinstance(value, str)
    scopes = tuple(str(value).split()) if foreign else table.texts("scopes") or ()
    for at, scope in enumerate(scopes):
        if not _SCOPE.fullmatch(scope):
            table.findings.error(
                table.site.at("scopes", at),
                "is not a scope; a scope has no blanks and quotes in it",
            )
    if len(scopes) > SCOPES_MAX:
        table.error("scopes", f"has more than {SCOPES_MAX} scopes")
    return scopes


def _check_client(
    table: Table, keys: tuple[str, str, str], written: list[str | None], grant: Grant
) -> None:
    client_id, secret, document = written
    if client_id is None and secret is not None:
        table.error(keys[1], f"needs '{keys[0]}', the id that it belongs to")
    if client_id is not None and document is not None:
        table.error(keys[2], f"a client has one id; leave this or '{keys[0]}' out")
    if grant == "client_credentials" and (client_id is None or secret is None):
        table.error("grant", f"'client_credentials' needs '{keys[0]}' and '{keys[1]}'")


def _document_flaw(url: str) -> str:
    """Return the error in a URL that serves as the id of a client, or an empty string. Others fetch
    this URL over TLS, and it must have a path."""
    if fault := url_flaw(url):
        return fault
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.path in {"", "/"}:
        return 'must begin with "https://" and have a path'
    return ""


_OF_MEMORY = ("memory_max", "memory_high")
_OF_PROCESSES = ("memory_rlimit", "cpu_max", "processes_max", "nofile_max")


def check_settings(table: Table, server: Server) -> Server:
    """Return the server with its era as its revision has it, its extensions and its limits of use;
    what does not fit together is reported."""
    if server.protocol is not None:
        meant: Era = "modern" if server.protocol >= MODERN_SINCE else "legacy"
        if server.era not in ("auto", meant):
            message = f'is a revision of the era "{meant}", and era = "{server.era}"'
            table.error("protocol", message)
        server = replace(server, era=meant)
    worker = table.text("worker") or ""
    if worker and (problem := naming.flaw(worker)):
        table.error("worker", f"is 'own', 'shared' or a name: it {problem}")
    server = replace(server, worker=worker)
    if table.has("extensions"):
        server = replace(server, extensions=json_values(table, "extensions"))
    for key in (*_OF_MEMORY, *_OF_PROCESSES):
        if not table.has(key):
            continue
        if server.url is not None:
            table.error(key, "means nothing for a server with 'url': it has no process here")
        elif key in _OF_PROCESSES and not server.command:
            table.error(key, "is only for a server with 'command', which has its own process")
    most, high = server.memory_max, server.memory_high
    if most is not None and high is not None and high > most:
        table.error("memory_high", f"is above memory_max, which is {size_text(most)}")
    if server.memory_rlimit and not table.has("memory_max"):
        table.error("memory_rlimit", "needs 'memory_max', which says how much")
    server = replace(server, limits=use_limits(table, "servers.*.limits"))
    return sandboxes.check(table, server)


def use_limits(table: Table, section: Section) -> UseLimits:
    """Return the limits of use in the table `limits` of an endpoint, a server or a workspace; those
    that are wrong are reported."""
    inner = table.table("limits", section)
    if inner is None:
        return UseLimits()
    limits = UseLimits(**{"calls_per_minute": 0, **inner.settings()})
    if limits.body_max > frames.BODY_BYTES_MAX:
        inner.error("body_max", f"is at most {size_text(frames.BODY_BYTES_MAX)}")
    if limits.burst and not limits.calls_per_minute:
        inner.error("burst", "needs 'calls_per_minute', which says how fast calls may go on")
    return limits


def log(table: Table) -> Log:
    settings = table.settings()
    choices = option("log", "level").choices
    levels = table.named_texts("levels")
    for room, level in levels.items():
        if level not in choices:
            site = table.site.at("levels", room)
            table.findings.error(site, f"'{shorten(level)}' is not a level; {hint(level, choices)}")
    return Log(**settings, levels={room: word for room, word in levels.items() if word in choices})


def traces(table: Table, resolving: ReferenceResolver) -> TracesConfig:
    settings = table.settings()
    endpoint, written = read_url(table, "endpoint", resolving)
    headers, headers_written = read_headers(table, resolving, lenient=False)
    resolving.report(table.findings)
    if not table.has("endpoint"):
        table.findings.add_warning(table.site, "has no 'endpoint', so nothing is traced")
    warn_of_plain_text(table, "endpoint", endpoint, secrets=bool(headers))
    program.warn_of_short(resolving.secrets, table)
    return TracesConfig(
        **settings,
        endpoint=endpoint or "",
        headers=headers,
        endpoint_written=written or "",
        headers_written=headers_written,
        referred=tuple(resolving.secrets),
    )


MODEL_CHARACTERS_MAX = 256
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 12 * 1024
"""Maximum bytes of all names and values together: common servers accept 16 KiB, and the gateway
adds some headers of its own."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE = re.compile(r"[\t -~]*")
_OF_THE_CONNECTION = frozenset({
    "connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers between two neighbours of a connection, not for the server (RFC 9110, 7.6.1)."""
_OF_THE_MESSAGE = frozenset({"accept", "accept-encoding", "last-event-id"})
_PREFIXES_OF_THE_MESSAGE = ("content-", "mcp-")
_SECRET = frozenset({"authorization", "cookie"})


def flaw(name: str) -> str:
    """Return why a header of this name cannot be sent, as the end of a sentence, or an empty
    string."""
    return "" if _TOKEN.fullmatch(name) else "is not the name of a header"


def explain_reserved_header(name: str) -> str:
    """Return why a user may not set this header, as the end of a sentence, or an empty string."""
    low = name.lower()
    if low == "host":
        return "follows from 'url'; leave it out"
    if low in _OF_THE_CONNECTION:
        return "belongs to the connection, which is the gateway's own; leave it out"
    if low in _OF_THE_MESSAGE or low.startswith(_PREFIXES_OF_THE_MESSAGE):
        return "is set by the gateway for each message; leave it out"
    return ""


def value_flaw(value: str) -> str:
    """Return the error in a value, as the end of a sentence that does not repeat the value, or an
    empty string.

    A line end in the value would begin another header.
    """
    if not _VALUE.fullmatch(value):
        return "has a character in it that no header can have; only printable ASCII is possible"
    if value != value.strip():
        return "begins or ends with a blank, as when what it refers to is empty"
    return ""


def is_secret(name: str) -> bool:
    """Whether a header is secret although its name does not look so to `masking`."""
    return name.lower() in _SECRET


KEYS = {"openai": "${env:OPENAI_API_KEY:-}", "anthropic": "${env:ANTHROPIC_API_KEY:-}"}
"""Key for `ai_api` without one, by provider: the variable that the provider's own clients use."""
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
    url, written = read_url(table, "url", resolving)
    key = table.text("key")
    token = None if key is None else resolving.value(key, table.site.at("key"))
    if token and not (token.isascii() and token.isprintable() and token.strip()):
        table.error("key", "has a character in it that no key has")
    if len(ai.model) > MODEL_CHARACTERS_MAX:
        table.error("model", f"is longer than {MODEL_CHARACTERS_MAX} characters")
    if key is not None:
        program.warn_of_literal("AI_KEY", key, table.site.at("key"), table)
    warn_of_plain_text(table, "url", url, secrets=bool(token))
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


_CODE_LIMITS = frozenset(CodeLimits.__struct_fields__)


def read_code(table: Table) -> CodeConfig:
    settings = table.settings()
    limits = {name: settings.pop(name) for name in _CODE_LIMITS & settings.keys()}
    return CodeConfig(enabled=True, limits=CodeLimits(**limits), **settings)


def code_of_endpoint(table: Table) -> Mapping[str, int]:
    """Return the limits of code in the table of an endpoint, by fields of `CodeLimits`."""
    inner = table.table("code", "endpoints.*.code")
    return {} if inner is None else inner.settings()


def code_limits(code: CodeConfig, endpoint: Endpoint) -> CodeLimits | None:
    """Return the limits at an endpoint; None without code mode."""
    return structs.replace(code.limits, **endpoint.code) if code.enabled else None


def check_code(
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
