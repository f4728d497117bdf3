"""A supervisor that forks three workers, lets each leave litter, and waits to be killed.

It writes the pid of its nursery and of its workers as one line when all of it is there.
"""

import asyncio
import sys
from pathlib import Path

from metamcp_supervisor.processes.nursery import ForkedWorker, Nursery
from metamcp_worker.ipc import packets

COMMAND = (sys.executable, str(Path(__file__).parent / "nursery_roles.py"))


async def main() -> None:
    nursery = Nursery(
        on_exit=lambda report: None,
        on_halt=lambda pid, halted: None,
        on_lost=lambda reason: None,
        on_event=lambda sentence: None,
        command=COMMAND,
    )
    await nursery.start()
    workers: list[ForkedWorker] = []
    for name in ("git", "files", "web"):
        worker = await nursery.fork("child", name)
        workers.append(worker)
        for word in ("hello", "setsid", "wrapped", "daemon"):
            if word != "hello":
                packets.send(worker.sock, f"litter {word}".encode())
            packets.receive(worker.sock)
    pids = [nursery.pid, *(worker.pid for worker in workers)]
    sys.stdout.write(" ".join(map(str, pids)) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
