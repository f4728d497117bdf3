"""`metamcp toolsets`: named choices of tools, for operators, and files of them.

Owns: these verbs at the prompt, the table, asking before a tool set is deleted, reading and writing
a file. Never: the effect of an order (`control.toolsets`).

    {"name": "dev", "description": "…", "tools": [{"namespacedName": "git.git_status"}],
     "createdAt": "…", "updatedAt": "…"}

A file has such an object, or a list of them. The output of `toolsets list --json` and `toolsets
show --json` is accepted too, where the list is the member `toolsets`. Tools may be plain strings.
Other members are ignored, also the times, which say when another gateway got the tool set.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from msgspec import Struct

from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.ctl import (
    begin,
    complete_endpoints,
    json_option,
    outward,
    runtime_dir_of,
)
from metamcp_supervisor.cli.errors import Group, add_json_option
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import ControlClient, Failed
from metamcp_supervisor.verbs import Exit, ToolSetChanged, ToolSets, ToolSetShown
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import TOOLSETS_MAX, Pair, read

LIST = ("NAME", "TOOLS", "EQUIPPED ON", "CHANGED", "DESCRIPTION")
SHOW = ("TOOL",)
SHOWS_ALL = "all tools are in view, whatever is equipped"
DESCRIPTION_CHARACTERS_MAX = 60
"""Maximum characters of a description in the table; `show` and `--json` show all of it."""


def _complete_sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.cli.completion import toolsets as names

    return [name for name in names(runtime_dir_of(ctx)) if name.startswith(incomplete)]


#: Words of other programs, each with the sentence that answers it.
WORDS = {
    "save": "say which tools with 'metamcp toolsets create NAME SERVER.TOOL…'; what is in view is"
    " saved by a client, with the tool save_tool_set",
    "load": "it is brought into view with 'metamcp toolsets equip NAME'",
    "unload": "it is put away with 'metamcp toolsets unequip'",
    "activate": "it is brought into view with 'metamcp toolsets equip NAME'",
    "deactivate": "it is put away with 'metamcp toolsets unequip'",
    "use": "it is brought into view with 'metamcp toolsets equip NAME'",
    "build": "it is made with 'metamcp toolsets create NAME SERVER.TOOL…'",
    "new": "it is made with 'metamcp toolsets create NAME SERVER.TOOL…'",
    "ls": "did you mean 'list'?",
    "rm": "tools are taken out with 'remove', a whole tool set with 'delete'",
    "active": "where each is equipped is shown by 'metamcp toolsets list'",
}


@click.group(cls=Group, words=WORDS)
@outward
@click.pass_context
def toolsets(ctx: click.Context, runtime_dir: str | None, no_color: bool, quiet: bool) -> None:
    """Look at and change the tool sets of a running gateway."""
    begin(ctx, runtime_dir, no_color=no_color, quiet=quiet)


name_argument = click.argument("name", shell_complete=_complete_sets)
tools_argument = click.argument("tools", nargs=-1, required=True, metavar="SERVER.TOOL…")
endpoint_option = click.option(
    "--endpoint",
    default="",
    metavar="NAME",
    shell_complete=complete_endpoints,
    help="Whose view; else that of the default endpoint.",
)
force_option = click.option("--force", is_flag=True, help="Also tools that no server offers.")


@toolsets.command("list")
@json_option
@click.pass_obj
def list_(runtime_dir: str | None, as_json: bool) -> None:
    """List all tool sets, and where they are equipped."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("toolsets")
    if as_json:
        click.echo(raw)
        return
    listing = codec.decode_as(ToolSets, raw)
    rows = [_row(toolset, listing) for toolset in listing.toolsets]
    foot = "" if rows else "there are no tool sets; 'metamcp toolsets create' makes one"
    show.picture(
        show.PrintedTable(LIST if rows else ("",), rows, foot=foot, right=frozenset({"TOOLS"}))
    )


