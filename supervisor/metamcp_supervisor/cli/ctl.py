"""`metamcp ctl`: ask the running gateway, show the answer, end with the right code.

Owns: the verbs at the prompt, their options and exit codes. Never: the socket (`client`), the
wording of tables (`columns`), their look (`show`), knowledge of how the gateway works.

`ctl status` is what scripts run every second, so nothing is imported here that it does not need.
"""

import io
import sys
import time
from typing import Any

import click
from msgspec import structs

from metamcp_supervisor import verbs
from metamcp_supervisor.cli import columns, show
from metamcp_supervisor.watched import client
from metamcp_supervisor.watched.client import Client, Failed
from metamcp_supervisor.watched.health import not_ready
from metamcp_worker import codec

WATCH_S = 2.0
"""Between two pictures of `--watch`: as often as the gateway measures its processes."""
MARGIN_S = 10.0
"""How much longer than the gateway we wait for what the gateway waits for."""


class Duration(click.ParamType[float]):
    """`30s`, `2m`, `500ms`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from metamcp_supervisor.wanted.units import duration

        try:
            return duration(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


class Verbs(click.Group):
    """The one place where a failure becomes an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Failed as failed:
            for line in (str(failed), *failed.details):
                click.echo(f"metamcp: {show.printable(line)}", err=True)
            ctx.exit(failed.exit)
        except KeyboardInterrupt:
            ctx.exit(130)  # as every shell says it: 128 and the number of SIGINT


@click.group(cls=Verbs)
@click.option("--runtime-dir", metavar="PATH", help="Where the gateway keeps its control socket.")
@click.pass_context
def ctl(ctx: click.Context, runtime_dir: str | None) -> None:
    """Look at and steer a running gateway."""
    ctx.obj = runtime_dir
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An arrow that the terminal cannot show is no reason to fail.
            stream.reconfigure(errors="backslashreplace")


names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME…")
wait_option = click.option("--wait", is_flag=True, help="Return when it is done, not when asked.")
timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="30s",
    show_default=True,
    help="How long to wait.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


@ctl.command()
@click.argument("names", nargs=-1, metavar="[NAME…]")
@json_option
@click.option("--watch", is_flag=True, help="Again and again, until interrupted.")
@click.option("--every", "every_s", type=Duration(), metavar="DURATION", help="With --watch. [2s]")
@click.pass_obj
def status(
    runtime_dir: str | None,
    names: tuple[str, ...],
    as_json: bool,
    watch: bool,
    every_s: float | None,
) -> None:
    """What runs, and what is wrong. Exit 3 if a server that should be ready is not."""
    with client.connect(runtime_dir) as gateway:
        if watch:
            _watch(gateway, names, as_json, every_s or WATCH_S)
        raw = gateway.call("status")
        found = _chosen(codec.typed(verbs.GatewayStatus, raw), names)
    if as_json:
        click.echo(raw if not names else codec.dump(found))
    else:
        show.picture(_picture(found, names))
    if not_ready(found, names):
        sys.exit(verbs.Exit.NOT_READY)


@ctl.command()
@names_argument
@wait_option
@timeout_option
@click.pass_obj
def start(runtime_dir: str | None, names: tuple[str, ...], wait: bool, timeout_s: float) -> None:
    """Start servers; also one that failed or was stopped."""
    _steer(runtime_dir, "start", names, "ready" if wait else None, timeout_s)


@ctl.command()
@names_argument
@wait_option
@timeout_option
@click.pass_obj
def stop(runtime_dir: str | None, names: tuple[str, ...], wait: bool, timeout_s: float) -> None:
    """Stop servers, after their calls in flight; they stay stopped until started."""
    _steer(runtime_dir, "stop", names, "stopped" if wait else None, timeout_s)


@ctl.command()
@names_argument
@wait_option
@timeout_option
@click.pass_obj
def restart(runtime_dir: str | None, names: tuple[str, ...], wait: bool, timeout_s: float) -> None:
    """Stop servers and start them again."""
    _steer(runtime_dir, "restart", names, "ready" if wait else None, timeout_s)


