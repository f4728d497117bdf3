"""Connections of a confined process, beside those of the same process without confinement."""

import asyncio
import json
import os
import shutil
import socket
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.child import process
from metamcp_worker.child.transport import ServerExit
from metamcp_worker.confinement import kernel
from metamcp_worker.confinement.denials import DeniedRight, denied_of
from metamcp_worker.ipc.messages import LEARNT, REFUSED
from metamcp_worker.ipc.spec import ConfinementSpec, LimitsSpec, Profile, ServerSpec

pytestmark = [
    pytest.mark.process, pytest.mark.timeout(120), pytest.mark.promise("P10"),
    pytest.mark.skipif(not kernel.has_asking(), reason="no filter of this kernel asks"),
]  # fmt: skip
WAIT_S = 60.0

WAYS = """
import ctypes, errno, json, os, socket, struct, sys, tempfile, threading
port = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
folder = tempfile.mkdtemp()
path = os.path.join(folder, "s")
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(0)

def raw(fd, address, size=None):
    done = libc.connect(fd, address, len(address) if size is None else size)
    return errno.errorcode[ctypes.get_errno()] if done else "done"

def unix(address):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)
        peer, _ = listener.accept()
        with peer:
            sock.send(b"x")
            return [peer.recv(1).decode(), sock.getblocking(), peer.getpeername()]

def relative():
    os.chdir(folder)
    return unix("s")

def linked():
    os.symlink(path, path + "-link")
    return unix(path + "-link")

def full():
    socks = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    threads = [threading.Thread(target=sock.connect, args=[path]) for sock in socks]
    for one in threads:
        one.start()
    for _ in socks:
        listener.accept()[0].close()
    for one in threads:
        one.join()
    return [sock.getblocking() for sock in socks]

def full_at_once():
    socks = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for sock in socks:
        sock.setblocking(False)
    found = [sock.connect_ex(path) for sock in socks]
    while True:
        listener.settimeout(0)
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            break
    listener.settimeout(None)
    return found

def tcp(host="127.0.0.1", port=port, timeout=None, family=socket.AF_INET):
    with socket.socket(family) as sock:
        sock.settimeout(timeout)
        sock.connect((host, port))
        return [sock.getpeername()[1], sock.gettimeout()]

def in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(tcp()))
    thread.start()
    thread.join()
    return found

def in_a_child():
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(tcp()).encode())
        os._exit(0)
    return json.loads(os.read(read, 100))

def later():
    with socket.socket() as sock:
        sock.setblocking(False)
        return sock.connect_ex(("127.0.0.1", 1)) in (errno.EINPROGRESS, errno.ECONNREFUSED)

def again():
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", port))
        address = struct.pack("=H", 2) + struct.pack("!H", port) + bytes([127, 0, 0, 1]) + bytes(8)
        return raw(sock.fileno(), address)

def udp():
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", 9))
        return sock.getpeername()

def unconnected():
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", 9))
        return raw(sock.fileno(), struct.pack("=H", 0) + bytes(14))

def netlink():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.connect((0, 0))
        return sock.getpeername()

def of(make, *arguments):
    with make() as sock:
        return raw(sock.fileno(), *arguments)

def abstract():
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as sock:
        name = f"\\0own-{os.getpid()}"
        other.bind(name)
        other.listen()
        sock.connect(name)
        return other.accept()[0].fileno() > 0

stream = lambda: socket.socket(socket.AF_UNIX)
ways = {
    "unix": lambda: unix(path), "relative": relative, "linked": linked, "full": full,
    "full at once": full_at_once, "abstract": abstract,
    "tcp": tcp, "tcp with a timeout": lambda: tcp(timeout=5.0), "thread": in_a_thread,
    "child": in_a_child, "refused": lambda: tcp(port=1), "later": later, "again": again,
    "ipv6": lambda: tcp("::ffff:127.0.0.1", family=socket.AF_INET6), "udp": udp,
    "unconnected": unconnected, "netlink": netlink,
    "names": lambda: len(socket.getaddrinfo("localhost", 80)) > 0,
    "no path": lambda: of(stream, struct.pack("=H", 1)),
    "no such path": lambda: of(stream, struct.pack("=H", 1) + b"/nonexistent/s\\0"),
    "a file": lambda: of(stream, struct.pack("=H", 1) + b"/dev/null\\0"),
    "wrong family": lambda: of(stream, struct.pack("=H", 2) + bytes(14)),
    "too long": lambda: of(stream, bytes(200)), "too short": lambda: of(stream, b"x"),
    "no memory": lambda: of(stream, ctypes.c_void_p(8), 16),
    "memory of the kernel": lambda: of(stream, ctypes.c_void_p(2**64 - 4096), 16),
    "no descriptor": lambda: raw(999, struct.pack("=H", 1) + b"/x\\0"),
    "no socket": lambda: raw(1, struct.pack("=H", 1) + b"/x\\0"),
}
found = {}
for name, way in ways.items():
    try:
        found[name] = way()
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error))
print(json.dumps(found))
"""

