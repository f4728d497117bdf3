"""Signals to the gateway's process, and what each of them asks for.

Owns: the meaning of each signal, and the events that pass it on. Never: ending or reloading
(`gateway`).

SIGTERM and SIGINT ask for the end, a second SIGINT for the end at once. SIGHUP has two usual
meanings: for a service "read your configuration again", for a program on a terminal "the terminal
is gone".
"""

import asyncio
import faulthandler
import signal
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def hold() -> None:
    """Block these signals in this thread, so that they wait. As long as every other thread blocks
    them, all signals go to the first thread, which can then hold them while another program takes
    the place of this one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)


def let_go() -> None:
    """Unblock these signals in this thread; signals that wait arrive now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)


class Signals:
    """Events set by signals. `stopping`: end; `now`: end without waiting; `hangup`: reload.

    `hangup_ends`: SIGHUP means that the terminal of this process is gone, and asks for the end.
    """

    def __init__(self, *, hangup_ends: bool) -> None:
        self.stopping, self.now, self.hangup = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.hangup_ends = hangup_ends
        self._table = {
            signal.SIGTERM: self.stopping.set,
            signal.SIGINT: self._on_interrupt,
            signal.SIGQUIT: self._quit,
            signal.SIGHUP: self.stopping.set if hangup_ends else self.hangup.set,
        }

    def listen(self) -> None:
        """Start to handle the signals, also those that came while they were blocked."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(initializer=hold))
        for number, act in self._table.items():
            loop.add_signal_handler(number, act)
        let_go()

    def close(self) -> None:
        for number in self._table:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_interrupt(self) -> None:
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
        """Run `work` until it is done, `limit_s` seconds are over, or a signal asks for the end at
        once. Return the exception that `work` raised, or None."""
        task, hurry = asyncio.create_task(work), asyncio.create_task(self.now.wait())
        await asyncio.wait([task, hurry], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for each in (task, hurry):
            each.cancel()
        await asyncio.wait([task, hurry])
        return None if task.cancelled() else task.exception()

    async def before_the_end(self, work: asyncio.Task[None]) -> bool:
        """Wait for `work`; return False if a signal asked for the end before. Raises what `work`
        raises."""
        ending = asyncio.create_task(self.stopping.wait())
        await asyncio.wait([work, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        await asyncio.wait([ending])
        if work.done():
            await work
        return not self.stopping.is_set()
