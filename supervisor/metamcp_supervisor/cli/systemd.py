"""`metamcp systemd`: the gateway as a service of this machine or of one user.

Owns: which units are written where, the paths in them, and the calls of `systemctl`. Never: the
text of the units (the files in `systemd/units` of the package), the gateway (`up`).
"""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import click
from msgspec import Struct

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.errors import CommandRefused
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.config import files
from metamcp_supervisor.systemd.sd_notify import is_booted
from metamcp_supervisor.verbs import Exit

SYSTEM_UNITS = Path("/etc/systemd/system")
SYSTEM_CONFIG = "/etc/metamcp/metamcp.toml"
USER_CONFIG = "%E/metamcp/metamcp.toml"
"""Configuration of a service of a user; systemd replaces %E by $XDG_CONFIG_HOME or ~/.config."""
SERVICE, SOCKET = "metamcp.service", "metamcp.socket"
STEPS = "metamcp.service.d/restart-steps.conf"
STEPS_SINCE = 254
"""First version of systemd that knows RestartSteps=."""
SYSTEMCTL_S_MAX = 120.0
"""Seconds to wait for `systemctl`; longer than TimeoutStartSec= of the unit, and a limit for calls
that do not have one."""
_CONFIGURED = re.compile(r"(?<= --config )\S.*$", re.MULTILINE)
_STARTS = re.compile(r"^ExecStart=(.*?) serve\b", re.MULTILINE)
_PROGRAM = "/usr/bin/metamcp"
"""Program in the units as they are delivered."""
_HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user")))
"""Folders that ProtectHome=yes hides from the service."""


class UnitPlace(Struct, frozen=True):
    """Place of units. `folder`: folder of the files; `user`: whether they are units of this user,
    not of the machine."""

    folder: Path
    user: bool

    def systemctl(self, *arguments: str) -> None:
        """Run `systemctl` and print the command. Raises CommandRefused with its error output."""
        command = ["systemctl", *(["--user"] if self.user else []), *arguments]
        try:
            with progress(shlex.join(command)):
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=SYSTEMCTL_S_MAX, check=False
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandRefused(f"'{shlex.join(command)}' did not work: {error}") from None
        if done.returncode:
            raise CommandRefused(f"'{shlex.join(command)}' did not work: {done.stderr.strip()}")
        click.echo(shlex.join(command))


_USER = click.option("--user", is_flag=True, help="A service of this user, not of the machine.")
_DRY = click.option("--dry-run", is_flag=True, help="Only say what would be done.")
_CONFIG = click.option(
    "--config", metavar="PATH", help=f"The configuration of the service; else {SYSTEM_CONFIG}."
)


@click.group(cls=errors.Group)
def systemd() -> None:
    """Run the gateway as a service of systemd."""


@systemd.command()
@_USER
@_CONFIG
@click.option("--now", is_flag=True, help="Start it now, and at every boot.")
@_DRY
@errors.add_json_option
def install(user: bool, config: str | None, now: bool, dry_run: bool) -> None:
    """Write the units of this installation. Repeating this does no harm."""
    unit_place = _place(user)
    program = _program()
    if not dry_run:
        _check(unit_place)
        if not user:
            _check_within_reach()
    changed = False
    for name, text in units(user, program, config, version=_version()).items():
        changed |= _write(unit_place.folder / name, text, dry_run)
    _warn_of_config(user, config)
    if dry_run:
        return
    if changed:
        unit_place.systemctl("daemon-reload")
    if now:
        unit_place.systemctl("enable", "--now", SERVICE)
        return
    scope = " --user" if user else ""
    click.echo(f"start it with: systemctl{scope} enable --now {SERVICE}")


@systemd.command()
@_USER
@_DRY
@errors.add_json_option
def uninstall(user: bool, dry_run: bool) -> None:
    """Stop the service and remove its units. Configuration and state stay."""
    unit_place = _place(user)
    paths = [
        unit_place.folder / name
        for name in (SERVICE, SOCKET, STEPS)
        if os.path.lexists(unit_place.folder / name)
    ]
    if not paths:
        click.echo(f"there are no units of the gateway in {unit_place.folder}")
        return
    if not dry_run:
        _check(unit_place)
        names = [path.name for path in paths if path.name in (SERVICE, SOCKET)]
        if names:
            unit_place.systemctl("disable", "--now", *names)
    for path in paths:
        if not dry_run:
            path.unlink()
        click.echo(f"{path}: {'would be ' if dry_run else ''}removed")
    if not dry_run:
        unit_place.systemctl("daemon-reload")


@systemd.command()
@_USER
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def show(user: bool, config: str | None, as_json: bool) -> None:
    """Print the units of this installation. Exit code 1 unless exactly these are installed."""
    unit_place = _place(user)
    same = True
    listing: list[dict[str, str]] = []
    for name, text in units(user, _program(), config, version=_version()).items():
        path = unit_place.folder / name
        old = _text(path)
        same &= old == text
        state = "installed" if old == text else "not installed" if old is None else "differs"
        listing.append({"path": str(path), "state": state, "text": text})
        if not as_json:
            click.echo(f"# {path}: {state}\n{text}")
    if as_json:
        errors.tell(units=listing)
    if not same:
        raise SystemExit(Exit.FAILED)


# The units