@toolsets.command("show")
@name_argument
@json_option
@click.pass_obj
def show_(runtime_dir: str | None, name: str, as_json: bool) -> None:
    """Show a tool set with all of its tools."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("toolsets", {"names": [name]})
    if as_json:
        click.echo(raw)
        return
    listing = codec.decode_as(ToolSets, raw)
    (toolset,) = listing.toolsets
    about = f"{toolset.name}: {toolset.description}" if toolset.description else toolset.name
    location = _format_places(toolset.name, listing) or "nowhere"
    show.picture(
        show.PrintedTable(
            SHOW,
            [(tool.namespacedName,) for tool in toolset.tools],
            head=show.printable(about),
            foot=f"equipped on {location}; created {toolset.createdAt},"
            f" changed {toolset.updatedAt}",
            sentences=False,
        )
    )


@toolsets.command()
@name_argument
@tools_argument
@click.option("--description", default="", metavar="TEXT", help="What it is for.")
@click.option("--equip", is_flag=True, help="At once, on --endpoint.")
@endpoint_option
@click.option("--replace", is_flag=True, help="In place of one of that name, if there is one.")
@force_option
@json_option
@click.pass_obj
def create(
    runtime_dir: str | None,
    name: str,
    tools: tuple[str, ...],
    description: str,
    equip: bool,
    endpoint: str,
    replace: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Make a tool set of these tools, written as git.git_status."""
    order: dict[str, object] = {
        "type": "Build", "toolset": name, "tools": _pairs(tools), "description": description,
        "equip": equip, "replace": replace,
    }  # fmt: skip
    with client.connect(runtime_dir) as gateway:
        raw = _order(gateway, order, endpoint=endpoint, force=force)
    then = f", equipped on endpoint {_of(raw).endpoint}" if equip else ""
    _say(raw, f"{name}: {_count(raw)}{then}", as_json=as_json)


