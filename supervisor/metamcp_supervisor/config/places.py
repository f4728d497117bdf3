"""The configuration that counts in a folder, its directories and ports, and the running gateways.

Owns: the order of the look-up, the directories of a configuration that names none, the pair of
ports that it had last, the list of running gateways. Never: the content of files
(`config.sources`), taking a directory (`runtime`), talking to a gateway (`control.client`).

    place = places.here()          place of the working directory
    place.runtime_dir              where its gateway is reached, whether it runs or not

A configuration without `state_dir` and `runtime_dir` has directories that are named after its path,
so that two projects never share them. The user's own file and the system's file have directories
with plain names.
"""

import contextlib
import hashlib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metamcp_supervisor import runtime

if TYPE_CHECKING:
    from metamcp_supervisor.config.config import GatewayConfig

VARIABLE = "METAMCP_CONFIG"
SYSTEM_FILE = Path("/etc/metamcp/metamcp.toml")
CLIENT_FILES = (".mcp.json", "mcp.json", ".cursor/mcp.json", ".vscode/mcp.json",
                 "claude_desktop_config.json", "servers.json", "config.json")  # fmt: skip
META_MCP_FILE = ".meta-mcp/config.json"
"""Path in the home directory of a configuration of meta-mcp, a program like this one."""
_ANYTHING = {"mcp.json", "servers.json", "config.json"}
"""Names that many programs use; a file of such a name counts only when its shape is known."""
_CLIENT_FOLDERS = (".codex", ".continue/mcpServers", ".cursor", ".gemini", ".kilocode",
                   ".kiro/settings", ".qwen", ".roo", ".vscode")  # fmt: skip
"""Folders of clients, which start servers in the folder above; relative paths start there."""

