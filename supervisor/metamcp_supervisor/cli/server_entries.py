"""`metamcp init`, `add`, `remove`, `disable`, `enable`, `rename`, and the verbs of `metamcp tools`
that change one tool: servers in the configuration in use.

Owns: these verbs, the content of an entry, what goes along with another name. Never: the edit of
the file (`config_file`), its other tables (`settings`).
"""

import os
import shlex
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.cli import errors, offers
from metamcp_supervisor.cli.config_file import (
    NOWHERE,
    ConfigFile,
    accept,
    dry_run_option,
    edit_file,
    entry_of,
    load_config,
    place_of,
    read_file,
    refuse_json,
    write_file,
)
from metamcp_supervisor.cli.errors import Command, CommandRefused, add_json_option, gateway_options
from metamcp_supervisor.client_files import disk, toml_edit
from metamcp_supervisor.config import naming, places
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import printable, shorten, table_of
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control import client as control
from metamcp_supervisor.store import database
from metamcp_supervisor.verbs import Exit, ToolSets
from metamcp_worker.ipc import codec, disclosure, exposed_names, server_catalog
from metamcp_worker.ipc.process_names import label, within, workspace_of

NEW = """\
# The configuration of MetaMCP: 'metamcp up' in this folder starts the servers in it.
# 'metamcp add NAME -- COMMAND…' puts one in, 'metamcp config check' reads everything.
# Editors complete and check it after 'metamcp config schema --write'.
"""
OFF = "disabled"
_SWITCHES = ("enabled", OFF, "isActive")
"""Keys that switch a server off or on in the files of clients."""
_NAME = click.argument("name", metavar="NAME")


