"""`metamcp install`, `uninstall` and `snippet`: the entry of MetaMCP in the configuration of a
client, and the skill of Claude Code.

Owns: the options, what is refused, what is printed, and the copy of SKILL.md. Never: the command or
URL of an entry (`destination`), editing files (`client_files`).
"""

import difflib
import functools
import os
import shutil
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import TypeVar

import click
from msgspec import Struct

from metamcp_supervisor.cli import destination
from metamcp_supervisor.cli.destination import InstallOptions
from metamcp_supervisor.cli.errors import (
    Command,
    CommandRefused,
    RenamedOption,
    add_json_option,
    gateway_options,
    tell,
)
from metamcp_supervisor.client_files import clients, disk, texts
from metamcp_supervisor.client_files.clients import (
    ClientProgram,
    FileFormat,
    FileUnfit,
    Scope,
    choose_file,
)
from metamcp_supervisor.config import files, naming
from metamcp_supervisor.config.document import BrokenSyntax, printable, shorten, table_of
from metamcp_supervisor.verbs import Exit
from metamcp_worker.runtime.masking import SecretMasker

_Text = TypeVar("_Text", str, str | None)
_CLIENT = click.argument("client", metavar="CLIENT")
_NAME = click.option("--name", default="metamcp", show_default=True, help="Of the entry.")
_SCOPE = click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    help="Your own file (the default), or the one of the project in this folder.",
)
_FILE = click.option(
    "--config-file", "file", type=click.Path(path_type=Path), help="Another file than the usual."
)
_DRY = click.option("--dry-run", is_flag=True, help="Show the difference and write nothing.")
_FORCE = click.option("--force", is_flag=True, help="Also an entry that is not of this gateway.")
_REPLACE = click.option("--replace", "force", cls=RenamedOption, before=("--force",), is_flag=True,
                        help="Also an entry that is not of this gateway.")  # fmt: skip
_TAKE_OVER = click.option(
    "--take-over", is_flag=True, help="Move the servers of the client behind the gateway."
)
_SKILL = click.option("--skill", is_flag=True, help="The skill of Claude Code, too: /metamcp.")
_HTTP = click.option("--http", is_flag=True, help="Name the URL of the endpoint, not a command.")
_URL = click.option("--url", metavar="URL", help="With this URL; nothing is looked for then.")
_ENDPOINT = click.option("--endpoint", metavar="NAME", help="Which; without it the default one.")
_START = click.option(
    "--start/--no-start",
    default=None,
    help="Does the command start a gateway if none runs? It does unless you say no.",
)
_YES = click.option("--yes", is_flag=True, help="Confirm its commands without asking.")
_KEY_ENV = click.option(
    "--key-env", metavar="NAME", help="Variable with an API key of that gateway."
)
_KEY_FILE = click.option("--key-file", metavar="FILE", help="File with an API key of that gateway.")
_CA = click.option("--ca", metavar="FILE", help="Authority of its certificate.")
_EXPOSURE = click.option("--exposure", metavar="WORD", help="How much its endpoints show at first.")
_NAMING = click.option(
    "--naming", "style", metavar="STYLE", help="How its endpoints call their tools."
)
_BUILTINS = click.option("--builtins", metavar="NAME,…", help="Further tools of its endpoints.")
_OPTIONS = (_CLIENT, _HTTP, _URL, _ENDPOINT, _NAME, _SCOPE, _START, gateway_options(), _YES,
            _KEY_ENV, _KEY_FILE, _CA, _EXPOSURE, _NAMING, _BUILTINS)  # fmt: skip


