"""A front that has nothing but sessions: run as a program, a nursery that forks such fronts.

Once it is ready it has one session of its own, named after its process. What it is told to adopt it
tells to the supervisor as servers that are wanted, because that is the word that a test can hear.
"""

import os
import socket
import sys

from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.errors import PeerGone
from metamcp_worker.ipc.messages import (
    AdoptSessions,
    FrontReady,
    Listen,
    ServerWanted,
    SessionKept,
    SessionRecord,
    Stop,
)
from metamcp_worker.runtime import nursery

ROLES = {"front": "front_role"}


def main(sock: socket.socket) -> int:
    sock.setblocking(True)
    while True:
        try:
            data, fds = packets.receive(sock)
        except PeerGone:
            return 2
        match messages.unpack_to_front(data):
            case AdoptSessions():
                for record in codec.decode_as(list[SessionRecord], packets.read_blob(fds.pop(0))):
                    packets.send(sock, messages.pack(ServerWanted(server=record.id)))
            case Listen():
                serve(sock)
            case Stop():
                return 0
            case _:
                pass
        packets.close_all(fds)


def serve(sock: socket.socket) -> None:
    own = SessionRecord(
        id=f"of {os.getpid()}", endpoint="default", protocol="2025-11-25", caller="{}"
    )
    blob = packets.blob(codec.dump(own))
    packets.send(sock, messages.pack(SessionKept()), [blob])
    packets.close_all([blob])
    packets.send(sock, messages.pack(FrontReady()))


if __name__ == "__main__":
    sys.exit(nursery.main(sys.argv[1:], roles=ROLES, preload=("front_role",)))
