"""Who speaks in the gateway's log, so that a level can be set: its rooms, and installed libraries.

Owns: whether there is one of this name, and the sentence when there is none. Never: levels (`told`,
`levels`), importing a library.
"""

import sys
from collections.abc import Iterable
from importlib.util import find_spec

from metamcp_worker.ipc.records import ROOMS

_OF_PYTHON = frozenset({"asyncio", "concurrent"})
"""What of the standard library speaks in the gateway."""
_OURS = ("metamcp", "metamcp_supervisor", "metamcp_worker")


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Those that nobody has, each with what is wrong."""
    rooms = ", ".join(sorted(ROOMS))
    what = f"is neither a room of the gateway nor an installed library; the rooms are: {rooms}"
    return {name: what for name in names if name not in ROOMS and not _is_library(name)}


def _is_library(name: str) -> bool:
    """The logger of one has the name of its package, or begins with it and a dot."""
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return package in _OF_PYTHON
    if package in _OURS or package.startswith("_") or not package.isidentifier():
        return False
    try:
        return find_spec(package) is not None
    except ValueError:  # it is there already, and has no file
        return True
