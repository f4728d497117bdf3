"""The configuration in effect, written out as the tables of metamcp.toml, with secrets masked.

Owns: these tables, with every default filled in, and which settings are secrets. Never: printing,
reading files.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from msgspec import structs

from metamcp_supervisor.config import (
    code_mode,
    consent_rules,
    middleware_tables,
    sandboxes,
)
from metamcp_supervisor.config.config import (
    AiConfig,
    AuditConfig,
    CodeConfig,
    Config,
    Embeddings,
    Endpoint,
    EngineConfig,
    GatewayConfig,
    Log,
    ModelService,
    Namespace,
    RecordingConfig,
    ResultsConfig,
    Server,
    Tls,
    ToolConfig,
    Tools,
    TracesConfig,
    WorkflowFiles,
)
from metamcp_supervisor.config.units import duration_text, size_text
from metamcp_worker.ipc.process_names import DEFAULT
from metamcp_worker.ipc.spec import (
    CALLBACK_PORT,
    UNLIMITED,
    IssuerSpec,
    OAuth,
    PolicySpec,
    UseLimits,
)
from metamcp_worker.runtime.masking import MASK, looks_secret

__all__ = (
    "MASK", "certain_secrets", "looks_secret", "mask_arguments", "masked_url", "secrets_of",
    "secrets_of_endpoints", "secrets_of_engine", "secrets_of_model",
    "secrets_of_traces",
)  # fmt: skip

_ASSIGNED = re.compile(r"(-{0,2}[\w-]{1,64})=(.+)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z][\w-]{0,63}")
_BEARER = re.compile(r"\b(Bearer|Basic) +(?!\$\{)\S+", re.IGNORECASE)
_USERINFO = re.compile(r"://[^/\s@]{1,256}@")
_PARAMETER = re.compile(r"([^&=]*)(=?)([^&]*)")
_OPAQUE = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9_.~=-]{20,}")
"""Part of a path that looks like a key: some services give out a key as part of a URL."""


def secrets_of(server: Server) -> tuple[str, ...]:
    """Return the values of a server's settings that must not be shown anywhere: `certain_secrets`,
    all headers, and the parts that `mask_arguments` and `masked_url` hide."""
    secrets = [
        *certain_secrets(server),
        *server.headers.values(),
        *_in_command(server.command),
        *(_in_url(server.url) if server.url is not None else ()),
    ]
    return tuple(dict.fromkeys(filter(None, secrets)))


def certain_secrets(server: Server) -> list[str]:
    """Return the values whose name or reference says that they are secrets."""
    client_secret = server.oauth.client_secret if server.oauth is not None else None
    named = [*_secret_values(server.env), *_secret_values(server.options), client_secret]
    return [*server.referred, *filter(None, named)]


def secrets_of_traces(traces: TracesConfig) -> tuple[str, ...]:
    """Return the secret values in the settings for spans."""
    secrets = [*traces.referred, *traces.headers.values(), *_in_url(traces.endpoint)]
    return tuple(filter(None, secrets))


def secrets_of_endpoints(endpoints: Iterable[Endpoint]) -> tuple[str, ...]:
    """Return the secret values in the settings of endpoints."""
    issuers = (endpoint.oauth for endpoint in endpoints)
    return tuple(
        issuer.client_secret for issuer in issuers if issuer is not None and issuer.client_secret
    )


def secrets_of_model(service: ModelService) -> tuple[str, ...]:
    """Return the secret values in the settings for a model."""
    return tuple(filter(None, [*service.referred, service.key, *_in_url(service.url)]))


def secrets_of_engine(engine: EngineConfig) -> tuple[str, ...]:
    """Return the secret values in the settings for runs of workflows."""
    secret = password(engine.database)
    return tuple(filter(None, [*engine.referred, secret, unquote(secret)]))


def password(url: str) -> str:
    """Return the password in a URL of a database, as it stands there; empty without one."""
    address, _, query = url.partition("?")
    _, colon, secret = address.partition("://")[2].rpartition("@")[0].partition(":")
    named = dict(parse_qsl(query))
    return secret if colon else named.get("password", "")


def _secret_values(values: Mapping[str, str]) -> Iterator[str]:
    return (value for name, value in values.items() if looks_secret(name))


def _in_command(command: Sequence[str]) -> Iterator[str]:
    named = False
    for argument in command:
        if named:
            yield argument
        elif (assigned := _ASSIGNED.fullmatch(argument)) and looks_secret(assigned[1]):
            yield assigned[2]
        named = bool(_FLAG.fullmatch(argument)) and looks_secret(argument)


def _in_url(url: str) -> Iterator[str]:
    address, _, query = url.partition("?")
    yield from filter(_OPAQUE.fullmatch, address.split("/")[3:])
    for each in query.split("&"):
        name, equals, value = each.partition("=")
        yield value if equals else name


def mask_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command as it may be shown: `--api-key x`, `TOKEN=x`, `Bearer x` and `://user:x@`
    lose their x. References stay: they are not secret, they only say where the secret is."""
    words: list[str] = []
    named = False
    for argument in arguments:
        hidden = named and not _is_reference(argument)
        words.append(MASK if hidden else _masked_inside(argument))
        named = bool(_FLAG.fullmatch(argument)) and looks_secret(argument)
    return tuple(words)


