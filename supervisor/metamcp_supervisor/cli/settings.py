"""`metamcp namespaces`, `endpoints` and `workspaces`, `metamcp config set`, and the verbs of
`metamcp tools` that change one tool: settings in the tables of the configuration.

Owns: these verbs, the place of a table in the file, the value that a text means for a key. Never:
editing a file (`server_entries`), which keys there are (`config.options`), what they mean
(`sources`).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import click

from metamcp_supervisor.cli import errors, offers
from metamcp_supervisor.cli.config import loaded
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import Command, CommandRefused, Group, gateway_options, told
from metamcp_supervisor.cli.server_entries import (
    ConfigFile,
    dry_run_option,
    edit_file,
    entry_of,
    read_file,
)
from metamcp_supervisor.cli.show import Picture, picture, printable
from metamcp_supervisor.config import formats, options, workspaces
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import BrokenSyntax, shown, table_of
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.options import Option, Section
from metamcp_supervisor.config.origins import heads, toml
from metamcp_supervisor.config.show import changed
from metamcp_supervisor.control import client as control
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import disclosure, exposed_names, server_catalog
from metamcp_worker.ipc.process_names import DEFAULT, WORKSPACE_MARK

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
}
_LISTS = frozenset({"strings", "choices", "command", "integers"})
_VALUES = frozenset({"boolean", "boolean or table", "integer", "number", "number from 0 to 1"})
_OF_NAMES = frozenset({"tools", "servers", "namespaces", "endpoints"})
"""Tables whose keys are names."""
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
        rows = _rows(table, loaded(path, quiet=True))
        if as_json:
            keys = [column.lower() for column in _COLUMNS[table]]
            errors.tell(**{table: [dict(zip(keys, row, strict=True)) for row in rows]})
            return
        picture(Picture(_COLUMNS[table], [tuple(map(_cell, row)) for row in rows]))

    return list_


def _show_verb(table: TableName) -> click.Command:
    noun = table[:-1]

    @click.command("show", cls=Command, help=f"Print the settings of one {noun}, without defaults.")
    @click.argument("name")
    @gateway_options("path")
    @json_option
    def show_(name: str, path: Path | None, as_json: bool) -> None:
        config = loaded(path, quiet=True)
        _refuse_unknown(table, name, config)
        settings = _settings(table, name, config)
        if as_json:
            errors.tell(name=name, settings=settings)
            return
        for head, values in heads({table: {name: settings}}):
            click.echo(f"[{printable(head)}]")
            for key, value in values.items():
                click.echo(printable(f"{key} = {toml(value)}"))

    return show_


def _add_verb(table: TableName) -> click.Command:
    noun = table[:-1]

    @click.command("add", cls=Command, help=f"Add {_one(noun)} to the configuration.")
    @click.argument("name")
    @_SETTINGS
    @dry_run_option
    @gateway_options("path", "runtime_dir")
    @told
    def add(name: str, settings: tuple[str, ...], dry_run: bool, **place: Any) -> None:
        file = _file(table, **place)
        at, before = _place(file, table, name), _config(file)
        if len(at) > 2:
            _refuse_unknown("workspaces", at[1], before)
        if at[-1] in file.table(at[:-1]):
            text = f"{file.label} has {_one(noun)} '{shown(name)}' already"
            way = f"change it with 'metamcp {table} set {shown(name)} KEY=VALUE'"
            raise CommandRefused(f"{text}; {way}")
        entry, kept = _with(f"{table}.*", {}, settings), _with_implied(file, at, before)
        what = f"{noun} '{shown(name)}' added"
        edit_file(file, lambda: kept.put_at(at, entry), what, dry_run=dry_run, strict=True)
        _tell_moved(file, before)

    return add


def _set_verb(table: TableName) -> click.Command:
    noun = table[:-1]
    about = f"Change settings of one {noun}; KEY= gives a key its default again."

    @click.command("set", cls=Command, help=about)
    @click.argument("name")
    @_SETTINGS
    @dry_run_option
    @gateway_options("path", "runtime_dir")
    @told
    def set_(name: str, settings: tuple[str, ...], dry_run: bool, **place: Any) -> None:
        if not settings:
            raise click.UsageError(f"say what to change: {_example(table)}")
        file = _file(table, **place)
        before = _config(file)
        _refuse_unknown(table, name, before)
        at = _place(file, table, name)
        old = file.table(at)
        implied = {"namespace": before.endpoints[name].namespace} if table == "endpoints" else {}
        entry = _with(f"{table}.*", implied | dict(old), settings)
        if entry == old:
            click.echo(f"{file.label}: {noun} '{shown(name)}' is so already")
            return
        what = f"{noun} '{shown(name)}' changed"
        edit_file(file, lambda: file.put_at(at, entry), what, dry_run=dry_run, strict=True)
        _tell_moved(file, before)

    return set_


def _remove_verb(table: TableName) -> click.Command:
    noun = table[:-1]

    @click.command("remove", cls=Command, help=f"Take one {noun} out of the configuration.")
    @click.argument("name")
    @dry_run_option
    @errors.yes_option
    @gateway_options("path", "runtime_dir")
    @told
    def remove(name: str, dry_run: bool, yes: bool, **place: Any) -> None:
        file = _file(table, **place)
        _refuse_unknown(table, name, _config(file))
        at = _place(file, table, name)
        if file.table(at[:-1]).get(at[-1]) is None:
            text = f"{file.label} does not have the {noun} '{shown(name)}'"
            way = "it is there without a table, or in a file that is included"
            raise CommandRefused(f"{text}; {way}", Exit.UNKNOWN_NAME)
        errors.confirm(f"Take {noun} '{name}' out of {file.label}?", yes=yes or dry_run)
        what = f"{noun} '{shown(name)}' removed"
        edit_file(file, lambda: file.without_at(at), what, dry_run=dry_run, strict=True)

    return remove


@click.command("set", cls=Command)
@_SETTINGS
@dry_run_option
@gateway_options("path", "runtime_dir")
@told
def set_keys(
    settings: tuple[str, ...], dry_run: bool, path: Path | None, runtime_dir: str | None
) -> None:
    """Change settings in the configuration: metamcp config set gateway.auth=keys log.level=debug

    KEY names the tables that lead to it: servers.git.timeout. KEY= gives it its default again.
    """
    if not settings:
        raise click.UsageError("say what to change: metamcp config set gateway.auth=keys")
    file = read_file(path, runtime_dir)
    _refuse_json(file, "settings of a gateway")
    what = f"{', '.join(_split(setting)[0] for setting in settings)} changed"
    edit_file(file, lambda: _with_keys(file, settings), what, dry_run=dry_run, strict=True)


def _with_keys(file: ConfigFile, settings: Sequence[str]) -> str:
    """Return the text with these settings. Raises UsageError and FileUnfit."""
    for setting in settings:
        key, text = _split(setting)
        place, section = _table_of(key)
        inner = key.split(".")[len(place) :]
        entry = _with(section, file.table(place), [f"{'.'.join(inner)}={text}"])
        is_named = section.endswith("*")
        changed_text = file.put_at(place, entry) if entry or is_named else file.without_at(place)
        file = file.with_text(changed_text)
    return file.content.text


def _table_of(key: str) -> tuple[tuple[str, ...], str]:
    """Return the place of the table that a key is written into, and its section: that of the
    innermost name in it. Raises UsageError."""
    *tables, _ = key.split(".")
    for section in get_args(Section):
        words = section.split(".")
        if len(words) == len(tables) and all(
            word in ("*", table) for word, table in zip(words, tables, strict=True)
        ):
            length = max((at + 1 for at, word in enumerate(words) if word == "*"), default=1)
            return tuple(tables[:length]), ".".join(words[:length])
    if not tables:
        raise click.UsageError(f"'{shown(key)}' names no table: write gateway.{shown(key)}, or"
                               " another table that has it")  # fmt: skip
    names = [name for name in get_args(Section) if name and not {"*", "["} & set(name)]
    named = ".".join(tables)
    raise click.UsageError(f"no table is named '{shown(named)}'; {hint(named, sorted(names))}")


def _file(table: TableName, path: Path | None, runtime_dir: str | None) -> ConfigFile:
    """Read the file in use. Raises CommandRefused for one that cannot have such tables."""
    file = read_file(path, runtime_dir)
    _refuse_json(file, table)
    return file


def _refuse_json(file: ConfigFile, table: str) -> None:
    if file.is_json:
        text = f"{file.label} cannot have {table}: 'metamcp init' makes a file that includes it"
        raise CommandRefused(text, Exit.CONFIG)


def _config(file: ConfigFile) -> Config:
    """Return what the file means. Raises Failed if it has a mistake."""
    return offers.kept(file.content.path, None, None).config


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


def _tell_moved(file: ConfigFile, before: Config) -> None:
    """Say which servers the default namespace has no longer: without a list of its own it has
    those that no other namespace names."""
    after = _config(file)
    left = after.namespaces[DEFAULT].servers if DEFAULT in after.namespaces else ()
    if moved := [each for each in before.namespaces[DEFAULT].servers if each not in left]:
        names = ", ".join(map(shown, moved))
        errors.say(
            f"the namespace 'default' has no longer: {names}; it has the servers that no other"
            f" namespace names, unless 'metamcp namespaces set default servers=…' says which"
        )


def _names(table: TableName, config: Config) -> Sequence[str]:
    if table == "workspaces":
        return [each.name for each in workspaces.tree(config, {}, {}).workspaces]
    return list(config.namespaces if table == "namespaces" else config.endpoints)


def _refuse_unknown(table: TableName, name: str, config: Config) -> None:
    names = _names(table, config)
    if name not in names:
        text = f"the configuration has no {table[:-1]} '{shown(name)}'; {hint(name, names)}"
        raise CommandRefused(text, Exit.UNKNOWN_NAME)


def _place(file: ConfigFile, table: TableName, name: str) -> tuple[str, ...]:
    """Return the place of a table: `WORKSPACE:NAME` stands in that workspace, and so does an
    endpoint that one of them has."""
    workspace, mark, rest = name.partition(WORKSPACE_MARK)
    if table != "workspaces" and mark:
        return ("workspaces", workspace, table, rest)
    if table == "endpoints":
        for each in file.table(("workspaces",)):
            if name in file.table(("workspaces", each, table)):
                return ("workspaces", each, table, name)
    return (table, name)


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
                tuple(one.name for one in each.namespaces),
                tuple(name for one in each.namespaces for name in one.endpoints),
                tuple(dict.fromkeys(name for one in each.namespaces for name in one.servers)),
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
    if table != "workspaces":
        return changed(config, table, name)
    columns = [column.lower() for column in _COLUMNS["workspaces"]]
    (row,) = (each for each in _rows(table, config) if each[0] == name)
    return dict(zip(columns[1:], row[1:], strict=True))


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
        outer, dot, inner = key.partition(".")
        if not dot:
            _put(entry, key, section, text)
            continue
        _option(section, outer)
        below = dict(table_of(entry.get(outer)) or {})
        _put(below, inner, f"{section}.{outer}", text)
        entry[outer] = below
        if not below:
            del entry[outer]
    return entry


def _split(setting: str) -> tuple[str, str]:
    """Return key and value of a setting. Raises UsageError."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise click.UsageError(f"a setting is written KEY=VALUE, not '{shown(setting)}'.")
    return key, text


