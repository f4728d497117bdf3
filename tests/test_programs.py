"""A fork of `programs` answers as the program that is started."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import programs
from tests.worker.child import worker

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("status", "--json"), 5),
        (("config", "check", "--config", "-x"), 65),
        (("keys", "create", "a", "--state-dir", ".", "--scope", "no"), 2),
        (("call", "one__echo", "--args", "-"), 2),
    ],
)
def test_a_fork_says_and_returns_what_the_program_does(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [*programs.PROGRAM, *words]
    forked = programs.run(command, stdin="[1]", env=environ, cwd=tmp_path)
    started = subprocess.run(
        command, input="[1]", capture_output=True, text=True, timeout=60, check=False,
        env=environ, cwd=tmp_path,
    )  # fmt: skip
    assert forked.returncode == started.returncode == code, forked.stderr + started.stderr
    assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)


def test_forks_at_the_same_time_get_their_own_answers(tmp_path: Path) -> None:
    def unknown(number: int) -> str:
        return programs.run([*programs.PROGRAM, f"no-{number}"], cwd=tmp_path).stderr

    with ThreadPoolExecutor(8) as pool:
        said = [*pool.map(unknown, range(16))]
    assert [f"'no-{number}'" in text for number, text in enumerate(said)] == [True] * 16


def test_a_fork_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    words = ("wait", "--timeout", "60s", "--runtime-dir", str(tmp_path))
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run([*programs.PROGRAM, *words], timeout=0.3)
    assert programs.run([*programs.PROGRAM, "--version"]).returncode == 0


def test_what_counts_before_the_first_import_starts_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.exit('read at the start')\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = programs.run([*programs.PROGRAM, "--version"], env=environ)
    assert "read at the start" in done.stderr


def test_the_process_that_forks_is_not_below_the_test() -> None:
    """Not even below one that takes in orphans."""
    script = (
        "from metamcp_worker.runtime import orphans\n"
        "from tests import programs\n"
        "orphans.become_subreaper()\n"
        "done = programs.run([*programs.PROGRAM, '--version'])\n"
        "print(done.returncode, orphans.children())\n"
        "assert orphans.sweep(()) == 0\n"
        "print(programs.run([*programs.PROGRAM, '--version']).returncode)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False,
        cwd=programs.ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("0 set()\n0\n", 0), done.stderr


def test_a_forked_worker_has_its_socket_and_the_folder_of_the_test() -> None:
    with worker.ready_worker() as (running, front):
        assert front.text(front.tool("echo", text="here")) == "here"
        assert isinstance(running.process, programs.Worker)
        assert os.readlink(f"/proc/{running.process.pid}/cwd") == os.getcwd()
        names = [os.readlink(path) for path in Path(f"/proc/{running.process.pid}/fd").iterdir()]
        assert not [name for name in names if "pytest" in name], "nothing of the test but streams"
