"""`metamcp init`, `add`, `remove`, `disable`, `enable`, `rename`: edit the configuration in use as
text.

Owns: these verbs, the choice of the file, the content of an entry, the edit of a file and what
follows it. Never: other tables of the file (`settings`), editing text (`client_files.texts`),
reading and writing bytes (`client_files.disk`), what a configuration means (`sources`).
"""

import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import click

from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.errors import Command, CommandRefused, gateway_options, told
from metamcp_supervisor.cli.install import difference
from metamcp_supervisor.client_files import disk, texts, toml_edit
from metamcp_supervisor.client_files.clients import FileFormat, FileUnfit
from metamcp_supervisor.config import client_shapes, files, naming, places, sources
from metamcp_supervisor.config.config import Config, ConfigInvalid, Problem
from metamcp_supervisor.config.document import BrokenSyntax, printable, shown, table_of
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control import client as control
from metamcp_supervisor.store import database
from metamcp_supervisor.verbs import Exit, ToolSets
from metamcp_worker.ipc import codec, disclosure
from metamcp_worker.ipc.process_names import DEFAULT, WORKSPACE_MARK

NEW = """\
# The configuration of MetaMCP: 'metamcp up' in this folder starts the servers in it.
# 'metamcp add NAME -- COMMAND…' puts one in, 'metamcp config check' reads everything.
# Editors complete and check it after 'metamcp config schema --write'.
"""
OFF = "disabled"
_SWITCHES = ("enabled", OFF, "isActive")
"""Keys that switch a server off or on in the files of clients."""
_NOWHERE = Path("/nonexistent")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show the difference and write nothing."
)
_NAME = click.argument("name", metavar="NAME")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Configuration in use, already read. `kept`: the place of its servers in it; `found`: whether
    the file was only found in this folder, and not named by the user; `runtime_dir`: that of its
    gateway, None for the gateway of this folder."""

    content: disk.Content
    kept: FileFormat
    servers: Mapping[str, object]
    found: bool
    runtime_dir: str | None

    @property
    def label(self) -> str:
        return printable(str(self.content.path))

    @property
    def is_json(self) -> bool:
        return self.kept.format == "json"

    def put(self, name: str, entry: Mapping[str, object]) -> str:
        """Return the text with this entry. Raises FileUnfit."""
        return texts.put(self.kept, self.content.text, name, entry)

    def set(self, name: str, key: str, value: object) -> str:
        """Return the text with this key of an entry; None takes it out. Raises FileUnfit."""
        entry = table_of(self.servers[name]) or {}
        if not self.is_json:
            others = {each: inner for each, inner in entry.items() if each != key}
            return self.put(name, others if value is None else {**entry, key: value})
        kept, text = replace(self.kept, place=(*self.kept.place, name)), self.content.text
        if value is None:
            return texts.drop(kept, text, key, text) or ""
        return texts.put(kept, text, key, value)

    def table(self, place: tuple[str, ...]) -> Mapping[str, object]:
        """Return the table at a place of the file, an empty one if there is none."""
        value: object = texts.values(self.kept, self.content.text)
        for key in place:
            value = (table_of(value) or {}).get(key)
        return table_of(value) or {}

    def put_at(self, place: tuple[str, ...], entry: Mapping[str, object]) -> str:
        """Return the text with this table at a place. Raises FileUnfit."""
        *above, name = place
        if self.is_json and not self.table(tuple(above)):
            return self.set(above[-2], above[-1], {name: entry})
        return texts.put(replace(self.kept, place=tuple(above)), self.content.text, name, entry)

    def without_at(self, place: tuple[str, ...]) -> str:
        """Return the text without the table at a place; a file of JSON loses the table above as
        well, if that is empty then. Raises FileUnfit."""
        *above, name = place
        if self.is_json and len(self.table(tuple(above))) == 1:
            return self.set(above[-2], above[-1], None)
        kept, text = replace(self.kept, place=tuple(above)), self.content.text
        return texts.drop(kept, text, name, text) or ""

    def with_text(self, text: str) -> "ConfigFile":
        return replace(self, content=replace(self.content, text=text))

    def renamed(self, name: str, new: str) -> "ConfigFile":
        """Return the file with another name for a server, also where namespaces and endpoints name
        it. Raises FileUnfit."""
        place = self.kept.place
        if self.is_json:
            entry = self.servers[name]
            file = self.with_text(texts.put(self.kept, self.content.text, new, entry))
            return file.with_text(file.without(name))
        text = toml_edit.move(self.content.text, (*place, name), (*place, new))
        moved = {(new if each == name else each): entry for each, entry in self.servers.items()}
        if texts.values(self.kept, text) != {**self.table(()), **_nested(place, moved)}:
            raise FileUnfit("is laid out in a way that cannot be edited safely")
        file = self.with_text(text)
        spaces = ((), *(("workspaces", each) for each in self.table(("workspaces",))))
        for space, kind in product(spaces, ("namespaces", "endpoints")):
            mark = f"{DEFAULT}{WORKSPACE_MARK}" if space else ""
            for each in self.table((*space, kind)):
                at = (*space, kind, each)
                changed = _with_name(file.table(at), f"{mark}{name}", f"{mark}{new}")
                for key in table_of(file.table(at).get("tools")) or {}:
                    if key.startswith(f"{name}."):
                        file = file.moved((*at, "tools", key), f"{new}{key.removeprefix(name)}")
                file = file.with_text(file.put_at(at, changed))
        return file

    def moved(self, place: tuple[str, ...], name: str) -> "ConfigFile":
        """Return the file with another name for a table, as it is if that has no header."""
        try:
            text = toml_edit.move(self.content.text, place, (*place[:-1], name))
        except FileUnfit:
            return self
        return self.with_text(text)

    def without(self, name: str) -> str:
        """Return the text without this entry. Raises FileUnfit."""
        return texts.drop(self.kept, self.content.text, name, self.content.text) or ""


def _nested(place: tuple[str, ...], value: object) -> dict[str, object]:
    for key in reversed(place):
        value = {key: value}
    return dict(table_of(value) or {})


def _with_name(entry: Mapping[str, object], name: str, new: str) -> dict[str, object]:
    """Return the table of a namespace or endpoint with another name for a server."""
    changed = dict(entry)
    if isinstance(servers := entry.get("servers"), list):
        changed["servers"] = [new if each == name else each for each in servers]
    if (tools := table_of(entry.get("tools"))) is not None:
        changed["tools"] = {
            f"{new}{key.removeprefix(name)}" if key.startswith(f"{name}.") else key: value
            for key, value in tools.items()
        }
    return changed


class _Add(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            text = f"no option is named {error.option_name}; a command stands behind two dashes"
            raise click.UsageError(f"{text}: metamcp add NAME -- COMMAND…", ctx) from None


@click.command(cls=Command)
@told
def init() -> None:
    """Make metamcp.toml in this folder, and include the file of a client, such as .mcp.json."""
    folder = Path.cwd()
    content = disk.read(folder / "metamcp.toml")
    label = printable(str(content.path))
    if content.exists:
        raise CommandRefused(f"{label} is there already; put servers in with 'metamcp add'")
    found = places.find(environ={}, cwd=folder, home=_NOWHERE, system=_NOWHERE)
    included = [str(found.relative_to(folder))] if found is not None else []
    _write(content, NEW + f"include = {toml_edit.dumped(included)}\n" * len(included))
    click.echo(f"{label}: made")
    for name in included:
        click.echo(f"the servers of {printable(name)} are included")
    errors.say(
        "'metamcp add NAME -- COMMAND…' puts a server in, 'metamcp import' lists those of your"
        " clients, 'metamcp up' starts them"
    )


@click.command(cls=_Add)
@_NAME
@click.argument("command", nargs=-1, metavar="[-- COMMAND…]", type=click.UNPROCESSED)
@click.option("--url", metavar="URL", help="A server elsewhere, in place of a command.")
@click.option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="A variable for it.")
@click.option("-H", "--header", multiple=True, metavar="'KEY: VALUE'", help="Sent to the URL.")
@click.option("--replace", "force", cls=errors.Renamed, before=("--force",), is_flag=True,
              help="In place of a server of that name.")  # fmt: skip
@dry_run_option
@gateway_options("path", "runtime_dir")
@told
def add(
    name: str,
    command: tuple[str, ...],
    url: str | None,
    env: tuple[str, ...],
    header: tuple[str, ...],
    force: bool,
    dry_run: bool,
    path: Path | None,
    runtime_dir: str | None,
) -> None:
    """Add a server to the configuration: metamcp add git -- uvx mcp-server-git

    The rest of the file stays as it is, to the byte.
    """
    if why := naming.flaw(name):
        raise click.UsageError(f"the name '{shown(name)}' {why}")
    if bool(command) == (url is not None):
        raise click.UsageError("say one of both: '-- COMMAND…' or '--url URL'.")
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.UsageError("--url begins with http:// or https://.")
    file = read_file(path, runtime_dir)
    if name in file.servers and not force:
        why = f"{file.label} has a server '{name}' already"
        raise CommandRefused(f"{why}; choose another name, or replace it with --replace")
    entry = _entry(_words(command), url, is_json=file.is_json)
    if env:
        entry["env"] = _pairs(env, "=", "--env")
    if header:
        entry["headers"] = _pairs(header, ":", "--header")
    added = f"'{name}' added"
    edit_file(file, lambda: file.put(name, entry), added, dry_run=dry_run, command=bool(command))


@click.command(cls=Command)
@_NAME
@dry_run_option
@errors.yes_option
@gateway_options("path", "runtime_dir")
@told
def remove(name: str, dry_run: bool, yes: bool, path: Path | None, runtime_dir: str | None) -> None:
    """Take a server out of the configuration. The rest of the file stays as it is."""
    file = read_file(path, runtime_dir)
    entry_of(file, name)
    errors.confirm(f"Take '{name}' out of {file.label}?", yes=yes or dry_run)
    edit_file(file, lambda: file.without(name), f"'{name}' removed", dry_run=dry_run)


@click.command(cls=Command)
@_NAME
@click.argument("new", metavar="NEW")
@dry_run_option
@gateway_options("path", "runtime_dir")
@told
def rename(name: str, new: str, dry_run: bool, path: Path | None, runtime_dir: str | None) -> None:
    """Give a server another name, also in namespaces, endpoints, tool sets and metamcp.lock.

    Policies and other rules that match its name are listed, and stay as they are.
    """
    if why := naming.flaw(new):
        raise click.UsageError(f"the name '{shown(new)}' {why}")
    file = read_file(path, runtime_dir)
    entry_of(file, name)
    if new in file.servers:
        raise CommandRefused(f"{file.label} has a server '{new}' already; choose another name")
    what = f"'{name}' is '{new}' now"
    edit_file(
        file, lambda: file.renamed(name, new).content.text, what,
        dry_run=dry_run, command=True, strict=True,
    )  # fmt: skip
    if not dry_run:
        _carry_along(file, name, new)


def _carry_along(file: ConfigFile, name: str, new: str) -> None:
    """Rename a server in metamcp.lock and in the tool sets, and list the rules that match it."""
    config = sources.load(file.content.path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    where = lock_io.beside(config)
    lock = lock_io.load(where)
    if lock is not None and name in lock.servers:
        servers = {(new if each == name else each): one for each, one in lock.servers.items()}
        lock_io.save(where, replace(lock, servers=servers))
        click.echo(f"{printable(str(where))}: '{name}' is '{new}' now")
    rules = (
        *(("policy", each.name, each.match) for each in config.policies),
        *(("middleware", each.name, each.match) for each in config.middleware),
        *(("rule of consent", each.effect, each.match) for each in config.consent.rules),
    )
    for kind, title, match in rules:
        if any(glob.partition("/")[0] == name for glob in match):
            errors.say(f"warning: the {kind} '{shown(title)}' still matches '{name}'")
    _rename_in_toolsets(file, config, name, new)


def _rename_in_toolsets(file: ConfigFile, config: Config, name: str, new: str) -> None:
    """Rename a server in the tool sets of a gateway that runs. Raises Failed."""
    try:
        gateway = control.connect_here(file.runtime_dir)
    except control.Failed:
        if (config.gateway.state_dir / database.FILE).exists():
            way = "'metamcp toolsets add' and 'remove' change them while it runs"
            errors.say(f"tool sets keep '{name}.TOOL', because no gateway runs; {way}")
        return
    with gateway:
        found = codec.typed(ToolSets, gateway.call("toolsets", {"names": ()}))
        for each in found.toolsets:
            pairs = [disclosure.read(tool.namespacedName) for tool in each.tools]
            if not any(pair and pair[0] == name for pair in pairs):
                continue
            tools = [[new if one[0] == name else one[0], one[1]] for one in pairs if one]
            order = {"type": "Build", "toolset": each.name, "tools": tools,
                     "description": each.description, "replace": True}  # fmt: skip
            gateway.call("toolsets-change", {"order": order, "force": True})
            click.echo(f"tool set {each.name}: '{name}' is '{new}' now")


@click.command(cls=Command)
@_NAME
@dry_run_option
@gateway_options("path", "runtime_dir")
@told
def disable(name: str, dry_run: bool, path: Path | None, runtime_dir: str | None) -> None:
    """Switch a server off in the configuration, in which it stays."""
    _switch(name, read_file(path, runtime_dir), on=False, dry_run=dry_run)


@click.command(cls=Command)
@_NAME
@dry_run_option
@gateway_options("path", "runtime_dir")
@told
def enable(name: str, dry_run: bool, path: Path | None, runtime_dir: str | None) -> None:
    """Switch a server on in the configuration."""
    _switch(name, read_file(path, runtime_dir), on=True, dry_run=dry_run)


def _switch(name: str, file: ConfigFile, *, on: bool, dry_run: bool) -> None:
    entry = entry_of(file, name)
    usual = OFF if file.is_json else "enabled"
    key = next((key for key in _SWITCHES if key in entry), usual)
    if (bool(entry.get(key, key != OFF)) is not (key == OFF)) is on:
        click.echo(f"{file.label}: '{name}' is {'enabled' if on else 'disabled'} already")
        return
    value = None if on else key == OFF
    what = f"'{name}' {'enabled' if on else 'disabled'}"
    edit_file(file, lambda: file.set(name, key, value), what, dry_run=dry_run, command=on)


def entry_of(file: ConfigFile, name: str) -> Mapping[str, object]:
    """Return the entry of a server. Raises CommandRefused if the file does not have it."""
    if name not in file.servers:
        where = _elsewhere(name, file.content.path) or hint(name, file.servers)
        text = f"{file.label} has no server '{shown(name)}'; {where}"
        raise CommandRefused(text, Exit.UNKNOWN_NAME)
    return table_of(file.servers[name]) or {}


def _entry(words: tuple[str, ...], url: str | None, *, is_json: bool) -> dict[str, object]:
    if url is not None:
        return {"type": "http", "url": url} if is_json else {"url": url}
    return {"command": words[0], "args": list(words[1:])} if is_json else {"command": list(words)}


def _words(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of the command. A single word with spaces is split like a command line,
    unless a file of that name exists. Raises UsageError for a URL."""
    if command and command[0].startswith(("http://", "https://")):
        raise click.UsageError(f"{command[0]!r} is a URL; write --url {command[0]}")
    if len(command) == 1 and " " in command[0] and not os.path.exists(command[0]):
        try:
            return tuple(shlex.split(command[0]))
        except ValueError as error:
            raise click.UsageError(f"the command cannot be read: {error}") from None
    return command


