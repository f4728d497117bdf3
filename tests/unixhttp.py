"""One HTTP request over a unix socket."""

import http.client
import socket
from pathlib import Path


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get(path: Path, page: str, host: str = "localhost") -> tuple[int, str]:
    """Status and body; 0 if nobody listens."""
    connection = Connection(path)
    try:
        connection.request("GET", page, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()