def _with_entry_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about the entry, which reach `install` and `snippet` as one `wish`."""

    @functools.wraps(command)
    def run_with_options(
        *,
        name: str,
        scope: Scope | None,
        http: bool,
        url: str | None,
        endpoint: str | None,
        start: bool | None,
        path: Path | None,
        yes: bool,
        runtime_dir: str | None,
        key_env: str | None,
        key_file: str | None,
        ca: str | None,
        exposure: str | None,
        style: str | None,
        builtins: str | None,
        **others: object,
    ) -> None:
        if flaw := naming.flaw(name):
            raise click.UsageError(f"--name {flaw}")
        wish = InstallOptions(
            name=name,
            scope=scope or "user",
            is_scope_given=scope is not None,
            http=http,
            url=url,
            endpoint=endpoint,
            start=start,
            config=path,
            yes=yes,
            runtime_dir=runtime_dir,
            key_env=key_env,
            key_file=key_file,
            ca=ca,
            exposure=exposure,
            naming=style,
            builtins=builtins,
        )
        command(wish=wish, **others)

    decorated: Callable[..., None] = run_with_options
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


class _Target(Struct, frozen=True):
    """File of a client, already read. `others`: other files of the client that exist; `found`: its
    entries that are tables; `taken`: names of all entries."""

    client: ClientProgram
    kept: FileFormat
    content: disk.Content
    others: tuple[Path, ...]
    found: Mapping[str, Mapping[str, object]]
    taken: frozenset[str]

    @property
    def label(self) -> str:
        return printable(str(self.content.path))

    def ours(self, origins: set[str]) -> set[str]:
        return {
            name
            for name, values in self.found.items()
            if clients.is_ours(*clients.target_of(values), origins)
        }


@click.command(cls=Command)
@_with_entry_options
@_FILE
@_SKILL
@_DRY
@_REPLACE
@_TAKE_OVER
@add_json_option
def install(
    client: str,
    wish: InstallOptions,
    file: Path | None,
    skill: bool,
    dry_run: bool,
    force: bool,
    take_over: bool,
) -> None:
    """Put MetaMCP into the configuration of CLIENT. Repeating this does no harm.

    The rest of the file stays as it is, to the byte, and a copy is kept beside it. With
    --take-over, the servers in it move behind the gateway; 'metamcp uninstall' puts them back.
    """
    program = destination.find_client(client)
    if skill and program.name != "claude-code":
        raise click.UsageError("--skill is for claude-code.")
    wish = wish.with_skill() if skill else wish
    if take_over:
        from metamcp_supervisor.cli import take_over as taking

        taking.take_over(program, wish, file, dry_run=dry_run)
    else:
        _install(_target(client, wish, file), wish, dry_run=dry_run, force=force)
    if skill:
        put(dry_run=dry_run, force=force)


@click.command(cls=Command)
@_CLIENT
@_NAME
@_SCOPE
@_FILE
@_DRY
@_FORCE
@gateway_options("runtime_dir")
@add_json_option
def uninstall(
    client: str,
    file: Path | None,
    dry_run: bool,
    force: bool,
    scope: Scope | None,
    name: str,
    runtime_dir: str | None,
) -> None:
    """Take MetaMCP out of the configuration of CLIENT, and the skill with it.

    Servers that --take-over moved are put back, in all files of CLIENT unless --scope names one.
    """
    from metamcp_supervisor.cli import take_over as taking

    usual = _target(client, InstallOptions(name=name, scope=scope or "user"), file)
    origins = destination.origins(runtime_dir=runtime_dir)
    is_elsewhere = False
    for other in taking.taken_files(usual.client) if scope is None and file is None else ():
        if other != usual.content.path:
            there = _target(client, InstallOptions(name=name, scope="project"), other)
            _uninstall(there, name, "project", origins, dry_run=dry_run, force=force)
            is_elsewhere = True
    if name in usual.taken or not is_elsewhere:
        _uninstall(usual, name, scope or "user", origins, dry_run=dry_run, force=force)
    if usual.client.name == "claude-code" and file is None and scope != "project":
        drop(dry_run=dry_run)


@click.command(cls=Command)
@_with_entry_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def snippet(client: str, wish: InstallOptions, as_json: bool) -> None:
    """Print what CLIENT needs in its configuration, ready to be pasted."""
    program = destination.find_client(client)
    wish.check(program)
    file_format = program.how(wish.scope)
    values = destination.entry(file_format, wish)
    path, _ = choose_file(disk.candidates(program, wish.scope), Path.exists)
    verb = destination.own_verb(program, wish, values)
    text = texts.put(
        FileFormat(file_format.shape, file_format.format, file_format.place), "", wish.name, values
    )
    if as_json:
        tell(client=program.name, file=str(path), verb=verb, entry=values, text=text)
        return
    click.echo(f"# {program.title}: {printable(str(path))}", err=True)
    if verb:
        click.echo(f"# or: {verb}", err=True)
    click.echo(text, nl=False)


# Putting in and taking out


def _install(target: _Target, wish: InstallOptions, *, dry_run: bool, force: bool) -> None:
    name, file_format = wish.name, target.kept
    new = destination.entry(file_format, wish)
    urls = wish.url, clients.target_of(new)[1]
    origins = destination.origins(*urls, runtime_dir=wish.runtime_dir)
    ours = target.ours(origins)
    if (old := target.found.get(name)) and not _differ(name, old, new):
        ours.add(name)
    if name in target.taken and name not in ours and not force:
        raise CommandRefused(
            f"{target.label} has an entry '{shorten(name)}' that does not lead to this gateway;"
            " choose another --name, or replace it with --replace"
        )
    if name in ours:
        new = clients.merge_entry(target.found[name], new)
    made = _apply_edit(target, lambda: texts.put(file_format, target.content.text, name, new))
    if made == target.content.text:
        click.echo(f"{target.label}: unchanged")
    elif dry_run:
        _show(target, made)
    else:
        is_kept = ours and disk.backup_of(target.content.path).exists()
        kept_at = None if is_kept else disk.keep(target.content)
        _write(target, made)
        click.echo(f"{target.label}: {'written' if target.content.exists else 'made'}")
        if kept_at is not None:
            click.echo(f"{printable(str(kept_at))}: what was there before")
        click.echo(f"start {target.client.title} anew, or have it read its configuration again")
    for other in target.others:
        click.echo(f"there is {printable(str(other))}, too; name it with --config-file", err=True)
    _warn_of_command(new, wish)


def _uninstall(
    target: _Target, name: str, scope: Scope, origins: set[str], *, dry_run: bool, force: bool
) -> None:
    from metamcp_supervisor.cli import take_over as taking

    path = target.content.path
    put_back = _apply_edit(target, lambda: taking.put_back(target.client, scope, target.content))
    if put_back is not None:
        if dry_run:
            _show(target, put_back)
            return
        _write(target, put_back)
        taking.forget(path)
        _tell_of_backup(target)
        return
    if name not in target.taken:
        click.echo(f"{target.label}: has no entry '{shorten(name)}'")
        return
    backup = _read(disk.backup_of(path))
    ours = target.ours(origins)
    was = _earlier(target.kept, backup, name)
    if backup.exists and was is None:
        ours.add(name)
    if name not in ours and not force:
        raise CommandRefused(
            f"the entry '{shorten(name)}' in {target.label} does not lead to this gateway; it stays"
            " (--force removes it nevertheless)"
        )
    before = backup.text if backup.exists else None
    if before is None and force and name not in ours:
        before = target.content.text  # the file was never ours: the rest belongs to its owner
    restore = was is not None and not clients.is_ours(*clients.target_of(was), origins)
    made = _apply_edit(
        target,
        lambda: texts.drop(target.kept, target.content.text, name, before, restore=restore),
    )
    if dry_run:
        _show(target, made)
        return
    _write(target, made)
    _tell_of_backup(target)


def _tell_of_backup(target: _Target) -> None:
    """Say what became of the file, and forget the copy that is equal to it."""
    content, backup = disk.read(target.content.path), _read(disk.backup_of(target.content.path))
    click.echo(f"{target.label}: {'written' if content.exists else 'removed'}")
    if backup.exists and content.data == backup.data:
        disk.forget(content.path)
    elif backup.exists:
        click.echo(f"{printable(str(backup.path))}: what was there before, still kept")


def _apply_edit(target: _Target, edit: Callable[[], _Text]) -> _Text:
    """Return the edited text. Raises CommandRefused."""
    try:
        return edit()
    except BrokenSyntax as broken:
        raise _syntax_refusal(target.content.path, broken) from None
    except FileUnfit as unfit:
        raise CommandRefused(
            f"{target.label} {unfit}; nothing is changed: do it by hand, with what 'metamcp snippet"
            f" {target.client.name}' prints",
            Exit.CONFIG,
        ) from None


def _earlier(
    file_format: FileFormat, backup: disk.Content, name: str
) -> Mapping[str, object] | None:
    """Return the entry of this name before our first edit; None if the file did not have it, empty
    if the copy of the file cannot be read."""
    try:
        entries = texts.entries(file_format, backup.text)
    except (BrokenSyntax, FileUnfit):
        return {}
    return table_of(entries[name]) or {} if name in entries else None


def _differ(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> bool:
    """Whether the two entries lead to different commands or URLs."""
    return clients.target_of(old) != clients.target_of(new)


# What is there


def _target(name: str, wish: InstallOptions, config_file: Path | None) -> _Target:
    """Read the file of the client. Raises click.UsageError and CommandRefused."""
    client = destination.find_client(name)
    wish.check(client)
    usual = disk.candidates(client, wish.scope)
    paths = usual if config_file is None else (Path(os.path.abspath(config_file)),)
    path, others = choose_file(paths, Path.exists)
    content = _read(path)
    file_format = client.how(wish.scope)
    try:
        file_format = texts.native(file_format, content.text)
        values = texts.entries(file_format, content.text)
    except BrokenSyntax as broken:
        raise _syntax_refusal(path, broken) from None
    except FileUnfit as unfit:
        raise CommandRefused(
            f"{printable(str(path))} {unfit}; nothing is changed", Exit.CONFIG
        ) from None
    tables = {key: table for key, value in values.items() if (table := table_of(value)) is not None}
    return _Target(client, file_format, content, others, tables, frozenset(values))


def _read(path: Path) -> disk.Content:
    try:
        return disk.read(path)
    except files.FileUnreadable as error:
        raise CommandRefused(f"{printable(str(path))} {error}", Exit.CONFIG) from None


def _syntax_refusal(path: Path, broken: BrokenSyntax) -> CommandRefused:
    line = f", line {broken.line}" if broken.line else ""
    return CommandRefused(
        f"{printable(str(path))}{line}: {broken.message}; nothing is changed: mend it and run this"
        " again, or paste what 'metamcp snippet' prints",
        Exit.CONFIG,
    )


def _write(target: _Target, text: str | None) -> None:
    try:
        disk.write(target.content, text)
    except disk.FileChanged:
        raise CommandRefused(f"{target.label} was changed meanwhile; run this again") from None


def _show(target: _Target, made: str | None) -> None:
    if made is None:
        click.echo(f"{target.label}: would be removed")
    difference(target.label, target.content.text, made or "")


def difference(label: str, old: str, new: str) -> None:
    """Print what an edit would change, without secrets."""
    masks = SecretMasker()
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), label, label, lineterm=""):
        click.echo(printable(masks.json(line.replace("\t", "    "))))


def _warn_of_command(values: Mapping[str, object], wish: InstallOptions) -> None:
    words, _ = clients.target_of(values)
    if words and "/" not in words[0] and shutil.which(words[0]) is None:
        click.echo(f"warning: '{words[0]}' is not on the PATH of this shell", err=True)


_MARK = "<!-- metamcp skill"
"""Text in every version of the skill: a file that contains it is ours."""


def text() -> str:
    """Return the text of the skill in this version."""
    folder = resources.files("metamcp_supervisor") / "skill"
    return folder.joinpath("SKILL.md").read_text(encoding="utf-8")


def canonical() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    home = Path(data) if os.path.isabs(data) else Path.home() / ".local/share"
    return home / "metamcp" / "skill" / "SKILL.md"


def link() -> Path:
    """Return the path at which Claude Code looks for this skill of a user."""
    config_dir = os.environ.get("CLAUDE_CONFIG_DIR", "")
    return (
        (Path(config_dir) if config_dir else Path.home() / ".claude")
        / "skills"
        / "metamcp"
        / "SKILL.md"
    )


def put(*, dry_run: bool, force: bool) -> None:
    """Write the copy and link to it, where they are not right yet. Raises CommandRefused and
    OSError."""
    copy, at = canonical(), link()
    if _is_strange(at) and not force:
        raise CommandRefused(
            f"{_format_path(at)} is there and not of this skill; it stays (--replace writes over"
            " it, and keeps a copy)"
        )
    old = _text(copy)
    if old == text():
        _say(copy, "unchanged")
    else:
        if not dry_run:
            copy.parent.mkdir(parents=True, exist_ok=True)
            files.replace_file(copy, text().encode(), 0o644)
        _say(copy, "written" if old is None else "replaced", dry_run)
    if at.is_symlink() and os.path.realpath(at) == os.path.realpath(copy):
        _say(at, "unchanged")
        return
    if not dry_run:
        if _is_strange(at) and at.exists():
            disk.keep(disk.Content(at, at.read_bytes(), ""))
        _link(at, copy)
    _say(at, f"linked to {_format_path(copy)}", dry_run)


def drop(*, dry_run: bool) -> None:
    """Remove the link, the copy, and our folders that are then empty. Raises OSError."""
    copy, at = canonical(), link()
    for path in (at, copy):
        if not os.path.lexists(path):
            continue
        if path == at and _is_strange(at):
            _say(at, "left: it is not of this skill")
            continue
        if not dry_run:
            path.unlink()
            _tidy(path.parent)
        _say(path, "removed", dry_run)


def _link(at: Path, copy: Path) -> None:
    """Put the link at this path in one step, in place of any file there."""
    at.parent.mkdir(parents=True, exist_ok=True)
    fresh = at.with_name(f".{at.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(copy)
    os.replace(fresh, at)


def _is_strange(at: Path) -> bool:
    """Whether a file is there that we did not make. A link that leads nowhere does not count, since
    replacing it loses nothing."""
    if not os.path.lexists(at) or (at.is_symlink() and not at.exists()):
        return False
    if at.is_symlink() and os.path.realpath(at) == os.path.realpath(canonical()):
        return False
    return _MARK not in (_text(at) or "")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _tidy(folder: Path) -> None:
    """Remove our folders that are empty."""
    while folder.name in ("skill", "metamcp") and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _format_path(path: Path) -> str:
    return printable(str(path))


def _say(path: Path, outcome: str, dry_run: bool = False) -> None:
    click.echo(f"{_format_path(path)}: {'would be ' if dry_run else ''}{outcome}")
