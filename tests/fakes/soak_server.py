"""The scripted server with the bad manners that a soak asks it for.

python tests/fakes/soak_server.py --era both
"""

import sys
import threading
import time
from pathlib import Path

# It is started as a file, in any directory and with any environment.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.stdio_server import Server, flags
from tests.fakes.stdio_wire import NOISE, Json, content, write

FLOOD = b"".join(b"flood line %d\n" % number for number in range(100))
FLOOD_PAUSE_S = 0.01
"""Ten thousand lines a second: much, and not yet what quarantine is for."""


class Unruly(Server):
    def tool_slow_echo(self, number: object, text: str = "", ms: float = 0) -> None:
        """Other calls are answered meanwhile."""
        self.later(ms, lambda: self.reply(number, result=content(text)))

    def tool_noise(self, _: object, text: str = "", lines: int = 20) -> Json:
        """Lines that are no messages, some of them broken, and then the answer."""
        with self.lock:
            for _ in range(lines):
                write(b"\n".join(NOISE) + b'\n{"half": "\xff\xfe\n\x1b[31m\n')
        return content(text)

    def tool_flood(self, _: object, text: str = "", ms: float = 0) -> Json:
        """Floods stdout for so long, beside everything that it answers."""
        end = time.monotonic() + ms / 1000

        def run() -> None:
            while time.monotonic() < end:
                with self.lock:
                    write(FLOOD)
                time.sleep(FLOOD_PAUSE_S)

        threading.Thread(target=run, daemon=True).start()
        return content(text)


if __name__ == "__main__":
    Unruly(flags()).run()
