"""A server is killed in the middle of a call: what its caller is told, and does it come back?

Owns: the kill, the callers who ask again in the same session and in a new one. Never: load.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.figures import Figure, Row, Table
from benchmarks.peers.doors import FAILURES, Refused
from benchmarks.peers.plans import Peer
from benchmarks.peers.running import Failed, Running, started
from benchmarks.peers.taken import COMES_BACK_S_MAX, NEW, SAME, TOLD

CALL_MS = 30_000
"""Of the call in whose middle the server is killed."""
IN_FLIGHT_S = 0.5
"""After which that call is with the server."""
AGAIN_S = 0.02


def crash(peers: Sequence[Peer]) -> Table:
    rows: list[Row] = []
    said: list[str] = []
    for peer in peers:
        try:
            with started(peer, 1) as running:
                found, words = killed(running)
        except Failed as failure:
            said.append(str(failure))
            continue
        rows.append(Row(peer.name, {name: Figure(value) for name, value in found.items()}))
        said.append(f"{peer.name}: {words}")
    return Table(
        "crash", "A server is killed in the middle of a call", tuple(rows), (), tuple(said)
    )


def killed(running: Running) -> tuple[dict[str, float], str]:
    """The figures that there are, none if the gateway never answers again, and what the caller
    was told."""
    door, server = running.door, running.servers[0]
    heard: list[tuple[float, str]] = []
    door.text(server, "echo", text="before")

    def victim() -> None:
        try:
            told = repr(door.text(server, "sleep", text="victim", ms=CALL_MS))
        except FAILURES as error:
            told = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        heard.append((time.perf_counter(), told))

    caller = _thread(victim)
    caller.join(IN_FLIGHT_S)
    at = time.perf_counter()
    for pid in running.pids()[1]:
        os.kill(pid, signal.SIGKILL)
    found: dict[str, float] = {}
    _all(
        lambda: _back(running, found, at, fresh=False),
        lambda: _back(running, found, at, fresh=True),
    )
    caller.join(max(0.0, at + COMES_BACK_S_MAX - time.perf_counter()))
    if heard:
        found = {TOLD: (heard[0][0] - at) * 1000, **found}
    return found, heard[0][1] if heard else "nothing"


def _back(running: Running, found: dict[str, float], at: float, *, fresh: bool) -> None:
    """Ask again and again until an answer is right, or for as long as that may take."""
    pause = threading.Event()
    while time.perf_counter() < at + COMES_BACK_S_MAX:
        try:
            if running.door.text(running.servers[0], "echo", fresh=fresh, text="after") == "after":
                found[NEW if fresh else SAME] = time.perf_counter() - at
                return
        except FAILURES:
            pause.wait(AGAIN_S)


def _all(*works: Callable[[], None]) -> None:
    for thread in [_thread(work) for work in works]:
        thread.join(COMES_BACK_S_MAX)


def _thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