def masked_url(url: str) -> str:
    """Return a URL as it may be shown: values of its query, credentials, and parts of the path that
    look like keys are masked. References stay."""
    address, mark, query = _USERINFO.sub(f"://{MASK}@", url).partition("?")
    scheme, slashes, tail = address.rpartition("://")
    parts = tail.split("/")
    path = [MASK if _OPAQUE.fullmatch(segment) else segment for segment in parts[1:]]
    return scheme + slashes + "/".join([parts[0], *path]) + mark + _masked_query(query)


def _masked_query(query: str) -> str:
    def hide(match: re.Match[str]) -> str:
        name, equals, value = match.groups()
        if not equals:
            return name if not name or _is_reference(name) else MASK
        return f"{name}={value if not value or _is_reference(value) else MASK}"

    return "&".join(_PARAMETER.sub(hide, each, count=1) for each in query.split("&"))


def _masked_inside(argument: str) -> str:
    assigned = _ASSIGNED.fullmatch(argument)
    if assigned and looks_secret(assigned[1]) and not _is_reference(assigned[2]):
        return f"{assigned[1]}={MASK}"
    return _USERINFO.sub(f"://{MASK}@", _BEARER.sub(rf"\1 {MASK}", argument))


def _is_reference(text: str) -> bool:
    """Whether a text is a reference and nothing else. A reference with a default is not, because
    the default is a value."""
    return text.startswith("${") and text.endswith("}") and ":-" not in text


def tables(config: Config) -> dict[str, object]:
    return {
        **_workflows(config.workflows),
        "gateway": _gateway(config.gateway),
        "log": _log(config.log),
        "recording": _recording_table(config.recording),
        "audit": _audit(config.audit),
        **({"code": _code(config.code)} if config.code.enabled else {}),
        **middleware_tables.to_tables(config.middleware),
        **consent_rules.to_table(config.consent),
        **({"ai": _ai(config.ai)} if config.ai.url else {}),
        **({"engine": _engine(config.engine)} if config.engine != EngineConfig() else {}),
        **({"notify": {"command": list(mask_arguments(config.notify))}} if config.notify else {}),
        "metrics": {"per_tool": config.metrics.per_tool},
        "traces": _traces(config.traces),
        "embeddings": _embeddings(config.embeddings),
        **({"policies": list(map(_policy, config.policies))} if config.policies else {}),
        "servers": {
            name: server_table(each) for name, each in config.servers.items() if not each.mistake
        },
        "namespaces": {name: _namespace(each) for name, each in config.namespaces.items()},
        "endpoints": {name: _endpoint(each) for name, each in config.endpoints.items()},
    }


def find_changed_settings(
    config: Config, section: Literal["namespaces", "endpoints"], name: str
) -> dict[str, Any]:
    """Return the settings of a namespace or endpoint that differ from their defaults."""
    if section == "namespaces":
        return {k: v for k, v in _namespace(config.namespaces[name]).items() if v}
    endpoint = config.endpoints[name]
    bare = Endpoint(name=name, namespace="", auth=config.gateway.auth, exposure=endpoint.exposure)
    default = _endpoint(bare) | {"exposure": Endpoint(name="", namespace="").exposure}
    return {k: v for k, v in _endpoint(endpoint).items() if v != default.get(k)}


