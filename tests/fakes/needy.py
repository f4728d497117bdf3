"""The scripted server, for which something else must be there: it ends when that goes away.

    python tests/fakes/needy.py PORT [flags of stdio_server.py]

With status 1, at once when nobody listens on the port, later when the connection ends.
"""

import os
import runpy
import socket
import sys
import threading
from pathlib import Path

SERVER = Path(__file__).with_name("stdio_server.py")


def watch(upstream: socket.socket) -> None:
    try:
        while upstream.recv(1024):
            pass
    except OSError:
        pass
    os._exit(1)


def main() -> None:
    port = int(sys.argv.pop(1))
    try:
        upstream = socket.create_connection(("127.0.0.1", port), timeout=5)
    except OSError as error:
        sys.exit(f"the upstream is not there: {error}")
    upstream.settimeout(None)
    threading.Thread(target=watch, args=(upstream,), daemon=True).start()
    sys.argv[0] = str(SERVER)
    runpy.run_path(str(SERVER), run_name="__main__")


if __name__ == "__main__":
    main()
