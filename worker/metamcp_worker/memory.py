"""What is freed goes back to the system.

Owns: how the C library keeps large blocks. Never: how much memory anything may have.
"""

import ctypes
import mmap

LARGE_BYTES = 1024 * 1024
"""Blocks from here on are mapped one by one, and unmapped when they are freed. Left to itself, the
GNU C library learns from the first large message to keep blocks of that size, and a process that
passed on 16 MiB once would hold tens of MiB for ever."""

SMALL_BYTES_MAX = 512
"""What Python places itself; larger blocks are the C library's."""
POOL_BYTES, POOL_HEADER_BYTES = 16 * 1024, 48
HOLES_BYTES_MAX = 2 * 1024 * 1024
"""Where pools look otherwise, this is all that is lost."""

_M_MMAP_THRESHOLD = -3


def give_back_large_blocks() -> bool:
    """For this process and those forked from it. False where the C library has no such setting."""
    if not hasattr(_libc, "mallopt"):
        return False
    return bool(_libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))


def trim() -> None:
    """Give back what is free already, however small the pieces are that it was freed in."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def fill_holes() -> list[bytes]:
    """Take every free place between small objects that live: the caller keeps what is returned.

    A process that is forked now puts its own objects on pages of their own then, instead of into
    such holes, each on a page that it shared until that moment. Importing leaves some hundred
    kilobytes of them, and more where modules are compiled first. Python has pools of 16 KiB for
    objects of one size; the first object of a fresh pool says that the holes of this size are used
    up.
    """
    kept: list[bytes] = []
    room = HOLES_BYTES_MAX
    for size in range(48, SMALL_BYTES_MAX + 1, 16):
        block = bytes(size - b"".__sizeof__())
        while id(block) % POOL_BYTES != POOL_HEADER_BYTES and room > 0:
            kept.append(block)
            room -= size
            block = bytes(size - b"".__sizeof__())
    return kept


def give_back_zeros(thing: object) -> int:
    """The pages of `thing` itself that hold nothing but zeros: its memory stays, and reads the
    same, but costs nothing until it is written to. How many bytes that are. Only for a process
    with one thread: what another one wrote meanwhile would be lost.

    An event loop of uvloop has a buffer of 250 kB for transports, and a worker has none of them.
    """
    page = mmap.PAGESIZE
    start = -(-id(thing) // page) * page
    end = (id(thing) + type(thing).__basicsize__) // page * page
    if end <= start or not hasattr(_libc, "madvise"):
        return 0
    blank = bytes(page)
    given = 0
    for at in range(start, end, page):
        if ctypes.string_at(at, page) == blank:
            where, length = ctypes.c_void_p(at), ctypes.c_size_t(page)
            given += not _libc.madvise(where, length, mmap.MADV_DONTNEED)
    return given * page


_libc = ctypes.CDLL(None)
