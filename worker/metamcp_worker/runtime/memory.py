"""What is freed goes back to the system.

Owns: how the C library keeps large blocks, how often cycles are looked for. Never: how much memory
anything may have.
"""

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable

LARGE_BYTES = 4 * 1024 * 1024
"""Blocks from here on are mapped one by one, and unmapped when they are freed. Left to itself, the
GNU C library learns from the first large message to keep blocks of that size, and a process that
passed on 16 MiB once would hold tens of MiB for ever. But a new mapping costs a fault for each of
its pages, more than all that is done with a message of a MiB; so those share the heap."""
SPARE_BYTES_MAX = 8 * 1024 * 1024
"""What the heap keeps at its end for the next message. Whoever passes on messages calls `trim` from
time to time."""
RARE_BYTES = 256 * 1024
"""Both of these for a process that passes on no messages, and has a block of this size only now and
then: for a page of metrics, or a list of tools."""

SMALL_BYTES_MAX = 512
"""What Python places itself; larger blocks are the C library's."""
POOL_BYTES, POOL_HEADER_BYTES = 16 * 1024, 48
LARGE_HOLE_BYTES = 64 * 1024
"""From here on a hole is no hole: what is put there fills pages of its own."""
HOLES_BYTES_MAX = 2 * 1024 * 1024
"""Where pools look otherwise, this is all that is lost."""

GC_OBJECTS = 10_000
"""How many more of its objects a worker may have before cycles among the new ones are looked for.
With Python's own number, busy fronts look every few dozen calls, and find none: what a call leaves
is no cycle."""

_GC_USUAL = gc.get_threshold()
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def give_back_large_blocks(
    large_bytes: int = LARGE_BYTES, spare_bytes: int = SPARE_BYTES_MAX
) -> bool:
    """For this process and those forked from it. False where the C library has no such setting."""
    if not hasattr(_libc, "mallopt"):
        return False
    _libc.mallopt(_M_TRIM_THRESHOLD, spare_bytes)
    return bool(_libc.mallopt(_M_MMAP_THRESHOLD, large_bytes))


def share_one_heap() -> bool:
    """For all threads that this process will have: one heap for each is one more place with holes
    in it, and with Python's own lock they do not wait for each other at one. False where the C
    library has no such setting."""
    return hasattr(_libc, "mallopt") and bool(_libc.mallopt(_M_ARENA_MAX, 1))


def trim() -> None:
    """Give back what is free already, however small the pieces are that it was freed in."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


async def trim_every(seconds: float) -> None:
    """Until it is cancelled. A trim of some ten MiB takes half a millisecond at most."""
    while True:
        await asyncio.sleep(seconds)
        trim()


def collect_seldom() -> None:
    """For this process and those forked from it."""
    gc.set_threshold(GC_OBJECTS)


def collect_as_usual() -> None:
    """Again as Python does it."""
    gc.set_threshold(*_GC_USUAL)


def fill_holes() -> list[bytes]:
    """Take every free place between small objects that live: the caller keeps what is returned.

    A process that is forked now puts its own objects on pages of their own then, instead of into
    such holes, each on a page that it shared until that moment. Importing leaves some hundred
    kilobytes of them, and more where modules are compiled first. Python has pools of 16 KiB for
    objects of one size; the first object of a fresh pool says that the holes of this size are used
    up.
    """
    kept = _fill_large_holes()
    room = HOLES_BYTES_MAX
    for size in range(48, SMALL_BYTES_MAX + 1, 16):
        block = bytes(size - b"".__sizeof__())
        while id(block) % POOL_BYTES != POOL_HEADER_BYTES and room > 0:
            kept.append(block)
            room -= size
            block = bytes(size - b"".__sizeof__())
    return kept


def _fill_large_holes() -> list[bytes]:
    """The same for what the C library places: half a MiB of holes, which would be an eighth of a
    MiB in each worker. What fits into none of them comes from beyond the end of the heap, once its
    last pages are given back."""
    if not hasattr(_libc, "sbrk"):
        return []
    trim()
    _libc.sbrk.restype = ctypes.c_void_p
    end = _libc.sbrk(ctypes.c_long(0)) or 0
    kept: list[bytes] = []
    room = HOLES_BYTES_MAX
    for size in (*range(LARGE_HOLE_BYTES, 4096, -1024), *range(4096, SMALL_BYTES_MAX, -16)):
        block = bytes(size - b"".__sizeof__())
        while id(block) < end and room > 0:
            kept.append(block)
            room -= size
            block = bytes(size - b"".__sizeof__())
    return kept


def forget_lookups() -> None:
    """Those of methods. Python remembers thousands, each with a reference to a name: whatever took
    such a place in a worker would write to the page of the old name."""
    if sys.version_info < (3, 12):  # since then references to names are not counted
        forget: Callable[[], None] = getattr(sys, "_clear_type_cache", _nothing)
        forget()


def _nothing() -> None:
    pass


_libc = ctypes.CDLL(None)
