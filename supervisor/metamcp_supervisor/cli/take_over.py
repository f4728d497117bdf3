"""`metamcp install CLIENT --take-over`: the servers that a client loads in this folder move into
metamcp.toml, and one entry stays in their place.

Owns: which tables of a client's files are taken, what is asked and printed, the order of the
writes, and what `uninstall` puts back. Never: the texts (`client_files.texts`, `transfer`), our
entry (`destination`).

The files of the client are written last, after its servers were started once behind the gateway.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.cli import destination, errors, tools
from metamcp_supervisor.cli.destination import InstallOptions
from metamcp_supervisor.cli.errors import CommandRefused
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.client_files import clients, disk, texts, transfer
from metamcp_supervisor.client_files.clients import (
    NAME_CHARACTERS_MAX,
    ClientProgram,
    FileFormat,
    FileUnfit,
    Scope,
)
from metamcp_supervisor.client_files.texts import TakenServers
from metamcp_supervisor.config import (
    client_shapes,
    confirmation_io,
    files,
    formats,
    naming,
    places,
    show,
    sources,
)
from metamcp_supervisor.config.config import ConfigInvalid, Server
from metamcp_supervisor.config.confirmation import NotConfirmed
from metamcp_supervisor.config.document import (
    BrokenSyntax,
    format_place,
    printable,
    shorten,
    table_of,
)
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_worker.ipc import codec

RECORD = ".metamcp-taken"
"""After the name of a client's file: the file that says what was taken out of it."""
SEARCH_FROM_TOOLS = 20
"""Tools from which on the exposure is `search` if the user names none."""
SETTLE_S_MAX = 60.0
"""Seconds to wait for the first start of the servers; a package may have to be fetched."""
LOOK_S = 0.2
_DECIDED = frozenset({"ready", "backoff", "failed", "disabled", "quarantined"})
_INCLUDABLE = {"ai", "endpoints", "include", "namespaces", "servers", "workflows"}
"""Keys of a metamcp.toml that another one can include."""
_ENDPOINTS = FileFormat("codex", "toml", ("endpoints",))
_SCOPES: tuple[Scope, ...] = ("project", "user")


class ClientTable(Struct, frozen=True):
    """Table of servers in a file of the client. `shared`: other people use the file too; `target`:
    the metamcp.toml that gets the servers; `entries`: all of the table; `servers`: those that can
    be taken, by the name of their entry."""

    kept: FileFormat
    content: disk.Content
    shared: bool
    target: Path
    entries: Mapping[str, Mapping[str, object]]
    servers: Mapping[str, Server]

    @property
    def label(self) -> str:
        return printable(str(self.content.path))

    @property
    def folders(self) -> tuple[str, str]:
        """Return the folders in which its servers start without a word about it."""
        is_project = self.shared or self.kept.place[0] == "projects"
        own = "" if is_project else str(places.folder_of(self.content.path))
        return str(self.target.parent), own


def take_over(
    client: ClientProgram, wish: InstallOptions, path: Path | None, *, dry_run: bool
) -> None:
    """Move the servers of a client. `path`: another file of it than the usual ones. Raises
    click.UsageError, CommandRefused and Failed."""
    if wish.http or wish.url or wish.start is False or wish.endpoint:
        raise click.UsageError(
            "--take-over writes a command for the default endpoint, which starts the gateway."
        )
    wish.check(client)
    tables = [table for table in _tables(client, wish, path) if table.servers]
    if not tables:
        raise CommandRefused(
            f"{client.title} has no server here that can be taken over; 'metamcp import' lists"
            " those of all clients"
        )
    for table in tables:
        _check(table, wish)
    if not dry_run:
        for target in dict.fromkeys(table.target for table in tables):
            _confirm_target(target, wish, yes=wish.yes)
        _confirm(tables, yes=wish.yes)
    own = places.own_file(Path.home())
    for target in sorted({table.target for table in tables}, key=lambda path: path != own):
        these = [table for table in tables if table.target == target]
        try:
            _move(client, wish, target, these, dry_run=dry_run)
        except files.FileUnreadable as error:
            raise CommandRefused(f"{printable(str(target))} {error}", Exit.CONFIG) from None
        except BrokenSyntax as broken:
            line = f", line {broken.line}" if broken.line else ""
            text = f"{printable(str(target))}{line}: {broken.message}; mend it first"
            raise CommandRefused(text, Exit.CONFIG) from None
    if not dry_run:
        click.echo(f"start {client.title} again; 'metamcp uninstall {client.name}' puts all back")


