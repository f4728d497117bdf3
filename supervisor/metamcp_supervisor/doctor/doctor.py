"""`metamcp ctl doctor`: find what on this machine hinders a gateway, running or not.

Owns: the choice of the checks, their output, the direct command of a server that `npx` or `uvx`
starts, and which upgrade notes concern a configuration. Never: the other checks (`doctor_checks`),
the notes themselves (a file beside this package).

A wrapper stays alive beside its server, with a shell between them: about 40 MB and two processes
more for each server, and a start that takes twice as long.
"""

import contextlib
import os
import re
import shlex
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor import VERSION, verbs
from metamcp_supervisor.cli import show
from metamcp_supervisor.cli.ctl import json_option, typed_value
from metamcp_supervisor.cli.errors import Command, CommandRefused
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.config import files
from metamcp_supervisor.config.config import Config, ConfigInvalid, Problem, Server
from metamcp_supervisor.config.document import list_of, shorten, table_of
from metamcp_supervisor.config.formats import toml_loads
from metamcp_supervisor.config.sources import load
from metamcp_supervisor.control import client
from metamcp_supervisor.control.config_orders import SettingsShown
from metamcp_supervisor.doctor import doctor_checks, doctor_security
from metamcp_supervisor.doctor.doctor_checks import DoctorFinding
from metamcp_supervisor.processes import limits
from metamcp_worker.ipc import codec

MANIFEST_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a package.json; a larger file is ignored."""
#: Options whose value is the package; and options without a value.
_PACKAGE = {"npx": ("-p", "--package"), "uvx": ("--from",)}
_ALONE = ("-y", "--yes", "-q", "--quiet", "--no", "--offline")

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)[.-]?((?:dev|a|b|rc)\d*)?")
NAMED_MAX = 5
"""Maximum number of places that a finding names; the rest is counted."""


class WrappedCommand(Struct, frozen=True):
    """Command behind a wrapper. `package`: with version, as written; `program`: the program of the
    package, empty if it is not named."""

    tool: str
    package: str
    program: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Package without its version: `@scope/name@1.2` is `@scope/name`."""
        mark = "@" if self.tool == "npx" else "="
        at = self.package.find(mark, 1)
        name = self.package if at < 0 else self.package[:at]
        return name.partition("@")[0] if self.tool == "uvx" else name

    @property
    def version(self) -> str:
        at = self.package.find("@", 1)
        return "" if at < 0 else self.package[at + 1 :]


def parse_wrapper(command: Sequence[str]) -> WrappedCommand | None:
    """Return what runs behind the wrapper of a command; None for a command without a wrapper, or
    with options that are not understood."""
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
    return WrappedCommand(tool, package or program, program if package else "", arguments)


def direct(command: WrappedCommand, environ: Mapping[str, str], home: Path) -> list[str] | None:
    """Return the command without the wrapper, if the package is already on this machine."""
    if command.tool == "uvx":
        data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
        tools = Path(environ.get("UV_TOOL_DIR") or data / "uv/tools")
        program = tools / command.name / "bin" / (command.program or command.name)
        return [str(program), *command.arguments] if os.access(program, os.X_OK) else None
    cache = Path(environ.get("npm_config_cache") or home / ".npm")
    for folder in sorted((cache / "_npx").glob("*/node_modules"), key=_age):
        if (script := _script(folder / command.name, command)) is not None:
            return ["node", str(script), *command.arguments]
    return None


def advice(
    servers: Iterable[Server], environ: Mapping[str, str], home: Path
) -> list[DoctorFinding]:
    """Return a finding for each server behind a wrapper."""
    findings: list[DoctorFinding] = []
    for server in servers:
        # As written in the file, because the value of a reference may be secret.
        command = parse_wrapper(server.command_written or server.command)
        if command is None:
            continue
        text = f"{server.name} runs through {command.tool}: about 40 MB and 2 processes more"
        straight = direct(command, environ, home)
        if straight is not None:
            suggestion = f"command = {codec.dump(straight).decode()}"
        elif command.tool == "npx":
            program = command.program or command.name.rpartition("/")[2]
            suggestion = f"'npm install -g {command.package}', then command = [\"{program}\", …]"
        else:
            program = command.program or command.name
            package = shlex.quote(command.package)
            suggestion = f"'uv tool install {package}', then command = [\"{program}\", …]"
        findings.append(DoctorFinding("wrapper", "warn", text, suggestion))
    return findings


