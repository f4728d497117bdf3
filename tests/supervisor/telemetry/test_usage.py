import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from metamcp_supervisor.telemetry.usage import (
    SHARES_MAX,
    WHOLE_LOOKS,
    FolderSizes,
    KnownProcesses,
    MeasuredProcess,
    Usage,
    sample,
)
from tests.live import processes
from tests.waiting import until

HELD_BYTES = 64 * 1024 * 1024
CHILD = (
    "import os, sys\n"
    f"held = bytearray(os.urandom(1) * {HELD_BYTES})\n"
    "print(os.getpid(), flush=True)\n"
    "sys.stdin.readline()\n"
)
PARENT = (
    "import subprocess, sys\n"
    "sum(range(5_000_000))\n"
    f"subprocess.run([sys.executable, '-c', {CHILD!r}])\n"
)


@contextmanager
def family() -> Generator[tuple[int, int], None, None]:
    """A process and its child; both end with the standard input that they share."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        yield parent.pid, int(parent.stdout.readline())
        parent.communicate(b"\n", timeout=20)


def test_a_root_counts_with_everything_below_it() -> None:
    with family() as (parent, child):
        both = sample({"tree": parent})["tree"]
        apart = sample({"parent": parent, "child": child})
        assert both.pid == parent
        assert both.rss_bytes > HELD_BYTES
        assert apart["child"].rss_bytes > HELD_BYTES > apart["parent"].rss_bytes
        assert both.cpu_s >= apart["parent"].cpu_s > 0


CHANGING = (
    "import os, time\n"
    "until = time.monotonic() + 60\n"
    "take, give = os.pipe()\n"
    "for _ in range(20):\n"
    "    if not os.fork():\n"
    "        while time.monotonic() < until:\n"
    "            os.read(take, 1)\n"
    "            os.waitpid(os.fork() or os._exit(0), 0)\n"
    "            os.write(give, b'.')\n"
    "print(flush=True)\n"
    "os.write(give, b'.')\n"
    "time.sleep(60)\n"
)
"""Twenty processes, of which each starts one when it is its turn, and waits for its end."""


def test_a_process_that_takes_the_place_of_another_during_a_look_is_not_counted_as_well() -> None:
    with subprocess.Popen([sys.executable, "-c", CHANGING], stdout=subprocess.PIPE) as changing:
        assert changing.stdout is not None
        changing.stdout.readline()
        counts = [sample({"all": changing.pid})["all"].processes for _ in range(1500)]
        for pid in [*processes.below(changing.pid), changing.pid]:
            with contextlib.suppress(ProcessLookupError):  # they go on changing
                os.kill(pid, signal.SIGKILL)
    assert set(counts) <= {21, 22}


LOOK = (
    "import sys, threading\n"
    "from metamcp_supervisor.telemetry.usage import sample\n"
    "from subprocess import Popen, PIPE\n"
    "import os\n"
    "opened = set()\n"
    "def start():\n"
    "    child = Popen(['cat'], stdin=PIPE)\n"
    "    begun.set()\n"
    "    over.wait()\n"
    "    child.communicate()\n"
    "begun, over = threading.Event(), threading.Event()\n"
    "thread = threading.Thread(target=start)\n"
    "thread.start()\n"
    "begun.wait()\n"
    "sys.addaudithook(lambda event, args: event == 'open' and opened.add(str(args[0])))\n"
    "found = sample({'own': os.getpid()})['own']\n"
    "looked = {name.split('/')[2] for name in opened if name.startswith('/proc/')}\n"
    "over.set()\n"
    "thread.join()\n"
    "print(found.processes, len(looked - {'thread-self'}))\n"
)


def test_only_processes_below_a_root_are_looked_at_whichever_thread_started_them() -> None:
    told = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, check=True, text=True)
    assert told.stdout.split() == ["2", "2"]


AGAIN = (
    "import os, signal, sys\n"
    "from metamcp_supervisor.telemetry.usage import KnownProcesses, sample\n"
    "from subprocess import Popen, PIPE\n"
    "opened = []\n"
    "child = Popen(['cat'], stdin=PIPE)\n"
    "child.send_signal(signal.SIGSTOP)\n"
    "os.waitpid(child.pid, os.WUNTRACED)\n"
    "known = KnownProcesses()\n"
    "sys.addaudithook(lambda event, args: event == 'open' and opened.append(args[0]))\n"
    "for look in range(6):\n"
    "    assert sample({'cat': child.pid}, None, known)['cat'].processes == 1\n"
    "    print(len(opened))\n"
    "    opened.clear()\n"
    "child.kill()\n"
)


def test_of_a_process_that_does_nothing_one_file_is_read_and_all_at_each_fifth_look() -> None:
    told = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, check=True, text=True)
    assert told.stdout.split() == ["2", "1", "1", "1", "2", "1"]


STARTING = (
    "import subprocess, sys\n"
    "print(flush=True)\n"
    "sys.stdin.readline()\n"
    "child = subprocess.Popen(['sleep', '60'])\n"
    "print(flush=True)\n"
    "sys.stdin.readline()\n"
    "child.kill()\n"
)


def test_a_process_that_is_started_between_two_looks_is_found_by_one_of_the_next_five() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        known = KnownProcesses()
        for processes in 1, 2:
            parent.stdout.readline()
            looks = [sample({"tree": parent.pid}, None, known)["tree"] for _ in range(WHOLE_LOOKS)]
            assert looks[-1].processes == processes
            parent.stdin.write(b"\n")
            parent.stdin.flush()


ORPHANED = (
    "import subprocess, sys\n"
    "from metamcp_worker.runtime import orphans\n"
    "orphans.become_subreaper()\n"
    "child = subprocess.Popen(['sh', '-c', 'sleep 60 & echo $$; wait'])\n"
    "sys.stdin.readline()\n"
    "orphans.sweep(())\n"
)


def test_a_process_whose_parent_ends_is_found_again_by_the_second_look() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None
        shell, known = int(root.stdout.readline()), KnownProcesses()
        for _ in range(2):
            assert sample({"tree": root.pid}, None, known)["tree"].processes == 3
        os.kill(shell, signal.SIGKILL)
        until(lambda: b") Z " in Path(f"/proc/{shell}/stat").read_bytes(), "it has ended")
        sample({"tree": root.pid}, None, known)
        last = sample({"tree": root.pid}, None, known)["tree"]
        root.communicate(b"\n", timeout=20)
    assert last.processes == 3, "the root, the one that ended and its child"


def test_a_process_below_two_roots_counts_for_the_nearest_one() -> None:
    with family() as (parent, child):
        found = sample(
            {MeasuredProcess("worker", "git"): parent, MeasuredProcess("server", "git"): child}
        )
        assert found[MeasuredProcess("server", "git")].rss_bytes > HELD_BYTES
        assert found[MeasuredProcess("worker", "git")].rss_bytes < HELD_BYTES
        assert found[MeasuredProcess("worker", "git")].pid == parent


FORKED = (
    "import os, sys\n"
    f"held = bytearray(os.urandom(1) * {HELD_BYTES})\n"
    "if not os.fork():\n"
    "    print(flush=True)\n"
    "sys.stdin.read()\n"
)


FOSTERED = (
    "import os, sys\n"
    f"for bytes in 1, {HELD_BYTES}:\n"
    "    if not os.fork():\n"
    "        held = bytearray(os.urandom(1) * bytes)\n"
    "        os.write(1, b'%d %d\\n' % (bytes, os.getpid()))\n"
    "        break\n"
    "sys.stdin.read()\n"
)


def test_a_daemon_that_fell_to_a_worker_counts_for_its_server() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FOSTERED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().split() for _ in range(2)]
        pids = {int(held): int(pid) for held, pid in lines}
        worker, server = MeasuredProcess("worker", "git"), MeasuredProcess("server", "git")
        found = sample({worker: parent.pid, server: pids[1]})
        hosted = sample({worker: parent.pid, server: 0})
        parent.communicate(timeout=20)
    assert (found[worker].processes, found[server].processes) == (1, 2)
    assert found[server].rss_bytes > HELD_BYTES > found[worker].rss_bytes
    assert hosted[worker].processes == 3


def test_pages_that_two_processes_share_count_once_where_one_looks_closely() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        roots = {"tree": parent.pid}
        roughly, closely = sample(roots)["tree"], sample(roots, {"tree": HELD_BYTES})["tree"]
        small = sample(roots, {"tree": 16 * HELD_BYTES})["tree"]
        parent.communicate(timeout=20)
    assert (roughly.processes, roughly.pss_bytes, small.pss_bytes) == (2, None, None)
    assert roughly.held_bytes == roughly.rss_bytes > 2 * HELD_BYTES
    assert HELD_BYTES < closely.held_bytes < 2 * HELD_BYTES


MANY = (
    "import os, sys\n"
    f"held = bytearray(os.urandom(1) * {HELD_BYTES})\n"
    f"if all(os.fork() for _ in range({SHARES_MAX})):\n"
    "    print(flush=True)\n"
    "sys.stdin.read()\n"
)


def test_shares_of_pages_are_read_for_a_few_processes_at_a_time_and_then_used() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MANY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        known = KnownProcesses()
        looks: list[Usage] = []
        for now in (1.0, 3.0, 5.0):
            looks.append(sample({"tree": parent.pid}, None, known)["tree"])
            known.share_pages(now)
        parent.communicate(timeout=20)
    assert (looks[0].processes, looks[0].pss_bytes) == (SHARES_MAX + 1, None)
    assert looks[0].held_bytes == looks[0].rss_bytes > SHARES_MAX * HELD_BYTES
    assert looks[1].held_bytes > 1.5 * HELD_BYTES, "one is resident, with the share of the others"
    assert HELD_BYTES < looks[2].held_bytes < 1.5 * HELD_BYTES


def test_a_root_that_does_not_live_is_missing() -> None:
    with family() as (parent, _):
        gone = parent
    assert set(sample({"gone": gone, "none": 0, "me": os.getpid()})) == {"me"}


def test_without_a_free_descriptor_nothing_is_measured_and_nothing_raised() -> None:
    roots = {MeasuredProcess("supervisor"): os.getpid()}
    assert sample(roots)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert sample(roots) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_folder_has_the_size_of_its_blocks_and_not_of_what_links_lead_to(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "own"
    for made in (elsewhere, folder / "deep" / "deeper"):
        made.mkdir(parents=True)
    (elsewhere / "large").write_bytes(bytes(1 << 20))
    (folder / "deep" / "deeper" / "file").write_bytes(bytes(64 << 10))
    (folder / "again").hardlink_to(folder / "deep" / "deeper" / "file")
    (folder / "link").symlink_to(elsewhere)
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert 64 << 10 <= FolderSizes().size(str(folder)) < 128 << 10
    assert FolderSizes().size(str(folder / "none")) == 0
