"""`metamcp namespaces`, `endpoints` and `workspaces`, and `metamcp config set`: settings in the
tables of the configuration.

Owns: these verbs, the value that a text means for a key. Never: the edit of the file
(`config_file`), which keys there are (`config.options`), what they mean (`sources`).
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.config import load_or_exit
from metamcp_supervisor.cli.config_file import (
    ConfigFile,
    dry_run_option,
    edit_file,
    entry_of,
    load_config,
    place_of,
    read_file,
    refuse_json,
)
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import (
    Command,
    CommandRefused,
    Group,
    add_json_option,
    gateway_options,
)
from metamcp_supervisor.cli.show import PrintedTable, picture, printable
from metamcp_supervisor.config import formats, options, workspaces
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import BrokenSyntax, shorten, table_of
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.origins import toml
from metamcp_supervisor.config.show import find_changed_settings, use
from metamcp_supervisor.config.tables import Option
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc.process_names import DEFAULT, WORKSPACE_MARK, label

TableName = Literal["namespaces", "endpoints", "workspaces"]
_ABOUT: dict[TableName, str] = {
    "namespaces": "List, show, add, change and remove groups of servers.",
    "endpoints": "List, show, add, change and remove what clients connect to.",
    "workspaces": "List, show, add, change and remove workspaces.",
}
_COLUMNS: dict[TableName, tuple[str, ...]] = {
    "namespaces": ("NAMESPACE", "SERVERS", "ENDPOINTS", "DESCRIPTION"),
    "endpoints": ("ENDPOINT", "PATH", "NAMESPACE", "EXPOSURE", "AUTH"),
    "workspaces": ("WORKSPACE", "NAMESPACES", "ENDPOINTS", "SERVERS"),
}
_WORDS = {
    "ls": "did you mean 'list'?",
    "create": "did you mean 'add'?",
    "new": "did you mean 'add'?",
    "update": "did you mean 'set'?",
    "edit": "did you mean 'set'?",
    "rm": "did you mean 'remove'?",
    "delete": "did you mean 'remove'?",
    "get": "did you mean 'show'?",
    "rename": "it keeps its name: add another one, and remove this one",
}
_LISTS = frozenset({"strings", "choices", "command", "integers"})
_VALUES = frozenset({"boolean", "boolean or table", "integer", "number", "number from 0 to 1"})
_OF_NAMES = frozenset({"tools", "servers", "namespaces", "endpoints"})
"""Tables whose keys are names."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SETTINGS = click.argument("settings", metavar="KEY=VALUE…", nargs=-1)


# Tables


def table_verbs(table: TableName) -> Group:
    """Return the group of verbs about the tables of one kind."""
    group = Group(name=table, help=_ABOUT[table], words=_WORDS)
    for verb in (_list_verb, _show_verb, _add_verb, _set_verb, _remove_verb):
        group.add_command(verb(table))
    return group


def _list_verb(table: TableName) -> click.Command:
    @click.command("list", cls=Command, help=f"List the {table} of the configuration.")
    @gateway_options("path")
    @json_option
    def list_(path: Path | None, as_json: bool) -> None:
        rows = _rows(table, load_or_exit(path, quiet=True))
        if as_json:
            keys = [column.lower() for column in _COLUMNS[table]]
            errors.tell(**{table: [dict(zip(keys, row, strict=True)) for row in rows]})
            return
        picture(PrintedTable(_COLUMNS[table], [tuple(map(_cell, row)) for row in rows]))

    return list_


def _show_verb(table: TableName) -> click.Command:
    noun = table[:-1]

    @click.command("show", cls=Command, help=f"Print the settings of one {noun}, without defaults.")
    @click.argument("name")
    @gateway_options("path")
    @json_option
    def show_(name: str, path: Path | None, as_json: bool) -> None:
        config = load_or_exit(path, quiet=True)
        name = _known_name(table, name, config)
        settings = _settings(table, name, config)
        if as_json:
            errors.tell(name=name, settings=settings)
            return
        click.echo(f"[{printable(_format_key(place_of(config, table, name)))}]")
        for key, value in settings.items():
            mark = "# " if table == "workspaces" and key != "limits" else ""
            click.echo(printable(f"{mark}{key} = {toml(value)}"))

    return show_


