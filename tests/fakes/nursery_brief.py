"""A worker that is gone before anybody has said a word to it."""

import socket


def main(sock: socket.socket) -> int:
    sock.close()
    return 3
