"""The content of entries in clients' files: our own entry, and those of other servers.

Owns: the keys of each client's shape, for reading and writing, how our entry is recognized, and the
command in it. Never: text (`json_edit`, `toml_edit`, `yaml_edit`), the places of entries
(`clients`).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from urllib.parse import urlsplit

from metamcp_supervisor.client_files.clients import FileFormat, Platform, Shape
from metamcp_supervisor.config.document import list_of, table_of
from metamcp_supervisor.config.program import is_bridge

DEFAULT_ORIGIN = "http://127.0.0.1:6270"
"""Origin of a gateway whose configuration does not set another one."""
DESKTOP_PATH: Mapping[Platform, tuple[str, ...]] = {
    "linux": ("/usr/local/bin", "/usr/bin", "/bin"),
    "darwin": ("/usr/bin", "/bin"),
}
"""Folders in which every desktop program finds commands, no matter how it was started."""
GOOSE_TIMEOUT_S = 300
_NOT_STARTED = ("builtin", "platform", "frontend", "inline_python")
"""Types of goose extensions that are parts of goose itself."""
_ABOUT = "Every MCP server of this machine, behind one endpoint"
_PASSING = re.compile(r"/(?:uv/archive-v\d+|\.cache/uv|Caches/uv|pipx/\.cache)/")
"""Folders from which tools run a program once, and which they clean up later."""
_OUR_PATH = re.compile(r"/mcp|/metamcp/[^/]+/mcp")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_ADDRESSES = ("url", "httpUrl", "serverUrl", "uri")
_COMPELLED = {"type", "command", "args", "cmd", *_ADDRESSES}
"""Keys that say where an entry leads; all other keys in our entry belong to the user."""
_KINDS: Mapping[str, str] = {
    "http": "http", "streamable-http": "http", "streamablehttp": "http", "streamable_http": "http",
    "sse": "sse",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientServer:
    """Server in a client's file. `words`: its command; `url`, `transport` (auto, http, sse): of a
    remote server. Values are as they are written in the file."""

    name: str
    words: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str = ""
    url: str = ""
    transport: str = "auto"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    enabled: bool = True


def command(
    script: str, *, platform: Platform, shared: bool, uvx: str | None, module: Sequence[str]
) -> tuple[str, ...]:
    """Return the command with which a client starts `metamcp`. `script`: path of the installed
    script, empty without one; `shared`: the file is for other machines too; `uvx`: its path, if it
    is installed; `module`: command that starts this installation without a script."""
    if shared:
        return ("metamcp",)
    if script and _PASSING.search(script) and uvx:
        return (uvx, "metamcp")
    if not script:
        return tuple(module)
    if str(PurePath(script).parent) in DESKTOP_PATH[platform]:
        return ("metamcp",)
    return (script,)


def entry(
    shape: Shape, name: str, *, words: Sequence[str] = (), url: str = ""
) -> dict[str, object]:
    """Return our entry in the shape of a client: for the command `words`, or for `url`."""
    program, args = (words[0], list(words[1:])) if words else ("", [])
    started: dict[str, object] = {"command": program, "args": args}
    if shape == "goose":
        leads: dict[str, object] = {"cmd": program, "args": args} if words else {"uri": url}
        return {
            "enabled": True,
            "type": "stdio" if words else "streamable_http",
            "name": name,
            "description": _ABOUT,
            **leads,
            "timeout": GOOSE_TIMEOUT_S,
        }
    if shape == "continue":
        far: dict[str, object] = {"type": "streamable-http", "url": url}
        return {"name": name, **({"type": "stdio", **started} if words else far)}
    if shape == "opencode":
        return (
            {"type": "local", "command": list(words)} if words else {"type": "remote", "url": url}
        )
    if shape in ("claude", "vscode"):
        return {"type": "stdio", **started} if words else {"type": "http", "url": url}
    if shape == "zed":
        return (
            {"source": "custom", **started, "env": {}}
            if words
            else {"source": "custom", "url": url}
        )
    if words:
        return started
    if shape == "cline":
        return {"type": "streamableHttp", "url": url}
    return {{"windsurf": "serverUrl", "gemini": "httpUrl"}.get(shape, "url"): url}


def can_http(shape: Shape) -> bool:
    """Whether an entry of this shape can have a URL."""
    return shape != "desktop"


def renewed(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return our entry with the user's additions and changes, but leading where `new` leads."""
    kept = {key: value for key, value in old.items() if key not in _COMPELLED}
    ahead = {key: value for key, value in new.items() if key in _COMPELLED or key not in kept}
    if set(ahead) | set(kept) == set(old):
        return {key: ahead.get(key, kept.get(key)) for key in old}  # in the order they stand in
    return {**ahead, **kept}