def _put(entry: dict[str, object], key: str, section: str, text: str) -> None:
    option = _option(section, key)
    if option.kind in ("table", "tables"):
        below = () if key in _OF_NAMES else options.keys(cast(Section, f"{section}.{key}"))
        names = ", ".join(f"{key}.{each}" for each in below)
        way = f"write one of {names}" if below else "its entries have verbs of their own"
        raise click.UsageError(f"'{key}' is a table; {way}.")
    if text:
        entry[key] = _value(option, text)
    else:
        entry.pop(key, None)


def _option(section: str, key: str) -> Option:
    """Return a key of the configuration. Raises UsageError for an unknown one."""
    table = cast(Section, section)
    names = options.keys(table)
    if key not in names:
        raise click.UsageError(f"no key is named '{shown(key)}'; {hint(key, names)}")
    return options.option(table, key)


def _value(option: Option, text: str) -> object:
    """Return what a text means for a key; the reader of the file judges it."""
    if option.kind in _LISTS and not text.startswith("["):
        return [each.strip() for each in text.split(",")]
    if option.kind in _LISTS | _VALUES:
        try:
            return formats.toml_loads(f"value = {text}")["value"]
        except BrokenSyntax:
            return text
    return text


# Tools


def _tool_verb(command: Callable[..., None]) -> Callable[..., None]:
    """Add what all verbs take that change the settings of one tool."""
    for option in (
        gateway_options("path", "runtime_dir"),
        dry_run_option,
        click.option("--namespace", metavar="NAME", help="Only in this namespace."),
        click.option("--endpoint", metavar="NAME", help="Only at this endpoint."),
    ):
        command = option(command)
    return click.argument("tool", metavar="SERVER.TOOL")(told(command))


