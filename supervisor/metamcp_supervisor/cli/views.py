"""`metamcp ctl views`: show what each view has in its list of tools now, and what that saves.

Owns: the verb and its table. Never: what is in view (the fronts), the cost under another exposure
(`tools`), terminals (`show`).
"""

from collections.abc import Sequence

import click

from metamcp_supervisor.cli import columns, show
from metamcp_supervisor.cli.ctl import complete_endpoints, json_option
from metamcp_supervisor.control import client
from metamcp_supervisor.verbs import ViewShown, ViewsShown
from metamcp_worker.ipc import codec

COLUMNS = (
    "ENDPOINT", "EXPOSURE", "PRINCIPAL", "SESSION", "TOOL SET", "TOOLS", "OF", "TOKENS", "OF ALL",
    "SAVED", "%",
)  # fmt: skip
RIGHT = frozenset({"TOOLS", "OF", "TOKENS", "OF ALL", "SAVED", "%"})


@click.command()
@click.argument("names", nargs=-1, metavar="[ENDPOINT…]", shell_complete=complete_endpoints)
@json_option
@click.pass_obj
def views(runtime_dir: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Show what is in view now: how many tools, and what they cost a client in tokens.

    'metamcp tools --tokens' shows the cost of each server and tool, and under another exposure.
    """
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("views", {"names": names})
    if as_json:
        click.echo(raw)
        return
    found = codec.typed(ViewsShown, raw)
    show.picture(
        show.Picture(
            COLUMNS if found.views else ("",),
            rows(found.views),
            foot=foot(found),
            right=RIGHT,
            sentences=False,
            spared=("OF ALL", "SAVED", "OF", "PRINCIPAL", "SESSION", "EXPOSURE", "TOOL SET"),
        )
    )


def rows(found: Sequence[ViewShown]) -> list[tuple[str, ...]]:
    """Return a row for each view, the most tokens first."""
    return [
        (
            one.endpoint,
            one.exposure,
            one.principal,
            one.session or columns.NONE,
            one.toolset or columns.NONE,
            str(one.tools),
            str(one.offered),
            str(one.tokens),
            str(one.everything),
            str(one.saved),
            str(one.saved_percent),
        )
        for one in sorted(found, key=lambda one: -one.tokens)
    ]


def foot(found: ViewsShown) -> str:
    if not found.views:
        return "no front has told yet what is in view; ask again in two seconds"
    return (
        f"tokens are estimated: {found.token_bytes} bytes of JSON each; TOOLS and TOKENS are with"
        " the built-in tools"
    )
