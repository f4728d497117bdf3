"""The scripted server behind a Unix socket: the first connection is its input and output.

python tests/fakes/unix_server.py PATH
"""

import os
import socket
import sys
from pathlib import Path

SERVER = Path(__file__).with_name("stdio_server.py")


def main(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        connection, _ = listener.accept()
        os.dup2(connection.fileno(), 0)
        os.dup2(connection.fileno(), 1)
    os.execv(sys.executable, [sys.executable, str(SERVER), *sys.argv[2:]])


if __name__ == "__main__":
    main(sys.argv[1])