def _add_verb(table: TableName) -> click.Command:
    noun = table[:-1]

    @click.command("add", cls=Command, help=f"Add {_one(noun)} to the configuration.")
    @click.argument("name")
    @click.argument("settings", metavar="[KEY=VALUE…]", nargs=-1)
    @dry_run_option
    @gateway_options("path", "runtime_dir")
    @add_json_option
    def add(name: str, settings: tuple[str, ...], dry_run: bool, **location: Any) -> None:
        file = _file(table, **location)
        before = load_config(file.content.path)
        at = place_of(before, table, name)
        if len(at) > 2:
            _known_name("workspaces", at[1], before)
        if at[-1] in file.table(at[:-1]):
            text = f"{file.label} has {_one(noun)} '{shorten(name)}' already"
            way = f"change it with 'metamcp {table} set {shorten(name)} KEY=VALUE'"
            raise CommandRefused(f"{text}; {way}")
        entry, base_file = _with(f"{table}.*", {}, settings), _with_implied(file, at, before)
        edit_file(
            file, lambda: base_file.put_at(at, entry), f"{noun} '{shorten(name)}' added",
            dry_run=dry_run, judge=lambda after: _tell_moved(before, after),
        )  # fmt: skip

    return add


def _set_verb(table: TableName) -> click.Command:
    noun = table[:-1]
    about = f"Change settings of one {noun}; KEY= gives a key its default again."

    @click.command("set", cls=Command, help=about)
    @click.argument("name")
    @_SETTINGS
    @dry_run_option
    @gateway_options("path", "runtime_dir")
    @add_json_option
    def set_(name: str, settings: tuple[str, ...], dry_run: bool, **location: Any) -> None:
        if not settings:
            raise click.UsageError(f"say what to change: {_example(table)}")
        file = _file(table, **location)
        before = _meaning_of(file, (table, name))
        name = name if before is None else _known_name(table, name, before)
        at = (table, name) if before is None else place_of(before, table, name)
        _refuse_included(file, at, before)
        old = file.table(at)
        entry = _with(f"{table}.*", _implied_settings(at, before) | dict(old), settings)
        if entry == old:
            click.echo(f"{file.label}: {noun} '{shorten(name)}' has these settings already")
            return
        edit_file(
            file, lambda: file.put_at(at, entry), f"{noun} '{shorten(name)}' changed",
            dry_run=dry_run, judge=lambda after: _tell_moved(before, after),
        )  # fmt: skip

    return set_


def _remove_verb(table: TableName) -> click.Command:
    noun = table[:-1]

    @click.command("remove", cls=Command, help=f"Take one {noun} out of the configuration.")
    @click.argument("name")
    @dry_run_option
    @errors.yes_option
    @gateway_options("path", "runtime_dir")
    @add_json_option
    def remove(name: str, dry_run: bool, yes: bool, **location: Any) -> None:
        file = _file(table, **location)
        before = _meaning_of(file, (table, name))
        name = name if before is None else _known_name(table, name, before)
        at = (table, name) if before is None else place_of(before, table, name)
        _refuse_included(file, at, before)
        if at[-1] not in file.table(at[:-1]):
            text = f"{file.label} does not have the {noun} '{shorten(name)}'"
            raise CommandRefused(f"{text}; it is there without a table", Exit.UNKNOWN_NAME)

        def judge(after: Config) -> None:
            if table == "endpoints" and name in after.endpoints:
                text = (
                    f"'{shorten(name)}' is the only endpoint of its workspace, which would have it"
                )
                way = "without a table, open as the gateway is; add another endpoint first"
                raise CommandRefused(f"{text} {way}")
            _tell_moved(before, after)

        errors.confirm(f"Take {noun} '{name}' out of {file.label}?", yes=yes or dry_run)
        edit_file(
            file, lambda: file.without_at(at), f"{noun} '{shorten(name)}' removed",
            dry_run=dry_run, judge=judge,
        )  # fmt: skip

    return remove


