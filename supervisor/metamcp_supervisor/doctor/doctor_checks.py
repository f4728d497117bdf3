"""Checks of `metamcp ctl doctor`: limits, kernel, files, ports, names, units of systemd, and
the certificates of remote servers.

Owns: each check, its thresholds, and the advice. Never: changing anything, printing.
"""

import contextlib
import errno
import os
import resource
import shutil
import socket
import ssl
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.cli import systemd
from metamcp_supervisor.config import environment, sandboxes
from metamcp_supervisor.config.config import UNIX, Address, Config, ConfigInvalid
from metamcp_supervisor.config.installation import deno
from metamcp_supervisor.control import explain
from metamcp_supervisor.processes.cgroups import find_memory_group
from metamcp_supervisor.processes.limits import mebibytes
from metamcp_supervisor.systemd import listen
from metamcp_supervisor.telemetry import usage
from metamcp_supervisor.verbs import Description, ServerStatus
from metamcp_worker.runtime import orphans

Verdict = Literal["ok", "warn", "fail"]


class DoctorFinding(Struct, frozen=True):
    """Result of a check. `check`: what was checked; `text`: what was found; `advice`: what to do
    about it."""

    check: str
    verdict: Verdict
    text: str
    advice: str = ""


FILES_MIN = 256
"""Minimum limit of open files. A lower limit is too low even for a handful of servers, because each
takes about ten descriptors of the supervisor."""
FILES_ENOUGH = 4096
"""Limit of open files that is enough for hundreds of servers and thousands of connections."""
SPACE_MIN = 16 * 1024 * 1024
SPACE_ENOUGH = 256 * 1024 * 1024
"""Bytes of free space below which the check warns; below SPACE_MIN it fails. Catalogues and tokens
take little; usually other programs fill a disk."""
YEAR_MIN = 2025
"""Year before which a clock was never set; certificates and tokens then look invalid."""
FUTURE_S = 300.0
"""Seconds that the time of a file may be ahead; more means that the clock went back."""
NAMES_S = 5.0
"""Seconds to wait until the names of all servers are resolved."""
_CGROUPS = Path("/sys/fs/cgroup")


def open_files(pid: int, needed: int = FILES_MIN) -> Iterator[DoctorFinding]:
    """Check the limit of open files of a process: the gateway, or this command in its place.
    `needed`: number of files that the present servers and fronts need."""
    if not hasattr(resource, "prlimit"):
        return
    try:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except (OSError, ValueError):
        yield DoctorFinding(
            "open files", "warn", "the limit cannot be read", "run this as its user"
        )
        return
    verdict: Verdict = "ok" if soft >= FILES_ENOUGH or soft < 0 else "warn"
    verdict = "fail" if 0 <= soft < needed else verdict
    advice = "" if verdict == "ok" else "raise it: 'ulimit -n 65536', LimitNOFILE=65536 in a unit"
    more = f", about {needed} are needed" if 0 <= soft < needed else ""
    yield DoctorFinding("open files", verdict, f"limit {soft} (up to {hard}){more}", advice)


