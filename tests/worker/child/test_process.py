"""How the command of a server becomes a process: which program, in which directory, with what."""

import json
import sys
from pathlib import Path

import pytest

from metamcp_worker.ipc.messages import LogLines, Spawned
from tests.worker.child.worker import RUN, ChildWorker

pytestmark = pytest.mark.process

SHUT_OUT = f"""
import os, sys
from metamcp_worker.child import run
os.chmod(".", 0)
if os.getuid() == 0:
    os.setuid(65534)
{RUN}
"""
"""A worker of a user that may not enter the directory it was started in."""

TROUBLED = f"""
import os, signal, sys
os.set_inheritable(int(sys.argv[1]), False)  # as the nursery does
os.umask(0o027)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
{RUN}
"""

FACTS = """
import json, os, re, signal, sys
status = open("/proc/self/status").read()
mask = lambda name: int(re.search(name + r":\\s*(\\w+)", status)[1], 16)
ignored = mask("SigIgn")
sys.stderr.write(json.dumps({
    "descriptors": sorted(
        int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)
    ),
    "ignored": [n for n in range(1, 32) if ignored >> (n - 1) & 1],
    "blocked": mask("SigBlk"),
    "umask": os.umask(0),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
}) + "\\n")
"""
PYTHON_IGNORES = [13, 25]
"""SIGPIPE and SIGXFSZ: the server itself does, as it runs on Python."""


def program(path: Path, content: str, mode: int = 0o755) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode())
    path.chmod(mode)
    return str(path)


@pytest.mark.promise("M18")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("echo without a first line", "is not a program: it has no '#!' line and is not a binary"),
        ("#!/no/such -x\n", "is there, but its '#!' line names '/no/such', which is not"),
        ("#!/bin/sh\r\n", r"is there, but its '#!' line names '/bin/sh\r', which is not; it ends"),
    ],
)
@pytest.mark.parametrize("by_name", [True, False])
def test_a_file_that_does_not_run_is_named_with_what_it_lacks(
    tmp_path: Path, content: str, message: str, by_name: bool
) -> None:
    script = program(tmp_path / "script", content)
    command, env = ("script" if by_name else script,), {"PATH": str(tmp_path)}
    with ChildWorker(command=command, env=env) as worker:
        assert f"cannot start fake: '{script}' {message}" in worker.down().message


@pytest.mark.parametrize(
    ("path", "cwd", "said"),
    [
        ("first:second", None, "first"),
        ("nowhere:second", None, "second"),
        ("plain:folder:broken:unloaded:second", None, "second"),
        ("first/prog:second", None, "second"),
        ("", "second", "second"),  # nothing between two colons is the directory
    ],
)
def test_the_first_program_on_the_path_of_the_server_that_runs_is_run(
    tmp_path: Path, path: str, cwd: str | None, said: str
) -> None:
    for name in ("first", "second"):
        program(tmp_path / name / "prog", f"#!/bin/sh\necho {name} >&2\n")
    program(tmp_path / "plain" / "prog", "#!/bin/sh\n", 0o644)
    program(tmp_path / "broken" / "prog", "no first line")
    program(tmp_path / "unloaded" / "prog", "#!/no/such\n")
    (tmp_path / "folder" / "prog").mkdir(parents=True)
    folders = ":".join(str(tmp_path / name) if name else "" for name in path.split(":"))
    where = None if cwd is None else str(tmp_path / cwd)
    with ChildWorker(command=("prog",), env={"PATH": f"{folders}:"}, cwd=where) as worker:
        worker.down()
        assert worker.logs["stderr"] == [said]


def test_a_server_has_its_directory_also_where_the_gateway_may_not_enter_its_own(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    worker = ChildWorker(command=("/bin/sh", "-c", "pwd >&2; cat"), cwd="/")
    worker.run, worker.folder = SHUT_OUT, closed
    try:
        with worker:
            worker.read(Spawned)
            assert worker.read(LogLines)[0].lines == ("/",)
    finally:
        closed.chmod(0o755)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_begins_with_three_descriptors_and_no_signals_of_its_worker() -> None:
    worker = ChildWorker(command=(sys.executable, "-c", FACTS))
    worker.run = TROUBLED
    with worker:
        worker.down()
        found = json.loads(worker.logs["stderr"][0])
    assert found == {
        "descriptors": [0, 1, 2],
        "ignored": PYTHON_IGNORES,
        "blocked": 0,
        "umask": 0o027,
        "leads": [True, True],
    }
