"""How each fault of a soak is done, and undone.

Owns: one method for each kind of `soak_plan.KINDS`, the time between doing and undoing, what is
said of a fault that did not take. Never: when, to whom and for how long (`soak_plan`).
"""

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections import Counter
from random import Random

from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import FrontStatus, GatewayStatus, ServerStatus
from tests.faults.soak_clients import STAMP, Field, Modern, Question, call, modern
from tests.faults.soak_gateway import GUEST, SERVER, TIMEOUT_S, Soaked
from tests.faults.soak_plan import HANG_S, Fault
from tests.faults.soak_rude import Rude

STOP, GO, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL
MS = 1000
BURST_CALLS, BURST_KIB = 6, 1024
SPARE_DESCRIPTORS = 3
"""That a starved front may still open."""
CTL_CODES = frozenset({0, 1, 6, 7})
"""Done; could not; not in time; the server is stopped: all may be while everything else happens."""
HEALED_S_MAX = 60.0
LOOK_S = 0.25
LATE_S = 1.5
"""Beyond the time that a call may take."""


class Faults:
    """`done`: how many of each kind took; `missed`: those that found nothing to be done to."""

    def __init__(self, gateway: Soaked, field: Field) -> None:
        self.gateway, self.field, self.ledger = gateway, field, field.ledger
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.problems: list[str] = []
        self.over = asyncio.Event()
        self._stopped: set[int] = set()
        self._rude = Rude(field)

    async def run(self, plan: tuple[Fault, ...]) -> None:
        """All of it, each at its time; returns when the last one is undone."""
        start = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for fault in plan:
                    await self._pause(start + fault.at_s - time.monotonic())
                    group.create_task(self._one(fault))
        finally:
            for pid in self._stopped:
                self.gateway.signal(pid, GO)

    async def _one(self, fault: Fault) -> None:
        doing = getattr(self, "do_" + fault.kind.replace("-", "_"))
        try:
            took = await doing(fault, Random(fault.dice))
        except Failed as why:  # `status` itself got no answer
            took = False
            self.problems.append(f"status was not answered during {fault.kind}: {why}")
        (self.done if took else self.missed)[fault.kind] += 1

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.over.wait()

    async def _server(self, name: str) -> ServerStatus:
        status = await self.gateway.status_of()
        return next(server for server in status.servers if server.name == name)

    async def _front(self, dice: Random) -> FrontStatus | None:
        status = await self.gateway.status_of()
        ready = [front for front in status.fronts if front.state == "ready"]
        return dice.choice(ready) if ready else None

    async def _still(self, pid: int, for_s: float) -> bool:
        """It stands still for so long."""
        self._stopped.add(pid)
        took = self.gateway.signal(pid, STOP)
        await self._pause(for_s)
        self.gateway.signal(pid, GO)
        self._stopped.discard(pid)
        return took

    async def _order(self, *arguments: str) -> bool:
        code, said = await self.gateway.order(*arguments)
        if code not in CTL_CODES:
            self.problems.append(f"ctl {' '.join(arguments)} ended with {code}: {said}")
        return code == 0

    # --- servers ------------------------------------------------------------------------------

    async def do_kill_child(self, fault: Fault, _: Random) -> bool:
        return self.gateway.signal((await self._server(fault.target)).pid, KILL)

    async def do_kill_worker(self, fault: Fault, _: Random) -> bool:
        return self.gateway.signal((await self._server(fault.target)).worker_pid, KILL)

    async def do_stop_child(self, fault: Fault, _: Random) -> bool:
        return await self._still((await self._server(fault.target)).pid, fault.for_s)

    async def do_stop_worker(self, fault: Fault, _: Random) -> bool:
        return await self._still((await self._server(fault.target)).worker_pid, fault.for_s)

    async def do_exit(self, fault: Fault, dice: Random) -> bool:
        return await self._tell(fault, "crash", {"code": dice.randrange(1, 100)}, "")

    async def do_hang(self, fault: Fault, _: Random) -> bool:
        return await self._tell(fault, "work", {"ms": int(fault.for_s * MS)}, "worked")

    async def do_late(self, fault: Fault, _: Random) -> bool:
        word = f"late-{fault.dice:x}"
        ms = int((TIMEOUT_S + LATE_S) * MS)
        return await self._tell(fault, "slow_echo", {"text": word, "ms": ms}, word)

    async def do_flood(self, fault: Fault, _: Random) -> bool:
        word = f"flood-{fault.dice:x}"
        return await self._tell(fault, "flood", {"text": word, "ms": int(fault.for_s * MS)}, word)

    async def do_noise(self, fault: Fault, _: Random) -> bool:
        word = f"noise-{fault.dice:x}"
        return await self._tell(fault, "noise", {"text": word}, word)

    async def do_burst(self, fault: Fault, _: Random) -> bool:
        whole = "x" * (BURST_KIB * 1024)
        calls = (self._tell(fault, "blob", {"kib": BURST_KIB}, whole) for _ in range(BURST_CALLS))
        return all(await asyncio.gather(*calls))

    async def _tell(self, fault: Fault, tool: str, arguments: dict[str, object], word: str) -> bool:
        """A call that makes a server misbehave is a call like any other."""
        teller = Teller(self.field, fault.dice % 1_000_000, Random(fault.dice))
        return await teller.tell(Question(fault.target, tool, arguments, word))

    # --- an operator --------------------------------------------------------------------------

    async def do_ctl_restart(self, fault: Fault, dice: Random) -> bool:
        wait = ("--wait", "--timeout", "30s") if dice.random() < 0.5 else ()
        return await self._order("restart", fault.target, *wait)

    async def do_ctl_stop(self, fault: Fault, _: Random) -> bool:
        took = await self._order("stop", fault.target)
        await self._pause(fault.for_s)
        return await self._order("start", fault.target) and took

    async def do_ctl_drain(self, fault: Fault, _: Random) -> bool:
        took = await self._order("drain", fault.target)
        await self._pause(fault.for_s)
        await self._order("undrain", fault.target)
        return took

    async def do_reload(self, fault: Fault, dice: Random) -> bool:
        old = self.gateway.entries[fault.target]
        env = {"SOAK_ROUND": str(fault.dice)} if dice.random() < 0.7 else old.get("env", {})
        patience_s = TIMEOUT_S + dice.randrange(2)
        return await self._change(fault.target, {**old, "env": env, "timeout": f"{patience_s:g}s"})

    async def do_guest(self, fault: Fault, _: Random) -> bool:
        took = await self._change(GUEST, {"command": [*SERVER, "--era", "both"]})
        await self._pause(fault.for_s)
        return await self._change(GUEST, None) and took

    async def _change(self, name: str, entry: dict[str, object] | None) -> bool:
        code, said = await self.gateway.change(name, entry)
        if code != 0:
            self.problems.append(f"reload ended with {code}: {said}")
        return code == 0

    async def do_roll(self, _: Fault, __: Random) -> bool:
        self.ledger.roll(time.monotonic())
        took = await self._order("roll")
        self.ledger.rolled(time.monotonic())
        return took

    # --- our own processes --------------------------------------------------------------------

    async def do_kill_front(self, _: Fault, dice: Random) -> bool:
        front = await self._front(dice)
        if front is None or not self.gateway.signal(front.pid, STOP):
            return False
        self._cut(front.pid, "kill-front")
        return self.gateway.signal(front.pid, KILL)

    async def do_stop_front(self, fault: Fault, dice: Random) -> bool:
        front = await self._front(dice)
        if front is None or not self.gateway.signal(front.pid, STOP):
            return False
        if fault.for_s >= HANG_S:
            self._cut(front.pid, "stop-front")
        return await self._still(front.pid, fault.for_s)

    def _cut(self, pid: int, why: str) -> None:
        """This front, which stands still now, will not go on."""
        self.ledger.cut(self.gateway.clients_of([pid]), why, time.monotonic())

    async def do_starve_front(self, fault: Fault, dice: Random) -> bool:
        """It cannot open anything for a while."""
        front = await self._front(dice)
        if front is None or not self.gateway.ours(front.pid):
            return False
        try:
            used = len(os.listdir(f"/proc/{front.pid}/fd"))
            usual = resource.prlimit(front.pid, resource.RLIMIT_NOFILE)
            low = (used + SPARE_DESCRIPTORS, usual[1])
            resource.prlimit(front.pid, resource.RLIMIT_NOFILE, low)
        except OSError:
            return False
        await self._pause(fault.for_s)
        with contextlib.suppress(OSError):
            resource.prlimit(front.pid, resource.RLIMIT_NOFILE, usual)
        return True

    async def do_kill_nursery(self, _: Fault, __: Random) -> bool:
        before = await self.gateway.status_of()
        self.ledger.shake(time.monotonic())
        took = self.gateway.signal(before.nursery_pid, KILL)
        end = time.monotonic() + HEALED_S_MAX
        while not await self._whole(before) and time.monotonic() < end:
            await self._pause(LOOK_S)
        self.ledger.healed(time.monotonic())
        return took

    async def _whole(self, before: GatewayStatus) -> bool:
        """Is there another nursery, and everything in it that is to be?"""
        try:
            now = await self.gateway.status_of()
        except Failed:
            return False
        calm = [server for server in now.servers if server.name in self.ledger.calm]
        fresh = now.nursery_pid not in {0, before.nursery_pid}
        fronts = [front for front in now.fronts if front.state == "ready"]
        serve = len(fronts) == len(before.fronts)
        return fresh and serve and all(one.phase in {"ready", "idle"} for one in calm)

    async def do_stop_supervisor(self, fault: Fault, _: Random) -> bool:
        return await self._still(self.gateway.pid, fault.for_s)

    # --- clients ------------------------------------------------------------------------------

    async def do_leave(self, _: Fault, dice: Random) -> bool:
        return await self._rude.leave(dice)

    async def do_slow_reader(self, fault: Fault, dice: Random) -> bool:
        return await self._rude.read_slowly(dice, fault.for_s)

    async def do_garbage(self, _: Fault, dice: Random) -> bool:
        return await self._rude.talk_rubbish(dice)


class Teller(Modern):
    """Asks for one thing and leaves."""

    kind = "tell"

    async def tell(self, question: Question) -> bool:
        key = self.ask(question)
        body = call(self.sequence, question, STAMP)
        headers = modern("tools/call", question.name)
        answer = await self.over_http(key, "POST", "/mcp", headers, body)
        if answer is None:
            return False
        for found in answer.messages():
            self.judge(key, self.sequence, question, found)
        await self.quit()
        return True