def kernel() -> Iterator[DoctorFinding]:
    """Check what a clean end of processes depends on: pidfd, /proc and a subreaper."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        yield DoctorFinding("pidfd", "ok", "signals never reach a stranger with a reused id")
    except (AttributeError, OSError):
        yield DoctorFinding("pidfd", "warn", "this kernel has none", "use Linux 5.3 or newer")
    if not usage.sample({"own": os.getpid()}):
        text = "/proc shows no processes: memory and processor time are not known"
        yield DoctorFinding("processes", "fail", text, "mount proc there")
    if sys.platform == "linux" and orphans.become_subreaper():
        yield DoctorFinding("subreaper", "ok", "what servers leave behind is found and ended")
    else:
        yield DoctorFinding(
            "subreaper", "warn", "what daemonizes itself out of a server is not found",
            "run the gateway on Linux",
        )  # fmt: skip


def cgroup(pid: int) -> Iterator[DoctorFinding]:
    """Check whether limits can be set in a control group of version 2."""
    own = _cgroup_of(pid)
    advice = "under systemd: Delegate=memory pids cpu; else limits are kept by measuring"
    if own is None:
        yield DoctorFinding("cgroup", "warn", "no cgroup of version 2", advice)
        return
    delegated = os.access(own / "cgroup.procs", os.W_OK) and own != _root()
    text = f"{own} is {'delegated' if delegated else 'not delegated'}"
    yield DoctorFinding("cgroup", "ok" if delegated else "warn", text, "" if delegated else advice)
    if own != _root():
        kills = (own / "cgroup.kill").exists()
        yield DoctorFinding(
            "cgroup.kill", "ok" if kills else "warn", "present" if kills else "missing",
            "" if kills else "use Linux 5.14 or newer; without it processes are ended one by one",
        )  # fmt: skip


def memory(pid: int) -> Iterator[DoctorFinding]:
    """Check whether the control group of the gateway has a memory limit, and whether the kernel
    killed processes in it."""
    group = find_memory_group(own=Path(f"/proc/{pid}/cgroup"))
    group_memory = None if group is None else group.memory()
    if group_memory is None or (group_memory.limit_bytes is None and not group_memory.kills):
        return
    limit = "no limit" if group_memory.limit_bytes is None else mebibytes(group_memory.limit_bytes)
    text = f"{mebibytes(group_memory.used_bytes)} of {limit} in the control group of the gateway"
    if not group_memory.kills:
        yield DoctorFinding("memory", "ok", text)
        return
    times = "once" if group_memory.kills == 1 else f"{group_memory.kills} times"
    advice = "raise its limit (MemoryMax= of the unit), or limit servers with memory_max"
    yield DoctorFinding("memory", "warn", f"{text}, in which the kernel killed {times}", advice)


def clock(files: Iterable[Path], now: float) -> Iterator[DoctorFinding]:
    """Check whether the clock was ever set, and whether it went back: files then have a time in the
    future. `now`: seconds since the epoch."""
    if time.gmtime(now).tm_year < YEAR_MIN:
        yield DoctorFinding(
            "clock", "fail", f"it is {time.ctime(now)}", "set it, and run an NTP client"
        )
        return
    for path in files:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > now + FUTURE_S:
                text = f"{path} is from the future: the clock went back"
                yield DoctorFinding("clock", "warn", text, "run an NTP client")
                return
    yield DoctorFinding("clock", "ok", "plausible")


def files(config: Config, owners: Collection[int]) -> Iterator[DoctorFinding]:
    """Check whether other users may change what the gateway runs. `owners`: ids of the users who
    may own its files."""
    for path in config.files:
        with contextlib.suppress(OSError):
            status = path.stat()
            yield _not_for_others("configuration", path, status, owners, stat.S_IWOTH, "o-w")
    for check, path in (
        ("state directory", config.gateway.state_dir),
        ("runtime directory", config.gateway.runtime_dir),
    ):
        try:
            status = path.stat()
        except FileNotFoundError:
            yield DoctorFinding(check, "ok", f"{path} is made at the start")
        except OSError as error:
            yield DoctorFinding(
                check, "fail", f"{path}: {error.strerror}", "run this as the user of the gateway"
            )
        else:
            mask = stat.S_IWGRP | stat.S_IWOTH
            yield _not_for_others(check, path, status, owners, mask, "go-w")


def disk(directory: Path) -> DoctorFinding:
    """Check the free space for catalogues and tokens, and the right to write them."""
    folder = directory
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        filesystem = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        if error.errno == errno.EROFS:
            text = f"{folder} cannot be written: {error.strerror}"
            return DoctorFinding("disk", "fail", text, "look at 'dmesg', and mount it for writing")
        return DoctorFinding(
            "disk", "fail", f"{folder}: {error.strerror}", "choose another state_dir"
        )
    free = filesystem.f_bavail * filesystem.f_frsize
    verdict: Verdict = "ok" if free >= SPACE_ENOUGH else "warn" if free >= SPACE_MIN else "fail"
    if filesystem.f_files and not filesystem.f_favail:
        return DoctorFinding("disk", "fail", f"{folder} has no free inodes", "remove files there")
    advice = "" if verdict == "ok" else "make room there, or choose another state_dir"
    return DoctorFinding("disk", verdict, f"{free // (1024 * 1024)} MiB free at {folder}", advice)


def port(check: str, address: Address) -> DoctorFinding:
    """Check whether the gateway can listen on this address."""
    try:
        for listener in listen.bind(address, check):
            listener.close()
    except listen.CannotBind as error:
        holder = usage.holder(address.port)
        if holder is None:
            return DoctorFinding(check, "fail", str(error), "choose another address in [gateway]")
        pid, name = holder
        text = f"{address} is in use by {name} (process {pid})"
        return DoctorFinding(check, "fail", text, "stop that process, or choose another address")
    return DoctorFinding(check, "ok", f"{address} is free")


def lock(config: Config) -> Iterator[DoctorFinding]:
    """Check whether the lock, which holds the approved definitions, can be read."""
    path = lock_io.find_lock_path(config)
    try:
        approved = lock_io.load(path)
    except ConfigInvalid as invalid:
        more = len(invalid.problems) - 1
        text = f"{invalid.problems[0]}{f' (and {more} more)' if more else ''}"
        yield DoctorFinding(
            "lock", "fail", text, "no gateway starts with it; mend it or take it away"
        )
        return
    if approved is not None:
        servers = len(approved.servers)
        text = f"{path} holds the tools of {servers} {'server' if servers == 1 else 'servers'}"
        yield DoctorFinding("lock", "ok", text)


def find_failing(servers: Iterable[Description]) -> Iterator[DoctorFinding]:
    """Find the servers that went down by themselves."""
    for description in servers:
        if description.server.state in ("error", "quarantined"):
            name = description.server.name
            advice = f"'metamcp logs {name}' shows what it wrote"
            if description.server.reason == "spawn":  # it wrote nothing
                advice = f"'metamcp ctl describe {name}' shows how it is started"
            yield DoctorFinding("server", "warn", f"{name}: {description.why}", advice)


def withheld(servers: Iterable[Description]) -> Iterator[DoctorFinding]:
    """Find environment variables that servers which went down do not get but may need."""
    for description in servers:
        if description.withheld:
            name = description.server.name
            text = f"{name} went down; {environment.sentence(description.withheld)}"
            advice = (
                f"if it needs them, set them in env of {name}, such as"
                ' NAME = "${NAME}", or name them in inherit_env (metamcp.toml only)'
            )
            yield DoctorFinding("environment", "warn", text, advice)


def quarantine(servers: Iterable[ServerStatus]) -> Iterator[DoctorFinding]:
    """Find the tools in quarantine, which a running gateway keeps from clients."""
    for server in servers:
        if count := server.drift.get("quarantined"):
            text = f"{count} {'tool' if count == 1 else 'tools'} of {server.name} in quarantine"
            advice = f"'metamcp tools {server.name} --diff' shows why"
            yield DoctorFinding("quarantine", "warn", text, advice)


def definitions(servers: Iterable[ServerStatus]) -> Iterator[DoctorFinding]:
    """Find the definitions that a running gateway leaves out of lists, and the schemas that clients
    may refuse."""
    for server in servers:
        if server.left_out:
            more = f" (and {server.left_out - 1} more)" if server.left_out > 1 else ""
            text = f"{server.name}: left out of lists, as not valid: {server.left_out_first}{more}"
            yield DoctorFinding(
                "definitions", "warn", text, f"'metamcp tools {server.name}' names all"
            )
        if server.schemas:
            advice = (
                f"'metamcp tools {server.name}' names all; an endpoint with schemas = \"safe\""
                " lists tools without what is refused"
            )
            yield DoctorFinding("schemas", "warn", f"{server.name}: {server.schemas}", advice)


def refusals(servers: Iterable[ServerStatus]) -> Iterator[DoctorFinding]:
    """Find the rights that the sandboxes of running servers refused."""
    for server in servers:
        for refused in server.refusals:
            text = f"{server.name} was refused a right {explain.refused_text(refused)}"
            yield DoctorFinding("sandbox", "warn", text, "'metamcp ctl describe' has all of them")


def to_port_warning(finding: DoctorFinding) -> DoctorFinding:
    """Turn the failure of a port that the operator did not choose into a warning."""
    if finding.verdict != "fail":
        return finding
    advice = "'metamcp up' takes the next free ports; for 'metamcp serve', choose some"
    return DoctorFinding(finding.check, "warn", finding.text.partition(";")[0], advice)


def check_addresses(url: str, ops_url: str) -> DoctorFinding:
    """Check the addresses of a running gateway; the file of an open unix socket may be gone."""
    path = ops_url.removeprefix(UNIX)
    if path != ops_url and not os.path.lexists(path):
        text = f"{ops_url} was removed, and nobody gets to metrics and health"
        return DoctorFinding("listen", "fail", text, "restart the gateway, and spare that path")
    return DoctorFinding("listen", "ok", f"{url} and {ops_url} are the gateway's")


def ops_listen(config: Config) -> DoctorFinding:
    """Check whether metrics and health can be served at their address."""
    address = config.gateway.ops_listen
    if isinstance(address, Address):
        return port("ops_listen", address)
    try:
        dead = listen.is_dead(address, "ops_listen")
    except listen.CannotBind as error:
        return DoctorFinding("ops_listen", "fail", str(error), "choose another path in [gateway]")
    directory = address.path.parent
    if dead:
        text = f"{address} is of a gateway that is gone, and replaced at the start"
    elif directory == config.gateway.runtime_dir and not directory.exists():
        text = f"{directory} is made at the start, for {address}"
    elif not os.access(directory, os.W_OK | os.X_OK):
        text = f"{address}: no file can be made in {directory}"
        return DoctorFinding(
            "ops_listen", "fail", text, "make it, or choose another path in [gateway]"
        )
    else:
        text = f"{address} is free"
    return DoctorFinding("ops_listen", "ok", text)


def code(config: Config) -> Iterator[DoctorFinding]:
    """Check what runs code, and what confines it, if there is code mode."""
    if not config.code.enabled:
        return
    from metamcp_worker.confinement.kernel import landlock_version  # ctypes, for this alone

    version, mode = landlock_version(), config.code.confinement
    if mode == "off" or not version:
        reason = "is switched off" if version else "is not in this kernel"
        text = f"Landlock {reason}: code is confined by Deno and by limits alone"
        verdict: Verdict = "fail" if mode == "require" else "warn"
        advice = 'write confinement = "prefer"' if version else "take Linux 5.13 or newer with it"
        yield DoctorFinding("code", verdict, text, advice)
    else:
        yield DoctorFinding("code", "ok", f"{deno()} runs code, Landlock {version} confines it")


def confinement(config: Config) -> Iterator[DoctorFinding]:
    """Check what the kernel has to confine servers, and whether `strict` has its program."""
    from metamcp_worker.confinement import kernel  # ctypes, for this alone
    from metamcp_worker.confinement.rules import find_unprotected
    from metamcp_worker.ipc.spec import ConfinementSpec

    profiles = {name: sandboxes.profile(server) for name, server in config.servers.items()}
    version, filters = kernel.landlock_version(), kernel.has_filters()
    basic, asks = ConfinementSpec(profile="basic"), kernel.has_asking()
    missed = find_unprotected(basic, version, filters=filters, asks=asks)
    text = f"Landlock {version or 'is missing'}, seccomp {'there' if filters else 'is missing'}"
    if missed and "basic" in profiles.values():
        text += f": servers are not kept from {' and '.join(missed)}"
        advice = "take Linux 6.12 or newer, with Landlock switched on (lsm=landlock,…)"
        yield DoctorFinding("confinement", "warn", text, advice)
    else:
        yield DoctorFinding("confinement", "ok", text)
    if "strict" in profiles.values() and shutil.which("bwrap") is None:
        named = ", ".join(name for name, profile in profiles.items() if profile == "strict")
        text = f'{named} cannot start: sandbox = "strict" needs the program bwrap'
        yield DoctorFinding("confinement", "fail", text, "install bubblewrap")


def names(config: Config) -> Iterator[DoctorFinding]:
    """Check whether the names of remote servers resolve. Findings contain only the name of a URL,
    because the rest may be secret."""
    hosts: dict[str, list[str]] = {}
    for server in config.servers.values():
        if server.url is not None and (host := urlsplit(server.url).hostname):
            hosts.setdefault(host, []).append(server.name)
    answers: dict[str, str] = {}

    def resolve(host: str) -> None:
        try:
            socket.getaddrinfo(host, None)
            answers[host] = ""
        except OSError as error:
            answers[host] = error.strerror or str(error)
        except UnicodeError:
            answers[host] = "no name is written like this"

    # The resolver of the system cannot be interrupted, so it is left behind when time is up.
    threads = [threading.Thread(target=resolve, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    end = time.monotonic() + NAMES_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    for host, servers in hosts.items():
        trouble = answers.get(host, f"no answer within {NAMES_S:g} s")
        outcome = f"does not resolve: {trouble}" if trouble else "resolves"
        text = f"{host} ({', '.join(servers)}) {outcome}"
        advice = "look at the name in the configuration, and at /etc/resolv.conf" if trouble else ""
        yield DoctorFinding("name", "fail" if trouble else "ok", text, advice)


def _not_for_others(
    check: str, path: Path, status: os.stat_result, owners: Collection[int], mask: int, change: str
) -> DoctorFinding:
    if status.st_uid not in owners:
        text = f"{path} belongs to user id {status.st_uid}"
        return DoctorFinding(
            check, "fail", text, f"whoever owns it decides what is run: chown {path}"
        )
    if status.st_mode & mask:
        text = f"others may write to {path} (mode {stat.S_IMODE(status.st_mode):04o})"
        return DoctorFinding(check, "fail", text, f"chmod {change} {path}")
    return DoctorFinding(check, "ok", f"only its owner can write to {path}")


def _root() -> Path:
    """Return the top of the cgroups of version 2, also where version 1 is mounted beside it."""
    unified = _CGROUPS / "unified"
    return unified if unified.is_dir() else _CGROUPS


def _cgroup_of(pid: int) -> Path | None:
    if not (_root() / "cgroup.procs").exists():
        return None
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = [line[3:] for line in lines if line.startswith("0::")]
    return _root() / own[0].lstrip("/") if own else None


class Unit(Struct, frozen=True):
    """Unit file of systemd. `there`: its text, None if it is missing; `due`: text that this version
    writes; `older`: whether it is older than this installation; `program`: program that `due`
    starts, empty if it starts none."""

    path: str
    there: str | None
    due: str
    older: bool = False
    program: str = ""


def units() -> Iterator[DoctorFinding]:
    """Check the units of the machine and of this user, if they are installed."""
    for user in (False, True):
        for path, there, due in systemd.read_installed_units(user):
            yield check_unit(
                Unit(
                    path=str(path),
                    there=there,
                    due=due,
                    older=there is not None and systemd.older(path),
                    program=systemd.find_command(due),
                ),
                "metamcp systemd install" + (" --user" if user else ""),
            )


def check_unit(unit: Unit, install: str) -> DoctorFinding:
    """Return the finding about a unit. `install`: command that writes the unit again."""
    if unit.there == unit.due:
        return DoctorFinding("unit", "ok", f"{unit.path} is that of this version")
    anew = f"'{install}' writes it anew; what you have changed belongs into 'systemctl edit'"
    if unit.there is None:
        return DoctorFinding("unit", "warn", f"{unit.path} is missing", anew)
    program = systemd.find_command(unit.there)
    if program != unit.program:
        text = f"{unit.path} starts another installation: {program or 'none'}"
        return DoctorFinding("unit", "warn", text, anew)
    since = ", and is older than it" if unit.older else ""
    text = f"{unit.path} is not what this version writes{since}"
    return DoctorFinding("unit", "warn", text, anew)


HANDSHAKE_S = 5.0
"""Seconds to wait for a handshake, and for all together, since they run at the same time."""
SOON_DAYS = 14
"""Days before its end from which a certificate is reported; automatic renewal comes earlier."""
HTTPS_PORT = 443
DAY_S = 86_400.0

Peer = tuple[str, int]


class TlsHandshake(Struct, frozen=True):
    """Result of a TLS handshake. `ends`: end of the certificate, seconds since the epoch;
    `distrust`: why TLS or the certificate is not accepted; `trouble`: why the server cannot be
    reached; `nameless`: whether the name has no address."""

    ends: float = 0.0
    distrust: str = ""
    trouble: str = ""
    nameless: bool = False


def certificates(
    config: Config, now: float, context: ssl.SSLContext | None = None
) -> Iterator[DoctorFinding]:
    """Check the certificates of remote servers. `now`: seconds since the epoch; `context`: the
    authorities to trust, by default those of this system."""
    peers: dict[Peer, list[str]] = {}
    for server in config.servers.values():
        if server.enabled and server.url is not None and (peer := _peer(server.url)) is not None:
            peers.setdefault(peer, []).append(server.name)
    if not peers:
        return
    handshakes = _shaken(peers, context or ssl.create_default_context())
    for peer, servers in peers.items():
        handshake = handshakes.get(peer) or TlsHandshake(
            trouble=f"no answer within {HANDSHAKE_S:g} s"
        )
        if not handshake.nameless:  # `names` reports that
            yield judged_certificate(f"{peer[0]}:{peer[1]} ({', '.join(servers)})", handshake, now)


def judged_certificate(who: str, handshake: TlsHandshake, now: float) -> DoctorFinding:
    """Return the finding about a handshake. `who`: address and servers."""
    if handshake.distrust:
        advice = "tell who runs it; SSL_CERT_FILE names certificates of your own that count"
        return DoctorFinding("certificate", "fail", f"{who}: {handshake.distrust}", advice)
    if handshake.trouble:
        advice = "is it running, and may this machine reach it?"
        return DoctorFinding("certificate", "warn", f"{who}: {handshake.trouble}", advice)
    days = int((handshake.ends - now) // DAY_S)
    day = time.strftime("%Y-%m-%d", time.gmtime(handshake.ends))
    text = f"{who} is trusted until {day}, {days} days from now"
    if days < SOON_DAYS:
        return DoctorFinding(
            "certificate", "warn", text, "it should have been renewed: tell who runs it"
        )
    return DoctorFinding("certificate", "ok", text)


def _peer(url: str) -> Peer | None:
    """Return only host and port, because the rest of a URL may be secret; None without TLS."""
    with contextlib.suppress(ValueError):  # the port is not valid
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return parts.hostname, parts.port or HTTPS_PORT
    return None


def _shaken(peers: Mapping[Peer, object], context: ssl.SSLContext) -> Mapping[Peer, TlsHandshake]:
    """Return the handshakes that ended in time."""
    handshakes: dict[Peer, TlsHandshake] = {}

    def shake(peer: Peer) -> None:
        handshakes[peer] = _handshake(peer, context)

    # A resolver of the system cannot be interrupted, so it is left behind when time is up.
    threads = [threading.Thread(target=shake, args=(peer,), daemon=True) for peer in peers]
    for thread in threads:
        thread.start()
    end = time.monotonic() + HANDSHAKE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(handshakes)


def _handshake(peer: Peer, context: ssl.SSLContext) -> TlsHandshake:
    try:
        with (
            socket.create_connection(peer, timeout=HANDSHAKE_S) as plain,
            context.wrap_socket(plain, server_hostname=peer[0]) as wrapped,
        ):
            certificate = wrapped.getpeercert() or {}
            return TlsHandshake(ends=float(ssl.cert_time_to_seconds(str(certificate["notAfter"]))))
    except ssl.SSLCertVerificationError as error:
        return TlsHandshake(distrust=f"its certificate is not accepted: {error.verify_message}")
    except ssl.SSLError as error:
        return TlsHandshake(distrust=f"no TLS with it: {(error.reason or str(error)).lower()}")
    except (socket.gaierror, UnicodeError):  # the latter: for a name that is not valid
        return TlsHandshake(nameless=True)
    except OSError as error:
        return TlsHandshake(trouble=f"cannot be reached: {error.strerror or error}")
