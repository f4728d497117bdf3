"""The book of workers, with values: what is told, in which order, how often."""

from metamcp_supervisor.processes.workers import WorkerTable
from metamcp_worker.ipc.messages import WorkerExit


class Book:
    def __init__(self) -> None:
        self.told: list[object] = []
        self.workers = WorkerTable(self.told.append, lambda pid, yes: self.told.append((pid, yes)))


def ended(pid: int) -> WorkerExit:
    return WorkerExit(pid=pid, code=0)


def test_the_end_of_a_worker_waits_until_its_caller_has_it() -> None:
    book = Book()
    book.workers.expect(7)
    book.workers.on_halt(7, True)
    book.workers.on_exit(ended(7))
    assert book.told == []
    for news in book.workers.claim(7):
        news()
    assert book.told == [(7, True), ended(7)]
    assert book.workers.pids() == []


def test_an_end_is_told_once() -> None:
    book = Book()
    book.workers.expect(7)
    book.workers.on_exit(ended(7))
    waiting = book.workers.claim(7)
    book.workers.on_exit(WorkerExit(pid=7, signal=9, with_nursery=True))
    for news in waiting:
        news()
    book.workers.on_exit(ended(7))
    assert book.told == [WorkerExit(pid=7, signal=9, with_nursery=True)]


def test_nobody_is_told_of_a_worker_that_was_disowned_or_never_known() -> None:
    book = Book()
    book.workers.expect(7)
    book.workers.on_exit(ended(7))
    book.workers.disown(7)
    for pid in (7, 8):
        book.workers.on_halt(pid, True)
        book.workers.on_exit(ended(pid))
    assert book.told == []


def test_a_pid_that_is_given_out_again_is_another_worker() -> None:
    book = Book()
    for _ in range(2):
        book.workers.expect(7)
        assert book.workers.claim(7) == []
        assert book.workers.pids() == [7]
        book.workers.on_exit(ended(7))
    assert book.told == [ended(7), ended(7)]
