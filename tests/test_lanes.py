"""What tests that run side by side, in lanes, need of their surroundings."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import DURATIONS, PURE, REAL
from tests.live.gateway import ROOT, free_port

HANGS = """
import threading

def test_hangs():
    threading.Event().wait()
"""
STOPS = """
import os, signal

def test_stops():
    os.kill(os.getpid(), signal.SIGSTOP)

def test_after() -> None: ...
"""
FAILS_ONCE = """
import os
from pathlib import Path

def test_it():
    with Path(os.environ["RUNS"]).open("a+") as runs:
        runs.write("x")
        runs.seek(0)
        assert runs.read() != "xx", "the second one"
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
    options = ("-n", "1", "-p", "tests.conftest", "--timeout", "2")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(file)],
        cwd=tmp_path,
        env={**quiet(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "node down" in done.stdout
    assert 'test_one.py", line 5 in test_hangs' in done.stderr


@pytest.mark.process
def test_a_lane_that_hangs_ends_the_run_and_names_its_test(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(STOPS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", "2", "test_one.py"],
        cwd=tmp_path,
        env={**quiet(), "PYTHONPATH": str(ROOT), "METAMCP_LANE_S_MAX": "2"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert "A lane hangs in test_one.py::test_stops." in done.stderr
    assert "T (stopped)" in done.stderr


def quiet() -> dict[str, str]:
    """The environment without what make and this run of the tests were told, and without plugins
    that take as long to import as all the rest."""
    told = ("MAKE", "PYTEST_", "METAMCP_")
    others = {key: text for key, text in os.environ.items() if not key.startswith(told)}
    return others | {"PYTEST_ADDOPTS": "-p no:anyio -p no:schemathesis"}


def collected(folder: Path, *options: str) -> list[str]:
    """The files whose tests pytest chooses, in the order of the lanes."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "--quiet"),
            *("--rootdir", str(folder), *options),
        ],
        cwd=folder,
        env={**quiet(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.process
def test_the_file_that_takes_longest_begins_first(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in "abcd":
        (tests / f"test_{name}.py").write_text("def test_it() -> None: ...\n")
    (tests / "durations.json").write_text(
        json.dumps({"tests/test_a.py": 2, "tests/test_b.py": 7, "tests/test_d.py": 90})
    )
    assert collected(tmp_path) == [f"tests/test_{name}.py" for name in "dbca"]


@pytest.mark.process
def test_lanes_of_real_processes_import_only_files_that_have_some(tmp_path: Path) -> None:
    (tmp_path / "test_pure.py").write_text("raise AssertionError('it is imported')\n")
    text = "import pytest\n\n@pytest.mark.{}\ndef test_it() -> None: ...\n"
    for mark in ("live", "process"):
        (tmp_path / f"test_{mark}.py").write_text(text.format(mark))
    assert collected(tmp_path, "-m", REAL) == ["test_live.py", "test_process.py"]


@pytest.mark.process
def test_pure_lanes_do_not_import_files_whose_tests_all_have_real_processes(tmp_path: Path) -> None:
    all_marked = "import pytest\n\npytestmark = {}\nraise AssertionError('it is imported')\n"
    (tmp_path / "test_live.py").write_text(all_marked.format("pytest.mark.live"))
    listed = all_marked.format('[\n    pytest.mark.promise("M1"),\n    pytest.mark.process,\n]')
    (tmp_path / "test_process.py").write_text(listed)
    both = "import pytest\n\n@pytest.mark.live\ndef test_it() -> None: ...\n"
    (tmp_path / "test_both.py").write_text(f"{both}def test_pure() -> None: ...\n")
    assert collected(tmp_path, "-m", PURE) == ["test_both.py"]


def test_the_durations_are_those_of_files_that_exist() -> None:
    seconds = json.loads((ROOT / DURATIONS).read_text())
    assert [path for path in seconds if not (ROOT / path).exists()] == []


@pytest.mark.process
def test_a_file_that_is_run_again_and_again_shows_the_run_that_failed(tmp_path: Path) -> None:
    file = tmp_path / "test_second.py"
    file.write_text(FAILS_ONCE)
    done = subprocess.run(
        ["make", "--no-print-directory", "flaky", "N=3", "LANES=1", f"FILE={file}"],
        cwd=ROOT,
        env={**quiet(), "RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert re.findall(r"^ +(\d)  (\w+)  ", done.stdout, re.MULTILINE) == [
        ("1", "passed"),
        ("2", "failed"),
        ("3", "passed"),
    ]
    assert "AssertionError: the second one" in done.stdout
    assert done.stdout.endswith("1 of 3 runs failed\n")


def make(folder: Path, *words: str) -> str:
    """What `make` prints of this Makefile in a folder."""
    command = ["make", "--no-print-directory", "--file", str(ROOT / "Makefile"), *words]
    return subprocess.run(
        command, cwd=folder, env=quiet(), capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_a_nightly_test_runs_at_a_merge_only_if_one_of_its_inputs_changed(tmp_path: Path) -> None:
    dockerfile = tmp_path / "deploy/Dockerfile"
    for name in ("deploy/Dockerfile", "tests/packages/test_image.py", "tests/passed.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    left_out = ("--eval", "left-out: ; @echo $(LEFT_OUT)", "left-out")
    assert make(tmp_path, *left_out).split() == []
    passed = make(tmp_path, "--eval", "passed: ; @echo '$(call passed,image)'", "passed")
    (tmp_path / "tests/passed.txt").write_text(passed)
    assert make(tmp_path, *left_out).split() == ["--ignore=tests/packages/test_image.py"]
    assert make(tmp_path, "ALL=1", *left_out).split() == []
    dockerfile.write_text("FROM scratch\n")
    assert make(tmp_path, *left_out).split() == []


def test_the_inputs_of_nightly_tests_exist() -> None:
    files = "$($(name)_test) $($(name)_inputs)"
    inputs = make(
        ROOT, "--eval", f"inputs: ; @echo $(foreach name,$(NIGHTLY),{files})", "inputs"
    ).split()
    assert len(inputs) > 10
    assert [path for path in inputs if not (ROOT / path).exists()] == []
