"""Servers that are started through `npx` or `uvx`: what the direct command is.

Owns: reading such a command, and looking for its package where these tools keep them. Never:
starting or installing anything.

A wrapper stays alive beside the server, with a shell between them: about 40 MB and two processes
more for each server, and a start that takes twice as long.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from metamcp_supervisor.cli.finding import Finding
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.document import table_of
from metamcp_worker.ipc import codec

MANIFEST_BYTES_MAX = 1024 * 1024
"""Of a package.json; a larger one is none."""
#: Options with a value, of which the value is the package; and those that stand alone.
_PACKAGE = {"npx": ("-p", "--package"), "uvx": ("--from",)}
_ALONE = ("-y", "--yes", "-q", "--quiet", "--no", "--offline")


class Wrapped(Struct, frozen=True):
    """`package`: with version, as it is written; `program`: what of it is run."""

    tool: str
    package: str
    program: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The package without its version: `@scope/name@1.2` is `@scope/name`."""
        mark = "@" if self.tool == "npx" else "="
        at = self.package.find(mark, 1)
        name = self.package if at < 0 else self.package[:at]
        return name.partition("@")[0] if self.tool == "uvx" else name

    @property
    def version(self) -> str:
        at = self.package.find("@", 1)
        return "" if at < 0 else self.package[at + 1 :]


def wrapped(command: Sequence[str]) -> Wrapped | None:
    """What a command with a wrapper runs; None for one without, or one that is not understood."""
    tool = os.path.basename(command[0]) if command else ""
    if tool not in _PACKAGE:
        return None
    package, at = "", 1
    while at < len(command) and command[at].startswith("-"):
        option, equals, value = command[at].partition("=")
        if option in _PACKAGE[tool]:
            if not equals and at + 1 < len(command):
                at += 1
                value = command[at]
            package = value
        elif option not in _ALONE:
            return None
        at += 1
    if at >= len(command):
        return None
    program, arguments = command[at], tuple(command[at + 1 :])
    return Wrapped(tool, package or program, program if package else "", arguments)


def direct(found: Wrapped, environ: Mapping[str, str], home: Path) -> list[str] | None:
    """The command without the wrapper, if the package is there already."""
    if found.tool == "uvx":
        data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
        tools = Path(environ.get("UV_TOOL_DIR") or data / "uv/tools")
        program = tools / found.name / "bin" / (found.program or found.name)
        return [str(program), *found.arguments] if os.access(program, os.X_OK) else None
    cache = Path(environ.get("npm_config_cache") or home / ".npm")
    for folder in sorted((cache / "_npx").glob("*/node_modules"), key=_age):
        if (script := _script(folder / found.name, found)) is not None:
            return ["node", str(script), *found.arguments]
    return None


def advice(servers: Iterable[Server], environ: Mapping[str, str], home: Path) -> list[Finding]:
    """One finding for each server behind a wrapper."""
    findings: list[Finding] = []
    for server in servers:
        # As the file has it: what a reference stands for may be secret.
        found = wrapped(server.command_written or server.command)
        if found is None:
            continue
        text = f"{server.name} runs through {found.tool}: about 40 MB and 2 processes more"
        straight = direct(found, environ, home)
        if straight is not None:
            what = f"command = {codec.dump(straight).decode()}"
        elif found.tool == "npx":
            program = found.program or found.name.rpartition("/")[2]
            what = f"'npm install -g {found.package}', then command = [\"{program}\", …]"
        else:
            program = found.program or found.name
            package = shlex.quote(found.package)
            what = f"'uv tool install {package}', then command = [\"{program}\", …]"
        findings.append(Finding("wrapper", "warn", text, what))
    return findings


def _script(package: Path, found: Wrapped) -> Path | None:
    """What `node` runs, if this is the package in the version that is wanted."""
    manifest = package / "package.json"
    try:
        if manifest.stat().st_size > MANIFEST_BYTES_MAX:
            return None
        read = table_of(codec.value(manifest.read_bytes())) or {}
    except (OSError, codec.Malformed):
        return None
    exact = found.version[:1].isdigit()
    if exact and read.get("version") != found.version:
        return None
    programs = read.get("bin")
    if (several := table_of(programs)) is not None:
        wanted = found.program or found.name.rpartition("/")[2]
        only = next(iter(several.values())) if len(several) == 1 else ""
        programs = several.get(wanted) or only
    if not isinstance(programs, str) or not programs:
        return None
    script = package / programs
    return script if script.is_file() else None


def _age(path: Path) -> float:
    """The newest first."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0
