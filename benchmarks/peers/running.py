"""One gateway in front of so many children: started, asked until all tools are listed, stopped.

Owns: its processes, which of them are children, what the others used. Never: command lines
(`plans`), load.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import roles
from benchmarks.machine import CHILD
from benchmarks.peers.doors import FAILURES, Door, door
from benchmarks.peers.plans import GATEWAY, Peer, Site, script
from benchmarks.peers.taken import TOOLS
from metamcp_worker import PURE
from tests.live import processes
from tests.live.gateway import Gateway, free_port
from tests.waiting import until

BASE_TOOLS = 5
"""Of the child, before any that it is told to have."""
READY_S_MAX = 60.0
STOP_S_MAX = 8.0
PROGRAMS = Path(
    os.environ.get("METAMCP_PEERS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metamcp-peers"
)
"""Where the gateways are that no package registry has: one program each."""
ASK_S_MAX = 20
NUMBERED = re.compile(r"\d+\.\d+\.\d+[-.\w]*")
PROFILED = re.compile(r'"build_profile": *"([-\w]+)"')
"""How agentgateway says the profile of Cargo that it was built with."""


class Failed(Exception):
    """A gateway that did not do what it was started for."""


@dataclass(frozen=True, slots=True)
class Running:
    """`ready_s`: from its start until all tools were listed."""

    peer: Peer
    root: int
    port: int
    servers: Sequence[str]
    door: Door
    ready_s: float

    def pids(self) -> tuple[list[int], list[int]]:
        """Its own processes, and the children."""
        own, children = [self.root], list[int]()
        for pid in processes.below(self.root):
            (children if is_child(pid) else own).append(pid)
        return own, children

    def own(self) -> dict[str, list[int]]:
        return {"gateway": self.pids()[0]}

    def pss_mib(self) -> float:
        return roles.pss_mib(self.own())["gateway"]


def is_child(pid: int) -> bool:
    """Is it benchmarks/child.py itself, and not somebody who was told to start it?"""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[1:2] == [CHILD[1].encode()]
    return False


def commands(count: int) -> dict[str, list[str]]:
    more = ["--tools", str(TOOLS - BASE_TOOLS)]
    return {f"c{number:02}": [*CHILD, *more] for number in range(count)}


@contextmanager
def started(peer: Peer, count: int, programs: Path = PROGRAMS) -> Generator[Running]:
    """Raises Failed."""
    servers = commands(count)
    begun = time.perf_counter()
    if peer.plan is None:
        entries = {name: {"command": command} for name, command in servers.items()}
        gateway = Gateway(entries, wait=False)
        gateway.environ[PURE] = "1" if peer is GATEWAY else ""
        with gateway:
            yield _ready(peer, gateway.pid, gateway.port, servers, begun)
        return
    folder = Path(tempfile.mkdtemp(prefix="metamcp-peer-"))
    site = Site(folder, free_port(), servers, programs)
    try:
        with _process(peer, site) as process:
            try:
                yield _ready(peer, process.pid, site.port, servers, begun)
            except Failed as failure:
                raise Failed(f"{failure}: {(folder / 'log').read_text()[-500:]}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ready(
    peer: Peer, root: int, port: int, servers: Mapping[str, Sequence[str]], begun: float
) -> Running:
    """Once it lists every tool of every child."""
    way = door(peer, port, list(servers))

    def all_listed() -> bool:
        try:
            return way.listed().tools >= TOOLS * len(servers)
        except FAILURES:
            return False

    try:
        until(all_listed, "all tools are listed", READY_S_MAX)
    except AssertionError as error:
        raise Failed(f"{peer.name} with {len(servers)} servers: {error}") from None
    return Running(peer, root, port, list(servers), way, time.perf_counter() - begun)


@contextmanager
def _process(peer: Peer, site: Site) -> Generator[subprocess.Popen[bytes]]:
    assert peer.plan is not None
    plan = peer.plan(site)
    for name, text in plan.files.items():
        (site.folder / name).write_text(text)
    if not Path(plan.command[0]).exists() and shutil.which(plan.command[0]) is None:
        where = f"there is no {plan.command[0]}" if peer.program else "make bench-peers installs it"
        raise Failed(f"{peer.name} is not installed: {where}")
    with (site.folder / "log").open("ab") as log:
        process = subprocess.Popen(
            plan.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **plan.environ},
            cwd=site.folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, then insist; nothing that it started stays."""
    tree = processes.below(process.pid)
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S_MAX)
    for pid in processes.alive(tree):
        if is_child(pid) or _in_session(pid, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _in_session(pid: int, leader: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == leader
    return False


def versions(peers: Sequence[Peer], programs: Path = PROGRAMS) -> dict[str, str]:
    """As they are named in the files that they are installed from, or as the program itself says;
    and what runs them."""
    found = {peer.name: _version(peer, programs) for peer in peers if peer.plan is not None}
    from_npm = any(peer.registry == "npm" for peer in peers)
    return found | ({"node": _node()} if from_npm else {}) | {"python": sys.version.split()[0]}


def _version(peer: Peer, programs: Path) -> str:
    """Empty, if the program does not say it. With the profile of its build, if it says that too."""
    if not peer.program:
        return peer.version
    done = subprocess.run(
        [programs / peer.program, "--version"],
        capture_output=True, text=True, check=False, timeout=ASK_S_MAX,
    )  # fmt: skip
    said = NUMBERED.search(done.stdout)
    profile = PROFILED.search(done.stdout)
    return (said[0] if said else "") + (f", profile {profile[1]}" if profile else "")


def _node() -> str:
    try:
        done = subprocess.run(
            [script("mcp-hub")[0], "--version"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip().removeprefix("v")
