"""The floor: the same child, called straight over its stdin and stdout.

The same is done to any other command that speaks MCP on its pipes, such as `metamcp connect`.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from benchmarks.load import ANSWER_S_MAX, PADDING, Figures

READ_BYTES = 1 << 18
HELLO = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}\n'
)
READY = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'


def over_stdio(command: Sequence[str], callers: int, seconds: float) -> Figures:
    """Keep `callers` calls in flight for `seconds`, from one thread, once the child is there."""
    with started(command, hello=True) as child:
        return over_pipes(child, line("echo"), callers, seconds)


def line(tool: str, arguments: str = f'"padding":"{PADDING}"') -> bytes:
    """A call as one line, with `%(id)d` and `%(text)b` in it."""
    return (
        f'{{"jsonrpc":"2.0","id":%(id)d,"method":"tools/call","params":{{"name":"{tool}",'
        f'"arguments":{{"text":"%(text)b",{arguments}}}}}}}\n'
    ).encode()


@contextmanager
def started(
    command: Sequence[str], *, hello: bool = False, env: Mapping[str, str] | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """The command with its pipes; with `hello` once it has answered the handshake."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=None if env is None else {**os.environ, **env},
    ) as child:
        write_to, read_from = pipes(child)
        if hello:
            os.write(write_to, HELLO)
            while not os.read(read_from, READ_BYTES).endswith(b"\n"):
                pass
            os.write(write_to, READY)
        yield child
        assert child.stdin is not None
        child.stdin.close()
        child.wait(timeout=10)


def pipes(child: subprocess.Popen[bytes]) -> tuple[int, int]:
    assert child.stdin is not None
    assert child.stdout is not None
    return child.stdin.fileno(), child.stdout.fileno()


def over_pipes(
    child: subprocess.Popen[bytes],
    said: bytes,
    callers: int,
    seconds: float,
    *,
    heard: Callable[[float, bytes, float], None] | None = None,
) -> Figures:
    """`heard` gets the moment of sending, the answer and the moment of its arrival. A command that
    owes an answer for too long is killed, and fails the run."""
    late = threading.Timer(seconds + ANSWER_S_MAX, child.kill)
    late.daemon = True
    late.start()
    try:
        return _called(child, said, callers, seconds, heard)
    finally:
        late.cancel()


def _called(
    child: subprocess.Popen[bytes],
    said: bytes,
    callers: int,
    seconds: float,
    heard: Callable[[float, bytes, float], None] | None,
) -> Figures:
    figures = Figures()
    write_to, read_from = pipes(child)
    sent: dict[bytes, float] = {}
    number, rest = 1, list[bytes]()
    start = time.perf_counter()
    end = start + seconds
    open_calls = callers
    while open_calls:
        out = bytearray()
        while len(sent) < open_calls:
            number += 1
            text = b"T%dT" % number
            sent[text] = time.perf_counter()
            out += said % {b"id": number, b"text": text}
        if out:
            os.write(write_to, out)
        data = os.read(read_from, READ_BYTES)
        assert data, "the command ended"
        if b"\n" not in data:
            rest.append(data)
            continue
        *lines, last = b"".join([*rest, data]).split(b"\n")
        rest = [last] if last else []
        now = time.perf_counter()
        for each in lines:
            at = each.index(b'"text":"T') + 8
            began = sent.pop(each[at : each.index(b"T", at + 1) + 1])
            figures.calls += 1
            figures.latencies_s.append(now - began)
            if heard is not None:
                heard(began, each, now)
            if now >= end:
                open_calls -= 1
    figures.seconds = time.perf_counter() - start
    return figures
