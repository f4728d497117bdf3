"""What the signals to the gateway's process ask for.

Owns: which signal means what, and the events that say so. Never: ending or reloading (`run`).

SIGTERM and SIGINT ask for the end, a second SIGINT for the end at once. SIGHUP has two meanings in
the world: to a service it says "read your configuration again", to a program on a terminal that its
terminal is gone.
"""

import asyncio
import faulthandler
import signal
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def hold() -> None:
    """In this thread: let signals wait. As long as no other thread hears them, all are for the
    first one, which can then hold them while another program takes its place."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)


def let_go() -> None:
    """In this thread: hear them, those too that wait."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)


class Signals:
    """`stopping`: the end is wanted; `now`: without waiting for anybody; `hangup`: a reload is.

    `hangup_ends`: a hang-up is the end of the terminal that this runs on.
    """

    def __init__(self, *, hangup_ends: bool) -> None:
        self.stopping, self.now, self.hangup = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.hangup_ends = hangup_ends
        self._table = {
            signal.SIGTERM: self.stopping.set,
            signal.SIGINT: self._interrupted,
            signal.SIGQUIT: self._quit,
            signal.SIGHUP: self.stopping.set if hangup_ends else self.hangup.set,
        }

    def listen(self) -> None:
        """From now on, those too that came while nobody listened."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(initializer=hold))
        for number, act in self._table.items():
            loop.add_signal_handler(number, act)
        let_go()

    def close(self) -> None:
        for number in self._table:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _interrupted(self) -> None:
        if self.stopping.is_set():
            self.now.set()
        self.stopping.set()

    def _quit(self) -> None:
        faulthandler.dump_traceback(all_threads=True)
        self.stopping.set()
        self.now.set()

    async def unless_now(
        self, work: Coroutine[None, None, None], limit_s: float
    ) -> BaseException | None:
        """Do `work` until it is done, its time is up, or somebody wants the end now. What it
        raised."""
        task, hurry = asyncio.create_task(work), asyncio.create_task(self.now.wait())
        await asyncio.wait([task, hurry], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for each in (task, hurry):
            each.cancel()
        await asyncio.wait([task, hurry])
        return None if task.cancelled() else task.exception()

    async def before_the_end(self, work: asyncio.Task[None]) -> bool:
        """Wait for `work`; False if somebody asked for the end before. Raises what it raises."""
        ending = asyncio.create_task(self.stopping.wait())
        await asyncio.wait([work, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        await asyncio.wait([ending])
        if work.done():
            await work
        return not self.stopping.is_set()
