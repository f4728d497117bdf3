"""`metamcp ctl`: ask the running gateway, show the answer, end with the right code.

Owns: the verbs at the prompt, their options and exit codes. Never: the socket (`client`), the
wording of tables (`columns`), their look (`show`).

Scripts run `ctl status` every second, so this module imports only what that verb needs.
"""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from metamcp_supervisor import verbs
from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import ControlClient, Failed
from metamcp_supervisor.telemetry.health import not_ready
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec

WATCH_S = 2.0
"""Seconds between two pictures of `--watch`; the gateway measures its processes as often."""
RELOAD_S = 60.0
"""Seconds to wait for a reload: reading, checking and applying a configuration."""
MARGIN_S = 10.0
"""Seconds to wait for an answer beyond the time that the gateway itself may wait."""


class Duration(click.ParamType[float]):
    """Duration as an argument: `30s`, `2m`, `500ms`. `past`: the duration says how long ago a thing
    may be, so its limit is higher than that of a time to wait."""

    name = "duration"

    def __init__(self, *, past: bool = False) -> None:
        self._past = past

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from metamcp_supervisor.config.units import DURATION_S_MAX, PAST_S_MAX, duration

        try:
            return duration(value, PAST_S_MAX if self._past else DURATION_S_MAX)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


#: Verbs that live in a file of their own, which is imported when one of them is called.
ELSEWHERE = {
    "describe": "metamcp_supervisor.cli.listings:describe",
    "top": "metamcp_supervisor.cli.listings:top",
    "logs": "metamcp_supervisor.cli.follow:logs",
    "events": "metamcp_supervisor.cli.follow:events",
    "calls": "metamcp_supervisor.cli.listings:calls",
    "views": "metamcp_supervisor.cli.listings:views",
    "tree": "metamcp_supervisor.cli.listings:tree",
    "set": "metamcp_supervisor.cli.steer:set_",
    "signal": "metamcp_supervisor.cli.steer:signal_",
    "drain": "metamcp_supervisor.cli.steer:drain",
    "undrain": "metamcp_supervisor.cli.steer:undrain",
    "quarantine": "metamcp_supervisor.cli.steer:quarantine",
    "clear": "metamcp_supervisor.cli.steer:clear",
    "roll": "metamcp_supervisor.cli.steer:roll",
    "upgrade": "metamcp_supervisor.cli.steer:upgrade",
    "dump-stacks": "metamcp_supervisor.cli.steer:dump_stacks",
    "confirm": "metamcp_supervisor.cli.config:confirm",
    "down": "metamcp_supervisor.cli.steer:down",
    "doctor": "metamcp_supervisor.doctor.doctor:doctor",
    "completion": "metamcp_supervisor.cli.completion:completion",
}


#: Words of other programs, each with the sentence that answers it.
WORDS = {
    "ls": "servers are listed by 'metamcp ctl status'",
    "list": "servers are listed by 'metamcp ctl status'",
    "ps": "processes are shown by 'metamcp ctl status' and 'metamcp ctl describe NAME'",
    "log": "did you mean 'logs'?",
    "kill": "servers end with 'metamcp ctl stop NAME', the gateway with 'metamcp down'",
    "quit": "the gateway ends with 'metamcp down'",
    "shutdown": "the gateway ends with 'metamcp down'",
    "update": "servers are read anew with 'metamcp ctl reload'",
    "reread": "servers are read anew with 'metamcp ctl reload'",
    "avail": "what is configured is shown by 'metamcp config show'",
    "pid": "process ids are shown by 'metamcp ctl status'",
    "tail": "lines of a server are shown by 'metamcp ctl logs NAME -f'",
    "health": "did you mean 'doctor'?",
    "why": "did you mean 'describe'?",
}


def typed_value(ctx: click.Context, name: str) -> Any:
    """Return the value of an option that the verb has, or else the group before it."""
    value = ctx.params.get(name)
    if value is None and ctx.parent is not None:
        value = ctx.parent.params.get(name)
    return value


def runtime_dir_of(ctx: click.Context) -> str | None:
    """Return the runtime directory that a line names by `--runtime-dir` or `--config`."""
    directory: str | None = typed_value(ctx, "runtime_dir")
    path: Path | None = typed_value(ctx, "path")
    return directory if directory is not None or path is None else client.directory_of(path)


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of servers of the running gateway, for the shell."""
    from metamcp_supervisor.cli.completion import names

    return [name for name in names(runtime_dir_of(ctx)) if name.startswith(incomplete)]


def complete_endpoints(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of endpoints of the running gateway, for the shell."""
    from metamcp_supervisor.cli.completion import endpoints as names

    return [name for name in names(runtime_dir_of(ctx)) if name.startswith(incomplete)]


