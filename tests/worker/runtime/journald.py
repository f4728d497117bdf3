"""The socket of a journal of systemd, which reads its own protocol."""

import socket
from pathlib import Path

Fields = dict[str, str]


class Journal:
    """Bound to `path` until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._sock.bind(self.path)

    def close(self) -> None:
        self._sock.close()

    def records(self) -> list[Fields]:
        """All that have come."""
        found: list[Fields] = []
        while True:
            try:
                found.append(_parsed(self._sock.recv(2**20)))
            except BlockingIOError:
                return found


def _parsed(data: bytes) -> Fields:
    """Fields as `NAME=value`, or `NAME` with the size and the value in the next line."""
    fields: Fields = {}
    while data:
        head, _, data = data.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[8 + size + 1 :]
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
    return fields