PYTHON = """
import json, multiprocessing, sys
from multiprocessing import shared_memory

def square(number):
    return number * number

if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        squares = pool.map(square, [2, 3])
    queue = multiprocessing.Queue()
    queue.put("item")
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=1)
        shared["b"] = 2
        values = dict(shared)
    memory = shared_memory.SharedMemory(create=True, size=16)
    memory.buf[0] = 7
    byte = memory.buf[0]
    memory.close()
    memory.unlink()
    print(json.dumps([squares, queue.get(timeout=10), values, byte]))
"""

NODE = """
const child = require('child_process'), net = require('net');
const os = require('os'), http = require('http');
if (process.argv[2] === 'child') { process.send('from the child'); process.disconnect(); return; }
const path = os.tmpdir() + '/node.sock', found = {};
const forked = child.fork(__filename, ['child']);
forked.on('message', text => { found.child = text; });
forked.on('exit', () => {
  const server = net.createServer(socket => socket.end('by a path')).listen(path, () => {
    net.connect(path).on('data', data => {
      found.unix = data.toString();
      server.close();
      const web = http.createServer((_, answer) => answer.end('by http'));
      web.listen(0, '127.0.0.1', () => {
        http.get({ port: web.address().port, host: 'localhost', agent: false }, answer => {
          answer.on('data', text => { found.http = text.toString(); });
          answer.on('end', () => {
            web.close();
            os.setPriority(os.getPriority());
            console.log(JSON.stringify(found));
          });
        });
      });
    });
  });
});
"""


def ran(
    folder: Path,
    command: tuple[str, ...],
    profile: Profile,
    lacked: Sequence[str] = (),
    processes: int = 256,
    **confinement: Any,
) -> Any:
    """What a process printed as JSON, started as a worker starts its server. `lacked`: what its
    sandbox refused."""
    printed, counters = ran_and_counted(folder, command, profile, processes, **confinement)
    assert counters == [*lacked]
    return printed


def ran_and_counted(
    folder: Path,
    command: tuple[str, ...],
    profile: Profile,
    processes: int = 256,
    **confinement: Any,
) -> tuple[Any, list[str]]:
    """What such a process printed, and the counters of the rights that it lacked."""
    spec = ServerSpec(
        name="it", command=command, env={**os.environ, "TMPDIR": str(folder)},
        confinement=ConfinementSpec(profile=profile, folder=str(folder / "it"), **confinement),
        limits=LimitsSpec(processes=processes),
    )  # fmt: skip

    refused: list[str] = []

    async def run() -> tuple[bytes, bytes, ServerExit]:
        ended: asyncio.Future[ServerExit] = asyncio.get_running_loop().create_future()
        started = process.spawn(spec, ended.set_result, refused.append)
        os.close(started.stdin)
        printed, complained = await asyncio.wait_for(
            asyncio.gather(
                asyncio.to_thread(whole, started.stdout), asyncio.to_thread(whole, started.stderr)
            ),
            WAIT_S,
        )
        return printed, complained, await asyncio.wait_for(ended, WAIT_S)

    printed, complained, end = asyncio.run(run())
    assert end.code == 0, (end, complained.decode())
    return json.loads(printed), refused


