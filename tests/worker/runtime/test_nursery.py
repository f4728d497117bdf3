"""The nursery as a process of its own, driven by packets over its socket."""

import os
import resource
import select
import signal
import subprocess
import sys
import tempfile

import pytest

from metamcp_worker.ipc import messages, packets
from metamcp_worker.ipc.messages import Forked, ForkFailed, Halted, Resumed, Tune
from metamcp_worker.runtime.after_fork import STACKS_SIGNAL
from metamcp_worker.runtime.memory import GC_OBJECTS
from metamcp_worker.runtime.nursery import BACKLOG_PACKETS_MAX
from tests.fakes.nursery_hand import ROLES, THREADED, Hand, facts, litter, said, sleepers, tasks
from tests.live.processes import alive, below, descriptors
from tests.waiting import until

pytestmark = pytest.mark.process


def test_workers_are_processes_of_their_own() -> None:
    with Hand() as nursery:
        assert nursery.born().pid == nursery.pid
        pid, sock = nursery.fork("a-rather-long-name")
        other, second = nursery.fork("web", "front")
        with sock, second:
            found = facts(sock)
            assert found["parent"] == nursery.pid
            assert found["session"] == pid
            assert found["name"] == "mmcp:a-rather-long-name"[:15]
            assert found["subreaper"]
            assert found["oom_score_adj"] >= facts(second)["oom_score_adj"]
            assert found["dice"] != facts(second)["dice"]
            assert other != pid


def test_a_worker_inherits_no_signal_handling_and_no_descriptor_of_the_nursery() -> None:
    with Hand() as nursery:
        nursery.born()
        _, sock = nursery.fork()
        with sock:
            found = facts(sock)
            assert found["ignored"] == ["SIGPIPE", "SIGXFSZ"]
            assert found["handled"] == []
            assert found["blocked"] == []
            ours = [name for name in found["descriptors"] if name.startswith(("socket", "pipe"))]
            assert len(ours) == 2  # its control socket, and the stderr that this test reads


def test_the_collector_of_a_worker_leaves_alone_what_it_shares_and_looks_seldom() -> None:
    with Hand() as nursery:
        nursery.born()
        _, sock = nursery.fork()
        with sock:
            found = facts(sock)
            assert found["frozen"] > 1000
            assert found["collects_at"] == GC_OBJECTS


def test_a_module_that_cannot_be_preloaded_is_reported_and_not_fatal() -> None:
    with Hand() as nursery:
        (missing,) = nursery.born().missing
        assert missing.startswith("no_module_of_this_name: ModuleNotFoundError: No module named")
        _, sock = nursery.fork()
        sock.close()


def test_the_nursery_forks_with_one_task() -> None:
    with Hand() as nursery:
        nursery.born()
        assert tasks(nursery.pid) == 1


def test_a_nursery_with_a_thread_refuses_to_fork() -> None:
    with Hand(THREADED) as nursery:
        nursery.born()
        nursery.ask().close()
        refused = nursery.heard()
        assert isinstance(refused, ForkFailed)
        assert "runs 2 threads" in refused.reason


