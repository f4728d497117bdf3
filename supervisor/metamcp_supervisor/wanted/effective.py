"""What is in effect: a Config written out as the tables of metamcp.toml, secrets masked.

Owns: that form, with every default filled in. Never: printing, reading files.
"""

from metamcp_supervisor.wanted.config import Config, Endpoint, Gateway, Namespace, Server
from metamcp_supervisor.wanted.masks import MASK, masked
from metamcp_supervisor.wanted.units import duration_text


def tables(config: Config) -> dict[str, object]:
    return {
        "gateway": _gateway(config.gateway),
        "servers": {name: _server(each) for name, each in config.servers.items()},
        "namespaces": {name: _namespace(each) for name, each in config.namespaces.items()},
        "endpoints": {name: _endpoint(each) for name, each in config.endpoints.items()},
    }


def _gateway(gateway: Gateway) -> dict[str, object]:
    return {
        "listen": str(gateway.listen),
        "ops_listen": str(gateway.ops_listen),
        "fronts": gateway.fronts,
        "state_dir": str(gateway.state_dir),
        "runtime_dir": str(gateway.runtime_dir),
    }


def _server(server: Server) -> dict[str, object]:
    """The command as the file has it: a reference says where a secret is, and not what it is."""
    program: dict[str, object] = (
        {"command": list(masked(server.command_written))}
        if server.module is None
        else {"module": server.module}
    )
    return program | {
        "env": dict.fromkeys(server.env, MASK),
        "cwd": str(server.cwd),
        "enabled": server.enabled,
        "start": "eager",
        "required": server.required,
        "restart": server.restart,
        "start_timeout": duration_text(server.start_timeout_s),
        "timeout": duration_text(server.timeout_s),
        "stop_grace": duration_text(server.stop_grace_s),
        "hide_after": duration_text(server.hide_after_s),
        "strict_listing": server.strict_listing,
        "concurrency": server.concurrency,
        "queue": server.queue,
    }


def _namespace(namespace: Namespace) -> dict[str, object]:
    return {
        "servers": list(namespace.servers),
        "tools": {f"{server}.{tool}": {"enabled": False} for server, tool in namespace.disabled},
    }


def _endpoint(endpoint: Endpoint) -> dict[str, object]:
    naming = endpoint.naming
    return {
        "namespace": endpoint.namespace,
        "exposure": "all",
        "naming": {
            "style": naming.style,
            "separator": naming.separator,
            "hyphens": naming.hyphens,
            "length_max": naming.length_max,
        },
        "auth": "none",
    }
