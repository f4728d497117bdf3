"""Memory that large messages took is given back."""

import os
import subprocess
import sys

import pytest

from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.messages import RunServer, ServerReady, Stop
from metamcp_worker.ipc.spec import ServerSpec
from metamcp_worker.runtime import memory
from tests.worker.child.worker import SERVER

_PROGRAM = """
import sys
from metamcp_worker.runtime import memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

assert memory.give_back_large_blocks()
before = resident()
for _ in range(3):
    bodies = [b"x" * (16 * 1024 * 1024) for _ in range(4)]
    assert resident() - before > 60 * 1024 * 1024
    small = [bytes(2000) for _ in range(100)]
    del bodies
print(resident() - before)
"""

_MIDDLING = """
import resource
from metamcp_worker.runtime import memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

assert memory.give_back_large_blocks()
start = resident()
b"x" * (1024 * 1024) + b"y"
before = faults()
for _ in range(50):
    b"x" * (1024 * 1024) + b"y"
print(faults() - before)
bodies = [b"x" * (1024 * 1024) for _ in range(40)]
small = [bytes(2000) for _ in range(100)]
del bodies
memory.trim()
print(resident() - start)
"""

_THREADS = """
import threading
from metamcp_worker.runtime import memory

def heaps():
    # The GNU C library keeps 64 MiB for the heap of a thread: used pages, then closed ones.
    with open("/proc/self/maps") as file:
        lines = [line.replace("-", " ", 1).split() for line in file]
    return sum(
        int(closed[1], 16) - int(used[0], 16) == 64 * 1024 * 1024
        for used, closed in zip(lines, lines[1:])
        if used[2] == "rw-p" and closed[2] == "---p"
    )

assert not ONE or memory.share_one_heap()
kept = []
for _ in range(4):
    thread = threading.Thread(target=lambda: kept.append(bytes(2000) * 2))
    thread.start()
    thread.join()
print(heaps())
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_as_small_after_large_messages_as_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=30, check=True
    )
    assert int(done.stdout) < 4 * 1024 * 1024


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_messages_of_a_mebibyte_use_the_same_memory_until_it_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MIDDLING], capture_output=True, text=True, timeout=30, check=True
    )
    faults, left = map(int, done.stdout.split())
    assert faults < 50 * 256 / 10  # of 256 pages each, twice over
    assert left < 4 * 1024 * 1024


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_have_one_heap_where_they_are_told_to() -> None:
    heaps = [
        int(subprocess.check_output(
            [sys.executable, "-c", f"ONE = {one}{_THREADS}"], text=True, timeout=30
        ))
        for one in (True, False)
    ]  # fmt: skip
    assert heaps[0] == 0
    assert heaps[1] >= 1


_ZEROS = """
from metamcp_worker.runtime import memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

half = (b"0" * 1024 * 1024).replace(b"0", b"\\0")  # bytes(n) would use no pages
body = half + b"text" + half
before = resident()
memory.give_back_zero_pages(body)
print(before - resident())
assert body.strip(b"\\0") == b"text" and len(body) == 2 * len(half) + 4
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_of_zeros_are_given_back_and_are_zeros_still() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ZEROS], capture_output=True, text=True, timeout=30, check=True
    )
    assert int(done.stdout) > 1900 * 1024


_HOLES = """
import asyncio, json, uuid
from metamcp_worker.runtime import memory

first = memory.fill_holes()
second = memory.fill_holes()
print(*(sum(block.__sizeof__() for block in blocks) for blocks in (first, second)))
"""


@pytest.mark.process
def test_the_holes_between_small_objects_are_filled_once_and_for_all() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HOLES], capture_output=True, text=True, timeout=30, check=True
    )
    first, second = map(int, done.stdout.split())
    assert 20_000 < first < memory.HOLES_BYTES_MAX
    assert second < first / 4


_FIRST_HOLES = """
from metamcp_worker.runtime import memory

SIZE = 400
blocks = [bytes(SIZE - b"".__sizeof__()) for _ in range(1000)]
starts = [n for n, block in enumerate(blocks) if id(block) % memory.POOL_BYTES == 48]
for n in range(0, 1000, 2):
    blocks[n] = blocks[n] if n in starts else None
for n in starts:  # the place that is freed last is used first
    blocks[n] = None
kept = memory.fill_holes()
left = memory.fill_holes()
print(*(sum(block.__sizeof__() == SIZE for block in blocks) for blocks in (kept, left)))
"""


@pytest.mark.process
def test_holes_at_the_start_of_pools_are_filled_and_those_behind_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_HOLES], capture_output=True, text=True, timeout=30, check=True
    )
    filled, left = map(int, done.stdout.split())
    assert filled > 400
    assert left < memory.NEW_POOL_BLOCKS


_LARGE_HOLES = """
from metamcp_worker.runtime import memory

blocks = [bytes(n) for n in range(1000, 20000, 100)]
del blocks[::2]
kept = memory.fill_holes()
for blocks in (kept, memory.fill_holes()):
    sizes = [block.__sizeof__() for block in blocks]
    print(sum(size for size in sizes if size > memory.SMALL_BYTES_MAX))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the C library elsewhere may do otherwise")
def test_the_holes_between_larger_objects_are_filled_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LARGE_HOLES], capture_output=True, text=True, timeout=30, check=True
    )
    first, second = map(int, done.stdout.split())
    assert first > 200_000
    assert second < first / 10


_HOOKS = """
from metamcp_worker.runtime import lazy_import
lazy_import.put_off_hooks()
import os, random, threading

def again():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(random.random()).encode())
        os._exit(0)
    os.wait()
    return os.read(reader, 100).decode()

random.seed(1)
print(again() == again(), threading.active_count())
print(lazy_import.catch_up_hooks() >= 4)
print(again() == again(), threading.active_count())
"""


@pytest.mark.process
def test_what_modules_want_at_forks_is_put_off_and_made_up_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HOOKS], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["True", "1", "True", "False", "1"]


_PRELOADED = """
import importlib, os, socket, sys
from metamcp_worker.runtime import nursery

for name in nursery.PRELOAD:
    importlib.import_module(name)
known = set(sys.modules)
code = sys.modules["metamcp_worker.child.run"].main(socket.socket(fileno=int(sys.argv[1])))
sys.stderr.write(" ".join(sorted(set(sys.modules) - known)))
sys.stderr.flush()
os._exit(code)
"""


@pytest.mark.process
def test_the_worker_of_a_command_imports_nothing_that_the_nursery_has_not() -> None:
    near, far = packets.pair()
    near.settimeout(20)
    with near, far:
        process = subprocess.Popen(
            [sys.executable, "-c", _PRELOADED, str(far.fileno())],
            pass_fds=[far.fileno()], stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        spec = ServerSpec(name="fake", command=SERVER, env=dict(os.environ))
        blob = packets.blob(codec.dump(spec))
        packets.send(near, messages.pack(RunServer(generation=1, version="0")), [blob])
        packets.close_all([blob])
        ready = False
        while not ready:
            data, fds = packets.receive(near)
            packets.close_all(fds)
            ready = isinstance(messages.unpack_from_child(data), ServerReady)
        packets.send(near, messages.pack(Stop(grace_s=1)))
        assert process.communicate(timeout=20)[1] == ""
