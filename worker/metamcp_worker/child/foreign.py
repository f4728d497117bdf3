"""What a worker is before code of others runs in it: a server object, a transport.

Owns: what of the nursery such code must not find as it was left. Never: the code, its environment.
"""

import os

from metamcp_worker.runtime import memory

KEY_BYTES = 32


def prepare() -> None:
    """Before the first import of it.

    The nursery made one key of `multiprocessing` for all its workers; with it the code of one
    server could speak to the processes of another. And what a call of ours leaves is no cycle, but
    of others' code nobody knows: the collector looks as often as anywhere else.
    """
    import multiprocessing  # not in the nursery: only such code wants it

    multiprocessing.current_process().authkey = os.urandom(KEY_BYTES)
    memory.collect_as_usual()