def units(
    user: bool, program: Sequence[str], config: str | None, *, version: int
) -> dict[str, str]:
    """Return the text of each unit by file name. `program`: argv of this installation; `version`:
    of systemd, 0 if it is not known."""
    files = {SERVICE: "metamcp-user.service"} if user else {SERVICE: SERVICE, SOCKET: SOCKET}
    if not user and version >= STEPS_SINCE:
        files[STEPS] = STEPS
    folder = resources.files("metamcp_supervisor") / "systemd" / "units"
    command = " ".join(map(quote_word, program))
    old = USER_CONFIG if user else SYSTEM_CONFIG
    new = old if config is None else quote_word(os.path.abspath(os.path.expanduser(config)))
    texts: dict[str, str] = {}
    for name, source in files.items():
        text = folder.joinpath(*source.split("/")).read_text(encoding="utf-8")
        text = text.replace(f"={_PROGRAM} ", f"={command} ")
        texts[name] = text.replace(f"--config {old}\n", f"--config {new}\n")
    return texts


def read_installed_units(user: bool) -> list[tuple[Path, str | None, str]]:
    """Return path, text and due text of each unit of this installation; an empty list without an
    installed service. The due text keeps the configuration that the installed service names."""
    unit_place = _place(user)
    service = _text(unit_place.folder / SERVICE)
    if service is None:
        return []
    config = _CONFIGURED.search(service)
    due = units(user, _program(), None, version=_version())
    if config is not None:
        due[SERVICE] = _CONFIGURED.sub(lambda _: config[0], due[SERVICE])
    return [
        (unit_place.folder / name, _text(unit_place.folder / name), text)
        for name, text in due.items()
    ]


def find_command(unit: str) -> str:
    """Return the command, up to `serve`, that a unit starts; empty for a socket."""
    match = _STARTS.search(unit)
    return match[1] if match is not None else ""


def older(unit: Path) -> bool:
    """Whether the unit was written before this version was installed."""
    with resources.as_file(
        resources.files("metamcp_supervisor") / "systemd" / "units" / SERVICE
    ) as own:
        return unit.stat().st_mtime < own.stat().st_mtime


def quote_word(word: str) -> str:
    """Return a word as it stands in a command line of a unit, where `%`, `$` and spaces have a
    meaning. Raises CommandRefused for a word that a unit cannot hold."""
    if not word.isprintable():
        raise CommandRefused(f"{word!r} cannot be written into a unit; rename it")
    word = word.replace("%", "%%").replace("$", "$$")
    if any(character in word for character in " \t\"'\\;"):
        return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return word


def _program() -> tuple[str, ...]:
    """Return the command of this installation: its script if it has one, else the module."""
    script = Path(sys.executable).parent / "metamcp"
    if script.is_file() and os.access(script, os.X_OK):
        return (str(script),)
    return (sys.executable, "-P", "-m", "metamcp_supervisor")


def _version() -> int:
    """Return the version of systemd; 0 if it is not known."""
    command = [shutil.which("systemctl") or "", "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    words = done.stdout.split()
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0


# Files


def _place(user: bool) -> UnitPlace:
    if not user:
        return UnitPlace(SYSTEM_UNITS, user=False)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return UnitPlace(Path(home) / "systemd" / "user", user=True)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str, dry_run: bool) -> bool:
    """Write a unit, unless `dry_run`, and return whether its text is new. Changes by hand are
    printed before they are lost."""
    old = _text(path)
    if old == text:
        click.echo(f"{path}: unchanged")
        return False
    for line in difflib.unified_diff(
        (old or "").splitlines(), text.splitlines(), "installed", "this version", lineterm="", n=0
    ):
        if old is not None:
            click.echo(f"  {line}")
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(path, text.encode(), 0o644)
    done = "written" if old is None else "replaced"
    click.echo(f"{path}: {'would be ' if dry_run else ''}{done}")
    return True


# Conditions


def _check(unit_place: UnitPlace) -> None:
    """Raise CommandRefused if this user cannot install units here."""
    if not unit_place.user and os.geteuid() != 0:
        raise CommandRefused(
            f"writing to {unit_place.folder} needs root: use sudo, or --user for a service of your"
            " own",
            Exit.NO_PERMISSION,
        )
    if shutil.which("systemctl") is None or not is_booted():
        raise CommandRefused(
            "this machine is not run by systemd; --dry-run and 'metamcp systemd show' work"
            " nevertheless, 'metamcp serve' is what another service manager has to start"
        )


def _check_within_reach() -> None:
    """Raise CommandRefused if the service could not read this installation, and so not start."""
    for path in map(Path, (sys.executable, os.path.realpath(sys.executable), sys.base_prefix)):
        if any(path.is_relative_to(hidden) for hidden in _HIDDEN):
            raise CommandRefused(
                f"{path} is below a home directory, which the service cannot see"
                " (ProtectHome=yes); install MetaMCP elsewhere, for example into /opt/metamcp"
                " with a Python of the system, or use --user"
            )


def _warn_of_config(user: bool, config: str | None) -> None:
    path = Path(config or (SYSTEM_CONFIG if not user else "~/.config/metamcp/metamcp.toml"))
    path = path.expanduser().absolute()
    if not path.exists():
        errors.say(f"warning: {path} does not exist yet")
    elif not user and not path.stat().st_mode & 0o004:
        errors.say(
            f"warning: the service has a user of its own and cannot read {path}; run 'chmod o+r' on"
            " it and keep secrets in credentials"
        )
    if not user and any(path.is_relative_to(hidden) for hidden in _HIDDEN):
        errors.say(f"warning: {path} is below a home directory, which the service cannot see")
