"""What a process can still do once the kernel confines it, as if code had taken Deno over."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import json

from metamcp_worker.confinement.kernel import landlock_version

pytestmark = [pytest.mark.process, pytest.mark.promise("M46")]

TRIES = """
import ctypes, json, os, signal, socket, sys
from metamcp_worker.sandbox import confinement
folder, version = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
tries = {
    "read a file": lambda: open(folder + "/secret").read(),
    "list a folder": lambda: os.listdir(folder),
    "make a file": lambda: open(folder + "/new", "w"),
    "make a folder": lambda: os.mkdir(folder + "/new"),
    "remove a file": lambda: os.unlink(folder + "/secret"),
    "read the environment of its parent": lambda: open(f"/proc/{os.getppid()}/environ", "rb"),
    "start a program": lambda: os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {}), 0),
    "kill its parent": lambda: os.kill(os.getppid(), signal.SIGCONT),
    "shared memory": lambda: call(29 if os.uname().machine == "x86_64" else 194, 0, 4096, 0o1600),
    "a TCP socket": lambda: socket.socket(),
    "a UDP socket": lambda: socket.socket(type=socket.SOCK_DGRAM),
    "a unix socket": lambda: socket.socket(socket.AF_UNIX),
    "trace its parent": lambda: call(101 if os.uname().machine == "x86_64" else 117, 16, 1, 0, 0),
    "a ring of system calls": lambda: call(425, 1, 0),
    "a namespace": lambda: call(272 if os.uname().machine == "x86_64" else 97, 0x10000000),
}
confinement.confine(version, "/nonexistent")
done = {}
for name, attempt in tries.items():
    try:
        attempt()
        done[name] = "done"
    except OSError as error:
        done[name] = error.strerror
print(json.dumps(done))
"""


def tried(folder: Path, version: int) -> dict[str, str]:
    (folder / "secret").write_text("x")
    told = subprocess.run(
        [sys.executable, "-c", TRIES, str(folder), str(version)], check=True, text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout  # fmt: skip
    return json.decode(told, type=dict[str, str])


@pytest.mark.skipif(landlock_version() < 6, reason="this kernel has no Landlock of version 6")
def test_a_confined_process_reaches_nothing(tmp_path: Path) -> None:
    found = tried(tmp_path, landlock_version())
    assert {name for name, how in found.items() if "not permitted" not in how} == {
        "read a file", "list a folder", "make a file", "make a folder", "remove a file",
        "read the environment of its parent", "start a program",
    }  # fmt: skip
    assert {how for how in found.values() if "not permitted" not in how} == {"Permission denied"}


def test_without_landlock_there_are_still_no_sockets_and_no_bytes_in_files(tmp_path: Path) -> None:
    found = tried(tmp_path, 0)
    assert found["read a file"] == "done"
    assert {name for name, how in found.items() if "not permitted" in how} >= {
        "a TCP socket", "a UDP socket", "a unix socket", "trace its parent", "a namespace",
    }  # fmt: skip
    assert (tmp_path / "new").stat().st_size == 0
    with socket.socket():  # and here there are
        pass
