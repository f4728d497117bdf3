"""What is in effect: a Config written out as the tables of metamcp.toml, secrets masked.

Owns: that form, with every default filled in. Never: printing, reading files.
"""

import json
from collections.abc import Mapping

from metamcp_supervisor.config.config import (
    Config,
    Embeddings,
    Endpoint,
    Gateway,
    Log,
    Namespace,
    OAuth,
    Recording,
    Server,
    Tool,
    Tools,
    Traces,
)
from metamcp_supervisor.config.masks import MASK, masked, masked_url
from metamcp_supervisor.config.units import duration_text, size_text


def tables(config: Config) -> dict[str, object]:
    return {
        "gateway": _gateway(config.gateway),
        "log": _log(config.log),
        "recording": _recording(config.recording),
        "metrics": {"per_tool": config.metrics.per_tool},
        "traces": _traces(config.traces),
        "embeddings": _embeddings(config.embeddings),
        "servers": {
            name: server_table(each) for name, each in config.servers.items() if not each.mistake
        },
        "namespaces": {name: _namespace(each) for name, each in config.namespaces.items()},
        "endpoints": {name: _endpoint(each) for name, each in config.endpoints.items()},
    }


def _gateway(gateway: Gateway) -> dict[str, object]:
    return {
        "listen": str(gateway.listen),
        "ops_listen": str(gateway.ops_listen),
        **({"health_listen": str(gateway.health_listen)} if gateway.health_listen else {}),
        "allowed_hosts": list(gateway.allowed_hosts),
        "fronts": gateway.fronts,
        "watch": gateway.watch,
        "state_dir": str(gateway.state_dir),
        "runtime_dir": str(gateway.runtime_dir),
        **({"drain_delay": duration_text(gateway.drain_delay_s)} if gateway.drain_delay_s else {}),
    }


def _log(log: Log) -> dict[str, object]:
    return {"format": log.format, "level": log.level, "levels": dict(log.levels)}


def _recording(recording: Recording) -> dict[str, object]:
    return {
        "calls": recording.calls,
        "file_max": size_text(recording.file_max),
        "files_max": recording.files_max,
        "body_max": size_text(recording.body_max),
    }


def _traces(traces: Traces) -> dict[str, object]:
    where = traces.endpoint_written or traces.endpoint
    return {
        **({"endpoint": masked_url(where)} if where else {}),
        "sample": traces.sample,
        "headers": _hidden(traces.headers),
    }


def _embeddings(embeddings: Embeddings) -> dict[str, object]:
    found: dict[str, object] = {}
    if embeddings.url:
        found["url"] = masked_url(embeddings.url_written or embeddings.url)
        found["model"] = embeddings.model
    if embeddings.key:
        found["key"] = MASK
    if embeddings.folder is not None:
        found["folder"] = str(embeddings.folder)
    return found | {
        "weight": embeddings.weight,
        "timeout": duration_text(embeddings.timeout_s),
        "batch": embeddings.batch,
    }


def server_table(server: Server) -> dict[str, object]:
    """One of them, as its table in the file would be."""
    return _run_or_reached(server) | {
        "enabled": server.enabled,
        "start": server.start,
        **({"idle_stop": duration_text(server.rest_s)} if server.idle_stop_s is not None else {}),
        "depends_on": list(server.depends_on),
        "sharing": server.sharing,
        "era": server.era,
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
        "stop_grace": duration_text(server.stop_grace_s),
        "probe_interval": duration_text(server.probe_interval_s),
        "hide_after": duration_text(server.hide_after_s),
        **({"strict_listing": server.strict_listing} if server.strict_listing is not None else {}),
        "concurrency": server.concurrency,
        "queue": server.queue,
        "message_max": size_text(server.message_max),
        **_limits(server),
    }


def _limits(server: Server) -> dict[str, object]:
    """Those that there are: no value of such a key means "no limit"."""
    found: dict[str, object] = {}
    if server.memory_max is not None:
        found |= {
            "memory_max": size_text(server.memory_max),
            "memory_rlimit": server.memory_rlimit,
        }
    if server.memory_high is not None:
        found["memory_high"] = size_text(server.memory_high)
    for key in ("cpu_max", "processes_max", "nofile_max"):
        if (value := getattr(server, key)) is not None:
            found[key] = value
    return found


def _run_or_reached(server: Server) -> dict[str, object]:
    """As the file has it: a reference says where a secret is, and not what it is."""
    if server.url is not None:
        return {
            "url": masked_url(server.url_written or server.url),
            "transport": server.transport,
            "headers": _hidden(server.headers),
            "oauth": _oauth(server.oauth_written),
        }
    place = {
        "env": _hidden(server.env),
        "inherit_env": list(server.inherit_env),
        "cwd": str(server.cwd),
    }
    if server.command:
        return {"command": list(masked(server.command_written)), **place}
    if server.module is not None:
        return {"module": server.module, **place}
    return {"transport": server.transport, "options": _hidden(server.options), **place}


def _hidden(values: Mapping[str, str]) -> dict[str, str]:
    return dict.fromkeys(values, MASK)


def _oauth(oauth: OAuth | None) -> bool | dict[str, object]:
    if oauth is None or oauth == OAuth():
        return oauth is not None
    found: dict[str, object] = {"grant": oauth.grant, "scopes": list(oauth.scopes)}
    if not oauth.require_pkce:
        found["require_pkce"] = False
    if oauth.client_id is not None:
        found["client_id"] = oauth.client_id
    if oauth.client_secret is not None:
        found["client_secret"] = MASK
    if oauth.client_metadata_url is not None:
        found["client_metadata_url"] = masked_url(oauth.client_metadata_url)
    return found


def _namespace(namespace: Namespace) -> dict[str, object]:
    return {
        "servers": list(namespace.servers),
        **({"description": namespace.description} if namespace.description else {}),
        "tools": _tools(namespace.tools),
    }


def _tools(found: Tools) -> dict[str, object]:
    return {
        f"{server}.{name}": _tool(tool)
        for server, tools in found.items()
        for name, tool in tools.items()
    }


def _tool(tool: Tool) -> dict[str, object]:
    """What is said of it, and nothing else."""
    found: dict[str, object] = {
        "enabled": tool.enabled,
        "hidden": tool.hidden,
        "name": tool.name,
        "aliases": None if tool.aliases is None else list(tool.aliases),
        "title": tool.title,
        "description": tool.description,
        "fixed": {name: json.loads(text) for name, text in tool.fixed.items()} or None,
        "defaults": {name: json.loads(text) for name, text in tool.defaults.items()} or None,
    }
    return {key: value for key, value in found.items() if value is not None}


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
        "auth": "none",
        "sse": endpoint.sse,
        "rest": endpoint.rest,
        "tools": _tools(endpoint.tools),
    }