@click.command(cls=Command)
@_tool_verb
def hide(tool: str, **options: Any) -> None:
    """Take a tool out of every list and search; clients can still call its name."""
    _set_tool(tool, "hidden", True, "hidden", **options)


@click.command(cls=Command)
@_tool_verb
def show(tool: str, **options: Any) -> None:
    """List a hidden tool again."""
    _set_tool(tool, "hidden", False, "shown", **options)


@click.command(cls=Command, name="disable")
@_tool_verb
def disable_tool(tool: str, **options: Any) -> None:
    """Switch a tool off: no list has it, and calls of it are refused."""
    _set_tool(tool, "enabled", False, "disabled", **options)


@click.command(cls=Command, name="enable")
@_tool_verb
def enable_tool(tool: str, **options: Any) -> None:
    """Switch a tool on again."""
    _set_tool(tool, "enabled", True, "enabled", **options)


@click.command(cls=Command)
@_tool_verb
@click.argument("name", metavar="NAME")
def rename(tool: str, name: str, **options: Any) -> None:
    """Give a tool another name for clients; its own name takes the other one away again."""
    _set_tool(tool, "name", name, f"named '{shown(name)}'", **options)


TOOL_VERBS = (hide, show, disable_tool, enable_tool, rename)


def _set_tool(
    word: str,
    key: str,
    value: object,
    state: str,
    *,
    endpoint: str | None,
    namespace: str | None,
    path: Path | None,
    runtime_dir: str | None,
    dry_run: bool,
) -> None:
    """Write a setting of a tool. The usual value needs no line in the table of the server; at an
    endpoint or in a namespace it stands against the table of the server."""
    pair = disclosure.read(word)
    if pair is None:
        raise click.UsageError(f"a tool is written SERVER.TOOL, not '{shown(word)}'.")
    server, tool = pair
    if endpoint is not None and namespace is not None:
        raise click.UsageError("say one of both: --endpoint or --namespace.")
    file = read_file(path, runtime_dir)
    place = _tools_of(file, server, endpoint, namespace)
    _refuse_unknown_tool(file, server, tool)
    usual = {"hidden": False, "enabled": True, "name": tool}[key]
    ours = endpoint is None and namespace is None
    name = tool if ours else f"{server}.{tool}"
    old = table_of(file.table(place).get(name)) or {}
    entry = {**old, key: value}
    if ours and value == usual:
        del entry[key]
    if entry == old:
        click.echo(f"{file.label}: '{shown(word)}' is {state} already")
        return
    edit_file(
        file,
        lambda: file.put_at((*place, name), entry) if entry else file.without_at((*place, name)),
        f"'{shown(word)}' {state}",
        dry_run=dry_run,
        strict=True,
    )


