"""A server of the handshake era that writes down every call before it does anything.

    python tests/fakes/journal_server.py JOURNAL

A call with `gate` is answered when the file of that name is there. One call at a time, and nothing
but the standard library.
"""

import os
import sys
import time
from pathlib import Path

# It is started as a file, in any directory and with any environment.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.few_tools import Json, serve

#: What each tool says of being called twice.
TOOLS: dict[str, Json] = {
    "look": {"readOnlyHint": True},
    "put": {"idempotentHint": True},
    "pay": {},
}
LOOK_S = 0.005


def main() -> None:
    journal = Path(sys.argv[1])

    def call(name: str, arguments: Json, _: int) -> str:
        line = f"{name} {arguments.get('text', '')}"
        with journal.open("a") as file:
            file.write(f"{line}\n")
        gate = arguments.get("gate")
        while gate is not None and not os.path.exists(gate):
            time.sleep(LOOK_S)
        return line

    serve("journal", TOOLS, call)


if __name__ == "__main__":
    main()