DIGITS = 12
"""Digits of the digest in the name of a directory."""
NAME_CHARACTERS = 24
"""Maximum characters of the folder's name in the name of its state directory, for people."""
PROJECTS = "projects"
"""Folder in the user's state directory that holds the state directories of projects."""
PORTS = "ports"
"""File in the state directory with the pair of ports that the gateway took last."""
FILE_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a configuration, the same as in `config.files`."""
SMALL_BYTES_MAX = 64 * 1024
"""Maximum bytes of files with a line or two."""


class ConfigPlace(NamedTuple):
    """Configuration and directories of a gateway. `config`: the main file, or None; `of_folder`:
    the file is neither the user's own nor the system's file."""

    config: Path | None
    state_dir: Path
    runtime_dir: Path
    of_folder: bool = False


class RunningGateway(NamedTuple):
    """Running gateway of this user. `config`: its main file, empty if not known."""

    runtime_dir: str
    config: str
    pid: str

    def __str__(self) -> str:
        who = f"{self.config or 'a gateway'} (pid {self.pid or '?'})"
        return f"{who}: --runtime-dir {self.runtime_dir}"


def find_place(named_path: Path | None = None) -> ConfigPlace:
    """Return the place of `named_path`, or of the file that `metamcp up` takes in this folder."""
    home = Path(os.path.expanduser("~"))
    return seen_from(Path.cwd(), named_path, environ=os.environ, home=home)


def seen_from(
    cwd: Path, named_path: Path | None = None, *, environ: Mapping[str, str], home: Path
) -> ConfigPlace:
    """Return the place of `named_path`, or of the file that `metamcp up` takes in `cwd`."""
    main = find(named_path, environ=environ, cwd=cwd, home=home)
    config_place = of(main, environ=environ, home=home)
    if main is None:
        return config_place
    chosen = runtime.read_environ_dir(environ) or _read_directory(
        main, "runtime_dir", environ, home
    )
    return config_place._replace(
        runtime_dir=Path(chosen or config_place.runtime_dir),
        of_folder=main not in (own_file(home), SYSTEM_FILE),
    )


def of(main: Path | None, *, environ: Mapping[str, str], home: Path) -> ConfigPlace:
    """Return the place of a main file, if neither a file nor a flag chooses other directories."""
    state, base = state_base(environ, home), runtime.default(environ)
    if main is None or main in (own_file(home), SYSTEM_FILE):
        return ConfigPlace(main, state, Path(base))
    named = Path(os.path.realpath(main.parent), main.name)
    digest = hashlib.sha256(os.fsencode(named)).hexdigest()[:DIGITS]
    if not _given_state(environ):
        name = folder_of(named).name.lower()[:NAME_CHARACTERS]
        word = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
        state = state / PROJECTS / f"{word or 'project'}-{digest}"
    return ConfigPlace(main, state, Path(runtime.read_environ_dir(environ) or f"{base}-{digest}"))


def state_base(environ: Mapping[str, str], home: Path) -> Path:
    """Return the state directory of the user, which no file in a folder can change."""
    if state_dir := _given_state(environ):
        return Path(state_dir)
    xdg = environ.get("XDG_STATE_HOME", "")  # a relative one does not count, by its specification
    return (Path(xdg) if os.path.isabs(xdg) else home / ".local/state") / "metamcp"


def earlier_state(state_dir: Path, home: Path) -> Path | None:
    """Return the state directory of an earlier version, if it has state that this project does not
    have yet; else None."""
    before = home / ".local/state/metamcp"
    if state_dir.exists() or state_dir.parent.name != PROJECTS or os.path.lexists(own_file(home)):
        return None
    return before if (before / "catalogue").is_dir() else None


def _given_state(environ: Mapping[str, str]) -> str:
    """Return the directory that systemd names in STATE_DIRECTORY (the first, if there are
    several), or an empty string."""
    return environ.get("STATE_DIRECTORY", "").partition(":")[0]


def service_state(main: Path | None, environ: Mapping[str, str], home: Path) -> Path | None:
    """Return the state directory of the service of the machine, if `main` is its file, this user is
    root, and the service has run; else None."""
    of_service = Path(runtime.SERVICE_STATE_DIR)
    if main != SYSTEM_FILE or os.geteuid() != 0 or not of_service.is_dir():
        return None
    return Path(_read_directory(main, "state_dir", environ, home) or of_service)


def _read_directory(main: Path, key: str, environ: Mapping[str, str], home: Path) -> str:
    """Return the directory `key` of [gateway] in this file; empty if it is not set or the file
    cannot be read."""
    if main.suffix != ".toml":
        return ""
    try:
        text = _small(main, FILE_BYTES_MAX)
        if key not in text:
            return ""
        import string
        import tomllib

        template = tomllib.loads(text).get("gateway", {}).get(key, "")
        path = string.Template(template).safe_substitute(environ)
    except (OSError, ValueError, AttributeError, TypeError):
        return ""
    expanded = f"{home}{path[1:]}" if path.startswith("~/") else path
    return os.path.join(main.parent, expanded) if path else ""


# The look-up


def find(
    named_path: Path | None = None,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    home: Path,
    system: Path = SYSTEM_FILE,
) -> Path | None:
    """Find the main file: `named_path`, then METAMCP_CONFIG, then metamcp.toml in the working
    directory, a file of an MCP client there that has servers, the user's own and the system's file;
    then any file of a client there; last META_MCP_FILE. A file that the user named is returned
    whether it exists or not."""
    named = named_path or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    if named is not None:
        return cwd / named
    if os.path.lexists(cwd / "metamcp.toml"):
        return cwd / "metamcp.toml"
    of_clients = [path for name in CLIENT_FILES if os.path.lexists(path := cwd / name)]
    for fallback in (own_file(home), system):
        if os.path.lexists(fallback):
            return next(filter(_has_servers, of_clients), fallback)
    for path in of_clients:
        if path.name not in _ANYTHING or _has_known_shape(path):
            return path
    path = home / META_MCP_FILE
    return path if os.path.lexists(path) and _has_known_shape(path) else None


def own_file(home: Path) -> Path:
    return home / ".config/metamcp/metamcp.toml"


def folder_of(main: Path) -> Path:
    """Return the folder of the project that a file belongs to."""
    for name in _CLIENT_FOLDERS:
        if main.parent.match(name):
            return main.parents[1 + name.count("/")]
    return main.parent


def _has_known_shape(path: Path) -> bool:
    return _entries(path) is not None


def _has_servers(path: Path) -> bool:
    """Whether a file of a client has a server that is not the way to a gateway of ours."""
    from metamcp_supervisor.config.document import list_of, table_of
    from metamcp_supervisor.config.program import is_bridge

    tables = [table for value in _entries(path) or () if (table := table_of(value)) is not None]
    return any(
        not is_bridge([str(each.get("command", "")), *map(str, list_of(each.get("args")) or ())])
        for each in tables
    )


def _entries(path: Path) -> "list[object] | None":
    """Return the values of the servers in a file; None if its shape is not known."""
    from metamcp_supervisor.config import client_shapes, files, formats
    from metamcp_supervisor.config.document import BrokenSyntax

    try:
        values = formats.json_loads(files.text(path))
    except (files.FileUnreadable, BrokenSyntax):
        return None
    locations = client_shapes.places(values, str(path), "") if values else None
    if locations is None:
        return None
    return [
        each.value for location in locations for each in client_shapes.entries_at(values, location)
    ]


# What there is


def ports(state_dir: Path) -> tuple[int, int] | None:
    """Return the pair of ports that this gateway took last without a setting, or None."""
    try:
        clients, ops = map(int, _small(state_dir / PORTS, SMALL_BYTES_MAX).split())
    except (OSError, ValueError):
        return None
    return (clients, ops) if all(0 < port < 65536 for port in (clients, ops)) else None


def client_port(gateway: "GatewayConfig") -> int:
    """Return the port where clients reach the gateway of this configuration; 0 if the port is known
    only after its start."""
    if "listen" not in gateway.movable:
        return gateway.listen.port
    last = ports(gateway.state_dir)
    return 0 if last is None else last[0]


def keep_ports(state_dir: Path, clients: int, ops: int) -> None:
    """Write the ports to a file for the next run, so that clients that know the URL find the same
    gateway. If the file cannot be written, the next run takes free ports again."""
    if ports(state_dir) != (clients, ops):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with (
            contextlib.suppress(OSError),
            open(os.open(state_dir / PORTS, flags, 0o600), "w") as file,
        ):
            file.write(f"{clients} {ops}\n")


def find_gateways(environ: Mapping[str, str]) -> list[RunningGateway]:
    """Return the gateways of this user that answer in a default runtime directory, and the service
    of the machine if this user may connect to it."""
    base = runtime.default(environ)
    folder, name = os.path.split(base)
    gateways: list[RunningGateway] = []
    with contextlib.suppress(OSError):
        for each in sorted(os.listdir(folder)):
            directory = os.path.join(folder, each)
            if (each == name or each.startswith(f"{name}-")) and answers(directory):
                pid, config = _holder(directory)
                gateways.append(RunningGateway(directory, config, pid))
    if base != runtime.SERVICE_DIR and answers(runtime.SERVICE_DIR, anybodys=True):
        pid, config = _holder(runtime.SERVICE_DIR)
        gateways.append(RunningGateway(runtime.SERVICE_DIR, config, pid))
    return gateways


def answers(directory: str, *, anybodys: bool = False) -> bool:
    """Whether a gateway listens in a directory: one of this user, or `anybodys`."""
    path = os.path.join(directory, runtime.SOCKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            if os.stat(path).st_uid != os.geteuid() and not anybodys:
                return False
            sock.connect(path)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def _holder(directory: str) -> tuple[str, str]:
    try:
        lines = _small(Path(directory, runtime.LOCK), SMALL_BYTES_MAX).splitlines()
    except (OSError, ValueError):
        lines = []
    pid, config, *_ = [*lines, "", ""]
    return pid, config


def _small(path: Path, limit_bytes: int) -> str:
    """Read the text of a small file. Raises OSError and ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(fd, "rb") as file:
        return file.read(limit_bytes).decode()
