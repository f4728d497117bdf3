"""`metamcp console`: open the web console, list its sessions, end them.

Owns: these verbs at the prompt. Never: the console itself (`metamcp_supervisor.console`), links and
sessions (`control.console_sessions`).
"""

import sys
import webbrowser

import click

from metamcp_supervisor.cli import show
from metamcp_supervisor.cli.ctl import begin, json_option, outward
from metamcp_supervisor.cli.errors import Group
from metamcp_supervisor.console.console_orders import ConsoleLink, SessionList
from metamcp_supervisor.control import client
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec

SESSIONS = ("ID", "ROLE", "LOGIN BY", "SINCE", "LAST PAGE")
WORDS = {
    "open": "the console is opened by 'metamcp console'",
    "start": "the console is opened by 'metamcp console'",
    "list": "did you mean 'sessions'?",
    "ls": "did you mean 'sessions'?",
    "end": "did you mean 'revoke'?",
    "logout": "did you mean 'revoke'?",
}


@click.group(cls=Group, words=WORDS, invoke_without_command=True)
@click.option(
    "--role",
    type=click.Choice([str(role) for role in Role]),
    default="admin",
    show_default=True,
    help="What the session may do.",
)
@click.option("--no-open", is_flag=True, help="Only print the link; open no browser.")
@json_option
@outward
@click.pass_context
def console(
    ctx: click.Context,
    role: str,
    no_open: bool,
    as_json: bool,
    runtime_dir: str | None,
    no_color: bool,
    quiet: bool,
) -> None:
    """Open the web console of a running gateway, by a link for one login within a minute."""
    begin(ctx, runtime_dir, no_color=no_color, quiet=quiet)
    if ctx.invoked_subcommand is not None:
        return
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("console", {"role": role})
    link = codec.decode_as(ConsoleLink, raw)
    if as_json:
        click.echo(raw)
        return
    click.echo(f"{link.url}\nfor one login as {link.role}, within {link.expires_s:g} s")
    if not no_open and sys.stdout.isatty():
        webbrowser.open(link.url)


@console.command()
@json_option
@click.pass_obj
def sessions(runtime_dir: str | None, as_json: bool) -> None:
    """List the open sessions."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("console-sessions")
    if as_json:
        click.echo(raw)
        return
    rows = [
        (
            session.id,
            session.role,
            f"key {session.key}" if session.key else "link",
            f"{columns.span(session.age_s)} ago",
            f"{columns.span(session.idle_s)} ago",
        )
        for session in codec.decode_as(SessionList, raw).sessions
    ]
    foot = "" if rows else "no session is open"
    show.picture(show.PrintedTable(SESSIONS if rows else ("",), rows, foot=foot))


@console.command()
@click.argument("names", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions.")
@json_option
@click.pass_obj
def revoke(
    runtime_dir: str | None, names: tuple[str, ...], everything: bool, as_json: bool
) -> None:
    """End sessions; their open pages say so at once."""
    if bool(names) is everything:
        raise click.UsageError("name sessions, or write --all")
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("console-revoke", {"names": names})
    if as_json:
        click.echo(raw)
        return
    click.echo(f"revoked: {' '.join(names) or 'all sessions'}")
