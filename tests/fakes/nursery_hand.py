"""What the tests hold in the hand instead of a supervisor: the other end of a nursery's socket."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from metamcp_worker.ipc import messages, packets
from metamcp_worker.ipc.messages import Fork, Forked, FromNursery, NurseryReady, Signal, WorkerExit

FAKES = Path(__file__).parent
ROLES = (sys.executable, str(FAKES / "nursery_roles.py"))
THREADED = (sys.executable, str(FAKES / "nursery_threaded.py"))
WAIT_S = 20.0

_PR_SET_CHILD_SUBREAPER = 36


class Hand:
    """A nursery process, driven packet by packet. Leaving the context ends it as a supervisor
    does: by being gone."""

    def __init__(self, command: tuple[str, ...] = ROLES) -> None:
        self.sock, theirs = packets.pair()
        self.sock.settimeout(WAIT_S)
        with theirs:
            self.process = subprocess.Popen(
                (*command, "--fd", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self.tickets = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> tuple[int, str]:
        """Leave it alone, and return its exit code and what all of them wrote on stderr."""
        self.sock.close()
        try:
            _, errors = self.process.communicate(timeout=WAIT_S)
        finally:
            self.process.kill()
        return self.process.returncode, errors.decode()

    def heard(self) -> FromNursery:
        data, fds = packets.receive(self.sock)
        assert not fds
        return messages.unpack_from_nursery(data)

    def born(self) -> NurseryReady:
        born = self.heard()
        assert isinstance(born, NurseryReady)
        return born

    def ask(
        self, name: str = "git", role: str = "child", stacks: int | None = None
    ) -> socket.socket:
        """Send a Fork; the answer is still to be heard. The socket is the supervisor's end.
        `stacks`: a file for those of the worker."""
        self.tickets += 1
        ours, theirs = packets.pair()
        ours.settimeout(WAIT_S)
        with theirs:
            order = Fork(ticket=self.tickets, role=role, name=name)
            fds = [theirs.fileno()] if stacks is None else [theirs.fileno(), stacks]
            packets.send(self.sock, messages.pack(order), fds)
        return ours

    def fork(
        self, name: str = "git", role: str = "child", stacks: int | None = None
    ) -> tuple[int, socket.socket]:
        """A worker that has said hello."""
        sock = self.ask(name, role, stacks)
        forked = self.heard()
        assert isinstance(forked, Forked), forked
        assert said(sock) == b"hello"
        return forked.pid, sock

    def signal(self, pid: int, number: signal.Signals) -> None:
        packets.send(self.sock, messages.pack(Signal(pid=pid, number=number)))

    def exit(self) -> WorkerExit:
        report = self.heard()
        assert isinstance(report, WorkerExit), report
        return report


def said(sock: socket.socket) -> bytes:
    data, fds = packets.receive(sock)
    packets.close_all(fds)
    return data


def facts(sock: socket.socket) -> dict[str, Any]:
    packets.send(sock, b"facts")
    found: dict[str, Any] = json.loads(said(sock))
    return found


def litter(sock: socket.socket, *words: str) -> None:
    """Let a worker start processes that it would leave behind."""
    for word in words:
        packets.send(sock, f"litter {word}".encode())
        assert said(sock) == b"done"


def sleepers(pids: set[int]) -> set[int]:
    """Those of the processes that have become the program they were to be."""
    found: set[int] = set()
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\0001000\0":
                found.add(pid)
        except OSError:
            continue
    return found


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def tasks(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def subreaper(on: bool) -> None:
    """Make the process of the tests a subreaper, or a plain process again."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(on), 0, 0, 0) == 0
