"""`metamcp ctl logs` and `events`: what was written and what happened, and what comes.

Owns: the options of both. Never: which lines fit (the gateway), the wording of a line (`columns`).
"""

from collections.abc import Callable, Mapping

import click

from metamcp_supervisor import verbs
from metamcp_supervisor.cli import columns, show
from metamcp_supervisor.cli.ctl import Duration, complete_names, json_option
from metamcp_supervisor.watched import client
from metamcp_worker import codec

LINES = 100
"""Of the past, when nothing else is asked for."""

follow_option = click.option(
    "-f", "--follow", is_flag=True, help="And everything that comes, until interrupted."
)
count_option = click.option(
    "-n",
    "count",
    type=click.IntRange(min=0),
    help=f"The last so many. [{LINES}; with --since, all]",
)


@click.command()
@click.argument("name", shell_complete=complete_names)
@follow_option
@count_option
@click.option(
    "--since", "since_s", type=Duration(), metavar="DURATION", help="Not older than this."
)
@click.option("--grep", default="", metavar="TEXT", help="Only lines with this text, in any case.")
@json_option
@click.pass_obj
def logs(
    runtime_dir: str | None,
    name: str,
    follow: bool,
    count: int | None,
    since_s: float | None,
    grep: str,
    as_json: bool,
) -> None:
    """What a server wrote to its stderr, and to its stdout where it was no message."""
    if count is None and since_s is None:
        count = LINES
    wanted: dict[str, object] = {
        "name": name,
        "n": count,
        "follow": follow,
        "since_s": since_s,
        "grep": grep,
    }

    def text(raw: bytes) -> str:
        line = codec.typed(verbs.LogLine, raw)
        return columns.log_text(line, show.clock(line.time))

    _print(runtime_dir, "logs", wanted, None if as_json else text)


@click.command()
@follow_option
@count_option
@click.option("--since", metavar="SEQ|DURATION", help="After this number, or not older than this.")
@click.option("--type", "kind", default="", metavar="TEXT", help="Only what has this in its name.")
@json_option
@click.pass_obj
def events(
    runtime_dir: str | None,
    follow: bool,
    count: int | None,
    since: str | None,
    kind: str,
    as_json: bool,
) -> None:
    """The journal: who became what, and why."""
    wanted: dict[str, object] = {"n": count, "follow": follow, "type": kind}
    if since is None:
        wanted["n"] = LINES if count is None else count
    elif since.isascii() and since.isdigit():
        wanted["since"] = int(since)
    else:
        wanted["since_s"] = Duration().convert(since, None, None)

    def text(raw: bytes) -> str:
        event = codec.typed(verbs.Event, raw)
        return columns.event_text(event, show.clock(event.time))

    _print(runtime_dir, "events", wanted, None if as_json else text)


def _print(
    runtime_dir: str | None,
    verb: str,
    wanted: Mapping[str, object],
    text: Callable[[bytes], str] | None,
) -> None:
    """What the gateway sends, line by line: in the words of `text`, or as JSON without one."""
    with client.connect(runtime_dir) as gateway:
        for _, raw in gateway.stream(verb, dict(wanted), follow=bool(wanted["follow"])):
            if text is None:
                click.echo(codec.splice(raw, {"v": str(verbs.VERSION).encode()}))
            else:
                click.echo(show.printable(text(raw)))
