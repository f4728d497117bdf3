"""The configuration in use as a file that verbs edit: `metamcp.toml`, or a JSON file of a client.

Owns: the choice of the file, its tables, the edit of it and what follows. Never: what an entry or a
setting is (`server_entries`, `settings`), editing text (`client_files.texts`), reading and writing
bytes (`client_files.disk`), what a configuration means (`sources`).
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.errors import CommandRefused
from metamcp_supervisor.cli.install import difference
from metamcp_supervisor.client_files import disk, json_edit, texts, toml_edit
from metamcp_supervisor.client_files.clients import FileFormat, FileUnfit
from metamcp_supervisor.config import client_shapes, files, places, sources
from metamcp_supervisor.config.config import Config, ConfigInvalid, Problem
from metamcp_supervisor.config.document import BrokenSyntax, printable, shorten, table_of
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control import client as control
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc.process_names import DEFAULT, WORKSPACE_MARK

NOWHERE = Path("/nonexistent")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show the difference and write nothing."
)


class ConfigFile(Struct, frozen=True):
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
        file_format, text = replace(self.kept, place=(*self.kept.place, name)), self.content.text
        if value is None:
            return texts.drop(file_format, text, key, text) or ""
        return texts.put(file_format, text, key, value)

    def table(self, keys: tuple[str, ...]) -> Mapping[str, object]:
        """Return the table at a place of the file, an empty one if there is none."""
        value: object = texts.values(self.kept, self.content.text)
        for key in keys:
            value = (table_of(value) or {}).get(key)
        return table_of(value) or {}

    def put_at(self, keys: tuple[str, ...], entry: Mapping[str, object]) -> str:
        """Return the text with this table at a place. Raises FileUnfit."""
        *above, name = keys
        if self.is_json and not self.table(tuple(above)):
            return self.set(above[-2], above[-1], {name: entry})
        return texts.put(replace(self.kept, place=tuple(above)), self.content.text, name, entry)

    def without_at(self, keys: tuple[str, ...]) -> str:
        """Return the text without the table at a place; a file of JSON loses the table above as
        well, if that is empty then. Raises FileUnfit."""
        *above, name = keys
        if self.is_json and len(self.table(tuple(above))) == 1:
            return self.set(above[-2], above[-1], None)
        file_format, text = replace(self.kept, place=tuple(above)), self.content.text
        return texts.drop(file_format, text, name, text) or ""

    def with_text(self, text: str) -> "ConfigFile":
        return replace(self, content=replace(self.content, text=text))

    def with_renamed_server(self, name: str, new: str) -> "ConfigFile":
        """Return the file with another name for a server, also where namespaces and endpoints name
        it. Raises FileUnfit."""
        keys = self.kept.place
        if self.is_json:
            return self.with_text(json_edit.rename(self.content.text, (*keys, name), new))
        text = toml_edit.move(self.content.text, (*keys, name), (*keys, new))
        moved = {(new if each == name else each): entry for each, entry in self.servers.items()}
        if texts.values(self.kept, text) != {**self.table(()), **_nest(keys, moved)}:
            raise FileUnfit("is laid out in a way that cannot be edited safely")
        file = self.with_text(text)
        for each, entry in moved.items():
            waits = (table_of(entry) or {}).get("depends_on")
            if isinstance(waits, list) and name in waits:
                others = [new if dependency == name else dependency for dependency in waits]
                at = (*keys, each)
                file = file.with_text(file.put_at(at, {**file.table(at), "depends_on": others}))
        spaces = ((), *(("workspaces", each) for each in self.table(("workspaces",))))
        for space, kind in product(spaces, ("namespaces", "endpoints")):
            mark = f"{DEFAULT}{WORKSPACE_MARK}" if space else ""
            for each in self.table((*space, kind)):
                at = (*space, kind, each)
                changed = _with_name(file.table(at), f"{mark}{name}", f"{mark}{new}")
                for key in table_of(file.table(at).get("tools")) or {}:
                    if key.startswith(f"{name}."):
                        file = file.with_renamed_table(
                            (*at, "tools", key), f"{new}{key.removeprefix(name)}"
                        )
                file = file.with_text(file.put_at(at, changed))
        return file

    def with_renamed_table(self, keys: tuple[str, ...], name: str) -> "ConfigFile":
        """Return the file with another name for a table, as it is if that has no header."""
        try:
            text = toml_edit.move(self.content.text, keys, (*keys[:-1], name))
        except FileUnfit:
            return self
        return self.with_text(text)

    def without(self, name: str) -> str:
        """Return the text without this entry. Raises FileUnfit."""
        return texts.drop(self.kept, self.content.text, name, self.content.text) or ""


def _nest(keys: tuple[str, ...], value: object) -> dict[str, object]:
    for key in reversed(keys):
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


def place_of(config: Config, table: str, name: str) -> tuple[str, ...]:
    """Return the place of a table: `WORKSPACE:NAME`, and an endpoint of a workspace, stand in that
    workspace."""
    workspace, mark, base_name = name.partition(WORKSPACE_MARK)
    if table == "endpoints" and name in config.endpoints:
        workspace, base_name = config.endpoints[name].workspace, name
        return (
            (table, name) if workspace == DEFAULT else ("workspaces", workspace, table, base_name)
        )
    if table != "workspaces" and mark:
        return ("workspaces", workspace, table, base_name)
    return (table, name)


def load_config(path: Path) -> Config:
    """Return what a file means. Raises CommandRefused if it has a mistake."""
    try:
        return sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid as invalid:
        first, *others = map(str, invalid.problems)
        raise CommandRefused(first, Exit.CONFIG, others) from None


def refuse_json(file: ConfigFile, feature: str) -> None:
    """Refuse a file of JSON, which cannot have this. Raises CommandRefused."""
    if not file.is_json:
        return
    config_path = places.find(environ={}, cwd=Path.cwd(), home=NOWHERE, system=NOWHERE)
    way = "'metamcp init' makes a metamcp.toml that includes it"
    if config_path is None or config_path != file.content.path:
        way = f"a metamcp.toml can, with include = [{file.label!r}]"
    raise CommandRefused(f"{file.label} cannot have {feature}: {way}", Exit.CONFIG)


def read_file(config_path: Path | None, runtime_dir: str | None) -> ConfigFile:
    """Read the configuration in use. Raises CommandRefused."""
    path = places.find(config_path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    if path is None or not path.exists():
        problem = f"{printable(str(path))} does not exist" if path else "no configuration was found"
        raise CommandRefused(
            f"{problem}; 'metamcp init' makes metamcp.toml in this folder", Exit.CONFIG
        )
    label = printable(str(path))
    if path.suffix in (".yaml", ".yml"):
        raise CommandRefused(f"{label} is YAML, which is not edited; do it by hand", Exit.CONFIG)
    try:
        content = disk.read(path)
        is_json = path.suffix != ".toml" and content.text.lstrip().startswith(("{", "/"))
        file_format = (
            FileFormat("claude", "json", ()) if is_json else FileFormat("codex", "toml", ())
        )
        values = texts.values(file_format, content.text)
    except files.FileUnreadable as error:
        raise CommandRefused(f"{label} {error}", Exit.CONFIG) from None
    except BrokenSyntax as broken:
        line = f", line {broken.line}" if broken.line else ""
        raise CommandRefused(
            f"{label}{line}: {broken.message}; mend it first", Exit.CONFIG
        ) from None
    key_paths = client_shapes.places(values, label, "") if is_json else [("servers",)]
    keys = tuple(map(str, key_paths[0])) if key_paths else ("",)
    servers: object = values
    for key in keys:
        servers = (table_of(servers) or {}).get(key, {} if not is_json else None)
    if table_of(servers) is None:
        text = f"{label} has no table of servers that could be edited; do it by hand"
        raise CommandRefused(text, Exit.CONFIG)
    file_format = replace(file_format, place=keys)
    was_found = sources.was_found_in(Path.cwd(), path, named_path=config_path, environ=os.environ)
    return ConfigFile(content, file_format, table_of(servers) or {}, was_found, runtime_dir)


def edit_file(
    file: ConfigFile,
    edit: Callable[[], str],
    change: str,
    *,
    dry_run: bool,
    command: bool = False,
    judge: Callable[[Config], None] | None = None,
    carry: Callable[[], None] | None = None,
) -> None:
    """Edit the file, or show the difference. `command`: whether the edit adds a command that a
    gateway will start; `judge`: looks at what the edited file means before it is written, and may
    refuse it; with it, a mistake that the edit brings is refused, too; `carry`: changes what goes
    along, before a gateway reads the file again. Raises CommandRefused and OSError."""
    try:
        made = edit()
    except FileUnfit as unfit:
        text = f"{file.label} {unfit}; nothing is changed: do it by hand"
        raise CommandRefused(text, Exit.CONFIG) from None
    if made == file.content.text:
        click.echo(f"{file.label}: nothing changes")
        return
    if judge is not None:
        command = _check_edit(file, made, judge) or command
    if dry_run:
        difference(file.label, file.content.text, made)
        return
    write_file(file.content, made)
    click.echo(f"{file.label}: {change}")
    if carry is not None:
        carry()
    for problem in _read_again(file.content.path)[1]:
        errors.say(f"warning: {problem}")
    _bring_into_effect(file.runtime_dir, asks=file.found and command)


def accept(config: Config) -> None:
    """Accept what an edited file means, if it brings no mistake."""


def _check_edit(file: ConfigFile, text: str, judge: Callable[[Config], None]) -> bool:
    """Refuse an edit that brings a mistake, before anybody else reads it. Return whether it brings
    a command. Raises CommandRefused."""
    path = file.content.path
    before, old = _read_again(path)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=".metamcp-", suffix=path.suffix
    ) as edited:
        edited.write(text)
        edited.flush()
        after, problems = _read_again(Path(edited.name))
        name = Path(edited.name).name
    new = {_without_file(each).replace(name, path.name) for each in problems}
    if new := new - {_without_file(each) for each in old}:
        first, *others = sorted(new)
        raise CommandRefused(f"{file.label}: {first}; nothing is changed", Exit.CONFIG, others)
    if after is None:
        return True
    judge(after)
    commands = {} if before is None else {s.name: s.command for s in before.servers.values()}
    return any(commands.get(s.name, ()) != s.command for s in after.servers.values())


def _without_file(problem: Problem) -> str:
    return f"{problem.place}: {problem.message}"


def _read_again(path: Path) -> tuple[Config | None, Sequence[Problem]]:
    """Return what a file means, None if it has a mistake that leaves nothing, and its mistakes."""
    try:
        config = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid as invalid:
        return None, invalid.problems
    return config, config.problems


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


def write_file(content: disk.Content, text: str) -> None:
    try:
        disk.write(content, text)
    except disk.FileChanged:
        label = printable(str(content.path))
        raise CommandRefused(f"{label} was changed meanwhile; run this again") from None


def _elsewhere(name: str, path: Path) -> str:
    """Return a hint to the server if an included file has it; else an empty string."""
    try:
        config = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid:
        return ""
    server = config.servers.get(name)
    if server is None:
        return ""
    is_here = server.source.startswith(f"{path}:")
    return f"it is at {server.source}" + ("" if is_here else ": name that file with --config")


def entry_of(file: ConfigFile, name: str) -> Mapping[str, object]:
    """Return the entry of a server. Raises CommandRefused if the file does not have it."""
    if name not in file.servers:
        advice = _elsewhere(name, file.content.path) or hint(name, file.servers)
        text = f"{file.label} has no server '{shorten(name)}'; {advice}"
        raise CommandRefused(text, Exit.UNKNOWN_NAME)
    return table_of(file.servers[name]) or {}
