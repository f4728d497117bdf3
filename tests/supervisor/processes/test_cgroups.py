"""Leaves of control groups: in a folder that looks like the kernel's, and in the kernel."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from metamcp_supervisor.processes import cgroups
from metamcp_supervisor.processes.cgroups import Cgroups, Leaf
from metamcp_supervisor.processes.limits import Limits
from metamcp_supervisor.servers.bounds import LimitEnforcer
from metamcp_supervisor.telemetry.journal import Journal
from tests.waiting import until

MIB = 1024 * 1024
LIMITS = Limits(memory_high=400 * MIB, memory_max=512 * MIB, processes_max=10, cpu_max=1.5)
FILES = ("memory.high", "memory.max", "memory.oom.group", "pids.max", "cpu.max", "cgroup.procs")
KERNEL = Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")


def group(path: Path, **files: str) -> Path:
    """A group with these files, as the kernel makes them: a dot is written as two underscores."""
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


def written(leaf: Path) -> dict[str, str]:
    return {name: text for name in FILES if (text := (leaf / name).read_text())}


def delegate(path: Path) -> None:
    """As systemd marks a unit with `Delegate=`."""
    try:
        os.setxattr(path, "user.delegate", b"1")
    except OSError:
        pytest.skip("the file system of the test has no extended attributes")


def machine(folder: Path, own: str) -> tuple[Path, Path]:
    """A mount of control groups, and the file in which a process finds its own one."""
    mounts = group(folder / "cgroup", cgroup__controllers="memory", cgroup__subtree_control="")
    group(mounts / "unit", cgroup__subtree_control="")
    group(mounts / "unit" / "main", cgroup__subtree_control="")
    found = folder / "self"
    found.write_text(f"3:cpu:/elsewhere\n0::{own}\n")
    return mounts, found


def test_a_kill_that_was_counted_long_before_is_not_the_reason_of_an_end(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 4\n")
    (tmp_path / "memory.current").write_text("5")
    (tmp_path / "memory.max").write_text("max")
    bounds = LimitEnforcer(None, Journal(lambda: 0.0), cgroups.MemoryCgroup(tmp_path))
    assert bounds.crowded_out(SIGKILL) == ""
    (tmp_path / "memory.events").write_text("oom_kill 6\n")
    bounds.look()
    assert bounds.crowded_out(SIGTERM) == ""
    assert "was out of memory" in bounds.crowded_out(SIGKILL)
    bounds.look()
    assert bounds.crowded_out(SIGKILL) == ""


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        (
            "4:memory:/a\n0::/\n",
            {"memory/a/memory.oom_control": "under_oom 0\noom_kill 2\n",
             "memory/a/memory.usage_in_bytes": "10\n", "memory/a/memory.limit_in_bytes": "20\n"},
            (10, 20, 2),
        ),
        (
            "0::/b\n",
            {"b/memory.events": "oom_kill 3\n", "b/memory.current": "7\n",
             "b/memory.max": "max\n"},
            (7, None, 3),
        ),
        (
            "4:memory:/elsewhere\n",  # as in a container
            {"memory/memory.oom_control": "oom_kill 0\n", "memory/memory.usage_in_bytes": "1\n",
             "memory/memory.limit_in_bytes": "9223372036854771712\n"},
            (1, None, 0),
        ),
        ("0::/c\n", {}, None),
    ],
)  # fmt: skip
def test_the_memory_of_the_group_of_a_process_is_read_in_both_versions(
    tmp_path: Path, lines: str, files: dict[str, str], expected: tuple[int, int | None, int] | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = tmp_path / "own"
    own.write_text(lines)
    group = cgroups.find_memory_group(tmp_path, own)
    assert (None if group is None else group.memory()) == expected


def test_a_leaf_has_the_limits_of_its_server_and_gets_new_ones(tmp_path: Path) -> None:
    path = group(tmp_path / "server-git-3")
    for name in FILES:
        (path / name).touch()
    leaf = Cgroups(tmp_path).leaf("git", 3, LIMITS)
    assert leaf.path == path
    assert written(path) == {
        "memory.high": "419430400", "memory.max": "536870912", "memory.oom.group": "1",
        "pids.max": "10", "cpu.max": "150000 100000",
    }  # fmt: skip
    leaf.limit(Limits(memory_max=MIB))
    assert written(path) == {
        "memory.high": "max", "memory.max": "1048576", "memory.oom.group": "1",
        "pids.max": "max", "cpu.max": "max 100000",
    }  # fmt: skip


def test_a_leaf_without_controllers_is_made_and_limits_nothing(tmp_path: Path) -> None:
    leaf = Cgroups(tmp_path).leaf("git", 1, LIMITS)
    assert list(leaf.path.iterdir()) == []
    assert (leaf.memory_bytes(), leaf.oom_kills(), leaf.processes()) == (None, 0, [])
    assert not leaf.kill()
    assert leaf.remove()
    assert leaf.remove()


def test_a_leaf_tells_what_it_holds_and_what_happened_in_it(tmp_path: Path) -> None:
    path = group(
        tmp_path / "leaf", memory__current="900\n", memory__stat="anon 100\ninactive_file 300\n",
        memory__events="low 0\noom 2\noom_kill 1\n", cgroup__procs="12\n13\n",
    )  # fmt: skip
    leaf = Leaf(path)
    assert (leaf.memory_bytes(), leaf.oom_kills(), leaf.processes()) == (600, 1, [12, 13])
    assert not leaf.remove()  # it is in use


@pytest.mark.parametrize(("own", "marked"), [("/unit", "unit"), ("/unit/main", "unit")])
def test_a_delegated_group_is_found_also_from_a_group_below(
    tmp_path: Path, own: str, marked: str
) -> None:
    mounts, found = machine(tmp_path, own)
    delegate(mounts / marked)
    cgroup = cgroups.find_delegated(mounts, found)
    assert cgroup is not None
    assert cgroup.root == mounts / marked


@pytest.mark.parametrize("own", ["/unit", "/unit/main", "/", "/../x", "/gone"])
def test_a_group_that_nobody_gave_us_is_left_alone(tmp_path: Path, own: str) -> None:
    mounts, found = machine(tmp_path, own)
    assert cgroups.find_delegated(mounts, found) is None
    assert cgroups.find_delegated(mounts, tmp_path / "none") is None
    assert cgroups.find_delegated(tmp_path / "none", found) is None


def test_processes_of_the_gateway_leave_the_group_that_limits_its_children(tmp_path: Path) -> None:
    root = group(
        tmp_path / "unit", cgroup__procs="41\n", cgroup__controllers="cpu io memory\n",
        cgroup__subtree_control="",
    )  # fmt: skip
    group(root / "gateway", cgroup__procs="")
    group(root / "server-old-1")
    ours = Cgroups(root)
    ours.adopt()
    assert (root / "gateway" / "cgroup.procs").read_text() == "41"
    assert ours.controllers == {"cpu", "memory"}
    assert not (root / "server-old-1").exists()


def test_a_limit_that_nobody_enforces_is_told(tmp_path: Path) -> None:
    ours = Cgroups(tmp_path)
    assert "cpu_max is not enforced" in cgroups.find_unenforced_limit(LIMITS, None)
    assert "Delegate=cpu" in cgroups.find_unenforced_limit(LIMITS, ours)
    ours.controllers = frozenset({"cpu"})
    assert cgroups.find_unenforced_limit(LIMITS, ours) == ""
    assert cgroups.find_unenforced_limit(Limits(memory_max=MIB), None) == ""


@pytest.fixture
def real() -> Iterator[Cgroups]:
    """A group of the kernel's, made by this test and removed with it."""
    top = next((path for path in KERNEL if (path / "cgroup.controllers").exists()), None)
    if top is None or not os.access(top, os.W_OK):
        pytest.skip("no control groups of version 2 in which this user may make one")
    path = top / f"metamcp-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield Cgroups(path)
    for below in path.glob("*/"):
        with suppress(OSError):
            below.rmdir()
    path.rmdir()


@pytest.mark.process
@pytest.mark.promise("M74")
def test_the_kernel_ends_a_whole_leaf_at_once(real: Cgroups) -> None:
    real.adopt()
    leaf = real.leaf("git", 1, LIMITS)
    script = "setsid sleep 600 & echo; exec sleep 600"
    with subprocess.Popen(["sh", "-c", f"read x; {script}"], stdin=-1, stdout=-1) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        (leaf.path / "cgroup.procs").write_text(str(server.pid))
        server.stdin.write(b"\n")
        server.stdin.flush()
        assert server.stdout.readline() == b"\n"
        assert len(leaf.processes()) == 2
        assert not leaf.remove()
        assert leaf.kill()
        assert server.wait(10) == -9
    until(lambda: leaf.processes() == [], "the daemon is gone as well")
    until(leaf.remove, "the empty leaf can be removed")
