"""The person at the terminal of `metamcp up`, asked while the gateway runs.

Owns: the question about a reload that needs a yes, and reading the answer. Never: what has to be
confirmed (`config.confirm`), reloading (`reloading`), the question at the start (`up`).
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from metamcp_supervisor.config.config import ConfigInvalid
from metamcp_supervisor.control.steering import NotNow, ReloadRefused

if TYPE_CHECKING:
    from metamcp_supervisor.gateway.run import Gateway

KEYBOARD = 0
"""The descriptor that answers are read from."""
ANSWER_BYTES_MAX = 1024
_YES = (b"y", b"yes")


class Asking:
    """The person at the terminal of a gateway in the foreground; a `reloading.Ask`. `out` prints.

    The gateway goes on meanwhile. What was typed before the question is no answer to it.
    """

    def __init__(self, gateway: "Gateway", out: Callable[[str], None]) -> None:
        self._gateway = gateway
        self._out = out
        self._loop = asyncio.get_running_loop()
        self._plan = ""
        self._task: asyncio.Task[None] | None = None

    def __call__(self, question: str, plan: str) -> None:
        if not in_foreground():
            return  # the journal says what to do
        import termios

        termios.tcflush(KEYBOARD, termios.TCIFLUSH)
        self._plan = plan
        self._out(f"{question}\nApply it? [y/N]: ")
        self._loop.add_reader(KEYBOARD, self._read)

    def _read(self) -> None:
        self._loop.remove_reader(KEYBOARD)
        if not in_foreground():
            return
        with contextlib.suppress(OSError):
            answer = os.read(KEYBOARD, ANSWER_BYTES_MAX)
            if answer.strip().lower() in _YES:
                self._task = self._loop.create_task(self._apply(self._plan), name="confirmed")
            else:
                self._out("not confirmed: nothing is changed; 'metamcp confirm' asks again\n")

    async def _apply(self, plan: str) -> None:
        try:
            await self._gateway.reload(dry_run=False, expect=plan, yes=True)
        except (ConfigInvalid, NotNow, ReloadRefused) as error:
            self._out(f"{error}\n")


def in_foreground() -> bool:
    """May this process read from its terminal? One in the background would be stopped."""
    try:
        return os.tcgetpgrp(KEYBOARD) == os.getpgrp()
    except OSError:
        return False
