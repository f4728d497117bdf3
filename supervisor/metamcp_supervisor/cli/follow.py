"""`metamcp ctl logs` and `events`: show past lines and events, and follow new ones.

Owns: the options of both, and continuing at the same place when the gateway is back. Never: which
lines fit (the gateway), the wording of a line (`columns`).
"""

import time
from collections.abc import Callable, Iterator, Mapping

import click
from msgspec import Struct

from metamcp_supervisor import verbs
from metamcp_supervisor.cli import show
from metamcp_supervisor.cli.ctl import Duration, complete_names, json_option
from metamcp_supervisor.control import client
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec

LINES = 100
"""Number of past lines or events to show if the user does not say."""
RECONNECT_S = 20.0
"""Seconds to wait for a gateway that restarts if the user does not say."""
AGAIN_S = 0.2
"""Seconds between two checks whether the gateway is back."""
#: Failures that pass while a gateway starts: it does not run or answer, or knows no server yet.
_PASSING = frozenset({
    verbs.Exit.NOT_RUNNING, verbs.Exit.TIMEOUT, verbs.Exit.UNKNOWN_NAME, verbs.Exit.DENIED,
})  # fmt: skip

follow_option = click.option(
    "-f", "--follow", is_flag=True, help="And everything that comes, until interrupted."
)
count_option = click.option(
    "-n",
    "--tail",
    "count",
    type=click.IntRange(min=0),
    help=f"The last so many. [{LINES}; with --since, all]",
)
reconnect_option = click.option(
    "--reconnect",
    "reconnect_s",
    type=Duration(),
    default=f"{RECONNECT_S:g}s",
    show_default=True,
    metavar="DURATION",
    help="With --follow: wait so long for a gateway that restarts.",
)


@click.command()
@click.argument("name", shell_complete=complete_names)
@follow_option
@reconnect_option
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
    reconnect_s: float,
    count: int | None,
    since_s: float | None,
    grep: str,
    as_json: bool,
) -> None:
    """Show what a server wrote to its stderr, and to its stdout where it was not a message."""
    if count is None and since_s is None:
        count = LINES
    params: dict[str, object] = {
        "name": name,
        "n": count,
        "follow": follow,
        "since_s": since_s,
        "grep": grep,
    }

    def text(raw: bytes) -> str:
        line = codec.decode_as(verbs.LogLine, raw)
        return columns.log_text(line, columns.clock(line.time))

    messages = _follow_gateway(runtime_dir, "logs", params, reconnect_s)
    _print(messages, None if as_json else text)


@click.command()
@follow_option
@reconnect_option
@count_option
@click.option("--since", metavar="SEQ|DURATION", help="After this number, or not older than this.")
@click.option("--type", "kind", default="", metavar="TEXT", help="Only what has this in its name.")
@json_option
@click.pass_obj
def events(
    runtime_dir: str | None,
    follow: bool,
    reconnect_s: float,
    count: int | None,
    since: str | None,
    kind: str,
    as_json: bool,
) -> None:
    """Show the journal: what changed, and why."""
    params: dict[str, object] = {"n": count, "follow": follow, "type": kind}
    if since is None:
        params["n"] = LINES if count is None else count
    elif since.isascii() and since.isdigit():
        params["since"] = int(since)
    else:
        params["since_s"] = Duration().convert(since, None, None)
    show_events(runtime_dir, params, reconnect_s, as_json=as_json)


def show_events(
    runtime_dir: str | None,
    params: Mapping[str, object],
    reconnect_s: float = RECONNECT_S,
    *,
    as_json: bool,
) -> None:
    """Print events of the journal, one a line. `params`: parameters of the verb `events`. Raises
    Failed."""

    def text(raw: bytes) -> str:
        event = codec.decode_as(verbs.JournalEvent, raw)
        return columns.event_text(event, columns.clock(event.time))

    messages = _follow_gateway(runtime_dir, "events", params, reconnect_s)
    _print(messages, None if as_json else text)


def _print(messages: Iterator[bytes], text: Callable[[bytes], str] | None) -> None:
    """Print what the gateway sends, line by line: in the words of `text`, or as JSON without it."""
    for raw in messages:
        if text is None:
            click.echo(codec.splice(raw, {"v": str(verbs.VERSION).encode()}))
        else:
            click.echo(show.printable(text(raw)))


def _follow_gateway(
    runtime_dir: str | None, verb: str, params: Mapping[str, object], reconnect_s: float
) -> Iterator[bytes]:
    """Yield what the gateway sends. If the user wants to follow, do not end, and continue with the
    gateway that starts after this one; each line comes only once. Raises Failed."""
    runtime_dir = runtime_dir or client.find_runtime_dir()
    request = dict(params)
    last: tuple[int, float] | None = None
    back_by: float | None = None

    def reset_deadline() -> None:
        nonlocal back_by
        back_by = None

    while True:
        try:
            with client.connect(runtime_dir) as gateway:
                last = last or (0, time.time())
                follow = bool(params["follow"])
                for _, raw in gateway.stream(verb, request, follow=follow, begun=reset_deadline):
                    last = _place(raw)
                    yield raw
                return
        except client.Failed as failure:
            if last is None or not params["follow"] or failure.exit not in _PASSING:
                raise
            back_by = _back_by(back_by, failure, reconnect_s)
        request |= {"n": None, "since_s": None, "after": last}
        request.pop("since", None)
        time.sleep(AGAIN_S)


def _back_by(deadline: float | None, failure: client.Failed, reconnect_s: float) -> float:
    """Return until when to wait for a gateway that is gone. Raises Failed when that is over."""
    now = time.monotonic()
    if deadline is None and failure.exit == verbs.Exit.NOT_RUNNING:
        message = f"the gateway is gone; waiting {reconnect_s:g} s for it to be back"
        click.echo(f"metamcp: {message}", err=True)
        return now + reconnect_s
    if deadline is None or now >= deadline:
        raise failure
    return deadline


class _Place(Struct, frozen=True):
    seq: int
    time: float


def _place(raw: bytes) -> tuple[int, float]:
    position = codec.decode_as(_Place, raw)
    return position.seq, position.time
