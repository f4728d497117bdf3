"""`metamcp results`: large results that a running gateway keeps for its clients.

Owns: these verbs at the prompt, the table. Never: keeping results, reading one as its client
does.
"""

import click

from metamcp_supervisor.cli import columns, show
from metamcp_supervisor.cli.ctl import begin, json_option, outward
from metamcp_supervisor.cli.errors import Group, confirm, yes_option
from metamcp_supervisor.control import client, result_orders
from metamcp_supervisor.control.result_orders import ResultList, ResultShown, ResultsPurged
from metamcp_worker.ipc import codec

LIST = ("HANDLE", "ENDPOINT", "PRINCIPAL", "TOOL", "BYTES", "TOKENS SAVED", "UNTIL")
WORDS = {
    "ls": "did you mean 'list'?",
    "rm": "a result is removed with 'metamcp results purge HANDLE'",
    "delete": "a result is removed with 'metamcp results purge HANDLE'",
    "clear": "all results are removed with 'metamcp results purge --all'",
    "cat": "a result is printed by 'metamcp results show HANDLE'",
}


@click.group(cls=Group, words=WORDS)
@outward
@click.pass_context
def results_(ctx: click.Context, runtime_dir: str | None, no_color: bool, quiet: bool) -> None:
    """List, show and remove large results that a running gateway keeps."""
    begin(ctx, runtime_dir, no_color=no_color, quiet=quiet)


@results_.command("list")
@json_option
@click.pass_obj
def list_(runtime_dir: str | None, as_json: bool) -> None:
    """List what is kept, and the tokens that it saved."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("results")
    if as_json:
        click.echo(raw)
        return
    found = codec.typed(ResultList, raw)
    rows = [_row(one) for one in found.results]
    more = f"; {found.more} older ones are left out" if found.more else ""
    foot = f"{found.bytes} bytes are kept, and saved about {found.saved_tokens} tokens{more}"
    if not rows:
        foot = "nothing is kept; the key 'results' of an endpoint lets it keep large results"
    right = frozenset({"BYTES", "TOKENS SAVED"})
    show.picture(show.Picture(LIST if rows else ("",), rows, foot=foot, right=right))


@results_.command("show")
@click.argument("handle")
@json_option
@click.pass_obj
def show_(runtime_dir: str | None, handle: str, as_json: bool) -> None:
    """Print the beginning of a result, nearly 1 MiB at most."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("results-show", result_orders.ResultWanted(handle))
    if as_json:
        click.echo(raw)
        return
    found = codec.typed(ResultList, raw)
    (one,) = found.results
    about = (
        f"{one.handle}: {one.bytes} bytes of {one.server}.{one.tool} for {one.principal} at"
        f" {one.endpoint}, {one.shape}, kept until {one.until}"
    )
    if (shown := len(found.text.encode())) < one.bytes:
        about += f"; its first {shown} bytes are:"
    click.echo(show.printable(about), err=True)
    for line in found.text.split("\n"):
        click.echo(show.printable(line))


@results_.command()
@click.argument("handles", nargs=-1, metavar="[HANDLE…]")
@click.option("--all", "everything", is_flag=True, help="All results of all clients.")
@yes_option
@json_option
@click.pass_obj
def purge(
    runtime_dir: str | None, handles: tuple[str, ...], everything: bool, yes: bool, as_json: bool
) -> None:
    """Remove results now; their clients cannot read them any more."""
    if everything is bool(handles):
        raise click.UsageError("give handles, or --all")
    what = " ".join(handles) or "all results of all clients"
    confirm(f"Remove {what}?", yes=yes)
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("results-purge", result_orders.ResultsPurge(handles=handles))
    found = codec.typed(ResultsPurged, raw)
    click.echo(raw if as_json else f"{found.purged} results are removed")


def _row(one: ResultShown) -> tuple[str, ...]:
    tool = columns.cut(f"{one.server}.{one.tool}", 40)
    return (
        one.handle, one.endpoint, one.principal, tool, str(one.bytes), str(one.saved_tokens),
        one.until,
    )  # fmt: skip