class _Add(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            text = f"no option is named {error.option_name}; a command stands behind two dashes"
            raise click.UsageError(f"{text}: metamcp add NAME -- COMMAND…", ctx) from None


@click.command(cls=Command)
@add_json_option
def init() -> None:
    """Make metamcp.toml in this folder, and include the file of a client, such as .mcp.json."""
    folder = Path.cwd()
    content = disk.read(folder / "metamcp.toml")
    label = printable(str(content.path))
    if content.exists:
        raise CommandRefused(f"{label} is there already; put servers in with 'metamcp add'")
    client_file = places.find(environ={}, cwd=folder, home=NOWHERE, system=NOWHERE)
    included = [str(client_file.relative_to(folder))] if client_file is not None else []
    write_file(content, NEW + f"include = {toml_edit.format_value(included)}\n" * len(included))
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
@click.option("--replace", "force", cls=errors.RenamedOption, before=("--force",), is_flag=True,
              help="In place of a server of that name.")  # fmt: skip
@dry_run_option
@gateway_options("path", "runtime_dir")
@add_json_option
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
    if flaw := naming.flaw(name):
        raise click.UsageError(f"the name '{shorten(name)}' {flaw}")
    if bool(command) == (url is not None):
        raise click.UsageError("say one of both: '-- COMMAND…' or '--url URL'.")
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.UsageError("--url begins with http:// or https://.")
    file = read_file(path, runtime_dir)
    if name in file.servers and not force:
        problem = f"{file.label} has a server '{name}' already"
        raise CommandRefused(f"{problem}; choose another name, or replace it with --replace")
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
@add_json_option
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
@add_json_option
def rename(name: str, new: str, dry_run: bool, path: Path | None, runtime_dir: str | None) -> None:
    """Give a server another name, also in namespaces, endpoints, tool sets and metamcp.lock.

    Policies, middleware and rules of consent that are about its name are listed, and stay as they
    are.
    """
    if flaw := naming.flaw(new):
        raise click.UsageError(f"the name '{shorten(new)}' {flaw}")
    file = read_file(path, runtime_dir)
    entry_of(file, name)
    if new in file.servers:
        raise CommandRefused(f"{file.label} has a server '{new}' already; choose another name")
    before = load_config(file.content.path)
    change = f"'{name}' is '{new}' now"
    edit_file(
        file, lambda: file.with_renamed_server(name, new).content.text, change,
        dry_run=dry_run, command=True, judge=lambda after: _tell_rules(after, name, new),
        carry=lambda: _carry_along(file, before, name, new),
    )  # fmt: skip


def _tell_rules(config: Config, name: str, new: str) -> None:
    """Say which rules are about a server by its old name."""
    rules = (
        *(("policy", each.name, each.match, each.when) for each in config.policies),
        *(("middleware", each.name, each.match, "") for each in config.middleware),
        *(("rule of consent", each.effect, each.match, "") for each in config.consent.rules),
    )
    for kind, title, match, when in rules:
        globs = [glob.partition("/")[0] for glob in match]
        differs = any(fnmatchcase(name, glob) is not fnmatchcase(new, glob) for glob in globs)
        if differs or f"'{name}'" in when or f'"{name}"' in when:
            errors.say(
                f"warning: the {kind} '{shorten(title)}' is about '{name}'; change it by hand"
            )


def _carry_along(file: ConfigFile, before: Config, name: str, new: str) -> None:
    """Rename a server in metamcp.lock and in the tool sets, also as workspaces have it that borrow
    it."""
    source = before.servers[name].source  # a server that a workspace borrows has it as well
    names = {
        each: within(workspace_of(each), new)
        for each, server in before.servers.items()
        if label(each) == name and server.source == source
    }
    lock_path = lock_io.find_lock_path(before)
    lock = lock_io.load(lock_path)
    if lock is not None and names.keys() & lock.servers.keys():
        servers = {names.get(each, each): locked for each, locked in lock.servers.items()}
        lock_io.save(lock_path, replace(lock, servers=servers))
        click.echo(f"{printable(str(lock_path))}: '{name}' is '{new}' now")
    _rename_in_toolsets(file, before, names)


def _rename_in_toolsets(file: ConfigFile, config: Config, names: Mapping[str, str]) -> None:
    """Rename servers in the tool sets of a gateway that runs. Raises Failed."""
    try:
        gateway = control.connect_here(file.runtime_dir)
    except control.Failed:
        if config.gateway.store or (config.gateway.state_dir / database.FILE).exists():
            way = "'metamcp toolsets add' and 'remove' change them while it runs"
            errors.say(f"tool sets keep the old name, because no gateway runs; {way}")
        return
    with gateway:
        listing = codec.decode_as(ToolSets, gateway.call("toolsets", {"names": ()}))
        for each in listing.toolsets:
            pairs = [pair for tool in each.tools if (pair := disclosure.read(tool.namespacedName))]
            tools = [[names.get(server, server), tool] for server, tool in pairs]
            if tools == [list(pair) for pair in pairs]:
                continue
            order = {"type": "Build", "toolset": each.name, "tools": tools,
                     "description": each.description, "replace": True}  # fmt: skip
            gateway.call("toolsets-change", {"order": order, "force": True})
            click.echo(f"tool set {each.name}: it has the new name")


@click.command(cls=Command)
@_NAME
@dry_run_option
@gateway_options("path", "runtime_dir")
@add_json_option
def disable(name: str, dry_run: bool, path: Path | None, runtime_dir: str | None) -> None:
    """Switch a server off in the configuration, in which it stays."""
    _switch(name, read_file(path, runtime_dir), on=False, dry_run=dry_run)


@click.command(cls=Command)
@_NAME
@dry_run_option
@gateway_options("path", "runtime_dir")
@add_json_option
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
    change = f"'{name}' {'enabled' if on else 'disabled'}"
    edit_file(file, lambda: file.set(name, key, value), change, dry_run=dry_run, command=on)


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
    pairs: dict[str, str] = {}
    for text in texts:
        key, there, value = text.partition(mark)
        if not there or not key.strip():
            raise click.UsageError(f"{option} is written KEY{mark}VALUE, not {text!r}")
        pairs[key.strip()] = value.strip() if mark == ":" else value
    return pairs


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
    return click.argument("tool", metavar="SERVER.TOOL")(add_json_option(command))


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


@click.command(cls=Command, name="rename")
@_tool_verb
@click.argument("name", metavar="NAME")
def rename_tool(tool: str, name: str, **options: Any) -> None:
    """Give a tool another name for clients; its own name takes the other one away again."""
    _set_tool(tool, "name", name, f"named '{shorten(name)}'", **options)


TOOL_VERBS = (hide, show, disable_tool, enable_tool, rename_tool)


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
        raise click.UsageError(f"a tool is written SERVER.TOOL, not '{shorten(word)}'.")
    server, tool = pair
    if endpoint is not None and namespace is not None:
        raise click.UsageError("say one of both: --endpoint or --namespace.")
    file = read_file(path, runtime_dir)
    keys = _tools_of(file, server, endpoint, namespace)
    _refuse_unknown_tool(file, server, tool)
    usual = {"hidden": False, "enabled": True, "name": tool}[key]
    ours = endpoint is None and namespace is None
    name = tool if ours else f"{server}.{tool}"
    old = table_of(file.table(keys).get(name)) or {}
    entry = {**old, key: value}
    if ours and value == usual:
        del entry[key]
    if entry == old:
        click.echo(f"{file.label}: '{shorten(word)}' is {state} already")
        return
    edit_file(
        file,
        lambda: file.put_at((*keys, name), entry) if entry else file.without_at((*keys, name)),
        f"'{shorten(word)}' {state}",
        dry_run=dry_run,
        judge=accept,
    )


def _refuse_unknown_tool(file: ConfigFile, server: str, tool: str) -> None:
    """Refuse a tool that its server did not offer when it was last seen. Raises CommandRefused."""
    try:
        catalogue = offers.read_offers(file.content.path, None, None).catalogues.get(server)
    except control.Failed:  # the file has a mistake elsewhere
        return
    if catalogue is None or exposed_names.is_pattern(tool):
        return
    names = [each.key for each in server_catalog.iter_definitions("tools", catalogue.tools)]
    if tool not in names:
        text = f"'{shorten(server)}' has no tool '{shorten(tool)}'; {hint(tool, names)}"
        raise CommandRefused(text, Exit.UNKNOWN_NAME)


def _tools_of(
    file: ConfigFile, server: str, endpoint: str | None, namespace: str | None
) -> tuple[str, ...]:
    """Return the place of the tables of tools. Raises CommandRefused, and Failed if the file has a
    mistake."""
    if endpoint is None and namespace is None:
        entry_of(file, server)
        return (*file.kept.place, server, "tools")
    config = load_config(file.content.path)
    groups = config.namespaces if endpoint is None else config.endpoints
    table, name = ("namespaces", namespace) if endpoint is None else ("endpoints", endpoint)
    for word, names in ((server, config.servers), (name or "", groups)):
        if word not in names:
            text = f"{file.label} has no '{shorten(word)}'; {hint(word, names)}"
            raise CommandRefused(text, Exit.UNKNOWN_NAME)
    refuse_json(file, table)
    return (*place_of(config, table, name or ""), "tools")
