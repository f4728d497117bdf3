"""`metamcp ctl calls`: the calls under way, and how long each has taken so far.

Owns: the verb and its table. Never: finding the calls (the gateway), terminals (`show`).
"""

from collections.abc import Sequence

import click

from metamcp_supervisor import verbs
from metamcp_supervisor.cli import columns, show
from metamcp_supervisor.cli.ctl import Duration, any_names_argument, json_option
from metamcp_supervisor.control import client
from metamcp_worker.ipc import codec

COLUMNS = (
    "SERVER", "METHOD", "NAME", "AGE", "STATE", "PROGRESS", "CLIENT", "SESSION", "ENDPOINT",
    "FRONT",
)  # fmt: skip
CLIENT_CHARACTERS_MAX = 24
"""Maximum characters of a client's name in the table; `--json` shows all of it."""


@click.command()
@any_names_argument
@click.option(
    "--slow",
    "slow_s",
    type=Duration(),
    metavar="DURATION",
    help="Only those that have taken so long already.",
)
@json_option
@click.pass_obj
def calls(
    runtime_dir: str | None, names: tuple[str, ...], slow_s: float | None, as_json: bool
) -> None:
    """Show the calls that are not answered yet, the longest first, without their contents.

    'metamcp calls' shows calls that are over, where they are recorded.
    """
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("calls", {"names": names, "slow_s": slow_s or 0.0})
    if as_json:
        click.echo(raw)
        return
    found = codec.typed(verbs.CallsUnderWay, raw)
    show.picture(
        show.Picture(
            COLUMNS if found.calls else ("",),
            rows(found.calls),
            foot=foot(found),
            right=frozenset({"AGE"}),
            sentences=False,
            spared=("FRONT", "PROGRESS", "SESSION", "METHOD", "ENDPOINT", "CLIENT"),
        )
    )


def rows(found: Sequence[verbs.InFlight]) -> list[tuple[str, ...]]:
    return [
        (
            one.server,
            one.method,
            one.name or columns.NONE,
            columns.latency(one.age_s),
            one.state,
            "yes" if one.progress else "no",
            columns.cut(" ".join(one.client.split()), CLIENT_CHARACTERS_MAX) or columns.NONE,
            one.session or columns.NONE,
            one.endpoint or columns.NONE,
            one.front,
        )
        for one in found
    ]


def foot(found: verbs.CallsUnderWay) -> str:
    """Return the number of calls, and what is missing from the table."""
    parts = [f"{len(found.calls)} under way" if found.calls else "no call is under way"]
    if found.more:
        parts.append(f"{found.more} more are not shown")
    parts += [f"{front} did not say" for front in found.silent]
    return "; ".join(parts)
