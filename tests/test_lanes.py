"""What tests that run side by side, in lanes, need of their surroundings."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.gateway import ROOT, free_port

HANGS = """
import threading

def test_hangs():
    threading.Event().wait()
"""


def test_a_port_is_nobody_elses_and_can_be_listened_on_again_and_again() -> None:
    place = ("127.0.0.1", free_port())
    for _ in range(2):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(place)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place)
        with socket.create_server(place), socket.create_connection(place):
            pass
    assert free_port() != place[1]


@pytest.mark.parametrize("pid", [0, -1])
def test_a_signal_for_a_process_that_is_not_there_does_not_reach_the_lanes(pid: int) -> None:
    with pytest.raises(AssertionError, match="no process"):
        os.kill(pid, 0)


@pytest.mark.process
def test_a_test_that_takes_too_long_says_where_it_is_also_in_a_lane(tmp_path: Path) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(HANGS)
    options = ("-n", "1", "-p", "tests.conftest", "--timeout", "2", "--timeout-method", "thread")
    environ = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(file)],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "node down" in done.stdout
    assert 'test_one.py", line 5 in test_hangs' in done.stderr


@pytest.mark.process
def test_the_file_that_may_take_longest_begins_first(tmp_path: Path) -> None:
    test = "import pytest\n\n{mark}def test_it() -> None: ...\n"
    marks = {"a": "", "b": "@pytest.mark.timeout(300)\n", "c": "@pytest.mark.timeout(900)\n"}
    for name, mark in marks.items():
        (tmp_path / f"test_{name}.py").write_text(test.format(mark=mark))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    found = [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]
    assert found == ["test_c.py", "test_b.py", "test_a.py"]