def _workflows(files: WorkflowFiles) -> dict[str, object]:
    own = {name: list(paths) for name, paths in files.paths.items()}
    top = own.pop(DEFAULT, [])
    rules = {"rules": list(files.rule_paths), "shipped": files.rules_shipped}
    return {
        **({"workflows": top} if top else {}),
        **(
            {"workspaces": {name: {"workflows": each} for name, each in own.items()}} if own else {}
        ),
        **({"suggestions": rules} if files.rule_paths or files.rules_shipped else {}),
    }


def _gateway(gateway: GatewayConfig) -> dict[str, object]:
    return {
        "listen": str(gateway.listen),
        "auth": list(gateway.auth) or "none",
        "tls": _tls(gateway.tls),
        "behind_proxy": gateway.behind_proxy,
        "ops_listen": str(gateway.ops_listen),
        **({"health_listen": str(gateway.health_listen)} if gateway.health_listen else {}),
        **({"console_listen": str(gateway.console_listen)} if gateway.console_listen else {}),
        **({"socket": str(gateway.socket.path)} if gateway.socket else {}),
        "allowed_hosts": list(gateway.allowed_hosts),
        "fronts": gateway.fronts,
        "watch": gateway.watch,
        "state_dir": str(gateway.state_dir),
        "runtime_dir": str(gateway.runtime_dir),
        **({"drain_delay": duration_text(gateway.drain_delay_s)} if gateway.drain_delay_s else {}),
    }


def _code(code: CodeConfig) -> dict[str, object]:
    return {
        **code_mode.to_table(structs.asdict(code.limits)),
        **({"runs_max": code.runs_max} if code.runs_max else {}),
        "warm": code.warm,
        "idle": duration_text(code.idle_s),
        "jit": code.jit,
        "confinement": code.confinement,
    }


def _ai(ai: AiConfig) -> dict[str, object]:
    return {
        "provider": ai.provider,
        "url": masked_url(ai.url_written or ai.url),
        "model": ai.model,
        **({"key": MASK} if ai.key else {}),
        "steps_max": ai.steps_max,
        "tokens_max": ai.tokens_max,
        "timeout": duration_text(ai.timeout_s),
        "answer_tokens_max": ai.answer_tokens_max,
        "consent": ai.consent,
        **{
            key: getattr(ai, key)
            for key in ("cost_max", "input_price", "output_price")
            if getattr(ai, key)
        },
    }


def _engine(engine: EngineConfig) -> dict[str, object]:
    keep = duration_text(engine.keep_s)
    url = masked_url(engine.database_written or engine.database)
    database = {"database": url} if url else {}
    return {**database, "keep": keep, "sync": engine.sync, "runs_max": engine.runs_max}


def _log(log: Log) -> dict[str, object]:
    return {"format": log.format, "level": log.level, "levels": dict(log.levels)}


def _recording_table(recording: RecordingConfig) -> dict[str, object]:
    return {
        "calls": recording.calls,
        "file_max": size_text(recording.file_max),
        "files_max": recording.files_max,
        "body_max": size_text(recording.body_max),
    }


def _audit(audit: AuditConfig) -> dict[str, object]:
    return {
        "level": audit.level,
        "durability": audit.durability,
        "required": audit.required,
        "retention": duration_text(audit.retention_s),
    }


def _traces(traces: TracesConfig) -> dict[str, object]:
    endpoint = traces.endpoint_written or traces.endpoint
    return {
        **({"endpoint": masked_url(endpoint)} if endpoint else {}),
        "sample": traces.sample,
        "headers": _mask_values(traces.headers),
    }


def _policy(rule: PolicySpec) -> dict[str, object]:
    """Return what is set of a rule, and its defaults."""
    table = structs.asdict(rule) | {"match": list(rule.match)}
    return {key: each for key, each in table.items() if each}


