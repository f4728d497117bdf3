"""`metamcp consent`: calls that wait for a person, and what people agreed to.

Owns: these verbs at the prompt. Never: which calls wait (fronts decide).
"""

import time
from typing import Any

import click

from metamcp_supervisor.cli import follow, show
from metamcp_supervisor.cli.ctl import begin, json_option, outward
from metamcp_supervisor.cli.errors import Group
from metamcp_supervisor.control import client
from metamcp_supervisor.telemetry.journal import WAITING
from metamcp_supervisor.verbs import ConsentList
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import format_pair

QUESTIONS = ("ID", "TOOL", "BY", "WAITS", "ARGUMENTS")
GRANTS = ("ID", "TOOL", "OF", "UNTIL")
WORDS = {
    "ls": "did you mean 'list'?",
    "show": "open questions and grants are listed by 'metamcp consent list'",
    "accept": "did you mean 'approve'?",
    "allow": "did you mean 'approve'?",
    "follow": "did you mean 'watch'?",
    "refuse": "did you mean 'deny'?",
    "grant": "a call is let through with 'metamcp consent approve ID'",
    "rm": "a grant ends with 'metamcp consent revoke ID'",
}


@click.group(cls=Group, words=WORDS)
@outward
@click.pass_context
def consent_(ctx: click.Context, runtime_dir: str | None, no_color: bool, quiet: bool) -> None:
    """Answer for calls that need the consent of a person, and end what was agreed to."""
    begin(ctx, runtime_dir, no_color=no_color, quiet=quiet)
    ctx.obj = runtime_dir


@consent_.command("list")
@json_option
@click.pass_obj
def list_(runtime_dir: str | None, as_json: bool) -> None:
    """List the calls that wait for an answer, and the grants that count now."""
    raw = _ask_gateway(runtime_dir, "consent", {})
    if as_json:
        click.echo(raw)
        return
    consents = codec.decode_as(ConsentList, raw)
    now = time.time()
    waiting = [
        (
            question.id, format_pair((question.server, question.tool)),
            question.client or question.principal,
            f"{max(0.0, question.until - now):.0f}s left", question.arguments,
        )
        for question in consents.questions
    ]  # fmt: skip
    foot = "" if waiting else "no call waits for an answer"
    show.picture(show.PrintedTable(QUESTIONS if waiting else ("",), waiting, foot=foot))
    grants = [
        (each.id, format_pair((each.server, each.tool)), each.principal, _date(each.until))
        for each in consents.grants
    ]
    if grants:
        show.picture(show.PrintedTable(GRANTS, grants))


@consent_.command()
@json_option
@click.pass_obj
def watch(runtime_dir: str | None, as_json: bool) -> None:
    """Show what begins to wait for a person, until interrupted: calls, and runs of workflows."""
    query = {"n": 0, "follow": True, "type": WAITING}
    follow.show_events(runtime_dir, query, as_json=as_json)


@consent_.command()
@click.argument("name", metavar="ID")
@click.option(
    "--for",
    "scope",
    type=click.Choice(["once", "session", "24h"]),
    default="once",
    show_default=True,
    help="This call alone, or further calls of the tool by the same client.",
)
@json_option
@click.pass_obj
def approve(runtime_dir: str | None, name: str, scope: str, as_json: bool) -> None:
    """Let a call run that waits."""
    raw = _ask_gateway(
        runtime_dir, "consent-change", {"what": "approve", "ids": [name], "scope": scope}
    )
    _tell(raw, "approved", as_json=as_json)


@consent_.command()
@click.argument("name", metavar="ID")
@json_option
@click.pass_obj
def deny(runtime_dir: str | None, name: str, as_json: bool) -> None:
    """Refuse a call that waits."""
    raw = _ask_gateway(runtime_dir, "consent-change", {"what": "deny", "ids": [name]})
    _tell(raw, "denied", as_json=as_json)


@consent_.command()
@click.argument("names", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All grants.")
@json_option
@click.pass_obj
def revoke(
    runtime_dir: str | None, names: tuple[str, ...], everything: bool, as_json: bool
) -> None:
    """End grants that count until a time."""
    if bool(names) is everything:
        raise click.UsageError("name grants, or write --all")
    raw = _ask_gateway(runtime_dir, "consent-change", {"what": "revoke", "ids": names})
    if as_json:
        click.echo(raw)
        return
    for grant in codec.decode_as(ConsentList, raw).grants:
        click.echo(show.printable(f"{grant.id}: {format_pair((grant.server, grant.tool))} revoked"))


def _tell(raw: bytes, outcome: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(raw)
        return
    for question in codec.decode_as(ConsentList, raw).questions:
        click.echo(
            show.printable(
                f"{question.id}: {format_pair((question.server, question.tool))} {outcome}"
            )
        )


def _ask_gateway(runtime_dir: str | None, verb: str, params: dict[str, Any]) -> bytes:
    with client.connect(runtime_dir) as gateway:
        return gateway.call(verb, params)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
