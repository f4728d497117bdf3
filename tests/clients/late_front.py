"""A front whose time runs on by the idle time of a session when it is sent SIGUSR1.

    python -m tests.clients.late_front DESCRIPTOR

It is the true front on an event loop whose clock can be put forward: all that is due by then
happens at once, in its order.
"""

import asyncio
import signal
import socket
import sys

from metamcp_worker.front.run import FrontWorker
from metamcp_worker.front_clients.client_sessions import IDLE_S


class Clock(asyncio.SelectorEventLoop):
    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s

    def jump(self) -> None:
        self.ahead_s += IDLE_S + 1


async def live(sock: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Clock)
    loop.add_signal_handler(signal.SIGUSR1, loop.jump)
    return await FrontWorker(sock).run()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=Clock) as runner:
        sys.exit(runner.run(live(socket.socket(fileno=int(sys.argv[1])))))