def _embeddings(embeddings: Embeddings) -> dict[str, object]:
    table: dict[str, object] = {}
    if embeddings.url:
        table["url"] = masked_url(embeddings.url_written or embeddings.url)
        table["model"] = embeddings.model
    if embeddings.key:
        table["key"] = MASK
    if embeddings.folder is not None:
        table["folder"] = str(embeddings.folder)
    return table | {
        "weight": embeddings.weight,
        "timeout": duration_text(embeddings.timeout_s),
        "batch": embeddings.batch,
    }


def _extensions(server: Server) -> dict[str, object]:
    if server.extensions is None:
        return {}
    return {"extensions": {name: json.loads(text) for name, text in server.extensions.items()}}


def server_table(server: Server) -> dict[str, object]:
    """Return a server as its table in the file would be."""
    return _run_or_reached(server) | {
        "enabled": server.enabled,
        "start": server.start,
        **({"idle_stop": duration_text(server.rest_s)} if server.idle_stop_s is not None else {}),
        "depends_on": list(server.depends_on),
        "sharing": server.sharing,
        "era": server.era,
        **({"protocol": server.protocol} if server.protocol is not None else {}),
        **_extensions(server),
        "spares": server.spares,
        "required": server.required,
        **({"recording": server.recording} if server.recording is not None else {}),
        **({"pinning": server.pinning} if server.pinning is not None else {}),
        "tools": {name: _tool(tool) for name, tool in server.tools.items()},
        "restart": server.restart,
        "restarts_max": server.restarts_max,
        "restart_window": duration_text(server.restart_window_s),
        "restart_delay_max": duration_text(server.restart_delay_max_s),
        "retry": server.retry,
        "start_timeout": duration_text(server.start_timeout_s),
        "timeout": duration_text(server.timeout_s),
        "timeout_max": duration_text(server.timeout_max_s),
        "list_timeout": duration_text(server.list_timeout_s),
        "stop_grace": duration_text(server.stop_grace_s),
        "probe_interval": duration_text(server.probe_interval_s),
        "hide_after": duration_text(server.hide_after_s),
        **({"trust_annotations": True} if server.trust_annotations else {}),
        **({"strict_listing": server.strict_listing} if server.strict_listing is not None else {}),
        "concurrency": server.concurrency,
        "queue": server.queue,
        "message_max": size_text(server.message_max),
        **_limits(server),
        **_sandbox(server),
        **({"limits": use(server.limits)} if server.limits != UNLIMITED else {}),
    }


def _limits(server: Server) -> dict[str, object]:
    """Return the limits that are set: these keys have no value that means "no limit"."""
    table: dict[str, object] = {}
    if server.memory_max is not None:
        table |= {
            "memory_max": size_text(server.memory_max),
            "memory_rlimit": server.memory_rlimit,
        }
    if server.memory_high is not None:
        table["memory_high"] = size_text(server.memory_high)
    for key in ("cpu_max", "processes_max", "nofile_max"):
        if (value := getattr(server, key)) is not None:
            table[key] = value
    return table


def _sandbox(server: Server) -> dict[str, object]:
    """Return the keys of confinement that have an effect."""
    if not server.command:
        return {}
    table: dict[str, object] = {"sandbox": sandboxes.profile(server)}
    if server.sandbox_required:
        table["sandbox_required"] = True
    paths = ("read", "write", "unix_sockets")
    table |= {key: list(each) for key in paths if (each := getattr(server, key))}
    if server.disk_max is not None:
        table["disk_max"] = size_text(server.disk_max)
    if names := sandboxes.needs(server):
        table["needs"] = list(names)
    if server.network is not None:
        ports = server.network
        table["network"] = ports if isinstance(ports, str) else {"tcp_ports": list(ports)}
    return table


def _run_or_reached(server: Server) -> dict[str, object]:
    """Return the program or URL as written in the file: a reference shows where a secret is, and
    not its value."""
    if server.url is not None:
        return {
            "url": masked_url(server.url_written or server.url),
            "transport": server.transport,
            "headers": _mask_values(server.headers),
            "oauth": _oauth(server.oauth_written),
        }
    context = {
        "env": _mask_values(server.env),
        "inherit_env": list(server.inherit_env),
        "cwd": str(server.cwd),
    }
    if server.command:
        return {"command": list(mask_arguments(server.command_written)), **context}
    if server.module is not None:
        return {"module": server.module, **context}
    return {"transport": server.transport, "options": _mask_values(server.options), **context}