def whole(fd: int) -> bytes:
    """Everything that comes from a pipe, which is closed then."""
    with open(fd, "rb") as file:
        return file.read()


def script(folder: Path, text: str, name: str = "script.py") -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_a_connection_that_is_allowed_is_as_without_confinement(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        command = (sys.executable, script(tmp_path, WAYS), port)
        plain = ran(tmp_path, command, "none")
        assert ran(tmp_path, command, "basic") == plain


FORKS = """
import ctypes, errno, json, os, signal, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)

def clone(flags):
    number = 56 if os.uname().machine == "x86_64" else 220
    pid = libc.syscall(number, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        return errno.errorcode[ctypes.get_errno()]
    os.waitpid(pid, 0)
    return "done"

def thread():
    done = []
    one = threading.Thread(target=done.append, args=[1])
    one.start()
    one.join()
    return done

def as_many_as_it_may():
    pids = []
    try:
        while len(pids) < 100:
            if (pid := os.fork()) == 0:
                signal.pause()
            pids.append(pid)
        return [len(pids), False]
    except OSError as error:
        return [len(pids), error.errno == errno.EAGAIN]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

def one_after_the_other(count):
    for _ in range(count):
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return count

print(json.dumps([
    clone(0), clone(0x10000000), subprocess.run(["true"]).returncode, thread(),
    libc.syscall(435, 0, 0), one_after_the_other(50), as_many_as_it_may(), clone(0),
]))
"""


@pytest.mark.parametrize("limit", [0, 8])
def test_a_process_has_as_many_others_as_it_may_and_none_in_a_namespace_of_its_own(
    tmp_path: Path, limit: int
) -> None:
    command = (sys.executable, script(tmp_path, FORKS))
    *found, many, last = ran(tmp_path, command, "basic", ["refused_system_calls clone"], limit)
    assert found == ["done", "EPERM", 0, [1], -1, 50]
    assert many == ([7, True] if limit else [100, False])
    assert last == "done"


def test_python_shares_work_among_its_processes(tmp_path: Path) -> None:
    command = (sys.executable, script(tmp_path, PYTHON))
    plain = ran(tmp_path, command, "none")
    assert ran(tmp_path, command, "basic", write=("/dev/shm",)) == plain


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_node_speaks_to_its_own_processes_and_sockets(tmp_path: Path) -> None:
    command = (str(shutil.which("node")), script(tmp_path, NODE, "script.js"))
    plain = ran(tmp_path, command, "none")
    assert ran(tmp_path, command, "basic") == plain


UNANSWERED = """
import os, socket, sys, threading, time
listener = socket.socket(socket.AF_UNIX)
path = os.environ["TMPDIR"] + "/full"
listener.bind(path)
listener.listen(0)
socks = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for sock in socks:
    threading.Thread(target=sock.connect, args=[path], daemon=True).start()
socket.socket(socket.AF_UNIX).connect_ex("/nonexistent")
print("1", flush=True)
os._exit(0)
"""


def test_a_process_that_ends_while_it_connects_is_forgotten(tmp_path: Path) -> None:
    assert ran(tmp_path, (sys.executable, script(tmp_path, UNANSWERED)), "basic") == 1


USES = """
import ctypes, json, os, socket, sqlite3, subprocess, sys
there, port = bytes.fromhex(sys.argv[1]).decode(), int(sys.argv[2])
os.chdir(there)
libc = ctypes.CDLL(None, use_errno=True)

def connect(family, address):
    with socket.socket(family) as sock:
        sock.connect(address)

def old_call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "it failed")

def by_descriptor():
    folder = os.open("given", os.O_PATH)
    os.close(os.open("inside", os.O_RDONLY, dir_fd=folder))

def database():
    with sqlite3.connect("data/it.db") as found:
        found.execute("create table t (x)")

def bind():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sockets/mine")

def missing():
    try:
        open("missing/file")
    except FileNotFoundError:
        pass

uses = {
    "read": lambda: open("file").close(), "by a link": lambda: open("link").close(),
    "list": lambda: os.listdir("listed"), "by a descriptor": by_descriptor, "missing": missing,
    "look": lambda: os.stat("looked"), "append": lambda: open("log", "a").close(),
    "create": lambda: open("new/file", "w").close(), "make": lambda: os.makedirs("made/deep/er"),
    "remove": lambda: os.unlink("removed/file"), "move": lambda: os.rename("from/x", "to/x"),
    "link": lambda: os.symlink("nowhere", "links/link"), "cut": lambda: os.truncate("cut", 0),
    "database": database, "bind": bind,
    "run": lambda: subprocess.run(["./program"], check=True),
    "unix": lambda: connect(socket.AF_UNIX, "socket"),
    "tcp": lambda: connect(socket.AF_INET, ("127.0.0.1", port)),
    "its own": lambda: open(os.environ["TMPDIR"] + "/own", "w").close(),
}
failed = {}
for name, use in uses.items():
    try:
        use()
    except Exception as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""


def used_in(folder: Path, **confinement: Any) -> tuple[Any, set[DeniedRight | None]]:
    """What failed for a process that uses a new folder `there`, and the rights that it lacked."""
    there = folder / "there"
    shutil.rmtree(there, ignore_errors=True)
    for name in ("listed", "given", "new", "removed", "from", "to", "links", "data", "sockets"):
        (there / name).mkdir(parents=True)
    for name in ("file", "looked", "log", "cut", "given/inside", "removed/file", "from/x"):
        (there / name).write_text("x")
    (there / "link").symlink_to("file")
    (there / "program").write_text("#!/bin/sh\n")
    (there / "program").chmod(0o755)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(there / "socket"))
        unix.listen()
        port = str(confinement.pop("port"))
        # A command line that names a folder opens it, and so does the folder of a script.
        command = (sys.executable, "-c", USES, str(there).encode().hex(), port)
        failed, counters = ran_and_counted(folder, command, "basic", **confinement)
    prefix = LEARNT if confinement.get("trial") else REFUSED
    return failed, {denied_of(counter, prefix) for counter in counters}


@pytest.mark.skipif(not kernel.has_asking(), reason="no filter of this kernel asks")
def test_a_trial_gives_all_rights_and_what_it_tells_is_enough_afterwards(tmp_path: Path) -> None:
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        port = tcp.getsockname()[1]
        failed, learnt = used_in(tmp_path, port=port, trial=True, tcp_ports=(1,))
        assert failed == {}
        files = {
            ("read", "file"), ("read", "listed"), ("read", "given/inside"),
            ("read", "program"), ("write", "log"), ("write", "new"), ("write", "made/"),
            ("write", "removed"),
            ("write", "from"), ("write", "to"), ("write", "links"), ("write", "cut"),
            ("write", "data"), ("write", "sockets"), ("unix_sockets", "socket"),
        }  # fmt: skip
        wanted = {(right, f"{tmp_path}/there/{path}") for right, path in files}
        assert learnt == {*wanted, ("tcp_ports", str(port))}

        before, refused = used_in(tmp_path, port=port, tcp_ports=(1,))
        assert len(before) == 16, before
        assert {one.right for one in refused if one} == {"unix_sockets", "tcp_ports"}

        def of(right: str) -> tuple[str, ...]:
            return tuple(one.path for one in learnt if one and one.right == right)

        given = {"read": of("read"), "write": of("write"), "unix_sockets": of("unix_sockets")}
        assert used_in(tmp_path, port=port, tcp_ports=(1, port), **given) == ({}, set())
