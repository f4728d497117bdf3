"""`metamcp results`: large results that a running gateway keeps.

Owns: these verbs at the prompt. Never: keeping results (`result_keeper`), terminals (`cli.show`).
"""

import click

from metamcp_supervisor.cli import show
from metamcp_supervisor.cli.ctl import begin, json_option, outward
from metamcp_supervisor.cli.errors import Group, confirm, yes_option
from metamcp_supervisor.control import client
from metamcp_supervisor.results import result_orders
from metamcp_supervisor.results.result_orders import ResultList, ResultShown, ResultsPurged
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec

RESULTS = ("HANDLE", "ENDPOINT", "PRINCIPAL", "TOOL", "BYTES", "TOKENS SAVED", "UNTIL")
RESULT_WORDS = {
    "ls": "did you mean 'list'?",
    "rm": "a result is removed with 'metamcp results purge HANDLE'",
    "delete": "a result is removed with 'metamcp results purge HANDLE'",
    "clear": "all results are removed with 'metamcp results purge --all'",
    "cat": "a result is printed by 'metamcp results show HANDLE'",
}


@click.group(cls=Group, words=RESULT_WORDS)
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
    listing = codec.decode_as(ResultList, raw)
    rows = [_result_row(result) for result in listing.results]
    more = f"; {listing.more} older ones are left out" if listing.more else ""
    foot = f"{listing.bytes} bytes are kept, and saved about {listing.saved_tokens} tokens{more}"
    if not rows:
        foot = "nothing is kept; the key 'results' of an endpoint lets it keep large results"
    right = frozenset({"BYTES", "TOKENS SAVED"})
    show.picture(show.PrintedTable(RESULTS if rows else ("",), rows, foot=foot, right=right))


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
    listing = codec.decode_as(ResultList, raw)
    (result,) = listing.results
    about = (
        f"{result.handle}: {result.bytes} bytes of {result.server}.{result.tool} for"
        f" {result.principal} at {result.endpoint}, {result.shape}, kept until {result.until}"
    )
    if (shown_bytes := len(listing.text.encode())) < result.bytes:
        about += f"; its first {shown_bytes} bytes are:"
    click.echo(show.printable(about), err=True)
    for line in listing.text.split("\n"):
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
    subject = " ".join(handles) or "all results of all clients"
    confirm(f"Remove {subject}?", yes=yes)
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("results-purge", result_orders.ResultsPurge(handles=handles))
    answer = codec.decode_as(ResultsPurged, raw)
    click.echo(raw if as_json else f"{answer.purged} results are removed")


def _result_row(result: ResultShown) -> tuple[str, ...]:
    tool = columns.cut(f"{result.server}.{result.tool}", 40)
    return (
        result.handle, result.endpoint, result.principal, tool, str(result.bytes),
        str(result.saved_tokens), result.until,
    )  # fmt: skip
