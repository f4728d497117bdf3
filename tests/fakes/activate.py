"""Starts a command the way systemd starts a service with sockets: activate.py FDS NAMES COMMAND…

FDS: descriptors of this process with commas; they become 3 and following. NAMES: with colons.
"""

import fcntl
import os
import sys


def main() -> None:
    # Out of the way of their targets first, so that none is overwritten before it is copied.
    fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 64) for fd in sys.argv[1].split(",")]
    for target, fd in enumerate(fds, 3):
        os.dup2(fd, target, inheritable=True)
    os.environ["LISTEN_PID"] = str(os.getpid())
    os.environ["LISTEN_FDS"] = str(len(fds))
    os.environ["LISTEN_FDNAMES"] = sys.argv[2]
    os.execv(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
