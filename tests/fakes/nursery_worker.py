"""A worker that does what the packets on its control socket say, one after the other."""

import ctypes
import gc
import json
import os
import random
import signal
import socket
import subprocess
from pathlib import Path

from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import PeerGone

_PR_GET_CHILD_SUBREAPER = 37

#: What a server may leave behind: argv, and whether in a session of its own.
LITTERS: dict[str, tuple[list[str], bool]] = {
    "plain": (["sleep", "1000"], False),
    "setsid": (["sleep", "1000"], True),
    "wrapped": (["sh", "-c", "sleep 1000; :"], False),
    "daemon": (["sh", "-c", "setsid sh -c 'sleep 1000; :' & exit"], False),
}


def main(sock: socket.socket) -> int:
    sock.setblocking(True)
    packets.send(sock, b"hello")
    litter: list[subprocess.Popen[bytes]] = []
    while True:
        try:
            data, fds = packets.receive(sock)
        except PeerGone:
            return 0
        packets.close_all(fds)
        match data.decode().split(" ", 1):
            case ["exit", code]:
                return int(code)
            case ["raise", text]:
                raise RuntimeError(text)
            case ["spin", _]:
                packets.send(sock, b"spins")
                while True:
                    pass
            case ["litter", kind]:
                argv, session = LITTERS[kind]
                litter.append(subprocess.Popen(argv, start_new_session=session))
                packets.send(sock, b"done")
            case _:
                packets.send(sock, json.dumps(facts()).encode())


def facts() -> dict[str, object]:
    subreaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(subreaper))
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    ignored = int(status["SigIgn"], 16)
    handlers = {number.name: signal.getsignal(number) for number in signal.Signals}
    return {
        "parent": os.getppid(),
        "session": os.getsid(0),
        "name": Path("/proc/self/comm").read_text().strip(),
        "subreaper": bool(subreaper.value),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in open_descriptors()),
        "ignored": sorted(number.name for number in signal.Signals if ignored >> (number - 1) & 1),
        "handled": sorted(name for name, how in handlers.items() if callable(how)),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "dice": random.random(),
        "frozen": gc.get_freeze_count(),
        "collects_at": gc.get_threshold()[0],
    }


def open_descriptors() -> list[str]:
    """Without the one that the listing itself needs."""
    names = os.listdir("/proc/self/fd")
    return [name for name in names if os.path.lexists(f"/proc/self/fd/{name}")]