def _check(table: ClientTable, wish: InstallOptions) -> None:
    """Check that the file can be edited and has no other entry of our name. Raises
    CommandRefused."""
    entry = table.entries.get(wish.name)
    origins = destination.origins()
    if entry is not None and not clients.is_ours(*clients.target_of(entry), origins):
        text = f"{table.label} has a server '{shorten(wish.name)}'; choose another --name for ours"
        raise CommandRefused(text)
    try:
        texts.without_servers(
            table.content.text, _taken_servers(table, wish.name), _entry(table, wish)
        )
    except FileUnfit as unfit:
        text = f"{table.label} {unfit}; nothing is changed: 'metamcp import' copies its servers"
        raise CommandRefused(text, Exit.CONFIG) from None


# What there is


def _tables(
    client: ClientProgram, wish: InstallOptions, config_file: Path | None
) -> list[ClientTable]:
    """Return the tables of all files that the client loads here, or of the one that is given or
    that the scope names."""
    if config_file is not None:
        return _of_file(client, wish.scope, Path(os.path.abspath(config_file)), wish)
    tables: list[ClientTable] = []
    for scope in (wish.scope,) if wish.is_scope_given else _SCOPES:
        if paths := disk.candidates(client, scope):
            path, _ = clients.choose_file(paths, Path.exists)
            tables += _of_file(client, scope, path, wish) if path.exists() else []
    return tables


def _of_file(
    client: ClientProgram, scope: Scope, path: Path, wish: InstallOptions
) -> list[ClientTable]:
    """Return the tables of a file, with what is not carried over printed."""
    origins = destination.origins()
    file = disk.read_servers(client, scope, path, origins)
    if file.why:
        raise CommandRefused(f"{printable(str(path))} {file.why}", Exit.CONFIG)
    for sentence in (*file.mistakes, *file.lost, *file.renamed):
        click.echo(printable(sentence), err=True)
    content = disk.read(path)
    usual = texts.native(client.how(scope), content.text)
    folder = places.folder_of(path) if scope == "project" else None
    tables = [_table(usual, content, file.servers, folder, wish)]
    if usual.shape == "claude" and scope == "user":
        values = texts.values(usual, content.text)
        every = client_shapes.places(values, str(path), str(Path.cwd())) or []
        for keys in (each for each in every if each[:1] == ("projects",)):
            local = replace(usual, place=tuple(map(str, keys)))
            tables.append(_table(local, content, file.servers, Path(str(keys[1])), wish))
    return tables


def _table(
    file_format: FileFormat,
    content: disk.Content,
    servers: Sequence[Server],
    folder: Path | None,
    wish: InstallOptions,
) -> ClientTable:
    """Return a table. `folder`: the project that it belongs to."""
    tables = {
        name: table
        for name, value in texts.entries(file_format, content.text).items()
        if (table := table_of(value)) is not None
    }
    adapted = [naming.to_valid_name(name) if naming.flaw(name) else name for name in tables]
    start = f"{printable(str(content.path))}: "
    local = start + format_place(("projects",))
    here = {
        server.name: server
        for server in servers
        if server.source.startswith(local) == (file_format.place[0] == "projects")
    }
    taken = {
        name: here[server_name]
        for name, server_name in zip(tables, adapted, strict=True)
        if server_name in here and adapted.count(server_name) == 1
    }
    own = places.own_file(Path.home()) if folder is None else folder / "metamcp.toml"
    target = Path(os.path.abspath(wish.config)) if wish.config is not None else own
    shared = folder is not None and file_format.place[0] != "projects"
    return ClientTable(file_format, content, shared, target, tables, taken)