def _pairs(texts: tuple[str, ...], mark: str, option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, there, value = text.partition(mark)
        if not there or not key.strip():
            raise click.UsageError(f"{option} is written KEY{mark}VALUE, not {text!r}")
        found[key.strip()] = value.strip() if mark == ":" else value
    return found


# The file


def read_file(given: Path | None, runtime_dir: str | None) -> ConfigFile:
    """Read the configuration in use. Raises CommandRefused."""
    path = places.find(given, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    if path is None or not path.exists():
        what = f"{printable(str(path))} does not exist" if path else "no configuration was found"
        raise CommandRefused(
            f"{what}; 'metamcp init' makes metamcp.toml in this folder", Exit.CONFIG
        )
    label = printable(str(path))
    try:
        content = disk.read(path)
        is_json = path.suffix != ".toml" and content.text.lstrip().startswith(("{", "/"))
        kept = FileFormat("claude", "json", ()) if is_json else FileFormat("codex", "toml", ())
        values = texts.values(kept, content.text)
    except files.FileUnreadable as why:
        raise CommandRefused(f"{label} {why}", Exit.CONFIG) from None
    except BrokenSyntax as broken:
        line = f", line {broken.line}" if broken.line else ""
        raise CommandRefused(
            f"{label}{line}: {broken.message}; mend it first", Exit.CONFIG
        ) from None
    found = client_shapes.places(values, label, "") if is_json else [("servers",)]
    place = tuple(map(str, found[0])) if found else ("",)
    servers: object = values
    for key in place:
        servers = (table_of(servers) or {}).get(key, {} if not is_json else None)
    if table_of(servers) is None:
        text = f"{label} has no table of servers that could be edited; do it by hand"
        raise CommandRefused(text, Exit.CONFIG)
    kept = replace(kept, place=place)
    was_found = sources.was_found_in(Path.cwd(), path, given=given, environ=os.environ)
    return ConfigFile(content, kept, table_of(servers) or {}, was_found, runtime_dir)


def edit_file(
    file: ConfigFile,
    edit: Callable[[], str],
    what: str,
    *,
    dry_run: bool,
    command: bool = False,
    strict: bool = False,
) -> None:
    """Edit the file, or show the difference. `command`: whether the edit adds a command that a
    gateway will start; `strict`: whether a mistake that it brings refuses it. Raises CommandRefused
    and OSError."""
    try:
        made = edit()
    except FileUnfit as unfit:
        text = f"{file.label} {unfit}; nothing is changed: do it by hand"
        raise CommandRefused(text, Exit.CONFIG) from None
    if made == file.content.text:
        click.echo(f"{file.label}: nothing changes")
        return
    if strict:
        _refuse_mistakes(file, made)
    if dry_run:
        difference(file.label, file.content.text, made)
        return
    _write(file.content, made)
    click.echo(f"{file.label}: {what}")
    for problem in _read_again(file.content.path):
        errors.say(f"warning: {problem}")
    _bring_into_effect(file.runtime_dir, asks=file.found and command)


def _refuse_mistakes(file: ConfigFile, text: str) -> None:
    """Refuse an edit that brings a mistake, before anybody else reads it. Raises CommandRefused."""
    path = file.content.path
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=".metamcp-", suffix=path.suffix
    ) as edited:
        edited.write(text)
        edited.flush()
        new = _problems(Path(edited.name)) - _problems(path)
    if new:
        first, *others = sorted(new)
        raise CommandRefused(f"{file.label}: {first}; nothing is changed", Exit.CONFIG, others)


def _problems(path: Path) -> frozenset[str]:
    """Return the mistakes in a file, without the name of the file."""
    return frozenset(f"{each.place}: {each.message}" for each in _read_again(path))


def _read_again(path: Path) -> Sequence[Problem]:
    try:
        config = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid as invalid:
        return invalid.problems
    return config.problems


def _bring_into_effect(runtime_dir: str | None, *, asks: bool) -> None:
    """Have a gateway that runs start what was added, or say what starts it. `asks`: whether a
    gateway wants it confirmed. Raises Failed without a yes at a terminal."""
    from metamcp_supervisor.cli.config import apply_asked
    from metamcp_supervisor.cli.ctl import show_plan

    try:
        gateway = control.connect_here(runtime_dir)
    except control.Failed:
        errors.say("'metamcp up' starts the servers in it")
        return
    with gateway:
        if asks and errors.at_terminal():
            show_plan(apply_asked(gateway, yes=False), as_json=False)
        elif asks:
            errors.say("the gateway that runs starts it after 'metamcp confirm'")
        else:
            way = "'metamcp up' takes it over at once, any other gateway with 'metamcp reload'"
            errors.say(way)


def _write(content: disk.Content, text: str) -> None:
    try:
        disk.write(content, text)
    except disk.FileChanged:
        label = printable(str(content.path))
        raise CommandRefused(f"{label} was changed meanwhile; run this again") from None


def _elsewhere(name: str, path: Path) -> str:
    """Return a hint to the server if an included file has it; else an empty string."""
    try:
        found = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid:
        return ""
    server = found.servers.get(name)
    return f"it is at {server.source}: name that file with --config" if server else ""