@click.command("set", cls=Command)
@_SETTINGS
@dry_run_option
@gateway_options("path", "runtime_dir")
@add_json_option
def set_keys(
    settings: tuple[str, ...], dry_run: bool, path: Path | None, runtime_dir: str | None
) -> None:
    """Change settings in the configuration: metamcp config set gateway.auth=keys log.level=debug

    KEY names the tables that lead to it: servers.git.timeout. KEY= gives it its default again.
    """
    if not settings:
        raise click.UsageError("say what to change: metamcp config set gateway.auth=keys")
    file = read_file(path, runtime_dir)
    refuse_json(file, "settings of a gateway")
    before = _meaning_of(file)
    change = f"{', '.join(_split(setting)[0] for setting in settings)} changed"
    edit_file(
        file, lambda: _with_keys(file, before, settings), change,
        dry_run=dry_run, judge=lambda after: _tell_moved(before, after),
    )  # fmt: skip
    for setting in settings if not dry_run else ():
        words = _words(_split(setting)[0])
        if words[0] == "gateway" and _option("gateway", words[1]).effect == "full restart":
            errors.say(f"{_format_key(words)} is in force when the gateway is started again")


def _with_keys(file: ConfigFile, before: Config | None, settings: Sequence[str]) -> str:
    """Return the text with these settings. Raises CommandRefused, UsageError and FileUnfit."""
    for setting in settings:
        key, text = _split(setting)
        words = _words(key)
        at, section = _table_of(words)
        if at[-2:-1] == ("servers",) and at[-1] not in file.table(at[:-1]):
            entry_of(file, at[-1])
        if before is not None and at[-2:-1] == ("endpoints",) and at[-1] not in file.table(at[:-1]):
            file = _with_implied(file, at, before)
        old = _implied_settings(at, before) | dict(file.table(at))
        entry = _with(section, old, [f"{_format_key(words[len(at) :])}={text}"])
        is_named = section.endswith("*")
        edited = file.put_at(at, entry) if entry or is_named else file.without_at(at)
        file = file.with_text(edited)
    return file.content.text