def _refuse_unknown_tool(file: ConfigFile, server: str, tool: str) -> None:
    """Refuse a tool that its server did not offer when it was last seen. Raises CommandRefused."""
    try:
        catalogue = offers.kept(file.content.path, None, None).catalogues.get(server)
    except control.Failed:  # the file has a mistake elsewhere
        return
    if catalogue is None or exposed_names.is_pattern(tool):
        return
    names = [each.key for each in server_catalog.keyed("tools", catalogue.tools)]
    if tool not in names:
        text = f"'{shown(server)}' has no tool '{shown(tool)}'; {hint(tool, names)}"
        raise CommandRefused(text, Exit.UNKNOWN_NAME)


def _tools_of(
    file: ConfigFile, server: str, endpoint: str | None, namespace: str | None
) -> tuple[str, ...]:
    """Return the place of the tables of tools. Raises CommandRefused, and Failed if the file has a
    mistake."""
    if endpoint is None and namespace is None:
        entry_of(file, server)
        return (*file.kept.place, server, "tools")
    config = _config(file)
    groups = config.namespaces if endpoint is None else config.endpoints
    table, name = ("namespaces", namespace) if endpoint is None else ("endpoints", endpoint)
    for word, known in ((server, config.servers), (name or "", groups)):
        if word not in known:
            text = f"{file.label} has no '{shown(word)}'; {hint(word, known)}"
            raise CommandRefused(text, Exit.UNKNOWN_NAME)
    _refuse_json(file, table)
    return (table, name or "", "tools")


namespaces = table_verbs("namespaces")
endpoints = table_verbs("endpoints")
workspaces_ = table_verbs("workspaces")
