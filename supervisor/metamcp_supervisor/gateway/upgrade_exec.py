"""Upgrade in place: another version of this program takes over the gateway in the same process.

Owns: trying the new program, waiting until everything is settled, executing the new program,
reading the state that was handed over. Never: the values (`upgrade_state`), collecting and
restoring them (`gateway.upgrade`).

The process stays the same, so systemd, the lock and the children see no change. Calls go on,
because they do not pass through this process. The state of the gateway crosses the exec as open
descriptors and one description of everything, in memory. Signals that come during the exec wait for
the new program. Until the exec itself everything can be undone.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping

from metamcp_supervisor import signals
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.control.services import NotNow
from metamcp_supervisor.gateway import upgrade_state
from metamcp_supervisor.gateway.upgrade_state import ProgramContract, UpgradeState
from metamcp_supervisor.processes.nursery_start import HANDOVER
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import Upgrade
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import PeerGone, TooLarge

TRIAL = "trial"
"""Value of HANDOVER for a program that shall only describe itself."""
TRIAL_S_MAX = 30.0
"""Maximum seconds for the new program to describe itself: half a second is usual, on a busy machine
with cold disks 20."""
SETTLE_S_MAX = 45.0
"""Maximum seconds until no process is being started, replaced or ended; longer than the 30 s that a
front has to finish its calls."""
QUIET_S_MAX = 3.0
"""Maximum seconds, after that, until all orders on the control socket are answered; a client that
only connected does not count."""
LOOK_S = 0.02
"""Seconds between two checks whether everything is settled."""
TURNS = 5
"""Turns of the event loop until a signal that came before signals were held has been handled."""
WHY_CHARACTERS_MAX = 300
"""Maximum characters of an error message of a new program that cannot start."""


class Upgrades:
    """Upgrades, one at a time. `check`: raises NotNow while nothing may be changed. `unsettled`:
    returns why the state cannot be handed over now, or "". `has_orders`: whether a client of the
    control socket waits for an answer. `admit`: accept new clients there, or let them wait.
    `collect`: returns the state. `environ`: returns environment variables for the new program,
    called at the last moment; `undone`: called when the new program cannot be executed. `flush`:
    writes output that still waits. `spared`: children of this process that must not be killed as
    orphans."""

    def __init__(
        self,
        version: str,
        *,
        check: Callable[[], None],
        unsettled: Callable[[], str],
        has_orders: Callable[[], bool],
        shares: Callable[[], bool],
        admit: Callable[[bool], None],
        collect: Callable[[], UpgradeState],
        environ: Callable[[], dict[str, str]],
        undone: Callable[[], None],
        flush: Callable[[], None],
        spared: set[int],
        journal: Journal,
    ) -> None:
        self._version = version
        self._check = check
        self._unsettled = unsettled
        self._asked = has_orders
        self._shares = shares
        self._admit = admit
        self._collect = collect
        self._environ = environ
        self._undone = undone
        self._flush = flush
        self._spared = spared
        self._journal = journal
        self._busy = False
        self._quiet_by = 0.0

    async def upgrade(self, on_execute: Callable[[Upgrade], None]) -> None:
        """Execute the program that is installed now; `on_execute` is called at the last moment.
        Does not return. Raises NotNow; then everything is as before."""
        self._check()
        if self._busy:
            raise NotNow("nothing is changed: another upgrade is under way")
        self._busy, self._quiet_by = True, 0.0
        try:
            theirs = await self._try_program()
            ours = upgrade_state.program(self._version, shared=self._shares())
            if reason := upgrade_state.foreign(ours, theirs):
                raise NotNow(
                    f"version {theirs.version} cannot take over: {reason}; restart the gateway"
                    " instead"
                )
            await self._until_settled()
            self._execute(theirs, on_execute)
        finally:
            signals.let_go()
            self._admit(True)
            self._busy = False

    async def _try_program(self) -> ProgramContract:
        """Start the new program once, only to read its description. Raises NotNow."""
        process = _begin()
        self._spared.add(process.pid)
        try:
            output, errors = await asyncio.to_thread(_end, process)
        finally:
            process.kill()  # if this task was cancelled
            self._spared.discard(process.pid)
        if process.returncode != 0:
            lines = [line for line in errors.decode(errors="replace").splitlines() if line]
            reason = lines[-1][:WHY_CHARACTERS_MAX] if lines else f"exit code {process.returncode}"
            raise NotNow(f"nothing is changed: the new program cannot start: {reason}")
        try:
            return upgrade_state.parse_contract(output)
        except upgrade_state.StateUnreadable as error:
            raise NotNow(f"nothing is changed: the new program is not a gateway: {error}") from None

    async def _until_settled(self) -> None:
        """Wait until everything is settled. Returns in the turn of the event loop in which that is
        true, with signals held and all earlier signals handled. Raises NotNow."""
        end = asyncio.get_running_loop().time() + SETTLE_S_MAX
        while True:
            self._check()
            if not (reason := self._reason_to_wait()):
                signals.hold()
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                self._check()
                if not (reason := self._reason_to_wait()):
                    return
                signals.let_go()
            if asyncio.get_running_loop().time() > end:
                raise NotNow(f"nothing is changed, try again: {reason}")
            await asyncio.sleep(LOOK_S)

    def _reason_to_wait(self) -> str:
        """Return why an upgrade has to wait, as a sentence, or ""."""
        now = asyncio.get_running_loop().time()
        reason = self._unsettled()
        self._admit(bool(reason))
        if reason:
            self._quiet_by = 0.0
            return reason
        self._quiet_by = self._quiet_by or now + QUIET_S_MAX
        return "orders are being carried out" if self._asked() and now < self._quiet_by else ""

    def _execute(self, theirs: ProgramContract, on_execute: Callable[[Upgrade], None]) -> None:
        """Collect the state and execute the new program, without a pause in between. Raises
        NotNow."""
        self._journal.add("gateway", "upgrading", f"{self._version} → {theirs.version}")
        state = self._collect()
        facts = Upgrade(
            before=self._version,
            after=theirs.version,
            servers=sum(bool(server.copies) for server in state.servers),
            sessions=len(state.fronts.sessions),
        )
        inherited_fds, blobs = upgrade_state.descriptors(state), list[int]()
        try:
            blobs.append(packets.blob(upgrade_state.pack(state)))
            environ = {**os.environ, **self._environ(), HANDOVER: str(blobs[0])}
            with contextlib.suppress(PeerGone):
                on_execute(facts)
            self._flush()
            for fd in (*inherited_fds, *blobs):
                os.set_inheritable(fd, True)
            os.execve(sys.executable, _command(), environ)  # noqa: S606 - that is what it is for
        except (OSError, TooLarge) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            packets.close_all(blobs)
            for fd in inherited_fds:
                with contextlib.suppress(OSError):
                    os.set_inheritable(fd, False)
            self._undone()
            raise NotNow(f"nothing is changed: the program cannot be executed: {reason}") from None


def told_to(environ: MutableMapping[str, str]) -> str:
    """Return the task of this program: TRIAL, the number of the descriptor of the state that it
    takes over, or "". Remove the variable, so that child processes do not follow it, too."""
    return environ.pop(HANDOVER, "")


def read_state(order: str) -> UpgradeState:
    """Return the state that the previous program handed over. Raises StateUnreadable."""
    try:
        state = upgrade_state.unpack(packets.read_blob(int(order)))
        for fd in upgrade_state.descriptors(state):
            os.set_inheritable(fd, False)
    except (OSError, ValueError, TooLarge) as error:
        raise upgrade_state.StateUnreadable(
            f"{HANDOVER} is for the gateway alone, and names no state that it handed over: {error}"
        ) from None
    return state


def before(environ: Mapping[str, str]) -> Config | None:
    """Return the configuration as the previous program read it from the files, or None if no state
    was handed over or the state cannot be read."""
    order = environ.get(HANDOVER, "")
    if not order.isdecimal():
        return None
    try:
        return upgrade_state.config(upgrade_state.unpack(packets.read_blob(os.dup(int(order)))))
    except (OSError, TooLarge, upgrade_state.StateUnreadable):
        return None


def _begin() -> subprocess.Popen[bytes]:
    """Start the new program with TRIAL. Raises NotNow."""
    try:
        return subprocess.Popen(
            _command(),
            env={**os.environ, HANDOVER: TRIAL},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        reason = f"{sys.executable} cannot be started: {error.strerror}"
        raise NotNow(f"nothing is changed: {reason}") from None


def _end(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return stdout and stderr of a process when it has ended; kill it after TRIAL_S_MAX."""
    with process:
        try:
            return process.communicate(timeout=TRIAL_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            return b"", b"it said nothing within %.0f s" % TRIAL_S_MAX


def _command() -> list[str]:
    """Return the command of this process, which starts the program that is installed now."""
    return [sys.executable, *sys.orig_argv[1:]]