@ctl.command()
@click.option("--dry-run", is_flag=True, help="Show the plan, change nothing.")
@click.option("--expect", metavar="HASH", help="Only if the plan still has this hash.")
@json_option
@click.pass_obj
def reload(runtime_dir: str | None, dry_run: bool, expect: str | None, as_json: bool) -> None:
    """Read the configuration anew and restart only what changed. All or nothing."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("reload", {"dry_run": dry_run, "expect": expect}, timeout_s=60.0)
    if as_json:
        click.echo(raw)
        return
    plan = codec.typed(verbs.ReloadPlan, raw)
    rows = columns.plan_rows(plan)
    show.picture(show.Picture(("", "", "", ""), rows, foot=columns.plan_foot(plan)))


@ctl.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="And everything that comes, until interrupted.")
@click.option("-n", "lines", type=click.IntRange(min=0), default=100, show_default=True)
@json_option
@click.pass_obj
def logs(runtime_dir: str | None, name: str, follow: bool, lines: int, as_json: bool) -> None:
    """What a server wrote to its stderr, and to its stdout where it was no message."""
    wanted = {"name": name, "n": lines, "follow": follow}
    with client.connect(runtime_dir) as gateway:
        for _, raw in gateway.stream("logs", wanted, follow=follow):
            if as_json:
                click.echo(_versioned(raw))
                continue
            line = codec.typed(verbs.LogLine, raw)
            click.echo(show.printable(columns.log_text(line, _clock(line.time))))


@ctl.command()
@click.option("-f", "--follow", is_flag=True, help="And everything that comes, until interrupted.")
@click.option("-n", "count", type=click.IntRange(min=0), default=100, show_default=True)
@json_option
@click.pass_obj
def events(runtime_dir: str | None, follow: bool, count: int, as_json: bool) -> None:
    """The journal: who became what, and why."""
    wanted = {"n": count, "follow": follow}
    with client.connect(runtime_dir) as gateway:
        for _, raw in gateway.stream("events", wanted, follow=follow):
            if as_json:
                click.echo(_versioned(raw))
                continue
            event = codec.typed(verbs.Event, raw)
            click.echo(show.printable(columns.event_text(event, _clock(event.time))))


@ctl.command()
@click.argument("names", nargs=-1, metavar="[NAME…]")
@click.option(
    "--for",
    "wanted",
    type=click.Choice(["ready", "stopped"]),
    default="ready",
    show_default=True,
    help="For what.",
)
@timeout_option
@click.pass_obj
def wait(runtime_dir: str | None, names: tuple[str, ...], wanted: str, timeout_s: float) -> None:
    """Return when these servers, or all that are wanted, are there. Exit 6 if not in time.

    A gateway that is not there yet is waited for as well.
    """
    with client.connect_within(runtime_dir, timeout_s) as gateway:
        _wait(gateway, names, wanted, timeout_s, {})


def _steer(
    runtime_dir: str | None, verb: str, names: tuple[str, ...], wanted: str | None, timeout_s: float
) -> None:
    with client.connect(runtime_dir) as gateway:
        ordered = codec.value(gateway.call(verb, {"names": names}))
        if wanted is not None:
            _wait(gateway, names, wanted, timeout_s, ordered["above"])
    for name in dict.fromkeys(names):
        click.echo(f"{name}: {wanted or f'{verb} requested'}")


def _wait(
    gateway: Client, names: tuple[str, ...], wanted: str, timeout_s: float, above: dict[str, int]
) -> None:
    asked = {"names": names, "for": wanted, "timeout_s": timeout_s, "above": above}
    gateway.call("wait", asked, timeout_s=timeout_s + MARGIN_S)


def _watch(gateway: Client, names: tuple[str, ...], as_json: bool, every_s: float) -> None:
    """Never returns: the user ends it, or the gateway does."""

    def take() -> verbs.GatewayStatus:
        return _chosen(codec.typed(verbs.GatewayStatus, gateway.call("status")), names)

    if as_json:
        while True:
            click.echo(codec.dump(take()))
            time.sleep(every_s)
    show.watch(lambda: _picture(take(), names), every_s)


def _chosen(found: verbs.GatewayStatus, names: tuple[str, ...]) -> verbs.GatewayStatus:
    """With the named servers only. Raises Failed for a name that is not there."""
    known = {server.name for server in found.servers}
    if unknown := [name for name in names if name not in known]:
        from metamcp_supervisor.watched.steering import UnknownName

        raise Failed(verbs.Exit.UNKNOWN_NAME, str(UnknownName(unknown, known)))
    if not names:
        return found
    servers = tuple(server for server in found.servers if server.name in names)
    return structs.replace(found, servers=servers)


def _picture(found: verbs.GatewayStatus, names: tuple[str, ...]) -> show.Picture:
    return show.Picture(
        columns.STATUS,
        columns.status_rows(found, names),
        head=columns.status_head(found),
        foot=columns.status_foot(found, names),
        right=columns.RIGHT,
    )


def _versioned(raw: bytes) -> bytes:
    return codec.splice(raw, {"v": str(verbs.VERSION).encode()})


def _clock(seconds: float) -> str:
    """The local time of day, as people at a prompt have it on their watch."""
    whole = time.localtime(seconds)
    return f"{time.strftime('%H:%M:%S', whole)}.{int(seconds * 1000) % 1000:03}"