def _script(package: Path, command: WrappedCommand) -> Path | None:
    """Return the script that `node` runs, if the package has the wanted version; else None."""
    manifest = package / "package.json"
    try:
        if manifest.stat().st_size > MANIFEST_BYTES_MAX:
            return None
        read = table_of(codec.value(manifest.read_bytes())) or {}
    except (OSError, codec.Malformed):
        return None
    exact = command.version[:1].isdigit()
    if exact and read.get("version") != command.version:
        return None
    programs = read.get("bin")
    if (several := table_of(programs)) is not None:
        program = command.program or command.name.rpartition("/")[2]
        only = next(iter(several.values())) if len(several) == 1 else ""
        programs = several.get(program) or only
    if not isinstance(programs, str) or not programs:
        return None
    script = package / programs
    return script if script.is_file() else None


def _age(path: Path) -> float:
    """Return a key that sorts the newest path first."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


DESCRIBED_MAX = 20
"""Maximum number of servers that went down and that the gateway is asked to describe."""
CATALOGUES_MAX = 1000
"""Maximum number of files in the state directory whose time is checked."""


@click.command(cls=Command)
@click.option(
    "--upgrade-from",
    "since",
    metavar="VERSION",
    help="Only what changed since that version and concerns the configuration.",
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, since: str | None, as_json: bool) -> None:
    """Show what hinders a gateway, and what to do about it. Exit 1 if a check fails."""
    runtime_dir, path = ctx.obj, typed_value(ctx, "path")
    results: list[DoctorFinding] = []
    with progress("checks this machine") as verb_progress:
        for finding in _changes(runtime_dir, path, since) if since else findings(runtime_dir, path):
            results.append(finding)
            verb_progress.what = f"checks this machine; last: {finding.check}"
    fails = sum(finding.verdict == "fail" for finding in results)
    if as_json:
        click.echo(codec.dump({"v": verbs.VERSION, "ok": not fails, "checks": results}))
    else:
        _print(results)
    if fails:
        sys.exit(verbs.Exit.FAILED)


def _changes(runtime_dir: str | None, path: Path | None, since: str) -> Iterator[DoctorFinding]:
    """Yield what an upgrade from a version means for the configuration."""
    try:
        changes = find_changes(_config(runtime_dir, path), since)
    except ConfigInvalid as invalid:
        yield _wrong(invalid.problems)
        return
    except ValueError as error:
        raise CommandRefused(str(error), verbs.Exit.USAGE) from None
    for note, text in changes:
        yield DoctorFinding(note.what, "warn", text, note.advice)
    if not changes:
        text = f"nothing that changed since {since} concerns this configuration"
        yield DoctorFinding("upgrade", "ok", text)


def findings(runtime_dir: str | None, path: Path | None) -> Iterator[DoctorFinding]:
    """Yield the findings of all checks, one after the other."""
    try:
        with client.connect(runtime_dir) as gateway:
            status = codec.decode_as(verbs.GatewayStatus, gateway.call("status"))
            descriptions = [_describe_server(gateway, name) for name in _failed_servers(status)]
            flags = _flags(gateway) if path is None else {}
        yield DoctorFinding("gateway", "ok", f"{status.state}, process {status.pid}")
    except (client.Failed, codec.Malformed) as error:
        status, descriptions, flags = None, [], {}
        silent = not isinstance(error, client.Failed) or error.exit != verbs.Exit.NOT_RUNNING
        text = str(error) if silent else "none is running: this is what one would find"
        yield DoctorFinding("gateway", "warn" if silent else "ok", text)
    pid = status.pid if status is not None else os.getpid()
    if status is None:
        yield from doctor_checks.open_files(pid)
    else:
        needed = limits.files_needed(len(status.servers), len(status.fronts))
        yield from doctor_checks.open_files(pid, needed)
    yield from doctor_checks.kernel()
    yield from doctor_checks.cgroup(pid)
    yield from doctor_checks.memory(pid)
    yield from doctor_checks.units()
    yield from doctor_checks.find_failing(descriptions)
    yield from doctor_checks.withheld(descriptions)
    if status is not None and status.reload_refused:
        text = f"the last reload was refused: {status.reload_refused}"
        yield DoctorFinding("reload", "warn", text, "'metamcp reload' tries again")
    if path is None and status is not None and status.config_files:
        path = Path(status.config_files[0])
    try:
        config = _config(runtime_dir, path, flags)
    except ConfigInvalid as invalid:
        yield _wrong(invalid.problems)
        yield from doctor_checks.clock((), time.time())
        return
    yield from _check_config(config, status)


def _wrong(problems: Sequence[Problem]) -> DoctorFinding:
    more = len(problems) - 1
    text = f"{problems[0]}{f' (and {more} more)' if more else ''}"
    return DoctorFinding("configuration", "fail", text, "'metamcp config check' tells everything")


def _check_config(config: Config, status: verbs.GatewayStatus | None) -> Iterator[DoctorFinding]:
    """Yield the findings about a configuration."""
    if config.problems:
        yield _wrong(config.problems)
    if status is not None and status.state_dir:  # the directory in use, which a flag may have set
        gateway = replace(config.gateway, state_dir=Path(status.state_dir))
        config = replace(config, gateway=gateway)
    state_dir = config.gateway.state_dir
    state_paths = [
        path for path, _ in zip(state_dir.glob("*/*"), range(CATALOGUES_MAX), strict=False)
    ]
    yield from doctor_checks.clock([*config.files, *state_paths], time.time())
    owners = {0, os.geteuid(), _owner(config.gateway.runtime_dir)}
    yield from doctor_checks.files(config, owners)
    yield doctor_checks.disk(state_dir)
    yield from doctor_checks.lock(config)
    yield from doctor_checks.quarantine(() if status is None else status.servers)
    yield from doctor_checks.definitions(() if status is None else status.servers)
    yield from doctor_checks.refusals(() if status is None else status.servers)
    if status is not None:  # the addresses in use, which flags may have set
        yield doctor_checks.check_addresses(status.url, status.ops_url)
    else:
        moves = config.gateway.movable
        port_findings = (
            doctor_checks.port("listen", config.gateway.listen),
            doctor_checks.ops_listen(config),
        )
        yield from (
            doctor_checks.to_port_warning(finding) if finding.check in moves else finding
            for finding in port_findings
        )
        if config.gateway.health_listen:
            yield doctor_checks.port("health_listen", config.gateway.health_listen)
        if config.gateway.console_listen:
            yield doctor_checks.port("console_listen", config.gateway.console_listen)
    yield doctor_security.security(config)
    yield from doctor_security.private_files(config)
    yield from doctor_security.room_of_audit(config)
    yield from doctor_security.tls_files(config)
    yield from doctor_security.usable_keys(config)
    yield from doctor_security.named_keys(config)
    yield from doctor_checks.code(config)
    yield from doctor_checks.confinement(config)
    yield from doctor_checks.names(config)
    yield from doctor_checks.certificates(config, time.time())
    yield from advice(config.servers.values(), os.environ, Path.home())


def _flags(gateway: client.ControlClient) -> dict[str, str]:
    """Return the settings that the running gateway has from its command line or its environment, as
    `sources.load` takes them; none if this user may not read settings."""
    try:
        params = {"table": "gateway"}
        settings = codec.decode_as(SettingsShown, gateway.call("config", params)).settings
    except client.Failed:
        return {}
    flags: dict[str, str] = {}
    for setting in settings:
        if setting.place.startswith(("--", "$")):
            with contextlib.suppress(tomllib.TOMLDecodeError):  # only the beginning of a long value
                flags[setting.key] = _flag(tomllib.loads(f"value = {setting.value}")["value"])
    return flags


def _flag(value: object) -> str:
    """Return a value as the command line says it."""
    if table_of(value) is not None:  # outside of files a word switches TLS on
        return "required"
    if (items := list_of(value)) is not None:
        return ",".join(map(str, items))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _config(
    runtime_dir: str | None, path: Path | None, settings: Mapping[str, str] | None = None
) -> Config:
    """Load the configuration. `settings`: those of the command line. Raises ConfigInvalid."""
    flags = {**(settings or {}), **({"runtime_dir": runtime_dir} if runtime_dir else {})}
    return load(
        path, environ=os.environ, cwd=Path.cwd(), home=Path.home(), flags=flags, any_port=True
    )


def _failed_servers(status: verbs.GatewayStatus) -> list[str]:
    """Return the names of servers that went down by themselves, DESCRIBED_MAX at most."""
    names = [each.name for each in status.servers if each.reason and each.state != "active"]
    return names[:DESCRIBED_MAX]


def _describe_server(gateway: client.ControlClient, name: str) -> verbs.Description:
    return codec.decode_as(verbs.Description, gateway.call("describe", {"name": name}))


def _owner(directory: Path) -> int:
    """Return the user id of the owner of this directory; our own while it does not exist."""
    try:
        return directory.stat().st_uid
    except OSError:
        return os.geteuid()


def _print(results: Sequence[DoctorFinding]) -> None:
    width = max(len(finding.check) for finding in results)
    for finding in results:
        text = show.printable(finding.text)
        click.echo(f"{show.verdict(finding.verdict)}  {finding.check:<{width}}  {text}")
        if finding.advice:
            click.echo(f"{'':<{width + 6}}  → {show.printable(finding.advice)}")


# Upgrade notes


class UpgradeNote(Struct, frozen=True, forbid_unknown_fields=True):
    """Change that users notice; its members are explained in `upgrade_notes.toml`."""

    version: str
    what: str
    text: str
    advice: str
    uses: str = ""
    unless: str = ""


def find_changes(config: Config, since: str) -> list[tuple[UpgradeNote, str]]:
    """Return each note that concerns this configuration, with its sentence. Raises ValueError for
    a version that is not one, or not an earlier one."""
    before = _sort_key(since)
    if before > _sort_key(VERSION):
        text = f"'{shorten(since)}' is newer than this version, {VERSION}"
        raise ValueError(f"{text}; name the version that ran before")
    tables = read_tables(config)
    return [
        (note, _say_note(note, places))
        for note in read_notes()
        if _sort_key(note.version) > before and (places := find_places(note, tables))
    ]


def read_notes() -> list[UpgradeNote]:
    """Return all notes of this version."""
    file = resources.files("metamcp_supervisor") / "upgrade_notes.toml"
    listed = list_of(toml_loads(file.read_text(encoding="utf-8"))["note"])
    return codec.decode_as(list[UpgradeNote], codec.dump(listed))


def read_tables(config: Config) -> list[Mapping[str, object]]:
    """Return the files of a configuration as tables. Servers of another program's file have no more
    than a command or a URL here."""
    tables = [toml_loads(files.text(path)) for path in config.files if path.suffix == ".toml"]
    own = {name for table in tables for name in table_of(table.get("servers")) or {}}
    others = {
        name: {"command" if server.command else "url": ""}
        for name, server in config.servers.items()
        if name not in own
    }
    return [*tables, {"servers": others}]


def find_places(note: UpgradeNote, tables: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the places that a note is about; a note about every configuration has the place ""."""
    if note.uses:
        return [
            location
            for table in tables
            for location, beside in _find_places_below(table, note.uses.split("."), "")
            if note.unless not in beside
        ]
    path = note.unless.split(".")
    return (
        []
        if any(note.unless and any(_find_places_below(table, path, "")) for table in tables)
        else [""]
    )


def _find_places_below(
    table: Mapping[str, object], path: Sequence[str], at: str
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the place of each table that has the key at the end of the path, and the table."""
    step, *remaining = path
    if not remaining:
        if step in table:
            yield at or step, table
        return
    for name in table if step == "*" else [step]:
        if (inner := table_of(table.get(name))) is not None:
            yield from _find_places_below(inner, remaining, f"{at}.{name}" if at else name)


def _say_note(note: UpgradeNote, places: Sequence[str]) -> str:
    if places == [""]:
        return note.text
    more = len(places) - NAMED_MAX
    named = ", ".join(places[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"{named}: {note.text}"


def _sort_key(version: str) -> tuple[tuple[int, ...], bool]:
    """Return a key that sorts versions, one before a release before the release."""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f"'{shorten(version)}' is not a version like 1.2.0")
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), not match[2]