def _mask_values(values: Mapping[str, str]) -> dict[str, str]:
    return dict.fromkeys(values, MASK)


def _oauth(oauth: OAuth | None) -> bool | dict[str, object]:
    if oauth is None or oauth == OAuth():
        return oauth is not None
    table: dict[str, object] = {"grant": oauth.grant, "scopes": list(oauth.scopes)}
    if oauth.callback_port != CALLBACK_PORT:
        table["callback_port"] = oauth.callback_port
    if not oauth.require_pkce:
        table["require_pkce"] = False
    if oauth.client_id is not None:
        table["client_id"] = oauth.client_id
    if oauth.client_secret is not None:
        table["client_secret"] = MASK
    if oauth.client_metadata_url is not None:
        table["client_metadata_url"] = masked_url(oauth.client_metadata_url)
    return table


def _namespace(namespace: Namespace) -> dict[str, object]:
    return {
        "servers": list(namespace.servers),
        **({"description": namespace.description} if namespace.description else {}),
        "tools": _tools(namespace.tools),
    }


def _tools(by_server: Tools) -> dict[str, object]:
    return {
        f"{server}.{name}": _tool(tool)
        for server, tools in by_server.items()
        for name, tool in tools.items()
    }


def _tool(tool: ToolConfig) -> dict[str, object]:
    """Return the settings of a tool that are set."""
    table: dict[str, object] = {
        "enabled": tool.enabled,
        "hidden": tool.hidden,
        "name": tool.name,
        "aliases": None if tool.aliases is None else list(tool.aliases),
        "title": tool.title,
        "description": tool.description,
        "fixed": {name: json.loads(text) for name, text in tool.fixed.items()} or None,
        "defaults": {name: json.loads(text) for name, text in tool.defaults.items()} or None,
    }
    return {key: value for key, value in table.items() if value is not None}


def _tls(tls: Tls | None) -> object:
    if tls is None:
        return "off"
    client_ca = {} if tls.client_ca is None else {"client_ca": str(tls.client_ca)}
    return {"cert": str(tls.cert), "key": str(tls.key), **client_ca}


def use(limits: UseLimits) -> dict[str, object]:
    """Return the limits of use that are set."""
    table: dict[str, object] = {
        key: value for key, value in structs.asdict(limits).items() if value
    }
    return table | ({"body_max": size_text(limits.body_max)} if limits.body_max else {})


def _issuer(issuer: IssuerSpec) -> dict[str, object]:
    """Return the settings for tokens that are set."""
    table: dict[str, object] = {
        key: list(value) if key == "scopes" else value
        for key, value in structs.asdict(issuer).items()
        if value
    }
    return table | ({"client_secret": MASK} if issuer.client_secret else {})


def _results(results: ResultsConfig) -> dict[str, object]:
    return {
        "max": size_text(results.max_bytes),
        "keep": duration_text(results.keep_s),
        "total": size_text(results.total_bytes),
    }


def _endpoint(endpoint: Endpoint) -> dict[str, object]:
    naming = endpoint.naming
    return {
        "namespace": endpoint.namespace,
        "path": endpoint.path or endpoint.name,
        "exposure": endpoint.exposure,
        "view_scope": endpoint.scope,
        "call_hidden": endpoint.call_hidden,
        "naming": {
            "style": naming.style,
            "separator": naming.separator,
            "hyphens": naming.hyphens,
            "length_max": naming.length_max,
        },
        "schemas": endpoint.schemas,
        "auth": list(endpoint.auth) or "none",
        **({"keys": list(endpoint.keys)} if endpoint.keys else {}),
        "url_keys": endpoint.url_keys,
        **({} if endpoint.oauth is None else {"oauth": _issuer(endpoint.oauth)}),
        "sse": endpoint.sse,
        "rest": endpoint.rest,
        "limits": use(endpoint.limits),
        **({"code": code_mode.to_table(endpoint.code)} if endpoint.code else {}),
        **({"builtins": list(endpoint.builtins)} if endpoint.builtins else {}),
        **({} if endpoint.results is None else {"results": _results(endpoint.results)}),
        "tools": _tools(endpoint.tools),
    }
