"""A server of the handshake era that tells its secret: on stderr, and to who asks for it.

    API_TOKEN=… python tests/fakes/indiscreet_server.py

`look` only reads, `tell` gives the secret away, `count` gives another answer each time, `think`
never gives one.
"""

import os
import sys
from pathlib import Path

# It is started as a file, in any directory and with any environment.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.few_tools import Json, serve

TOOLS: dict[str, Json] = {
    "look": {"readOnlyHint": True},
    "tell": {"readOnlyHint": True},
    "count": {},
    "think": {},
}
SECRET = os.environ.get("API_TOKEN", "none")


def call(name: str, arguments: Json, number: int) -> str | None:
    return {"look": str(arguments), "tell": SECRET, "count": str(number)}.get(name)


def main() -> None:
    sys.stderr.write(f"started with the token {SECRET}\n")
    serve("indiscreet", TOOLS, call)
    sys.exit(f"going with the token {SECRET}")


if __name__ == "__main__":
    main()