class _Verbs(errors.Group):
    def suggest_verb(self, ctx: click.Context, word: str) -> str:
        from metamcp_supervisor.__main__ import verbs

        if word in verbs():
            return f"it stands alone: 'metamcp {word}'"
        return super().suggest_verb(ctx, word)


def look_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for what a verb prints; `begin` applies them."""
    for option in (
        click.option(
            "-q", "--quiet", is_flag=True, help="Nothing on standard output: the exit code tells."
        ),
        click.option(
            "--no-color", is_flag=True, help="No colours on a terminal either, as NO_COLOR."
        ),
    ):
        command = option(command)
    return command


def outward(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every group of verbs that talks to a gateway; `begin` applies them."""
    return errors.gateway_options("runtime_dir")(look_options(command))


@click.group(cls=_Verbs, elsewhere=ELSEWHERE, words=WORDS)
@outward
@click.pass_context
def ctl(ctx: click.Context, runtime_dir: str | None, no_color: bool, quiet: bool) -> None:
    """Look at and steer a running gateway."""
    begin(ctx, runtime_dir, no_color=no_color, quiet=quiet)


def begin(ctx: click.Context, runtime_dir: str | None, *, no_color: bool, quiet: bool) -> None:
    """Apply the options of `outward`, before each verb of a group."""
    ctx.obj = runtime_dir
    if no_color:
        os.environ["NO_COLOR"] = "1"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Do not fail because of an arrow that the terminal cannot show.
            stream.reconfigure(errors="backslashreplace")
    if quiet:
        # Closed with the context of the command.
        nowhere = ctx.with_resource(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        ctx.with_resource(contextlib.redirect_stdout(nowhere))


def alone(name: str) -> click.Command:
    """Return a verb of `ctl` to be called without `ctl`, with the options of `ctl` added to it."""
    verb = ctl.get_command(click.Context(ctl), name)
    assert verb is not None
    assert verb.callback is not None
    called = verb.callback

    @outward
    def run_verb(*, runtime_dir: str | None, no_color: bool, quiet: bool, **options: Any) -> None:
        begin(click.get_current_context(), runtime_dir, no_color=no_color, quiet=quiet)
        called(**options)

    beside = click.command(name, cls=errors.Command, help=verb.help)(run_verb)
    beside.params = [*verb.params, *beside.params]
    return beside


names_argument = click.argument(
    "names", nargs=-1, required=True, metavar="NAME…", shell_complete=complete_names
)
any_names_argument = click.argument(
    "names", nargs=-1, metavar="[NAME…]", shell_complete=complete_names
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
    "--fields",
    cls=errors.RenamedOption,
    before=("-o", "--output"),
    metavar="FIELD,FIELD",
    help="Only these members of --json, a line per server, tabs between them.",
)
@click.option("--failing", is_flag=True, help="Only servers that should be ready and are not.")
@click.pass_obj
def status(
    runtime_dir: str | None,
    names: tuple[str, ...],
    as_json: bool,
    watch: bool,
    every_s: float | None,
    fields: str | None,
    failing: bool,
) -> None:
    """Show what runs, and what is wrong. Exit 3 if a server that should be ready is not,
    or if no API key is valid where endpoints ask for one."""
    if watch and failing:
        raise click.UsageError("--failing does not go with --watch")
    field_names = _fields(fields) if fields is not None else ()
    with client.connect(runtime_dir) as gateway:
        if watch:
            _watch(gateway, names, as_json, every_s or WATCH_S)
        raw = gateway.call("status")
        snapshot = _select_servers(codec.decode_as(verbs.GatewayStatus, raw), names)
    missed = not_ready(snapshot, names)
    selection = structs.replace(snapshot, servers=tuple(missed)) if failing else snapshot
    if as_json:
        click.echo(codec.dump(selection) if names or failing else raw)
    elif field_names:
        for server in selection.servers:
            click.echo("\t".join(columns.cell(getattr(server, field)) for field in field_names))
    elif failing and not missed:
        click.echo(_foot(snapshot, names))
    else:
        only = tuple(server.name for server in missed) if failing else names
        picture = _picture(snapshot, only)
        show.picture(structs.replace(picture, foot=_foot(snapshot, names)))
    if missed or (snapshot.keys_unusable and not names):
        sys.exit(verbs.Exit.NOT_READY)


@ctl.command()
@any_names_argument
@wait_option
@timeout_option
@json_option
@click.pass_obj
def start(
    runtime_dir: str | None,
    names: tuple[str, ...],
    wait: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Start servers, also those that failed or were stopped."""
    _steer(runtime_dir, "start", names, "ready" if wait else "", timeout_s, as_json)


@ctl.command()
@any_names_argument
@click.option("--this-run", is_flag=True, help="Only until the gateway starts again.")
@wait_option
@timeout_option
@json_option
@click.pass_obj
def stop(
    runtime_dir: str | None,
    names: tuple[str, ...],
    this_run: bool,
    wait: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Stop servers, after their calls in flight; they stay stopped until started.

    Without --this-run they stay stopped when the gateway starts again.
    """
    state, params = "stopped" if wait else "", {"this_run": True} if this_run else {}
    _steer(runtime_dir, "stop", names, state, timeout_s, as_json, **params)


@ctl.command()
@any_names_argument
@click.option("--worker", metavar="WORKER", help="All servers that share this worker, and it.")
@wait_option
@timeout_option
@json_option
@click.pass_obj
def restart(
    runtime_dir: str | None,
    names: tuple[str, ...],
    worker: str | None,
    wait: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Stop servers and start them again."""
    state, params = "ready" if wait else "", {"worker": worker} if worker else {}
    if worker:
        names = (*names, *_list_sharing(runtime_dir, worker))
    _steer(runtime_dir, "restart", names, state, timeout_s, as_json, **params)


def _list_sharing(runtime_dir: str | None, worker: str) -> list[str]:
    """Return the servers that share a worker. Raises Failed if there are none."""
    from metamcp_supervisor.config.naming import hint
    from metamcp_worker.ipc import process_names

    with client.connect(runtime_dir) as gateway:
        status = codec.decode_as(verbs.GatewayStatus, gateway.call("status"))
    workers = {process_names.base(each.name): each.worker for each in status.servers if each.worker}
    names = [name for name, each in workers.items() if each == worker]
    if not names:
        text = hint(worker, workers.values()) if workers else "no server shares its worker"
        raise Failed(verbs.Exit.UNKNOWN_NAME, f"no worker is named {worker[:64]!r}; {text}")
    return names


@ctl.command()
@click.option("--dry-run", is_flag=True, help="Show the plan, change nothing.")
@click.option("--expect", metavar="HASH", help="Only if the plan still has this hash.")
@click.option("--yes", is_flag=True, help="Also what would be asked about or refused.")
@json_option
@click.pass_obj
def reload(
    runtime_dir: str | None, dry_run: bool, expect: str | None, yes: bool, as_json: bool
) -> None:
    """Read the configuration again and restart only what changed. All or nothing.

    The gateway refuses a reload that starts unconfirmed commands of a file found in its folder,
    leaves no server, or stops a running server for a mistake in its table. --yes applies it.
    """
    from metamcp_supervisor.cli.progress import progress

    with client.connect(runtime_dir) as gateway, progress("reads the configuration"):
        params = {"dry_run": dry_run, "expect": expect, "yes": yes}
        raw = gateway.call("reload", params, timeout_s=RELOAD_S)
    show_plan(raw, as_json=as_json)


def show_plan(raw: bytes, *, as_json: bool) -> None:
    """Print what a reload does, or has done. Servers with a mistake end the verb with Exit.CONFIG;
    the others are not affected."""
    plan = codec.decode_as(verbs.ReloadPlan, raw)
    if as_json:
        click.echo(raw)
    else:
        rows = columns.plan_rows(plan)
        show.picture(show.PrintedTable(("", "", "", ""), rows, foot=columns.plan_foot(plan)))
        for mistake in plan.mistakes:
            errors.say(mistake)
    if plan.mistakes:
        sys.exit(verbs.Exit.CONFIG)


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
@json_option
@click.pass_obj
def wait(
    runtime_dir: str | None,
    names: tuple[str, ...],
    wanted: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Wait until these servers, or all that should run, are as --for says. Exit 6 if not in time.

    A gateway that does not run yet is waited for as well, and so is a failed server whose next
    start comes in time. Exit 1 at once if that start comes too late, 7 if the server is stopped.
    """
    from metamcp_supervisor.cli.progress import show_wait

    display = show_wait(runtime_dir, names, wanted)
    with display, client.connect_within(runtime_dir, timeout_s) as gateway:
        _wait(gateway, names, wanted, timeout_s, {})
    if as_json:
        errors.tell(verb="wait", names=names, reached=wanted)


def _steer(
    runtime_dir: str | None,
    verb: str,
    names: tuple[str, ...],
    target_state: str,
    timeout_s: float,
    as_json: bool,
    **more: bool | str,
) -> None:
    if not names:
        raise click.UsageError(f"say which servers; {_WHOLE[verb]}")
    with client.connect(runtime_dir) as gateway:
        ordered = codec.value(gateway.call(verb, {"names": names, **more}))
        if target_state:
            from metamcp_supervisor.cli.progress import show_wait

            with show_wait(runtime_dir, names, target_state):
                _wait(gateway, names, target_state, timeout_s, ordered["above"])
    tell_ordered(verb, names, ordered, target_state, as_json=as_json)


_WHOLE = {
    "start": "the gateway itself starts with 'metamcp up'",
    "stop": "the gateway itself ends with 'metamcp down'",
    "restart": "'metamcp reload' restarts those that changed in the configuration",
}


def tell_ordered(
    verb: str,
    names: tuple[str, ...],
    answer: Mapping[str, Any],
    reached: str = "",
    *,
    as_json: bool,
) -> None:
    """Print how an order to servers ended. `answer`: of the gateway; `reached`: state that was
    waited for, else empty."""
    if as_json:
        warning = {"warning": answer["warning"]} if "warning" in answer else {}
        errors.tell(verb=verb, names=tuple(dict.fromkeys(names)), reached=reached, **warning)
        return
    for name in dict.fromkeys(names):
        click.echo(f"{name}: {reached or f'{verb} requested'}")
    tell_warning(answer)


def tell_warning(answer: Mapping[str, Any]) -> None:
    """Print the sentence that an order does not outlast a restart, if the answer has it."""
    if "warning" in answer:
        errors.say(answer["warning"])


def _wait(
    gateway: ControlClient,
    names: tuple[str, ...],
    target_state: str,
    timeout_s: float,
    above: dict[str, int],
) -> None:
    params = {"names": names, "for": target_state, "timeout_s": timeout_s, "above": above}
    gateway.call("wait", params, timeout_s=timeout_s + MARGIN_S)


def _watch(gateway: ControlClient, names: tuple[str, ...], as_json: bool, every_s: float) -> None:
    """Show the status again and again, until the user or the gateway ends it."""

    def take() -> verbs.GatewayStatus:
        return _select_servers(codec.decode_as(verbs.GatewayStatus, gateway.call("status")), names)

    if as_json:
        while True:
            click.echo(codec.dump(take()))
            time.sleep(every_s)
    show.watch(lambda: _picture(take(), names), every_s)


def _fields(text: str) -> tuple[str, ...]:
    field_names = verbs.ServerStatus.__struct_fields__
    chosen = tuple(field.strip() for field in text.split(","))
    if unknown := [field for field in chosen if field not in field_names]:
        raise click.BadParameter(
            f"a server has no {unknown[0]!r}; it has: {', '.join(field_names)}",
            param_hint="'--fields'",
        )
    return chosen


def _select_servers(snapshot: verbs.GatewayStatus, names: tuple[str, ...]) -> verbs.GatewayStatus:
    """Return the status with the named servers only. Raises Failed for an unknown name."""
    server_names = {server.name for server in snapshot.servers}
    if unknown := [name for name in names if name not in server_names]:
        from metamcp_supervisor.control.services import UnknownName

        raise Failed(verbs.Exit.UNKNOWN_NAME, str(UnknownName(unknown, server_names)))
    if not names:
        return snapshot
    servers = tuple(server for server in snapshot.servers if server.name in names)
    return structs.replace(snapshot, servers=servers)


def _foot(snapshot: verbs.GatewayStatus, names: tuple[str, ...]) -> str:
    more = (
        []
        if names
        else [*columns.role_lines(snapshot.roles), *columns.limit_lines(snapshot.limits)]
    )
    texts = filter(
        None,
        (
            columns.refused_text(snapshot),
            columns.keys_text(snapshot),
            columns.store_text(snapshot),
            columns.answers_text(snapshot),
        ),
    )
    return "\n".join([columns.status_foot(snapshot, names), *texts, *more])


def _picture(snapshot: verbs.GatewayStatus, names: tuple[str, ...]) -> show.PrintedTable:
    return show.PrintedTable(
        columns.status_head_row(snapshot),
        columns.status_rows(snapshot, names),
        head=columns.status_head(snapshot),
        foot=_foot(snapshot, names),
        right=columns.RIGHT,
        spared=columns.SPARED,
    )
