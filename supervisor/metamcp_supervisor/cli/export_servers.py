"""`metamcp export`: write servers of this gateway as the file of another program.

Owns: the options, which servers are written, and the file. Never: what each form can hold
(`client_files.export`).
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.config import loaded
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.client_files import export as forms
from metamcp_supervisor.client_files.clients import CLIENTS
from metamcp_supervisor.config.document import printable
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit

if TYPE_CHECKING:
    from metamcp_supervisor.config.config import Config

TOML = "toml"
_ALIASES = {"claude": "claude-code", "mcp-json": "claude-code", "gemini": "gemini-cli"}
"""Further words for forms of files; `mcp-json` is the file that most programs read."""
FORMS = (*CLIENTS, *_ALIASES, TOML)


@click.command("export", cls=errors.Command)
@click.argument("names", nargs=-1, metavar="[SERVER…]")
@click.option(
    "--to", "form", required=True, type=click.Choice(FORMS), help="Program that reads the file."
)
@click.option("--endpoint", metavar="NAME", help="Only the servers behind this endpoint.")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The configuration; without it, the one that `metamcp up` would take.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A new file; without it, standard output.",
)
@json_option
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
    if output is not None and os.path.lexists(output):
        label = printable(str(output))
        raise errors.CommandRefused(f"{label} exists already; name another file, or remove it")
    config = loaded(path, quiet=as_json)
    chosen = _chosen(config, names, endpoint)
    if form == TOML:
        endpoints = [endpoint] if endpoint else () if names else list(config.endpoints)
        made = forms.own(config, chosen, endpoints)
    else:
        client = CLIENTS[_ALIASES.get(form, form)]
        made = forms.exported(config, chosen, client.kept, client.title, str(Path.home()))
    for sentence in () if as_json else made.told:
        errors.say(sentence)
    if not made.names:
        why = "; ".join(made.told) if as_json and made.told else "no server is left to be written"
        raise errors.CommandRefused(why)
    if output is not None:
        with open(output, "x", encoding="utf-8") as file:
            file.write(made.text)
    if as_json:
        where = None if output is None else str(output)
        errors.tell(servers=made.names, said=made.told, text=made.text, file=where)
    elif output is None:
        click.echo(made.text, nl=False)
    else:
        click.echo(f"{printable(str(output))}: {', '.join(made.names)}")


def _chosen(config: "Config", names: tuple[str, ...], endpoint: str | None) -> list[str]:
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
            raise errors.CommandRefused(text)
    return [name for name in names or config.servers if name in behind]
