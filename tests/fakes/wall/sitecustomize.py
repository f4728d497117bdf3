"""A wall clock that can be put forward and back while programs run.

Imported by every Python that has this folder on its path, before anything else. The file that
$METAMCP_TEST_WALL names holds the seconds that the clock is ahead.
"""

import os
import time
from pathlib import Path

_TRUE = time.time


def _wall() -> float:
    return _TRUE() + float(_AHEAD.read_text())


if _file := os.environ.get("METAMCP_TEST_WALL"):
    _AHEAD = Path(_file)
    time.time = _wall