def _table_of(words: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return the place of the table that a key is written into, and its section: that of the
    innermost name in it. Raises UsageError."""
    own = 2 if words[0] == "workspaces" else 0  # a workspace has servers and endpoints inside
    for skipped in (own, 0):
        for section in options.sections():
            if _fits(section, words[skipped:]):
                parts = section.split(".")
                length = max(
                    (at + 1 for at, segment in enumerate(parts) if segment == "*"), default=1
                )
                return words[: skipped + length], ".".join(parts[:length])
    named = _format_key(words)
    names = sorted({name for name in options.sections() if name and not {"*", "["} & set(name)})
    if len(words) == 1 and named in options.keys(""):
        raise click.UsageError(f"'{named}' is not a single key: write one in it, or edit the file.")
    if len(words) == 1:
        key = shorten(named)
        raise click.UsageError(
            f"'{key}' names no table: write gateway.{key}, or another table that has it"
        )
    if len(words) == 2 and (keys := options.keys(f"{words[0]}.*")):
        raise click.UsageError(f"'{named}' is a table: write {named}.KEY, such as {keys[0]}.")
    tables = _format_key(words[:-1])
    raise click.UsageError(f"no table is named '{shorten(tables)}'; {hint(tables, names)}")


def _fits(section: str, words: tuple[str, ...]) -> bool:
    """Whether the table of a key is of this section, or a table of values in one of it."""
    parts = section.split(".")
    matches = all(segment in ("*", word) for segment, word in zip(parts, words, strict=False))
    if not section or not matches or len(parts) not in (len(words) - 1, len(words) - 2):
        return False
    if len(parts) == len(words) - 1:
        return True
    names = options.keys(section)
    return words[-2] in names and _kind(section, words[-2]).startswith("table of")


def _kind(section: str, key: str) -> str:
    return options.option(section, key).kind


def _words(key: str) -> tuple[str, ...]:
    """Return the names in a dotted key, in which one with dots stands in quotes. Raises
    UsageError."""
    try:
        value: object = formats.toml_loads(f"{key} = 0")
    except BrokenSyntax:
        raise click.UsageError(f"a setting is written KEY=VALUE, not '{shorten(key)}='.") from None
    names: list[str] = []
    while table := table_of(value):
        ((name, value),) = table.items()
        names.append(name)
    return tuple(names)


def _format_key(words: Sequence[str]) -> str:
    return ".".join(word if _BARE.fullmatch(word) else f'"{word}"' for word in words)


def _file(table: TableName, path: Path | None, runtime_dir: str | None) -> ConfigFile:
    """Read the file in use. Raises CommandRefused for one that cannot have such tables."""
    file = read_file(path, runtime_dir)
    refuse_json(file, table)
    return file


def _meaning_of(file: ConfigFile, at: tuple[str, ...] = ()) -> Config | None:
    """Return what a file means; None if it has a mistake, which an edit may mend. `at`: the table
    to edit, which then has to be there. Raises CommandRefused."""
    try:
        return load_config(file.content.path)
    except CommandRefused:
        if at and at[-1] not in file.table(at[:-1]):
            raise
        return None


def _refuse_included(file: ConfigFile, at: tuple[str, ...], config: Config | None) -> None:
    """Refuse a table that an included file has. Raises CommandRefused."""
    if config is None or at[-1] in file.table(at[:-1]) or len(config.files) < 2:
        return
    if at[-1] != (at[1] if len(at) > 2 else DEFAULT):
        text = f"'{shorten(at[-1])}' is in a file that {file.label} includes"
        raise CommandRefused(f"{text}; name that file with --config")


def _implied_settings(at: tuple[str, ...], config: Config | None) -> dict[str, object]:
    """Return what an endpoint without a table has: its namespace."""
    endpoint = config.endpoints.get(at[-1]) if config and at[-2:-1] == ("endpoints",) else None
    return {} if endpoint is None else {"namespace": label(endpoint.namespace)}


def _with_implied(file: ConfigFile, at: tuple[str, ...], config: Config) -> ConfigFile:
    """Return the file with a table for the endpoint that its workspace has while no other is
    written: its clients keep it when the first table of an endpoint comes."""
    *above, table, name = at
    workspace = above[-1] if above else DEFAULT
    if table != "endpoints" or name == workspace or workspace not in config.endpoints:
        return file
    if file.table(at[:-1]):
        return file
    return file.with_text(file.put_at((*at[:-1], workspace), {"namespace": DEFAULT}))


def _tell_moved(before: Config | None, after: Config) -> None:
    """Say which servers the default namespace gets and has no longer: without a list of its own it
    has those that no other namespace names."""
    if before is None:
        return
    old, new = (
        config.namespaces[DEFAULT].servers if DEFAULT in config.namespaces else ()
        for config in (before, after)
    )
    rule = (
        "it has the servers that no other namespace names, unless"
        " 'metamcp namespaces set default servers=…' says which"
    )
    for verb, names in (
        ("no longer has", [each for each in old if each not in new]),
        ("now has", [each for each in new if each not in old and each in before.servers]),
    ):
        if names:
            listed = ", ".join(map(shorten, names))
            errors.say(f"the namespace 'default' {verb}: {listed}; {rule}")


def _names(table: TableName, config: Config) -> Sequence[str]:
    if table == "workspaces":
        return [each.name for each in workspaces.tree(config, {}, {}).workspaces]
    return list(config.namespaces if table == "namespaces" else config.endpoints)


def _known_name(table: TableName, name: str, config: Config) -> str:
    """Return a name as the configuration has it: endpoints have theirs without the workspace.
    Raises CommandRefused for an unknown one."""
    workspace, _, base_name = name.partition(WORKSPACE_MARK)
    endpoint = config.endpoints.get(base_name) if table == "endpoints" else None
    if endpoint is not None and endpoint.workspace == workspace:
        return base_name
    names = _names(table, config)
    if name not in names:
        text = f"the configuration has no {table[:-1]} '{shorten(name)}'; {hint(name, names)}"
        raise CommandRefused(text, Exit.UNKNOWN_NAME)
    return name


def _rows(table: TableName, config: Config) -> list[tuple[str | tuple[str, ...], ...]]:
    """Return the rows of a list; a column with several names has a tuple."""
    if table == "endpoints":
        return [
            (name, f"/metamcp/{each.path or name}/mcp", each.namespace, each.exposure, each.auth)
            for name, each in config.endpoints.items()
        ]
    tree = workspaces.tree(config, dict.fromkeys(config.endpoints, ""), {}).workspaces
    if table == "workspaces":
        return [
            (
                each.name,
                tuple(namespace.name for namespace in each.namespaces),
                tuple(name for namespace in each.namespaces for name in namespace.endpoints),
                tuple(
                    dict.fromkeys(
                        name for namespace in each.namespaces for name in namespace.servers
                    )
                ),
            )
            for each in tree
        ]
    exposed = {
        name: tuple(at for at, each in config.endpoints.items() if each.namespace == name)
        for name in config.namespaces
    }
    return [
        (name, each.servers, exposed[name], each.description)
        for name, each in config.namespaces.items()
    ]


def _settings(table: TableName, name: str, config: Config) -> Mapping[str, object]:
    """Return the settings that differ from their defaults; of a workspace, also what is in it."""
    if table != "workspaces":
        settings = find_changed_settings(config, table, name)
        return (
            settings | {"namespace": label(settings["namespace"])}
            if table == "endpoints"
            else settings
        )
    columns = [column.lower() for column in _COLUMNS["workspaces"]]
    (row,) = (each for each in _rows(table, config) if each[0] == name)
    limits = use(config.workspace_limits[name]) if name in config.workspace_limits else {}
    return {
        **({"limits": limits} if limits else {}),
        **dict(zip(columns[1:], row[1:], strict=True)),
    }


def _cell(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _one(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _example(table: TableName) -> str:
    first = {"namespaces": "servers=git,fs", "endpoints": "exposure=search"}
    return f"metamcp {table} set NAME {first.get(table, 'limits.calls_per_minute=600')}"


# Values


def _with(section: str, old: Mapping[str, object], settings: Sequence[str]) -> dict[str, object]:
    """Return a table of this section with these settings. Raises UsageError."""
    entry = dict(old)
    for setting in settings:
        key, text = _split(setting)
        outer, *inner = _words(key)
        if not inner:
            _put(entry, outer, section, text)
            continue
        kind = _option(section, outer).kind
        below = dict(table_of(entry.get(outer)) or {})
        if kind.startswith("table of") and len(inner) == 1:
            below.pop(inner[0], None)
            if text:
                below[inner[0]] = text if kind == "table of strings" else _parse_value(text)
        elif outer == "tools":
            raise click.UsageError(
                "the settings of tools have verbs: metamcp tools hide SERVER.TOOL"
            )
        else:
            _put(below, _format_key(inner), f"{section}.{outer}", text)
        entry[outer] = below
        if not below:
            del entry[outer]
    return entry


def _split(setting: str) -> tuple[str, str]:
    """Return key and value of a setting. Raises UsageError."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise click.UsageError(f"a setting is written KEY=VALUE, not '{shorten(setting)}'.")
    return key, text


def _put(entry: dict[str, object], key: str, section: str, text: str) -> None:
    option = _option(section, key)
    if option.kind in ("table", "tables"):
        below = () if key in _OF_NAMES else options.keys(f"{section}.{key}")
        names = ", ".join(f"{key}.{each}" for each in below)
        way = f"write one of {names}" if below else "its entries have verbs of their own"
        raise click.UsageError(f"'{key}' is a table; {way}.")
    if text:
        entry[key] = _value(option, text)
    else:
        entry.pop(key, None)


def _option(section: str, key: str) -> Option:
    """Return a key of the configuration. Raises UsageError for an unknown one."""
    names = options.keys(section)
    if key not in names:
        raise click.UsageError(f"no key is named '{shorten(key)}'; {hint(key, names)}")
    return options.option(section, key)


def _value(option: Option, text: str) -> object:
    """Return what a text means for a key; the reader of the file judges it."""
    if option.kind == "command" and not text.startswith("["):
        return shlex.split(text)
    if option.kind in _LISTS and not text.startswith("["):
        return [each.strip() for each in text.split(",")]
    return _parse_value(text) if option.kind in _LISTS | _VALUES or "table" in option.kind else text


def _parse_value(text: str) -> object:
    """Return the value that a text is in TOML, else the text."""
    try:
        return formats.toml_loads(f"value = {text}")["value"]
    except BrokenSyntax:
        return text


namespaces = table_verbs("namespaces")
endpoints = table_verbs("endpoints")
workspaces_ = table_verbs("workspaces")
