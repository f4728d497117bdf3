"""Tables on a terminal that is too narrow for them."""

import os
import pty
import subprocess
import sys

SCRIPT = """
from metamcp_supervisor.cli.show import Picture, picture
columns = ("ENDPOINT", "EXPOSURE", "START", "SAVED", "ALL", "TOOLSET", "SERVERS", "SEARCH")
rows = [("default", "search", "107949", "107078", "107949", "770", "333", "871")]
picture(Picture(columns, rows, right=frozenset(columns[2:]), sentences=False))
"""
BYTES_MAX = 65536


def test_a_number_is_never_broken_into_two() -> None:
    ours, its = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"}
    subprocess.run([sys.executable, "-c", SCRIPT], stdout=its, env=environ, check=True, timeout=60)
    os.close(its)
    shown = os.read(ours, BYTES_MAX).decode()
    os.close(ours)
    assert "SEARCH" not in shown  # its heading is: it is too narrow for all of them
    assert shown.split().count("107949") == 2
    assert {"107078", "770", "333", "871"} <= set(shown.split())
