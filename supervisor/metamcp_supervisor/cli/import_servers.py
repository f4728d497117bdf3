"""`metamcp import` and `metamcp export`: copy servers from the files of other clients into
metamcp.toml, and write them as such files.

Owns: which files are read, the output, and the writing. Never: what is copied and how
(`client_files.transfer`, `client_files.export`), shapes of entries (`config.client_entries`).
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metamcp_supervisor.cli import destination
from metamcp_supervisor.cli.errors import (
    Command,
    CommandRefused,
    RenamedOption,
    add_json_option,
    gateway_options,
    say,
    tell,
)
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.client_files import disk, transfer
from metamcp_supervisor.client_files.clients import (
    CLIENTS,
    OTHERS,
    ClientProgram,
    FileFormat,
    FileUnfit,
)
from metamcp_supervisor.client_files.disk import ClientFile
from metamcp_supervisor.config import files, formats, places
from metamcp_supervisor.config.document import BrokenSyntax, printable, shorten, table_of
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit

if TYPE_CHECKING:
    from metamcp_supervisor.config.config import Config

_ANY = FileFormat("claude", "json", ())
"""Stands for the format of a file that is only read."""
TOML = "toml"
_SHORT = {"claude": "claude-code", "mcp-json": "claude-code", "gemini": "gemini-cli"}
"""Further words for forms of files; `mcp-json` is the file that most programs read."""
FORMS = (*CLIENTS, *_SHORT, TOML)


@click.command("import", cls=Command)
@click.argument("clients", nargs=-1, metavar="[CLIENT]…")
@gateway_options("path")
@click.option("--to", type=click.Path(path_type=Path), hidden=True, help="The same as --config.")
@click.option(
    "--include", is_flag=True, help="Name the files in 'include' instead; secrets stay in them."
)
@click.option(
    "--from", "words", multiple=True, metavar="CLIENT|PATH", help="The same, or any file."
)
@click.option("--dry-run", is_flag=True, help="Show what would be added and write nothing.")
@click.option("--strict", is_flag=True, help="Refuse files with anything that is not carried over.")
@add_json_option
def import_(
    clients: tuple[str, ...],
    path: Path | None,
    to: Path | None,
    include: bool,
    words: tuple[str, ...],
    dry_run: bool,
    strict: bool,
) -> None:
    """Copy the servers of other clients into metamcp.toml. Files of the clients do not change.

    Without a CLIENT, list the files of all clients and the servers in them.
    """
    from metamcp_supervisor.cli import server_entries  # `metamcp up` imports this module, and stays

    words = (*clients, *words)
    with progress("reads the files of clients"):
        if words:
            sources = [source for word in words for source in _find_sources(word)]
        else:
            sources = disk.every(destination.origins())
    if not words:
        _list(sources)
        return
    _report(sources, strict=strict)
    target = _target(path or to)
    if not dry_run and target.exists() and not os.access(target, os.W_OK, effective_ids=True):
        reason = (
            "may not be written by this user; --dry-run prints what to add, --config names another"
        )
        raise CommandRefused(f"{printable(str(target))} {reason}", Exit.NO_PERMISSION)
    try:
        content = disk.read(target)
        if include:
            _include(content, sources, dry_run=dry_run)
            return
        there = table_of(formats.toml_loads(content.text).get("servers")) or {}
        read = [
            transfer.ImportSource(
                printable(str(each.path)),
                each.servers,
                (str(target.parent), "" if each.base else str(places.folder_of(each.path))),
            )
            for each in sources
        ]
        begun = content.text if content.exists else server_entries.NEW
        moved = transfer.import_sources(read, there, begun)
    except (files.FileUnreadable, FileUnfit) as error:
        raise CommandRefused(f"{printable(str(target))} {error}", Exit.CONFIG) from None
    except BrokenSyntax as broken:
        line = f", line {broken.line}" if broken.line else ""
        text = f"{printable(str(target))}{line}: {broken.message}; mend it first"
        raise CommandRefused(text, Exit.CONFIG) from None
    for sentence in moved.told:
        click.echo(sentence, err=True)
    if not moved.names:
        click.echo(f"{printable(str(target))}: nothing to add")
    elif dry_run:
        click.echo(moved.text[len(begun) :].strip("\r\n"))
    else:
        _finish(content, moved.text, ", ".join(moved.names))


def _report(sources: list[ClientFile], *, strict: bool) -> None:
    """Print what is not carried over, and what has another name here. `strict`: refuse files with
    anything that is not carried over. Raises CommandRefused."""
    for source in sources:
        if source.why:
            raise CommandRefused(f"{printable(str(source.path))} {source.why}", Exit.CONFIG)
        for sentence in (*source.mistakes, *source.lost, *source.renamed):
            click.echo(printable(sentence), err=True)
    count = sum(len(source.mistakes) + len(source.lost) for source in sources)
    if strict and count:
        subject = "1 thing is" if count == 1 else f"{count} things are"
        raise CommandRefused(f"{subject} not carried over; nothing is written", Exit.CONFIG)


def _include(content: disk.Content, sources: list[ClientFile], *, dry_run: bool) -> None:
    """Name the files in `include`. Raises FileUnfit and BrokenSyntax."""
    paths = [str(source.path) for source in sources if source.servers]
    made = transfer.with_include(content.text, paths)
    if made == content.text:
        click.echo(f"{printable(str(content.path))}: nothing to add")
    elif dry_run:
        click.echo(printable(made.splitlines()[0]))
    else:
        _finish(content, made, "an include")


def _finish(content: disk.Content, text: str, addition: str) -> None:
    label = printable(str(content.path))
    try:
        disk.write(content, text)
    except disk.FileChanged:
        raise CommandRefused(f"{label} was changed meanwhile; run this again") from None
    click.echo(f"{label}: added {addition}")
    click.echo("'metamcp config check' says whether they can be started like this")


def _list(sources: list[ClientFile]) -> None:
    for source in sources:
        label = f"{source.client.name}: {printable(str(source.path))}"
        if source.why:
            click.echo(f"{label}: {source.why}")
            continue
        names = ", ".join(shorten(server.name) for server in source.servers)
        others = (
            "no servers that can be started" if source.mistakes else "no servers but this gateway"
        )
        click.echo(f"{label}: {names or others}")
    if not sources:
        click.echo("no client that is known here has a file")
    elif any(source.servers for source in sources):
        click.echo("take them over with: metamcp import CLIENT… --dry-run")


def origin(word: str) -> Path:
    """Return the file whose servers `metamcp up --from` starts. Raises CommandRefused and
    click.UsageError."""
    if (path := _path(word)) is not None:
        return path
    sources = disk.of_client(destination.find_client(word), destination.origins())
    if not sources:
        raise CommandRefused(
            f"{word} has no file here; 'metamcp import' lists those that there are"
        )
    return next((each.path for each in sources if each.servers), sources[0].path)


def _path(word: str) -> Path | None:
    """Return the file that the word means; None for the name of a client. Raises CommandRefused."""
    if word in CLIENTS:
        return None
    path = Path(OTHERS.get(word, word)).expanduser()
    if word not in OTHERS and "/" not in word and not path.suffix and not path.exists():
        return None
    if not path.exists():
        raise CommandRefused(f"{printable(str(path))} does not exist", Exit.CONFIG)
    return Path(os.path.abspath(path))


def _find_sources(word: str) -> list[ClientFile]:
    path = _path(word)
    if path is None:
        return disk.of_client(destination.find_client(word), destination.origins())
    client = ClientProgram(name=path.name, title=path.name, kept=_ANY, linux=(), darwin=())
    is_user = word in OTHERS or path in disk.user_files()
    source = disk.read_servers(
        client, "user" if is_user else "project", path, destination.origins()
    )
    if not (source.servers or source.why or source.mistakes or source.lost):
        raise CommandRefused(f"{printable(str(path))} has no servers to take over", Exit.CONFIG)
    return [source]


def _target(to: Path | None) -> Path:
    """Return the metamcp.toml to write: the given file, or the one in use, else that of the
    user."""
    if to is not None:
        return Path(os.path.abspath(to))
    home, cwd = Path.home(), Path.cwd()
    config_path = places.find(environ=os.environ, cwd=cwd, home=home)
    if config_path is not None and config_path.suffix == ".toml":
        return config_path
    return home / ".config/metamcp/metamcp.toml"


# Export


@click.command("export", cls=Command)
@click.argument("names", nargs=-1, metavar="[SERVER…]")
@click.option(
    "--to", "form", required=True, type=click.Choice(FORMS), help="Program that reads the file."
)
@click.option("--endpoint", metavar="NAME", help="Only the servers behind this endpoint.")
@gateway_options("path")
@click.option(
    "-o",
    "--out",
    "output",
    cls=RenamedOption,
    before=("--output",),
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A new file; without it, standard output.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def export(
    names: tuple[str, ...],
    form: str,
    endpoint: str | None,
    path: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write servers as the file of another program, all of them or those that are named.

    Secrets are never written: references take their place. For each server, a sentence says what
    the file cannot hold. `toml` is a metamcp.toml for another gateway, with endpoints.
    """
    # Not at the top: `metamcp up` imports this module, and stays.
    from metamcp_supervisor.cli.config import load_or_exit
    from metamcp_supervisor.client_files import export as forms

    if output is not None and os.path.lexists(output):
        label = printable(str(output))
        raise CommandRefused(f"{label} exists already; name another file, or remove it")
    config = load_or_exit(path, quiet=as_json)
    chosen = _select_servers(config, names, endpoint)
    if form == TOML:
        endpoints = [endpoint] if endpoint else () if names else list(config.endpoints)
        made = forms.own(config, chosen, endpoints)
    else:
        client = CLIENTS[_SHORT.get(form, form)]
        made = forms.export_servers(config, chosen, client.kept, client.title, str(Path.home()))
    for sentence in () if as_json else made.told:
        say(sentence)
    if not made.names:
        reason = (
            "; ".join(made.told) if as_json and made.told else "no server is left to be written"
        )
        raise CommandRefused(reason)
    if output is not None:
        with open(output, "x", encoding="utf-8") as file:
            file.write(made.text)
    if as_json:
        output_path = None if output is None else str(output)
        tell(servers=made.names, said=made.told, text=made.text, file=output_path)
    elif output is None:
        click.echo(made.text, nl=False)
    else:
        click.echo(f"{printable(str(output))}: {', '.join(made.names)}")


def _select_servers(config: "Config", names: tuple[str, ...], endpoint: str | None) -> list[str]:
    """Return the servers that are meant. Raises Failed for a name that nothing has."""
    for name in names:
        if name not in config.servers:
            text = f"no server is named {name!r}; {hint(name, config.servers)}"
            raise Failed(Exit.UNKNOWN_NAME, text)
    if endpoint is None:
        return list(names or config.servers)
    if endpoint not in config.endpoints:
        text = f"no endpoint is named {endpoint!r}; {hint(endpoint, config.endpoints)}"
        raise Failed(Exit.UNKNOWN_NAME, text)
    behind = config.namespaces[config.endpoints[endpoint].namespace].servers
    for name in names:
        if name not in behind:
            text = f"{name} is not behind the endpoint {endpoint}; leave out --endpoint"
            raise CommandRefused(text)
    return [name for name in names or config.servers if name in behind]
