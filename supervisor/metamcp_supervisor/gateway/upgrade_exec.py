"""Another version of this program takes over the running gateway, in this very process.

Owns: trying it, waiting for the moment, executing it, finding what it is handed. Never: the values
(`upgrade_state`), collecting and restoring them (`gateway.upgrade`).

The process stays the same one, so systemd, the lock and the children see no change, and a call does
not notice: it never comes by here. What belongs to the gateway crosses the exec as open descriptors
and one description of everything, in memory. Signals that come meanwhile wait for the new program.
Until the exec itself everything can be taken back, and nothing has changed.
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
from metamcp_supervisor.gateway.upgrade_state import ProgramContract, State
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import Upgrade
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import PeerGone, TooLarge

VARIABLE = "METAMCP_HANDOVER"
"""In the environment of a program that takes over: the descriptor of what it gets, or TRIAL."""
TRIAL = "trial"
TRIAL_S_MAX = 30.0
"""For the new program to say what it is: half a second, on a starved machine with cold disks 20."""
SETTLE_S_MAX = 45.0
"""Until nothing is being forked, replaced or buried: a front that finishes its calls has 30 s."""
QUIET_S_MAX = 3.0
"""Then, until nobody waits for the answer to an order; a client that only connected is not waited
for."""
LOOK_S = 0.02
"""Between two looks whether everything is settled."""
TURNS = 5
"""Of the event loop, until a signal that came before all were held has been heard."""
WHY_CHARACTERS_MAX = 300
"""Of what the new program says when it cannot start."""


class Upgrades:
    """`check`: raises NotNow while nothing may be changed. `unsettled`: why this is not the moment,
    or nothing. `asked`: does somebody wait for an answer? `admit`: who asks now is heard, or waits.
    `collect`: everything. `environ`: what the new program needs of the environment, asked at the
    last moment; `undone`: it does not run. `flush`: writes what is still to be written. `spared`:
    children of this process that nobody may take for orphans."""

    def __init__(
        self,
        version: str,
        *,
        check: Callable[[], None],
        unsettled: Callable[[], str],
        asked: Callable[[], bool],
        admit: Callable[[bool], None],
        collect: Callable[[], State],
        environ: Callable[[], dict[str, str]],
        undone: Callable[[], None],
        flush: Callable[[], None],
        spared: set[int],
        journal: Journal,
    ) -> None:
        self._ours = upgrade_state.program(version)
        self._check = check
        self._unsettled = unsettled
        self._asked = asked
        self._admit = admit
        self._collect = collect
        self._environ = environ
        self._undone = undone
        self._flush = flush
        self._spared = spared
        self._journal = journal
        self._busy = False
        self._quiet_by = 0.0

    async def upgrade(self, told: Callable[[Upgrade], None]) -> None:
        """Execute the program that is installed now; `told` hears of it at the last moment. Never
        returns. Raises NotNow; then everything is as before."""
        self._check()
        if self._busy:
            raise NotNow("nothing is changed: another upgrade is under way")
        self._busy, self._quiet_by = True, 0.0
        try:
            theirs = await self._tried()
            if why := upgrade_state.foreign(self._ours, theirs):
                raise NotNow(
                    f"version {theirs.version} cannot take over: {why}; restart the gateway instead"
                )
            await self._until_settled()
            self._execute(theirs, told)
        finally:
            signals.let_go()
            self._admit(True)
            self._busy = False

    async def _tried(self) -> ProgramContract:
        """Start the program once, only to say what it is. Raises NotNow."""
        process = _begin()
        self._spared.add(process.pid)
        try:
            said, told = await asyncio.to_thread(_end, process)
        finally:
            process.kill()  # if nobody waits any more
            self._spared.discard(process.pid)
        if process.returncode != 0:
            lines = [line for line in told.decode(errors="replace").splitlines() if line]
            why = lines[-1][:WHY_CHARACTERS_MAX] if lines else f"exit code {process.returncode}"
            raise NotNow(f"nothing is changed: the new program cannot start: {why}")
        try:
            return upgrade_state.described(said)
        except upgrade_state.StateUnreadable as error:
            raise NotNow(f"nothing is changed: the new program is not a gateway: {error}") from None

    async def _until_settled(self) -> None:
        """Returns with signals held, none unheard, and in the turn in which it is settled."""
        end = asyncio.get_running_loop().time() + SETTLE_S_MAX
        while True:
            self._check()
            if not (why := self._why()):
                signals.hold()
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                self._check()
                if not (why := self._why()):
                    return
                signals.let_go()
            if asyncio.get_running_loop().time() > end:
                raise NotNow(f"nothing is changed, try again: {why}")
            await asyncio.sleep(LOOK_S)

    def _why(self) -> str:
        """This is not the moment, as a sentence, or nothing."""
        now = asyncio.get_running_loop().time()
        why = self._unsettled()
        self._admit(bool(why))
        if why:
            self._quiet_by = 0.0
            return why
        self._quiet_by = self._quiet_by or now + QUIET_S_MAX
        return "orders are being carried out" if self._asked() and now < self._quiet_by else ""

    def _execute(self, theirs: ProgramContract, told: Callable[[Upgrade], None]) -> None:
        """Nothing else happens from here to the exec. Raises NotNow."""
        self._journal.add("gateway", "upgrading", f"{self._ours.version} → {theirs.version}")
        state = self._collect()
        facts = Upgrade(
            before=self._ours.version,
            after=theirs.version,
            servers=sum(bool(server.copies) for server in state.servers),
            sessions=len(state.fronts.sessions),
        )
        kept, blobs = upgrade_state.descriptors(state), list[int]()
        try:
            blobs.append(packets.blob(upgrade_state.pack(state)))
            environ = {**os.environ, **self._environ(), VARIABLE: str(blobs[0])}
            with contextlib.suppress(PeerGone):
                told(facts)
            self._flush()
            for fd in (*kept, *blobs):
                os.set_inheritable(fd, True)
            os.execve(sys.executable, _command(), environ)  # noqa: S606 - that is what it is for
        except (OSError, TooLarge) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            packets.close_all(blobs)
            for fd in kept:
                with contextlib.suppress(OSError):
                    os.set_inheritable(fd, False)
            self._undone()
            raise NotNow(f"nothing is changed: the program cannot be executed: {why}") from None


def told_to(environ: MutableMapping[str, str]) -> str:
    """What this program is here for: TRIAL, the descriptor of what it takes over, or nothing. The
    variable is removed, so that nothing that it starts takes it for its own."""
    return environ.pop(VARIABLE, "")


def found(order: str) -> State:
    """What the program before handed over. Raises handing.Unreadable."""
    try:
        state = upgrade_state.unpack(packets.read_blob(int(order)))
        for fd in upgrade_state.descriptors(state):
            os.set_inheritable(fd, False)
    except (OSError, ValueError, TooLarge) as error:
        raise upgrade_state.StateUnreadable(
            f"{VARIABLE} is for the gateway alone, and names no state that it handed over: {error}"
        ) from None
    return state


def before(environ: Mapping[str, str]) -> Config | None:
    """What the files said to the program before this one, if there is one that hands over."""
    order = environ.get(VARIABLE, "")
    if not order.isdecimal():
        return None
    try:
        return upgrade_state.config(upgrade_state.unpack(packets.read_blob(os.dup(int(order)))))
    except (OSError, TooLarge, upgrade_state.StateUnreadable):
        return None


def _begin() -> subprocess.Popen[bytes]:
    """Raises NotNow."""
    try:
        return subprocess.Popen(
            _command(),
            env={**os.environ, VARIABLE: TRIAL},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        why = f"{sys.executable} cannot be started: {error.strerror}"
        raise NotNow(f"nothing is changed: {why}") from None


def _end(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What a process says, to its end, which comes within TRIAL_S_MAX."""
    with process:
        try:
            return process.communicate(timeout=TRIAL_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            return b"", b"it said nothing within %.0f s" % TRIAL_S_MAX


def _command() -> list[str]:
    """The command of this process, with the program that is there now."""
    return [sys.executable, *sys.orig_argv[1:]]