def _confirm(tables: Sequence[ClientTable], *, yes: bool) -> None:
    """Show what moves, and ask. Raises Failed without a yes."""
    for table in tables:
        click.echo(f"{table.label} → {printable(str(table.target))}:")
        for name, server in table.servers.items():
            words = show.mask_arguments(server.command_written) or (
                show.masked_url(server.url or ""),
            )
            click.echo(f"  {printable(name)}: {printable(' '.join(words))}")
    errors.confirm(
        "Start them behind the gateway, and take them out of these files?",
        yes=yes,
        refusal=Failed(Exit.FAILED, "nothing is written without a yes: repeat it with --yes"),
    )


def _confirm_target(target: Path, wish: InstallOptions, *, yes: bool) -> None:
    """Have the commands that a folder's metamcp.toml has confirmed, as `metamcp up` does: what is
    in a folder may be a stranger's. Raises CommandRefused and Failed."""
    if wish.config is not None or target == places.own_file(Path.home()) or not target.exists():
        return
    from metamcp_supervisor.cli.up import ask

    environ, home = os.environ, Path.home()
    try:
        config = sources.load(target, environ=environ, cwd=Path.cwd(), home=home)
    except ConfigInvalid as invalid:
        first, *others = map(str, invalid.problems)
        raise Failed(Exit.CONFIG, first, tuple(others)) from None
    state_dir = sources.trusted_state_dir(config, environ=environ, home=home, flags={})
    person = ask if errors.at_terminal() else None
    try:
        warning = confirmation_io.ensure(config, target, state_dir, yes=yes, ask=person)
    except NotConfirmed as refusal:
        raise CommandRefused(str(refusal), Exit.NO_PERMISSION) from None
    if warning:
        click.echo(f"warning: {printable(warning)}", err=True)


# What is done


def _move(
    client: ClientProgram,
    wish: InstallOptions,
    target: Path,
    tables: Sequence[ClientTable],
    *,
    dry_run: bool,
) -> None:
    """Move the servers of these tables into one metamcp.toml."""
    from metamcp_supervisor.cli import server_entries
    from metamcp_supervisor.cli.install import difference

    content = disk.read(target)
    begun = content.text if content.exists else server_entries.NEW
    own = _own(client, wish, target)
    there = {**_servers(begun), **_servers(own)}
    imported = [
        transfer.ImportSource(each.label, list(each.servers.values()), each.folders)
        for each in tables
    ]
    folder = _secrets(target)
    written = {path.name: path.read_text() for path in folder.glob("*")}
    moved = transfer.import_sources(imported, there, begun, _short(folder), written)
    for sentence in moved.told:
        click.echo(sentence, err=True)
    ready = {*moved.names, *moved.same}
    tables = [_only(each, ready) for each in tables]
    text = _add_include(moved.text, target) if own else moved.text
    shape = _shape(client, wish, begun, own)
    text = _set_endpoint_keys(text, shape) if shape else text
    if dry_run:
        difference(printable(str(target)), content.text, text)
        for table in tables:
            made = texts.without_servers(
                table.content.text, _taken_servers(table, wish.name), _entry(table, wish)
            )
            difference(table.label, table.content.text, made)
        return
    for name in moved.secrets.keys() - written.keys():
        _write_secret(folder / name, moved.secrets[name])
    content = _write_file(content, text)
    _confirm_target(target, wish, yes=True)  # what was added was confirmed before
    click.echo(f"{printable(str(target))}: added {', '.join(moved.names) or 'nothing'}")
    costs, failed = _start_gateway(wish, target)
    has_endpoints = any("endpoints" in formats.toml_loads(each) for each in (begun, own))
    if not has_endpoints and not wish.exposure and costs.tools >= SEARCH_FROM_TOOLS:
        _write_file(content, _set_endpoint_keys(text, {"exposure": "search"}))
        costs, failed = _start_gateway(wish, target)
    for sentence in failed:
        click.echo(f"warning: {printable(sentence)}", err=True)
    for table in tables:
        _replace(client, table, wish)
    click.echo(
        f"{costs.tools} tools: about {costs.all} tokens in the context of {client.title} before,"
        f' {costs.at_start} now (exposure "{costs.exposure}")'
    )


def _servers(text: str) -> Mapping[str, object]:
    return table_of(formats.toml_loads(text).get("servers")) or {}