def found(name: str, values: Mapping[str, object]) -> ClientServer:
    """Read an entry of any shape."""
    program = values.get("command", values.get("cmd"))
    table = table_of(program)  # an older form of Zed
    if table is not None:
        values, program = {**values, **table}, table.get("path")
    words = _texts(program)
    if isinstance(program, str) and program:
        words = (program, *_texts(values.get("args")))
    address = next((key for key in _ADDRESSES if isinstance(values.get(key), str)), "")
    kind = next((v for key in ("type", "transport") if isinstance(v := values.get(key), str)), "")
    transport = "http" if address == "httpUrl" else _KINDS.get(kind.lower(), "auto")
    env = table_of(values.get("env", values.get("envs", values.get("environment"))))
    cwd = values.get("cwd")
    asked = table_of(values.get("requestOptions")) or values  # Continue has its headers there
    headers = dict(_strings(table_of(asked.get("headers", values.get("http_headers"))) or {}))
    for header, variable in _strings(table_of(values.get("env_http_headers")) or {}).items():
        headers[header] = f"${{env:{variable}}}"
    if isinstance(token := values.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{env:{token}}}"
    return ClientServer(
        name,
        words=words,
        env={**_by_name(values), **_strings(env or {})},
        cwd=cwd if isinstance(cwd, str) else "",
        url="" if words or not address else str(values[address]),
        transport=transport,
        headers=headers,
        enabled=values.get("enabled") is not False and values.get("disabled") is not True,
    )


def is_ours(server: ClientServer, origins: Collection[str]) -> bool:
    """Whether an entry leads to this gateway. `origins`: of the gateway, as
    `http://127.0.0.1:6270`."""
    if is_bridge(server.words):
        return True
    if not server.url:
        return False
    try:
        place = urlsplit(server.url)
        local = place.hostname in _LOOPBACK
    except ValueError:
        return False
    return (
        local
        and f"{place.scheme}://{place.netloc}" in origins
        and bool(_OUR_PATH.fullmatch(place.path))
    )


def servers(kept: FileFormat, values: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """Return the entries of servers among `values`, the values at `kept.place` by name."""
    tables = {name: table_of(value) for name, value in values.items()}
    return {
        name: table
        for name, table in tables.items()
        if table is not None and not (kept.shape == "goose" and table.get("type") in _NOT_STARTED)
    }


def _by_name(values: Mapping[str, object]) -> dict[str, str]:
    """Return references to variables that an entry lists by name only: Codex takes their values
    from its environment, goose from its keyring."""
    listed = (*_texts(values.get("env_keys")), *_texts(values.get("env_vars")))
    return {name: f"${{env:{name}}}" for name in listed}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in list_of(value) or () if isinstance(item, str | int | float))


def _strings(values: Mapping[str, object]) -> dict[str, str]:
    return {
        str(name): value if isinstance(value, str) else str(value).lower() if value in (True, False)
        else str(value)
        for name, value in values.items()
        if isinstance(value, str | int | float)
    }  # fmt: skip
