import os
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from metamcp_supervisor.watched.usage import Part, sample

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


def test_a_process_below_two_roots_counts_for_the_nearest_one() -> None:
    with family() as (parent, child):
        found = sample({Part("worker", "git"): parent, Part("server", "git"): child})
        assert found[Part("server", "git")].rss_bytes > HELD_BYTES
        assert found[Part("worker", "git")].rss_bytes < HELD_BYTES
        assert found[Part("worker", "git")].pid == parent


def test_a_root_that_does_not_live_is_missing() -> None:
    with family() as (parent, _):
        gone = parent
    assert set(sample({"gone": gone, "none": 0, "me": os.getpid()})) == {"me"}


def test_without_a_free_descriptor_nothing_is_measured_and_nothing_raised() -> None:
    roots = {Part("supervisor"): os.getpid()}
    assert sample(roots)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert sample(roots) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
