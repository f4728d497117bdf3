"""`metamcp sandbox learn`: the lines that a confined server needs in its table.

Owns: how long a trial takes, the calls that are made again, the proposal. Never: the trial itself
(`control.path_orders`), changing the configuration.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from posixpath import dirname
from typing import Any

import click

from metamcp_supervisor.calls import tool_call
from metamcp_supervisor.cli import errors, recordings, show
from metamcp_supervisor.cli.connect import credential_options
from metamcp_supervisor.cli.ctl import Duration, complete_names, json_option
from metamcp_supervisor.cli.errors import Group, gateway_options
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import ControlClient, Failed
from metamcp_supervisor.control.path_orders import TRIAL_S_MAX, TrialUpdate
from metamcp_supervisor.verbs import VERSION, Description, Exit
from metamcp_supervisor.wording import recorded_calls
from metamcp_worker.confinement.denials import DeniedRight
from metamcp_worker.confinement.rules import SECRETS, WIDE
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.records import FinishedCall
from metamcp_worker.ipc.spec import ConfinementSpec

CALLS_MAX = 200
"""Maximum recorded calls that are made again, the newest of each tool and arguments."""
SETTLE_S = 1.5
"""Seconds after the last call until everything that it used has been reported."""
FILES_MAX = 4
"""Maximum files of a folder that are proposed one by one; of more the folder is proposed."""


@click.group(cls=Group)
def sandbox() -> None:
    """Find out what a confined server needs."""


@sandbox.command()
@click.argument("name", shell_complete=complete_names)
@click.option(
    "--for", "for_s", type=Duration(), default="30s", show_default=True, metavar="DURATION",
    help="How long the server runs without its sandbox. Ctrl-C ends that earlier.",
)  # fmt: skip
@click.option("--replay", "again", is_flag=True, help="Make its recorded calls again, then end.")
@click.option("--yes", is_flag=True, help="Also calls of tools that may change something.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="1m", show_default=True, metavar="DURATION",
    help="How long each answer may take.",
)  # fmt: skip
@credential_options
@json_option
@gateway_options("path", "runtime_dir", "state_dir")
def learn(
    name: str,
    for_s: float,
    again: bool,
    yes: bool,
    timeout_s: float,
    runtime_dir: str | None,
    key_env: str | None,
    key_file: str | None,
    ca: str | None,
    as_json: bool,
    state_dir: str | None,
    path: Path | None,
) -> None:
    """Run server NAME without its sandbox for a while, and print the lines that it needs.

    Use the server meanwhile, or give --replay. The gateway restarts it twice, and records which
    files, sockets and ports it uses that its sandbox does not let it use. Until the end
    the server may do what you may do, so do not use this for one that you do not trust. The
    configuration stays as it is: add the lines that you agree with to the table of the server, and
    reload.
    """

    def work() -> int:
        location = recorded_calls.place(state_dir, path)
        calls = _calls(location, name) if again and location.any else []
        if again and not calls:
            raise Failed(Exit.USAGE, f'no call of {name} is recorded: [recording] calls = "full"')

        def replay_all() -> None:
            from metamcp_supervisor.cli.connect import trust_of

            trust = trust_of(key_env, key_file, ca, runtime_dir or client.find_runtime_dir())
            for call in calls:
                _make_again(call, runtime_dir, timeout_s, trust, yes=yes)

        with client.connect(runtime_dir) as gateway:
            description = codec.decode_as(Description, gateway.call("describe", {"name": name}))
            rights = _rights_of(gateway, name, for_s, replay_all if again else None)
        lines = proposal(rights, spec_of(description), os.path.expanduser("~"))
        if as_json:
            click.echo(codec.dump({"v": VERSION, "server": name, "lines": lines}))
        else:
            _print(name, lines)
        return Exit.OK

    errors.run_and_exit(work)


def _rights_of(
    gateway: ControlClient, name: str, for_s: float, replay_all: Callable[[], None] | None
) -> list[DeniedRight]:
    """Run a trial of a server, and return the rights that it lacks. `replay_all`: makes calls;
    after them the trial ends. Raises Failed."""
    rights: list[DeniedRight] = []
    end, begun, ended = float("inf"), False, threading.Event()

    def on_interrupt(number: int, frame: object) -> None:
        ended.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        params = {"name": name, "for_s": TRIAL_S_MAX}
        for _, raw in gateway.stream("sandbox-trial", params):
            news = codec.decode_as(TrialUpdate, raw)
            rights += news.rights
            if news.state == "error" and not begun:
                text = f"{name} does not start without its sandbox either"
                raise Failed(Exit.FAILED, f"{text}; see 'metamcp logs {name}'")
            if news.records and not begun:
                begun, end = True, time.monotonic() + for_s
                click.echo(f"metamcp: {name} runs without its sandbox now", err=True)
                if replay_all is not None:
                    replay_all()
                    ended.set()
            if ended.is_set():
                ended.clear()
                end = time.monotonic() + SETTLE_S
            if time.monotonic() > end:
                break
    finally:
        signal.signal(signal.SIGINT, before)
    return rights


def spec_of(description: Description) -> ConfinementSpec:
    """Return the confinement of a server, as far as complaints depend on it."""
    network: Any = description.config.get("network", "host")
    if network not in ("host", "none"):
        return ConfinementSpec(profile="basic", tcp_ports=tuple(network["tcp_ports"]))
    none = network == "none" or (
        description.server.sandbox == "strict" and "network" not in description.config
    )
    return ConfinementSpec(profile="basic", network="none" if none else "host")


def proposal(learnt: Iterable[DeniedRight], spec: ConfinementSpec, home: str) -> list[str]:
    """Return lines of TOML that give these rights, with comments about what no line gives. A path
    below another one needs no line. `home`: of the operator, which is never proposed as a whole."""
    by_right: dict[str, list[str]] = {}
    for right, path in learnt:
        by_right.setdefault(right, []).append(path)
    closed = {home, *WIDE}
    written = [path for path in by_right.get("write", ()) if path.rstrip("/") not in closed]
    written = _outermost(_merge_into_folders(written, closed))
    read = [path for path in by_right.get("read", ()) if path not in closed]
    processes = any(f"{path}/".startswith("/proc/") for path in read)
    read = [path for path in read if not f"{path}/".startswith("/proc/")]
    read = [
        path
        for path in _outermost(_merge_into_folders(read, closed))
        if not _is_below(path, written)
    ]
    sockets = _outermost(by_right.get("unix_sockets", ()))
    lines = [
        f"{key} = {codec.dump(paths).decode()}"
        for key, paths in (("read", read), ("write", written), ("unix_sockets", sockets))
        if paths
    ]
    if ports := set(map(int, by_right.get("tcp_ports", ()))):
        listed = ", ".join(map(str, sorted(ports | set(spec.tcp_ports))))
        lines.append(f"network = {{ tcp_ports = [{listed}] }}")
    if "network" in by_right:
        lines.append('network = "host"')
    if processes:
        lines.append('needs = ["processes"]')
    secret = [path for path in (*read, *written) if _is_secret(path, home)]
    return [*lines, *_comments(by_right, secret, closed)]


def _comments(
    by_right: Mapping[str, Sequence[str]], secret: Sequence[str], closed: Collection[str]
) -> Iterator[str]:
    """Yield comments about places with secrets, and rights that no line gives."""
    if secret:
        yield f"# of programs that keep secrets there: {', '.join(secret)}"
    wide = {path for path in by_right.get("write", ()) if path.rstrip("/") in closed}
    for path in sorted(wide):
        yield f"# it makes or removes something in {path}, which no line should open"
    if "datagrams" in by_right:
        yield "# it makes unix sockets for datagrams: unix_sockets = [PATH] with their path"
    for name in sorted(set(by_right.get("system_calls", ()))):
        yield f'# it makes the system call {name}, which only sandbox = "none" allows'


def _merge_into_folders(paths: Iterable[str], closed: Collection[str]) -> list[str]:
    """Return the paths, with a folder in place of more than FILES_MAX that are in it."""
    folded = set(paths)
    while True:
        inside: dict[str, list[str]] = {}
        for path in folded:
            inside.setdefault(dirname(path.rstrip("/")), []).append(path)
        many = {
            folder: members
            for folder, members in inside.items()
            if len(members) > FILES_MAX and folder not in closed
        }
        if not many:
            return sorted(folded)
        folded = folded.difference(*many.values()) | many.keys()


def _is_secret(path: str, home: str) -> bool:
    return _is_below(path, [f"{home}/{name}" for name in SECRETS])


def _outermost(paths: Iterable[str]) -> list[str]:
    every = sorted(set(paths))
    return [
        path for path in every if not _is_below(path, [other for other in every if other != path])
    ]


def _is_below(path: str, others: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{other.rstrip('/')}/") for other in others)


def _calls(location: recorded_calls.RecordingPlace, name: str) -> list[FinishedCall]:
    """Return the newest recorded call of each tool and arguments of a server."""
    newest: dict[tuple[str, str, bytes], FinishedCall] = {}
    for line in recorded_calls.lines(location.folder):
        call = line.call
        if call is not None and call.server == name:
            key = call.method, call.name, bytes(call.arguments or b"")
            newest.pop(key, None)
            newest[key] = call
    return list(newest.values())[-CALLS_MAX:]


def _make_again(
    call: FinishedCall, runtime_dir: str | None, timeout_s: float, trust: Any, *, yes: bool
) -> None:
    """Make this call again, unless it is not to be made."""
    try:
        params = recorded_calls.params(call)
        url = recordings.url_of(call.endpoint, runtime_dir)
        directory = runtime_dir or client.find_runtime_dir()
        asyncio.run(_call(call, params, url, directory, trust, timeout_s, yes=yes))
    except Failed as failed:
        click.echo(f"metamcp: {show.printable(str(failed))}", err=True)


async def _call(
    call: FinishedCall, params: Any, url: str, directory: str, trust: Any, timeout_s: float, *,
    yes: bool,
) -> None:  # fmt: skip
    """Make this call, unless it may change something and `yes` is not given. Raises Failed."""
    from metamcp_supervisor.cli.call import definition_of

    async with recordings.client_for(call, url, trust, timeout_s) as asker:
        called = call.method == tool_call.CALL
        tool: Mapping[str, Any] | None = await asker.tool(call.name) if called else None
        if called and tool is None:
            tool = definition_of(call.name, call.endpoint, directory)
        if called and not yes and not tool_call.reads_only(tool or {}):
            text = f"{call.name} may change something, and is not called without --yes"
            click.echo(f"metamcp: {text}", err=True)
            return
        with progress(f"calls {call.name}"):
            await asker.ask(call.method, params, tool)


def _print(name: str, lines: list[str]) -> None:
    if not lines:
        click.echo(f"{name} used nothing outside of its rights")
        return
    with_it = f"add to [servers.{name}] what you agree with:"
    click.echo(f"# {name} used this outside of its rights; {with_it}")
    for line in lines:
        click.echo(show.printable(line))
