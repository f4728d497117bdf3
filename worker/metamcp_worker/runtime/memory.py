"""Memory of a process: freed memory goes back to the system, and forked workers share pages.

Owns: how the C library keeps large blocks, how often the garbage collector runs, filling the holes
of the heap before forks. Never: limits of memory.
"""

import asyncio
import ctypes
import gc
import mmap
import sys
from collections.abc import Callable

LARGE_BYTES = 4 * 1024 * 1024
"""Bytes from which a block is mapped on its own, and unmapped when it is freed. By default the GNU
C library learns from the first large message to keep blocks of that size, and a process that once
forwarded 16 MiB would hold tens of MiB for ever. But a new mapping costs a fault for each of its
pages, more than all work on a message of a MiB; so smaller blocks share the heap."""
SPARE_BYTES_MAX = 8 * 1024 * 1024
"""Maximum free bytes that the heap keeps at its end for the next message. Processes that forward
messages call `trim` from time to time."""
RARE_BYTES = 256 * 1024
"""Bytes for both settings in a process that does not forward messages, and rarely has a block of
this size: for a page of metrics, or a list of tools."""

SMALL_BYTES_MAX = 512
"""Maximum bytes of a block that Python places itself; the C library places larger blocks."""
POOL_BYTES, POOL_HEADER_BYTES = 16 * 1024, 48
NEW_POOL_BLOCKS = 2
"""Maximum blocks of a pool that counts as new: the first one, and one of the check itself."""
SMALLEST_BLOCKS = 1024
"""Number of blocks of 16 bytes, and of 32, that are created in any case: a loop creates numbers of
these sizes itself, and so cannot see that the holes are full."""
LARGE_HOLE_BYTES = 64 * 1024
"""Bytes from which a hole does no harm: a block of this size fills pages of its own."""
HOLES_BYTES_MAX = 2 * 1024 * 1024
"""Maximum bytes to fill, which are lost if a Python lays out its pools differently."""

GC_OBJECTS = 10_000
"""Number of additional objects of a worker after which the collector looks for cycles among the new
ones. With Python's default, busy fronts look every few dozen calls, and find none: calls do not
leave cycles."""

_GC_USUAL = gc.get_threshold()
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def give_back_large_blocks(
    large_bytes: int = LARGE_BYTES, spare_bytes: int = SPARE_BYTES_MAX
) -> bool:
    """Give freed large blocks back, in this process and those forked from it. Returns False if the
    C library has no such setting."""
    if not hasattr(_libc, "mallopt"):
        return False
    _libc.mallopt(_M_TRIM_THRESHOLD, spare_bytes)
    return bool(_libc.mallopt(_M_MMAP_THRESHOLD, large_bytes))


def share_one_heap() -> bool:
    """Use one heap for all threads that this process will have: a heap for each thread would be one
    more place with holes, and because of Python's lock threads do not wait for each other at a
    shared heap. Returns False if the C library has no such setting."""
    return hasattr(_libc, "mallopt") and bool(_libc.mallopt(_M_ARENA_MAX, 1))


def trim() -> None:
    """Give free memory back to the system, however small the freed pieces are."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


async def trim_every(seconds: float) -> None:
    """Call `trim` every `seconds`, until cancelled. A trim of some ten MiB takes half a millisecond
    at most."""
    while True:
        await asyncio.sleep(seconds)
        trim()


def give_back_zero_pages(item: object) -> None:
    """Give back the pages of `item` that hold only zeros: the kernel gives an empty page again when
    one is used. No other thread may use `item` during this time.

    The loop of uvloop contains its buffer for reading, 250 KiB, and Python fills a new object with
    zeros.
    """
    if not sys.platform.startswith("linux"):  # elsewhere the advice does not empty a page
        return
    start, page_bytes = id(item), mmap.PAGESIZE
    zeros = bytes(page_bytes)
    end = start + item.__sizeof__()
    for page in range(-(-start // page_bytes) * page_bytes, end - page_bytes + 1, page_bytes):
        if ctypes.string_at(page, page_bytes) == zeros:
            _libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(page_bytes), mmap.MADV_DONTNEED)


def collect_seldom() -> None:
    """Run the collector rarely, in this process and those forked from it."""
    gc.set_threshold(GC_OBJECTS)


def collect_as_usual() -> None:
    """Run the collector as often as Python does by default."""
    gc.set_threshold(*_GC_USUAL)


def fill_holes() -> list[object]:
    """Fill every free place between living small objects; the caller keeps the returned blocks.

    A process that is forked after this puts its own objects on new pages. Without it the objects
    would go into such holes, each on a page that was shared until then. Imports leave some hundred
    kilobytes of holes, and more if modules are compiled first. Python has pools of 16 KiB for
    objects of one size; the first object of a new pool shows that the holes of this size are full.
    """
    blocks: list[object] = [*_fill_large_holes()]
    for number in range(SMALLEST_BLOCKS):
        blocks += object(), complex(number)
    room = HOLES_BYTES_MAX
    for size in range(48, SMALL_BYTES_MAX + 1, 16):
        block = bytes(size - b"".__sizeof__())
        while not _is_in_new_pool(block) and room > 0:
            blocks.append(block)
            room -= size
            block = bytes(size - b"".__sizeof__())
    return blocks


def _is_in_new_pool(block: object) -> bool:
    """Whether the block is the first one of its pool, and the pool has hardly any others: it begins
    with their number. A block at the start of a pool may also fill a hole there."""
    start = id(block) - POOL_HEADER_BYTES
    return start % POOL_BYTES == 0 and ctypes.c_uint.from_address(start).value <= NEW_POOL_BLOCKS


def _fill_large_holes() -> list[bytes]:
    """Fill the holes between blocks of the C library: half a MiB, which would cost an eighth of a
    MiB in each worker. After a trim, a block that does not fit into a hole comes from beyond the
    end of the heap, which shows that the holes of this size are full."""
    if not hasattr(_libc, "sbrk"):
        return []
    trim()
    _libc.sbrk.restype = ctypes.c_void_p
    end = _libc.sbrk(ctypes.c_long(0)) or 0
    blocks: list[bytes] = []
    room = HOLES_BYTES_MAX
    for size in (*range(LARGE_HOLE_BYTES, 4096, -1024), *range(4096, SMALL_BYTES_MAX, -16)):
        block = bytes(size - b"".__sizeof__())
        while id(block) < end and room > 0:
            blocks.append(block)
            room -= size
            block = bytes(size - b"".__sizeof__())
    return blocks


def forget_lookups() -> None:
    """Clear the cache of method lookups. Python caches thousands, each with a reference to a name:
    a new entry in a worker would write to the page of the old name."""
    if sys.version_info < (3, 12):  # since then references to names are not counted
        forget: Callable[[], None] = getattr(sys, "_clear_type_cache", _do_nothing)
        forget()


def _do_nothing() -> None:
    pass


_libc = ctypes.CDLL(None)