def test_a_fork_without_free_descriptors_fails_and_the_next_one_works() -> None:
    with Hand() as nursery:
        nursery.born()
        usual = resource.prlimit(nursery.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(nursery.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        nursery.ask("git").close()
        refused = nursery.heard()
        assert isinstance(refused, ForkFailed)
        assert "no free descriptors for git" in refused.reason
        resource.prlimit(nursery.pid, resource.RLIMIT_NOFILE, usual)
        _, sock = nursery.fork()
        sock.close()


def test_an_order_that_makes_no_sense_is_refused_or_ignored() -> None:
    with Hand() as nursery:
        nursery.born()
        nursery.ask("git", role="cook").close()
        refused = nursery.heard()
        assert isinstance(refused, ForkFailed)
        assert "git has the role 'cook'" in refused.reason
        packets.send(nursery.sock, messages.pack(messages.Fork(ticket=9, role="child", name="web")))
        assert isinstance(nursery.heard(), ForkFailed)
        packets.send(nursery.sock, b"{}")
        _, sock = nursery.fork()
        sock.close()


def test_a_nursery_speaks_at_the_levels_that_it_is_told_and_its_next_workers_begin_so() -> None:
    def tune(level: str, **levels: str) -> None:
        order = Tune(format="text", level=level, levels=levels)
        packets.send(nursery.sock, messages.pack(order))
        packets.send(nursery.sock, b"{}")

    with Hand() as nursery:
        nursery.born()
        tune("critical")
        tune("critical", nursery="error")
        _, sock = nursery.fork()
        with sock:
            packets.send(sock, b"raise what it is")
            nursery.exit()
        _, errors = nursery.end()
    assert errors.count("error   nursery: ignored a packet that is not an order") == 1
    assert "critical nursery: git ends: it has a fault" in errors


def test_a_nursery_whose_log_is_on_a_full_disk_goes_on() -> None:
    full = ("sh", "-c", 'exec "$@" 2>/dev/full', "sh", *ROLES)
    with Hand(full) as nursery:
        nursery.born()
        packets.send(nursery.sock, b"{}")
        _, sock = nursery.fork()
        sock.close()


@pytest.mark.parametrize(
    ("order", "code"), [("exit 0", 0), ("exit 7", 7), ("raise what it is", os.EX_SOFTWARE)]
)
def test_the_exit_code_of_a_worker_is_told(order: str, code: int) -> None:
    with Hand() as nursery:
        nursery.born()
        pid, sock = nursery.fork()
        with sock:
            packets.send(sock, order.encode())
            report = nursery.exit()
        assert (report.pid, report.code, report.signal, report.orphans) == (pid, code, 0, 0)
        _, errors = nursery.end()
        assert ("RuntimeError: what it is" in errors) == (code == os.EX_SOFTWARE)


@pytest.mark.promise("M73")
def test_a_worker_that_spins_writes_its_stacks_into_the_file_that_came_with_the_order() -> None:
    with Hand() as nursery, tempfile.TemporaryFile() as file:
        nursery.born()
        pid, sock = nursery.fork(stacks=file.fileno())
        with sock:
            packets.send(sock, b"spin on")
            assert said(sock) == b"spins"
            nursery.signal(pid, STACKS_SIGNAL)
            until(lambda: b"nursery_worker.py" in os.pread(file.fileno(), 65536, 0), "its stacks")
            nursery.signal(pid, signal.SIGABRT)
            assert nursery.exit().signal == signal.SIGABRT
        _, errors = nursery.end()
        written = os.pread(file.fileno(), 65536, 0)
    assert b"Fatal Python error: Aborted" in written
    assert "most recent call first" not in errors


def test_a_worker_without_such_a_file_writes_its_stacks_to_stderr() -> None:
    with Hand() as nursery:
        nursery.born()
        pid, sock = nursery.fork()
        with sock:
            nursery.signal(pid, signal.SIGABRT)
            assert nursery.exit().pid == pid
        assert "Fatal Python error: Aborted" in nursery.end()[1]


def test_a_stopped_worker_is_told_and_so_is_its_resumption() -> None:
    with Hand() as nursery:
        nursery.born()
        pid, sock = nursery.fork()
        with sock:
            os.kill(pid, signal.SIGSTOP)
            assert nursery.heard() == Halted(pid=pid)
            nursery.signal(pid, signal.SIGCONT)
            assert nursery.heard() == Resumed(pid=pid)


def test_signals_reach_only_workers_of_the_nursery() -> None:
    bystander = subprocess.Popen(["sleep", "1000"])
    with Hand() as nursery:
        nursery.born()
        pid, sock = nursery.fork()
        with sock:
            nursery.signal(bystander.pid, signal.SIGKILL)
            nursery.signal(nursery.pid, signal.SIGKILL)
            nursery.signal(pid, signal.SIGTERM)
            report = nursery.exit()
        assert (report.pid, report.code, report.signal) == (pid, None, signal.SIGTERM)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.promise("M74")
def test_a_killed_worker_takes_wrappers_daemons_and_stopped_grandchildren_with_it() -> None:
    with Hand() as nursery:
        nursery.born()
        pid, sock = nursery.fork()
        other, second = nursery.fork()
        with sock, second:
            litter(second, "setsid")
            litter(sock, "plain", "setsid", "wrapped", "daemon")
            until(lambda: len(sleepers(below(pid))) == 4, "four sleepers")
            doomed = below(pid)
            os.kill(max(doomed), signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            report = nursery.exit()
            assert not alive(doomed)
            assert (report.pid, report.signal) == (pid, signal.SIGKILL)
            assert report.orphans == len(doomed) == 6  # four sleepers and two shells
            assert below(nursery.pid) == {other} | below(other)
            assert len(below(other)) == 1


def test_a_daemon_of_a_living_worker_stays_below_it() -> None:
    with Hand() as nursery:
        nursery.born()
        pid, sock = nursery.fork()
        other, second = nursery.fork()
        with sock, second:
            litter(sock, "daemon")
            until(lambda: len(sleepers(below(pid))) == 1, "the daemon's sleeper")
            packets.send(second, b"exit 0")
            report = nursery.exit()
            assert (report.pid, report.orphans) == (other, 0)
            assert len(sleepers(below(pid))) == 1


@pytest.mark.promise("M74")
def test_workers_die_with_their_nursery() -> None:
    with Hand() as nursery:
        nursery.born()
        running, first = nursery.fork()
        stopped, second = nursery.fork()
        with first, second:
            os.kill(stopped, signal.SIGSTOP)
            assert nursery.heard() == Halted(pid=stopped)
            os.kill(nursery.pid, signal.SIGKILL)
            until(lambda: not alive({running, stopped}), "both workers dead")


@pytest.mark.promise("M74")
def test_a_supervisor_that_dies_with_unread_news_is_noticed() -> None:
    # The kernel gives the nursery ECONNRESET then, and no end of file.
    with Hand() as nursery:
        first, second = nursery.ask(), nursery.ask()
        until(lambda: len(below(nursery.pid)) == 2, "both workers")
        doomed = below(nursery.pid)
        code, _ = nursery.end()
        first.close()
        second.close()
        assert code == 0
        assert not alive(doomed)


def test_signals_of_a_terminal_or_a_service_do_not_end_the_nursery() -> None:
    with Hand() as nursery:
        nursery.born()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(nursery.pid, number)
        _, sock = nursery.fork()
        sock.close()


def test_a_supervisor_that_does_not_read_is_waited_for_and_loses_nothing() -> None:
    many, asked = 8 * BACKLOG_PACKETS_MAX, 0
    with Hand() as nursery:
        nursery.born()
        while asked < many and select.select([], [nursery.sock], [], 1.0)[1]:
            asked += 1
            order = messages.Fork(ticket=asked, role="none", name="git")
            packets.send(nursery.sock, messages.pack(order))
        assert BACKLOG_PACKETS_MAX < asked < many  # it has stopped to take orders
        for ticket in range(1, asked + 1):
            refused = nursery.heard()
            assert isinstance(refused, ForkFailed)
            assert refused.ticket == ticket
        _, sock = nursery.fork()
        sock.close()


def test_fifty_workers_leave_no_descriptor_and_no_process_behind() -> None:
    with Hand() as nursery:
        nursery.born()
        before = descriptors(nursery.pid)
        for _ in range(50):
            with nursery.ask(role="brief"):
                forked, report = nursery.heard(), nursery.exit()
            assert isinstance(forked, Forked)
            assert (report.pid, report.code) == (forked.pid, 3)
        assert descriptors(nursery.pid) == before
        assert below(nursery.pid) == set()


@pytest.mark.parametrize("words", [(), ("cook",), ("nursery",), ("nursery", "--fd", "x")])
def test_the_command_line_tells_how_it_is_used(words: tuple[str, ...]) -> None:
    command = (sys.executable, "-m", "metamcp_worker", *words)
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert found.returncode == os.EX_USAGE
    assert found.stderr.startswith("usage: python -m metamcp_worker")


def test_the_first_word_of_a_worker_arrives_after_the_answer_to_its_fork() -> None:
    with Hand() as nursery:
        nursery.born()
        with nursery.ask() as sock:
            assert isinstance(nursery.heard(), Forked)
            assert said(sock) == b"hello"
