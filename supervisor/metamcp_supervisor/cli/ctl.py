"""`metamcp ctl`: ask the running gateway, show the answer, end with the right code.

Owns: the verbs at the prompt, their options and exit codes. Never: the socket (`client`), the
wording of tables (`columns`), their look (`show`), knowledge of how the gateway works.

`ctl status` is what scripts run every second, so nothing is imported here that it does not need.
"""

import contextlib
import importlib
import io
import os
import sys
import time
from collections.abc import Callable
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
    """`30s`, `2m`, `500ms`. `past`: how long ago something may be, which is longer than anything
    that is waited for."""

    name = "duration"

    def __init__(self, *, past: bool = False) -> None:
        self._past = past

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from metamcp_supervisor.wanted.units import DURATION_S_MAX, PAST_S_MAX, duration

        try:
            return duration(value, PAST_S_MAX if self._past else DURATION_S_MAX)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


#: Verbs that live in a file of their own, which is imported when one of them is called.
ELSEWHERE = {
    "describe": "metamcp_supervisor.cli.describe:describe",
    "top": "metamcp_supervisor.cli.top:top",
    "logs": "metamcp_supervisor.cli.follow:logs",
    "events": "metamcp_supervisor.cli.follow:events",
    "calls": "metamcp_supervisor.cli.calls:calls",
    "views": "metamcp_supervisor.cli.views:views",
    "set": "metamcp_supervisor.cli.adjust:set_",
    "signal": "metamcp_supervisor.cli.adjust:signal_",
    "drain": "metamcp_supervisor.cli.steer:drain",
    "undrain": "metamcp_supervisor.cli.steer:undrain",
    "quarantine": "metamcp_supervisor.cli.steer:quarantine",
    "clear": "metamcp_supervisor.cli.steer:clear",
    "roll": "metamcp_supervisor.cli.steer:roll",
    "upgrade": "metamcp_supervisor.cli.steer:upgrade",
    "dump-stacks": "metamcp_supervisor.cli.steer:dump_stacks",
    "doctor": "metamcp_supervisor.cli.doctor:doctor",
    "completion": "metamcp_supervisor.cli.completion:completion",
}


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: names of servers of the gateway that runs."""
    from metamcp_supervisor.cli.completion import names

    above = ctx.parent.params if ctx.parent is not None else {}
    return [name for name in names(above.get("runtime_dir")) if name.startswith(incomplete)]


def complete_endpoints(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """As `complete_names`, of its endpoints."""
    from metamcp_supervisor.cli.completion import endpoints as names

    above = ctx.parent.params if ctx.parent is not None else {}
    return [name for name in names(above.get("runtime_dir")) if name.startswith(incomplete)]


class Ending(click.Group):
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


class Verbs(Ending):
    """Those of `ctl`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, name = ELSEWHERE[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


def outward(command: Callable[..., None]) -> Callable[..., None]:
    """What every group of verbs knows that talks to a gateway; `begin` heeds it."""
    for option in (
        click.option(
            "-q", "--quiet", is_flag=True, help="Nothing on standard output: the exit code tells."
        ),
        click.option(
            "--no-color", is_flag=True, help="No colours on a terminal either, as NO_COLOR."
        ),
        click.option(
            "--runtime-dir", metavar="PATH", help="Where the gateway keeps its control socket."
        ),
    ):
        command = option(command)
    return command


@click.group(cls=Verbs)
@outward
@click.pass_context
def ctl(ctx: click.Context, runtime_dir: str | None, no_color: bool, quiet: bool) -> None:
    """Look at and steer a running gateway."""
    begin(ctx, runtime_dir, no_color=no_color, quiet=quiet)


def begin(ctx: click.Context, runtime_dir: str | None, *, no_color: bool, quiet: bool) -> None:
    """For every verb of a group."""
    ctx.obj = runtime_dir
    if no_color:
        os.environ["NO_COLOR"] = "1"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An arrow that the terminal cannot show is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    if quiet:
        # Closed with the context of the command.
        nowhere = ctx.with_resource(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        ctx.with_resource(contextlib.redirect_stdout(nowhere))


names_argument = click.argument(
    "names", nargs=-1, required=True, metavar="NAME…", shell_complete=complete_names
)
any_names_argument = click.argument(
    "names", nargs=-1, metavar="[NAME…]", shell_complete=complete_names
)
key_option = click.option(
    "--key",
    default="",
    help="Given again within ten minutes: the same answer, and nothing is done.",
)
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
@any_names_argument
@json_option
@click.option("--watch", is_flag=True, help="Again and again, until interrupted.")
@click.option("--every", "every_s", type=Duration(), metavar="DURATION", help="With --watch. [2s]")
@click.option(
    "-o",
    "--output",
    "fields",
    metavar="FIELD,FIELD",
    help="Only these members of --json, a line per server, tabs between them.",
)
@click.pass_obj
def status(
    runtime_dir: str | None,
    names: tuple[str, ...],
    as_json: bool,
    watch: bool,
    every_s: float | None,
    fields: str | None,
) -> None:
    """What runs, and what is wrong. Exit 3 if a server that should be ready is not."""
    wanted = _fields(fields) if fields is not None else ()
    with client.connect(runtime_dir) as gateway:
        if watch:
            _watch(gateway, names, as_json, every_s or WATCH_S)
        raw = gateway.call("status")
        found = _chosen(codec.typed(verbs.GatewayStatus, raw), names)
    if as_json:
        click.echo(raw if not names else codec.dump(found))
    elif wanted:
        for server in found.servers:
            click.echo("\t".join(columns.cell(getattr(server, field)) for field in wanted))
    else:
        show.picture(_picture(found, names))
    if not_ready(found, names):
        sys.exit(verbs.Exit.NOT_READY)


@ctl.command()
@names_argument
@wait_option
@timeout_option
@key_option
@click.pass_obj
def start(
    runtime_dir: str | None, names: tuple[str, ...], wait: bool, timeout_s: float, key: str
) -> None:
    """Start servers; also one that failed or was stopped."""
    _steer(runtime_dir, "start", names, "ready" if wait else None, timeout_s, key)


@ctl.command()
@names_argument
@wait_option
@timeout_option
@key_option
@click.pass_obj
def stop(
    runtime_dir: str | None, names: tuple[str, ...], wait: bool, timeout_s: float, key: str
) -> None:
    """Stop servers, after their calls in flight; they stay stopped until started."""
    _steer(runtime_dir, "stop", names, "stopped" if wait else None, timeout_s, key)


@ctl.command()
@names_argument
@wait_option
@timeout_option
@key_option
@click.pass_obj
def restart(
    runtime_dir: str | None, names: tuple[str, ...], wait: bool, timeout_s: float, key: str
) -> None:
    """Stop servers and start them again."""
    _steer(runtime_dir, "restart", names, "ready" if wait else None, timeout_s, key)


@ctl.command()
@click.option("--dry-run", is_flag=True, help="Show the plan, change nothing.")
@click.option("--expect", metavar="HASH", help="Only if the plan still has this hash.")
@json_option
@key_option
@click.pass_obj
def reload(
    runtime_dir: str | None, dry_run: bool, expect: str | None, as_json: bool, key: str
) -> None:
    """Read the configuration anew and restart only what changed. All or nothing."""
    with client.connect(runtime_dir) as gateway:
        asked = {"dry_run": dry_run, "expect": expect, "key": key}
        raw = gateway.call("reload", asked, timeout_s=60.0)
    if as_json:
        click.echo(raw)
        return
    plan = codec.typed(verbs.ReloadPlan, raw)
    rows = columns.plan_rows(plan)
    show.picture(show.Picture(("", "", "", ""), rows, foot=columns.plan_foot(plan)))


@ctl.command()
@any_names_argument
@click.option(
    "--for",
    "wanted",
    type=click.Choice(["ready", "active", "idle", "stopped", "error"]),
    default="ready",
    show_default=True,
    help="For what.",
)
@timeout_option
@click.pass_obj
def wait(runtime_dir: str | None, names: tuple[str, ...], wanted: str, timeout_s: float) -> None:
    """Return when these servers, or all that are wanted, are there. Exit 6 if not in time.

    A gateway that is not there yet is waited for as well, and so is a server that failed if its
    next start comes in time. Exit 1 at once if it does not, 7 if the server is stopped.
    """
    with client.connect_within(runtime_dir, timeout_s) as gateway:
        _wait(gateway, names, wanted, timeout_s, {})


def _steer(
    runtime_dir: str | None,
    verb: str,
    names: tuple[str, ...],
    wanted: str | None,
    timeout_s: float,
    key: str,
) -> None:
    with client.connect(runtime_dir) as gateway:
        ordered = codec.value(gateway.call(verb, {"names": names, "key": key}))
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


def _fields(text: str) -> tuple[str, ...]:
    known = verbs.ServerStatus.__struct_fields__
    found = tuple(field.strip() for field in text.split(","))
    if unknown := [field for field in found if field not in known]:
        raise click.BadParameter(
            f"a server has no {unknown[0]!r}; it has: {', '.join(known)}", param_hint="'-o'"
        )
    return found


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
