"""The floor: the same child, called straight over its stdin and stdout."""

import os
import subprocess
import time
from collections.abc import Sequence

from benchmarks.load import Figures


def over_stdio(command: Sequence[str], callers: int, seconds: float) -> Figures:
    """Keep `callers` calls in flight for `seconds`, from one thread."""
    figures = Figures()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        write_to, read_from = child.stdin.fileno(), child.stdout.fileno()
        sent: dict[bytes, float] = {}
        number, rest = 0, b""
        start = time.perf_counter()
        end = start + seconds
        open_calls = callers
        while open_calls:
            out = bytearray()
            while len(sent) < open_calls:
                number += 1
                text = b"T%dT" % number
                sent[text] = time.perf_counter()
                out += (
                    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo",'
                    b'"arguments":{"text":"%b","padding":"0123456789abcdef0123456789abcdef"}}}\n'
                    % (number, text)
                )
            if out:
                os.write(write_to, out)
            *lines, rest = (rest + os.read(read_from, 1 << 18)).split(b"\n")
            now = time.perf_counter()
            for line in lines:
                text = line[line.index(b'"text":"T') + 8 :].split(b'"')[0]
                figures.calls += 1
                figures.latencies_s.append(now - sent.pop(text))
                if now >= end:
                    open_calls -= 1
        figures.seconds = time.perf_counter() - start
        child.stdin.close()
        child.wait(timeout=10)
    return figures
