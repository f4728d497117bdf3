"""`metamcp ctl doctor`: what on this machine stands in the way of a gateway, running or not.

Owns: which checks are made, and how they are printed. Never: a check itself (`checks`,
`certificates`, `drift`, `wrappers`).
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from metamcp_supervisor import verbs
from metamcp_supervisor.cli import certificates, checks, drift, show, wrappers
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.finding import Finding
from metamcp_supervisor.config.config import Config, ConfigInvalid, Problem
from metamcp_supervisor.config.sources import load
from metamcp_supervisor.control import client
from metamcp_supervisor.processes import limits
from metamcp_worker.ipc import codec

DESCRIBED_MAX = 20
"""Servers that went down, of which it is told what they may lack."""
CATALOGUES_MAX = 1000
"""Files of the state directory whose time is looked at."""


@click.command()
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The file; without it that of the running gateway, or the one that `metamcp up` takes.",
)
@json_option
@click.pass_obj
def doctor(runtime_dir: str | None, path: Path | None, as_json: bool) -> None:
    """What stands in the way, and what to do about it. Exit 1 if something fails."""
    found = list(findings(runtime_dir, path))
    fails = sum(finding.verdict == "fail" for finding in found)
    if as_json:
        click.echo(codec.dump({"v": verbs.VERSION, "ok": not fails, "checks": found}))
    else:
        _print(found)
    if fails:
        sys.exit(verbs.Exit.FAILED)


def findings(runtime_dir: str | None, path: Path | None) -> Iterator[Finding]:
    """Everything, one after the other."""
    try:
        with client.connect(runtime_dir) as gateway:
            status = codec.typed(verbs.GatewayStatus, gateway.call("status"))
            told = [_described(gateway, name) for name in _failed(status)]
        yield Finding("gateway", "ok", f"{status.state}, process {status.pid}")
    except (client.Failed, codec.Malformed) as error:
        status, told = None, []
        silent = not isinstance(error, client.Failed) or error.exit != verbs.Exit.NOT_RUNNING
        text = str(error) if silent else "none is running: this is what one would find"
        yield Finding("gateway", "warn" if silent else "ok", text)
    pid = status.pid if status is not None else os.getpid()
    if status is None:
        yield from checks.open_files(pid)
    else:
        needed = limits.files_needed(len(status.servers), len(status.fronts))
        yield from checks.open_files(pid, needed)
    yield from checks.kernel()
    yield from checks.cgroup(pid)
    yield from checks.memory(pid)
    yield from drift.units()
    yield from checks.withheld(told)
    if path is None and status is not None and status.config_files:
        path = Path(status.config_files[0])
    try:
        config = _config(runtime_dir, path)
    except ConfigInvalid as invalid:
        yield _wrong(invalid.problems)
        yield from checks.clock((), time.time())
        return
    yield from _configured(config, status)


def _wrong(problems: Sequence[Problem]) -> Finding:
    more = len(problems) - 1
    text = f"{problems[0]}{f' (and {more} more)' if more else ''}"
    return Finding("configuration", "fail", text, "'metamcp config check' tells everything")


def _configured(config: Config, status: verbs.GatewayStatus | None) -> Iterator[Finding]:
    """The checks of one configuration."""
    if config.problems:
        yield _wrong(config.problems)
    if status is not None and status.state_dir:  # where it writes, which a flag may have told it
        gateway = replace(config.gateway, state_dir=Path(status.state_dir))
        config = replace(config, gateway=gateway)
    state_dir = config.gateway.state_dir
    kept = [path for path, _ in zip(state_dir.glob("*/*"), range(CATALOGUES_MAX), strict=False)]
    yield from checks.clock([*config.files, *kept], time.time())
    owners = {0, os.geteuid(), _owner(config.gateway.runtime_dir)}
    yield from checks.files(config, owners)
    yield checks.disk(state_dir)
    yield from checks.lock(config)
    yield from checks.quarantine(() if status is None else status.servers)
    yield from checks.definitions(() if status is None else status.servers)
    if status is not None:  # where it really listens, which flags may have told it
        yield checks.listening(status.url, status.ops_url)
    else:
        moves = config.gateway.movable
        found = checks.port("listen", config.gateway.listen), checks.ops_listen(config)
        yield from (checks.moving(each) if each.check in moves else each for each in found)
        if config.gateway.health_listen:
            yield checks.port("health_listen", config.gateway.health_listen)
    yield from checks.names(config)
    yield from certificates.certificates(config, time.time())
    yield from wrappers.advice(config.servers.values(), os.environ, Path.home())


def _config(runtime_dir: str | None, path: Path | None) -> Config:
    """Raises ConfigInvalid."""
    flags = {"runtime_dir": runtime_dir} if runtime_dir else {}
    return load(
        path, environ=os.environ, cwd=Path.cwd(), home=Path.home(), flags=flags, any_port=True
    )


def _failed(status: verbs.GatewayStatus) -> list[str]:
    """The first of those that went down by themselves."""
    names = [each.name for each in status.servers if each.reason and each.state != "active"]
    return names[:DESCRIBED_MAX]


def _described(gateway: client.Client, name: str) -> verbs.Description:
    return codec.typed(verbs.Description, gateway.call("describe", {"name": name}))


def _owner(directory: Path) -> int:
    """Whose gateway it is; ourselves while there is none."""
    try:
        return directory.stat().st_uid
    except OSError:
        return os.geteuid()


def _print(found: Sequence[Finding]) -> None:
    width = max(len(finding.check) for finding in found)
    for finding in found:
        text = show.printable(finding.text)
        click.echo(f"{show.verdict(finding.verdict)}  {finding.check:<{width}}  {text}")
        if finding.advice:
            click.echo(f"{'':<{width + 6}}  → {show.printable(finding.advice)}")