@toolsets.command()
@name_argument
@tools_argument
@force_option
@json_option
@click.pass_obj
def add(
    runtime_dir: str | None,
    name: str,
    tools: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Put tools into a tool set. The tools are in view at once where the set is equipped."""
    order: dict[str, object] = {"type": "Amend", "toolset": name, "add": _pairs(tools)}
    with client.connect(runtime_dir) as gateway:
        raw = _order(gateway, order, force=force)
    _say(raw, f"{name}: {_count(raw)}", as_json=as_json)


@toolsets.command()
@name_argument
@tools_argument
@json_option
@click.pass_obj
def remove(runtime_dir: str | None, name: str, tools: tuple[str, ...], as_json: bool) -> None:
    """Take tools out of a tool set, and out of the views in which it is equipped."""
    order: dict[str, object] = {"type": "Amend", "toolset": name, "remove": _pairs(tools)}
    with client.connect(runtime_dir) as gateway:
        raw = _order(gateway, order)
    _say(raw, f"{name}: {_count(raw)}", as_json=as_json)


@toolsets.command()
@name_argument
@errors.yes_option
@json_option
@click.pass_obj
def delete(runtime_dir: str | None, name: str, yes: bool, as_json: bool) -> None:
    """Delete a tool set, and take its tools out of the views in which it is equipped."""
    with client.connect(runtime_dir) as gateway:
        listing = codec.decode_as(ToolSets, gateway.call("toolsets", {"names": [name]}))
        errors.confirm(
            _question(name, listing),
            yes=yes,
            refusal=Failed(Exit.USAGE, "nobody can be asked here: say --yes to delete it"),
        )
        raw = _order(gateway, {"type": "Delete", "toolset": name})
    _say(raw, f"{name}: deleted", as_json=as_json)


@toolsets.command()
@name_argument
@endpoint_option
@json_option
@click.pass_obj
def equip(runtime_dir: str | None, name: str, endpoint: str, as_json: bool) -> None:
    """Bring the tools of a tool set into view, and everything else out of it."""
    with client.connect(runtime_dir) as gateway:
        raw = _order(gateway, {"type": "Equip", "toolset": name}, endpoint=endpoint)
    _say(raw, f"{name}: equipped on endpoint {_of(raw).endpoint}", as_json=as_json)


@toolsets.command()
@endpoint_option
@json_option
@click.pass_obj
def unequip(runtime_dir: str | None, endpoint: str, as_json: bool) -> None:
    """Leave only the built-in tools in view; with the exposure `all`, all tools."""
    with client.connect(runtime_dir) as gateway:
        raw = _order(gateway, {"type": "Unequip"}, endpoint=endpoint)
    _say(raw, f"endpoint {_of(raw).endpoint}: {_put_away(_of(raw))}", as_json=as_json)


@toolsets.command("import")
@click.argument("file", metavar="FILE|-", type=click.Path(allow_dash=True))
@click.option("--replace", is_flag=True, help="In place of those of the same names.")
@force_option
@click.pass_obj
@add_json_option
def import_(runtime_dir: str | None, file: str, replace: bool, force: bool) -> None:
    """Add the tool sets of a file, as 'export' writes it: all of them, or none."""

    orders: list[dict[str, object]] = [
        {
            "type": "Build", "toolset": toolset.name, "tools": toolset.tools,
            "description": toolset.description, "replace": replace,
        }
        for toolset in load(file)
    ]  # fmt: skip
    with client.connect(runtime_dir) as gateway:
        for order in orders:
            _order(gateway, order, force=force, dry_run=True)
        done = [(order, _order(gateway, order, force=force)) for order in orders]
    for order, raw in done:
        click.echo(show.printable(f"{order['toolset']}: {_count(raw)}"))


@toolsets.command("export")
@click.argument("names", nargs=-1, metavar="[NAME…]", shell_complete=_complete_sets)
@click.option(
    "-o", "--out", "output", cls=errors.RenamedOption, before=("--output",), metavar="FILE",
    type=click.Path(), help="Else standard output.",
)  # fmt: skip
@click.pass_obj
def export(runtime_dir: str | None, names: tuple[str, ...], output: str | None) -> None:
    """Write tool sets as JSON: an object if a single name is given, else a list."""
    with client.connect(runtime_dir) as gateway:
        level = codec.level(gateway.call("toolsets", {"names": names}))
    exported: list[Any] = codec.value(level["toolsets"])
    text = (
        json.dumps(exported[0] if len(names) == 1 else exported, indent=2, ensure_ascii=False)
        + "\n"
    )
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Failed(Exit.FAILED, f"{output} cannot be written: {error.strerror}") from None


# Asking and saying


def _order(
    gateway: ControlClient,
    order: dict[str, object],
    *,
    endpoint: str = "",
    force: bool = False,
    dry_run: bool = False,
) -> bytes:
    """Send an order and return the raw answer. Raises Failed."""
    return gateway.call(
        "toolsets-change",
        {"order": order, "endpoint": endpoint, "force": force, "dry_run": dry_run},
    )


def _question(name: str, listing: ToolSets) -> str:
    """Return the question before a tool set is deleted."""
    location = _format_places(name, listing)
    equipped = f", which is equipped on {location}" if location else ""
    tools = len(listing.toolsets[0].tools)
    return f"Delete the tool set {name} of {_tools(tools)}{equipped}?"


def _pairs(tools: Iterable[str]) -> list[Pair]:
    pairs: list[Pair] = []
    for text in tools:
        pair = read(text)
        if pair is None:
            raise click.UsageError(
                f"{text!r} is not a tool: one is written SERVER.TOOL, git.git_status"
            )
        pairs.append(pair)
    return pairs


def _of(raw: bytes) -> ToolSetChanged:
    return codec.decode_as(ToolSetChanged, raw)


def _count(raw: bytes) -> str:
    toolset = _of(raw).toolset
    return _tools(0 if toolset is None else len(toolset.tools))


def _put_away(changed: ToolSetChanged) -> str:
    """Return a sentence on what is not in view any more: a tool set, single tools or servers."""
    tools, servers = changed.tools_before, changed.servers_before
    everything = changed.exposure == "all"
    if changed.before:
        sentence = f"{changed.before} is not equipped any more"
        return f"{sentence}; {SHOWS_ALL}" if everything else sentence
    if everything:
        sentence = "what was chosen with another exposure is forgotten"
        return f"{sentence}; {SHOWS_ALL}" if tools or servers else SHOWS_ALL
    removed = [_tools(tools)] if tools else []
    if servers:
        removed.append(f"everything of {'1 server' if servers == 1 else f'{servers} servers'}")
    if not removed:
        return "nothing was in view but the built-in tools"
    verb = "is" if tools + servers == 1 or not tools else "are"
    return f"{' and '.join(removed)} {verb} not in view any more"


def _tools(count: int) -> str:
    return "1 tool" if count == 1 else f"{count} tools"


def _say(raw: bytes, sentence: str, *, as_json: bool) -> None:
    click.echo(raw if as_json else show.printable(sentence))
    for warning in () if as_json else _of(raw).warnings:
        click.echo(f"metamcp: {show.printable(warning)}", err=True)


def _format_places(name: str, listing: ToolSets) -> str:
    places = [
        view.endpoint
        + (f" for {view.principal}" if view.principal != "local" else "")
        + (f" in session {view.session}" if view.session else "")
        for view in listing.equipped
        if view.toolset == name
    ]
    return ", ".join(places)


def _row(toolset: ToolSetShown, listing: ToolSets) -> Sequence[str]:
    return (
        toolset.name,
        str(len(toolset.tools)),
        _format_places(toolset.name, listing) or columns.NONE,
        toolset.updatedAt,
        columns.cut(" ".join(toolset.description.split()), DESCRIPTION_CHARACTERS_MAX),
    )


FILE_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of a file; enough for a thousand tool sets of two hundred tools."""
TOLD_CHARACTERS_MAX = 64
"""Maximum characters that a sentence quotes from a file."""


class _Tool(Struct, frozen=True):
    namespacedName: str  # noqa: N815 - as it stands in files


class _Set(Struct, frozen=True):
    name: str
    tools: list[_Tool | str]
    description: str | None = None


_read = codec.reader(_Set | list[_Set])


class _Printed(Struct, frozen=True):
    toolsets: list[_Set]


_read_printed = codec.reader(_Printed)


class FileToolset(Struct, frozen=True):
    """Tool set of a file."""

    name: str
    tools: tuple[Pair, ...]
    description: str


def load(path: str) -> list[FileToolset]:
    """Read the tool sets in this file, or on standard input (`-`). Raises Failed."""
    label = "standard input" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Failed(Exit.FAILED, f"{label} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise Failed(Exit.FAILED, f"{label} has more than {FILE_BYTES_MAX} bytes")
    return parse(data, label)


def parse(data: bytes, label: str) -> list[FileToolset]:
    """Return the tool sets in the data. `label`: name of the file in messages. Raises Failed."""
    try:
        value = _value(data.removeprefix(b"\xef\xbb\xbf"))
    except codec.Malformed as error:
        raise _make_failure(label, str(error)) from None
    is_single, top = isinstance(value, _Set), "$.toolsets" if isinstance(value, _Printed) else "$"
    sets: Sequence[_Set] = [value] if isinstance(value, _Set) else _to_sets(value)
    if not sets:
        raise _make_failure(label, "there is no tool set in it")
    if len(sets) > TOOLSETS_MAX:
        raise _make_failure(label, f"there are more than {TOOLSETS_MAX} tool sets in it")
    by_name: dict[str, FileToolset] = {}
    for number, each in enumerate(sets):
        json_path = top if is_single else f"{top}[{number}]"
        if each.name in by_name:
            short_name = each.name[:TOLD_CHARACTERS_MAX]
            raise _make_failure(
                label, f"the name {short_name!r} is there twice - at `{json_path}.name`"
            )
        by_name[each.name] = FileToolset(
            each.name, _file_pairs(each, label, json_path), each.description or ""
        )
    return list(by_name.values())


def _value(data: bytes) -> _Set | list[_Set] | _Printed:
    """Decode the data in the shape that it has. Raises codec.Malformed."""
    if data.lstrip()[:1] == b"{" and "toolsets" in codec.level(data):
        printed: _Printed = _read_printed(data)
        return printed
    value: _Set | list[_Set] = _read(data)
    return value


def _to_sets(value: list[_Set] | _Printed) -> Sequence[_Set]:
    return value.toolsets if isinstance(value, _Printed) else value


def _file_pairs(each: _Set, label: str, json_path: str) -> tuple[Pair, ...]:
    pairs: list[Pair] = []
    for number, tool in enumerate(each.tools):
        text = tool if isinstance(tool, str) else tool.namespacedName
        pair = read(text)
        if pair is None:
            short_text = text[:TOLD_CHARACTERS_MAX]
            problem = f"{short_text!r} is not a tool: one is written server.tool, as git.git_status"
            raise _make_failure(label, f"{problem} - at `{json_path}.tools[{number}]`")
        pairs.append(pair)
    return tuple(dict.fromkeys(pairs))


def _make_failure(label: str, problem: str) -> Failed:
    return Failed(Exit.FAILED, f"{label} is not a file of tool sets: {problem}")
