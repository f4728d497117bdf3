"""What is freed goes back to the system.

Owns: how the C library keeps large blocks. Never: how much memory anything may have.
"""

import ctypes

LARGE_BYTES = 1024 * 1024
"""Blocks from here on are mapped one by one, and unmapped when they are freed. Left to itself, the
GNU C library learns from the first large message to keep blocks of that size, and a process that
passed on 16 MiB once would hold tens of MiB for ever."""

_M_MMAP_THRESHOLD = -3


def give_back_large_blocks() -> bool:
    """For this process and those forked from it. False where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))


def trim() -> None:
    """Give back what is free already, so that those who are forked now do not share it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
