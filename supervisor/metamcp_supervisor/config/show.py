"""The configuration in effect, written out as the tables of metamcp.toml, with secrets masked.

Owns: these tables, with every default filled in, and which settings are secrets. Never: printing,
reading files.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from msgspec import structs
from msgspec.structs import fields

from metamcp_supervisor.config import sandboxes
from metamcp_supervisor.config.config import (
    Config,
    Endpoint,
    GatewayConfig,
    MiddlewareConfig,
    ModelService,
    Namespace,
    Server,
    Tls,
    ToolConfig,
    Tools,
    TracesConfig,
    WorkflowFiles,
)
from metamcp_supervisor.config.document import table_of
from metamcp_supervisor.config.options import members, options_of
from metamcp_supervisor.config.tables import Kind, Option, Section, feature_tables
from metamcp_supervisor.config.units import duration_text, size_text
from metamcp_worker.ipc.process_names import DEFAULT
from metamcp_worker.ipc.spec import (
    CALLBACK_PORT,
    ConsentRule,
    IssuerSpec,
    OAuth,
    PolicySpec,
    UseLimits,
)
from metamcp_worker.runtime.masking import MASK, looks_secret

__all__ = (
    "MASK",
    "certain_secrets",
    "database_secrets",
    "looks_secret",
    "mask_arguments",
    "masked_url",
    "password",
    "secrets_of",
    "secrets_of_endpoints",
    "secrets_of_gateway",
    "secrets_of_model",
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


def secrets_of_gateway(gateway: GatewayConfig) -> tuple[str, ...]:
    """Return the secret values in the settings of the gateway."""
    of_store = database_secrets(gateway.store.url) if gateway.store else ()
    return tuple(filter(None, [*of_store, gateway.cluster_secret]))


def password(url: str) -> str:
    """Return the password in a URL of a database, as it stands there; empty without one."""
    address, _, query = url.partition("?")
    _, colon, secret = address.partition("://")[2].rpartition("@")[0].partition(":")
    named = dict(parse_qsl(query))
    return secret if colon else named.get("password", "")


def database_secrets(url: str) -> tuple[str, ...]:
    """Return the password in a URL of a database in each form that a log may have."""
    secret = password(url)
    return tuple(filter(None, [secret, unquote(secret)]))


def secrets_of_endpoints(endpoints: Iterable[Endpoint]) -> tuple[str, ...]:
    """Return the secret values in the settings of endpoints."""
    issuers = (endpoint.oauth for endpoint in endpoints)
    return tuple(
        issuer.client_secret for issuer in issuers if issuer is not None and issuer.client_secret
    )


def secrets_of_model(service: ModelService) -> tuple[str, ...]:
    """Return the secret values in the settings for a model."""
    return tuple(filter(None, [*service.referred, service.key, *_in_url(service.url)]))


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


def show(section: Section, record: object, **own: object) -> dict[str, object]:
    """Return the settings of a table as a user writes them. `record`: has them as members, or as
    keys; `own`: those that are not shown by their kind. None: not set."""
    in_mapping = table_of(record)
    table: dict[str, object] = {}
    for option, member in _in_order(section):
        if option.key in own:
            value = own[option.key]
        else:
            value = getattr(record, member, None) if in_mapping is None else in_mapping.get(member)
            value = None if option.if_set and not value else _as_written(option.kind, member, value)
        if value is not None:
            table[option.key] = value
    return table


def _as_written(kind: Kind, member: str, value: Any) -> object:
    if value is not None and kind == "duration":
        return duration_text(value / 1000 if member.endswith("_ms") else value)
    if value is not None and kind == "size":
        return size_text(value)
    return list(value) if isinstance(value, tuple) else value


@cache
def _in_order(section: Section) -> tuple[tuple[Option, str], ...]:
    """Return the options of a table in the order in which they are shown, with their members."""
    names = {option.key: member for option, member in members(section)}
    options = [option for option in options_of(section) if not option.after]
    for option in options_of(section):
        if option.after:
            before = [other.key for other in options].index(option.after)
            options.insert(before + 1, option)
    return tuple((option, names.get(option.key, "")) for option in options)


_TABLES: Mapping[str, Callable[[Any], object]] = {
    "log": lambda log: show("log", log, levels=dict(log.levels)),
    "recording": lambda recording: show("recording", recording),
    "audit": lambda audit: show("audit", audit),
    "code": lambda code: {
        **show("endpoints.*.code", structs.asdict(code.limits)),
        **show("code", code),
    },
    "middleware": lambda lines: list(map(_middleware, lines)),
    "consent": lambda consent: show("consent", consent, rules=list(map(_rule, consent.rules))),
    "ai": lambda ai: show("ai", ai, **show_service(ai)),
    "notify": lambda notify: {"command": list(mask_arguments(notify))},
    "hooks": lambda hooks: show("hooks", hooks, command=list(mask_arguments(hooks.command))),
    "metrics": lambda metrics: show("metrics", metrics),
    "traces": lambda traces: show("traces", traces, **_collector(traces)),
    "policies": lambda rules: list(map(_policy, rules)),
}
_ALWAYS = {"log", "recording", "audit", "metrics", "traces"}
"""Tables that are shown even if nothing in them differs from the defaults."""
_DEFAULTS = {each.name: each.default for each in fields(Config)}


def tables(config: Config) -> dict[str, object]:
    records = {name: getattr(config, name) for name in _TABLES}
    return {
        **_workflows(config.workflows),
        "gateway": _gateway(config.gateway),
        **{
            name: _TABLES[name](record)
            for name, record in records.items()
            if name in _ALWAYS or record != _DEFAULTS[name]
        },
        **_feature_tables(config),
        "servers": {
            name: server_table(each) for name, each in config.servers.items() if not each.mistake
        },
        "namespaces": {name: _namespace(each) for name, each in config.namespaces.items()},
        "endpoints": {name: _endpoint(each) for name, each in config.endpoints.items()},
    }


def _feature_tables(config: Config) -> dict[str, object]:
    records = {table: config.table(table.record) for table in feature_tables()}
    return {
        table.name: show(table.name, record) if table.show is None else table.show(record)
        for table, record in records.items()
        if table.always or record != table.record()
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
    listeners = {
        key: str(address)
        for key in ("listen", "ops_listen", "health_listen", "console_listen")
        if (address := getattr(gateway, key))
    }
    return show(
        "gateway",
        gateway,
        **listeners,
        auth=list(gateway.auth) or "none",
        tls=_tls(gateway.tls),
        socket=str(gateway.socket.path) if gateway.socket else None,
        state_dir=str(gateway.state_dir),
        runtime_dir=str(gateway.runtime_dir),
        store=masked_url(gateway.store.url_written) if gateway.store else None,
        cluster_secret=MASK if gateway.cluster_secret else None,
    )


def _middleware(line: MiddlewareConfig) -> dict[str, object]:
    return show(
        "middleware[]",
        line,
        name=line.name,
        uses=line.uses if line.uses != line.name else None,
        match=list(line.match),
        options=json.loads(line.options) or None,
    )


def _rule(rule: ConsentRule) -> dict[str, object]:
    return show("consent.rules[]", rule, match=list(rule.match))


def show_service(service: ModelService) -> dict[str, object]:
    return {
        "url": masked_url(service.url_written or service.url) or None,
        "model": service.model if service.url else None,
        "key": MASK if service.key else None,
    }


def _collector(traces: TracesConfig) -> dict[str, object]:
    endpoint = masked_url(traces.endpoint_written or traces.endpoint)
    return {"endpoint": endpoint or None, "headers": _mask_values(traces.headers)}


def _policy(rule: PolicySpec) -> dict[str, object]:
    """Return what is set of a rule, and its defaults."""
    table = structs.asdict(rule) | {"match": list(rule.match)}
    return {key: each for key, each in table.items() if each}


def server_table(server: Server) -> dict[str, object]:
    """Return a server as its table in the file would be."""
    extensions, ports = server.extensions, server.network
    needs = list(sandboxes.needs(server)) if server.command else None
    return show(
        "servers.*",
        server,
        **{"inherit_env": None, **_run_or_reached(server)},
        extensions=None if extensions is None else _of_json(extensions),
        memory_rlimit=None if server.memory_max is None else server.memory_rlimit,
        sandbox=sandboxes.profile(server) if server.command else None,
        needs=needs or None,
        worker=server.worker or None,
        network={"tcp_ports": list(ports)} if isinstance(ports, tuple) else ports,
        tools={name: _tool(tool) for name, tool in server.tools.items()},
        limits=use(server.limits) or None,
    )


def _of_json(texts: Mapping[str, str]) -> dict[str, object]:
    return {name: json.loads(text) for name, text in texts.items()}


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
    return show(
        "servers.*.tools.*",
        tool,
        name=tool.name,
        title=tool.title,
        description=tool.description,
        fixed=_of_json(tool.fixed) or None,
        defaults=_of_json(tool.defaults) or None,
    )


def _tls(tls: Tls | None) -> object:
    if tls is None:
        return "off"
    client_ca = {} if tls.client_ca is None else {"client_ca": str(tls.client_ca)}
    return {"cert": str(tls.cert), "key": str(tls.key), **client_ca}


def use(limits: UseLimits) -> dict[str, object]:
    """Return the limits of use that are set."""
    return show("endpoints.*.limits", limits)


def _issuer(issuer: IssuerSpec) -> dict[str, object]:
    """Return the settings for tokens that are set."""
    table: dict[str, object] = {
        key: list(value) if key == "scopes" else value
        for key, value in structs.asdict(issuer).items()
        if value
    }
    return table | ({"client_secret": MASK} if issuer.client_secret else {})


def _endpoint(endpoint: Endpoint) -> dict[str, object]:
    naming, issuer, results = endpoint.naming, endpoint.oauth, endpoint.results
    return show(
        "endpoints.*",
        endpoint,
        namespace=endpoint.namespace,
        path=endpoint.path or endpoint.name,
        view_scope=endpoint.scope,
        naming=show("endpoints.*.naming", naming, separator=naming.separator),
        auth=list(endpoint.auth) or "none",
        keys=list(endpoint.keys) or None,
        oauth=None if issuer is None else _issuer(issuer),
        limits=use(endpoint.limits),
        code=show("endpoints.*.code", endpoint.code) or None,
        builtins=list(endpoint.builtins) or None,
        results=None if results is None else show("endpoints.*.results", results),
        tools=_tools(endpoint.tools),
    )