def _own(client: ClientProgram, wish: InstallOptions, target: Path) -> str:
    """Return the text of the user's own metamcp.toml, if the client's own file leads to it: an
    entry of the same name for this folder hides that one. Empty if nothing is hidden, or `target`
    cannot include it."""
    own = places.own_file(Path.home())
    paths = disk.candidates(client, "user")
    if target == own or wish.config is not None or not paths or not own.exists():
        return ""
    path, _ = clients.choose_file(paths, Path.exists)
    file_format = client.how("user")
    entry = table_of(texts.entries(file_format, disk.read(path).text).get(wish.name))
    if entry is None or not clients.is_ours(*clients.target_of(entry), ()):
        return ""
    text = disk.read(own).text
    if formats.toml_loads(text).keys() <= _INCLUDABLE:
        return text
    label = printable(str(own))
    click.echo(f"{label}: its servers are not in this folder, because it has [gateway]", err=True)
    return ""


def _add_include(text: str, target: Path) -> str:
    try:
        return transfer.with_include(text, [_short(places.own_file(Path.home()))])
    except FileUnfit as unfit:
        raise CommandRefused(f"{printable(str(target))} {unfit}", Exit.CONFIG) from None


def _short(path: Path) -> str:
    """Return a path as metamcp.toml has it: `~` is the home directory."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _only(table: ClientTable, ready: set[str]) -> ClientTable:
    servers = {name: each for name, each in table.servers.items() if each.name in ready}
    return replace(table, servers=servers)


def _secrets(target: Path) -> Path:
    """Return the folder of the files with secrets for this configuration."""
    own = places.own_file(Path.home())
    folder = own.parent / "secrets"
    if target == own:
        return folder / "own"
    return folder / places.of(target, environ={}, home=Path.home()).state_dir.name


def _write_secret(path: Path, value: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.replace_file(path, value.encode(), 0o600)
    click.echo(f"{printable(str(path))}: written")


def _shape(client: ClientProgram, wish: InstallOptions, begun: str, own: str) -> dict[str, object]:
    """Return the keys of the default endpoint to write in `begun`: what the user gave, and room for
    the prefix of the client if it has no endpoints; none if `own`, which it includes, has some.
    """
    if "endpoints" in formats.toml_loads(own):
        return {}
    keys: dict[str, object] = {"exposure": wish.exposure} if wish.exposure else {}
    style: dict[str, object] = {"style": wish.naming} if wish.naming else {}
    room = client.name_room(wish.name)
    if "endpoints" not in formats.toml_loads(begun) and room < NAME_CHARACTERS_MAX:
        style["length_max"] = room
    if style:
        keys["naming"] = style
    if wish.builtins:
        keys["builtins"] = [word.strip() for word in wish.builtins.split(",")]
    return keys


def _set_endpoint_keys(text: str, shape: Mapping[str, object]) -> str:
    """Return a metamcp.toml whose default endpoint has these keys."""
    old = table_of(texts.entries(_ENDPOINTS, text).get("default")) or {}
    return texts.put(_ENDPOINTS, text, "default", {"namespace": "default", **old, **shape})


def _write_file(content: disk.Content, text: str) -> disk.Content:
    try:
        disk.write(content, text)
    except disk.FileChanged:
        label = printable(str(content.path))
        raise CommandRefused(f"{label} was changed meanwhile; run this again") from None
    return disk.read(content.path)


def _start_gateway(wish: InstallOptions, target: Path) -> "tuple[tools.EndpointCost, list[str]]":
    """Start the gateway, or have it read the file again. Return what the default endpoint costs
    when the first start of each server is decided, and sentences about servers that failed. Raises
    Failed."""
    from metamcp_supervisor.cli import connect, offers
    from metamcp_supervisor.control import client

    with progress("starts the servers"):
        directory = connect.ensure(target, {"runtime_dir": wish.runtime_dir}, keep=False)
        connect.await_serving(directory)
        end = time.monotonic() + SETTLE_S_MAX
        with client.connect(directory) as gateway:
            gateway.call("reload", {}, timeout_s=SETTLE_S_MAX)
            while True:
                status = codec.decode_as(GatewayStatus, gateway.call("status"))
                busy = [each.name for each in status.servers if each.phase not in _DECIDED]
                if not busy or time.monotonic() > end:
                    break
                time.sleep(LOOK_S)
    failed = [f"{name} still starts, so it is not counted" for name in busy]
    failed += [
        f"{server.name}: {server.reason}: {server.message}"
        for server in status.servers
        if server.phase in {"backoff", "failed", "quarantined"}
    ]
    ready = {server.name for server in status.servers if server.phase == "ready" and server.tools}
    while True:  # the gateway writes lists of tools a moment after a server is ready
        stored = offers.read_offers(target, None, None)
        unwritten = [name for name in ready & {*stored.catalogues} if not stored.catalogues[name]]
        if not unwritten or time.monotonic() > end:
            break
        time.sleep(LOOK_S)
    costs = tools.calculate_costs(stored).endpoints
    return next((each for each in costs if each.name == "default"), costs[0]), failed


def _entry(table: ClientTable, wish: InstallOptions) -> dict[str, object]:
    bare = replace(wish, exposure=None, naming=None, builtins=None)
    if table.shared:  # other people have other folders
        words = destination.connect_words(replace(bare, scope="project"), None, wish.runtime_dir)
    else:
        location = places.find_place(table.target)
        directory = wish.runtime_dir or str(location.runtime_dir)
        words = destination.connect_words(replace(bare, scope="user"), table.target, directory)
    new = clients.entry(table.kept.shape, wish.name, words=words)
    return clients.merge_entry(table.entries.get(wish.name, {}), new)


def _taken_servers(table: ClientTable, name: str) -> TakenServers:
    return TakenServers(table.kept, name, {each: table.entries[each] for each in table.servers})


def _replace(client: ClientProgram, table: ClientTable, wish: InstallOptions) -> None:
    """Take the servers out of the file of the client and put our entry there."""
    content, new = disk.read(table.content.path), _taken_servers(table, wish.name)
    made = texts.without_servers(content.text, new, _entry(table, wish))
    record = disk.read(record_of(content.path))
    old = texts.read_record(record.text, client.kept) if record.exists else ()
    if not disk.backup_of(content.path).exists():
        disk.keep(content)
    files.replace_file(record.path, texts.record(texts.merge_records(old, (new,))).encode(), 0o600)
    _write_file(content, made)
    click.echo(f"{table.label}: {', '.join(map(printable, table.servers))} taken out")
    location = places.of(content.path, environ=os.environ, home=Path.home())
    if table.shared and places.answers(str(location.runtime_dir)):
        end = f"'metamcp down --runtime-dir {location.runtime_dir}'"
        click.echo(f"a gateway still runs with the servers of before; {end} ends it")


# The way back


def taken_files(client: ClientProgram) -> list[Path]:
    """Return the files of a client out of which servers were taken."""
    paths = [path for scope in _SCOPES for path in disk.candidates(client, scope)]
    return [path for path in paths if record_of(path).exists()]


def forget(path: Path) -> None:
    """Remove the record, because the servers are back. Raises OSError."""
    record_of(path).unlink(missing_ok=True)


def record_of(path: Path) -> Path:
    """Return the path of the record of what was taken out of a file."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + RECORD)


def put_back(client: ClientProgram, scope: Scope, content: disk.Content) -> str | None:
    """Return the text of the file with the servers that were taken out of it; None if none were.
    Print which ones have other settings by now. Raises CommandRefused."""
    record, backup = disk.read(record_of(content.path)), disk.read(disk.backup_of(content.path))
    if not record.exists:
        return None
    try:
        servers = texts.read_record(record.text, texts.native(client.how(scope), content.text))
    except ValueError:
        raise CommandRefused(
            f"{printable(str(record.path))} cannot be read, so nothing is put back;"
            f" {printable(str(backup.path))} has the file of before",
            Exit.CONFIG,
        ) from None
    text, differing = texts.put_back(content.text, backup.text, servers)
    for name in differing:
        label = printable(str(content.path))
        click.echo(f"{label}: '{shorten(name)}' has other settings by now, which stay", err=True)
    return text
