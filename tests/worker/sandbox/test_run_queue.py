"""Whose turn it is."""

from metamcp_worker.sandbox.run_queue import WAITING_MAX, RunQueue


def test_connections_take_turns_and_each_has_its_runs_in_order() -> None:
    queue = RunQueue[str](10)
    for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert queue.add(ord(name[0]), name)
    assert [queue.begin() for _ in range(7)] == ["a1", "b1", "c1", "a2", "c2", "a3", None]


def test_so_many_run_at_once_and_the_others_wait() -> None:
    queue = RunQueue[int](2)
    for number in range(3):
        queue.add(1, number)
    assert (queue.due, queue.begin(), queue.begin(), queue.begin()) == (2, 0, 1, None)
    assert (queue.running_count, len(queue), queue.due) == (2, 1, 0)
    queue.end()
    assert (queue.begin(), len(queue)) == (2, 0)


def test_an_inner_run_begins_at_once_and_takes_no_place() -> None:
    queue = RunQueue[int](1)
    queue.add(1, 0)
    assert queue.begin() == 0
    queue.add(1, 1)
    queue.add(1, 2, inner=True)
    assert (len(queue), queue.due, queue.begin(), queue.begin()) == (2, 1, 2, None)
    assert queue.running_count == 2
    queue.end()
    assert (queue.begin(), queue.running_count) == (1, 2)
    queue.end(inner=True)
    assert queue.running_count == 1


def test_an_inner_run_that_nobody_waits_for_leaves_the_queue() -> None:
    queue = RunQueue[int](1)
    for connection, number in ((1, 10), (2, 20), (3, 30)):
        queue.add(connection, number, inner=True)
    queue.remove(1, 10)
    queue.drop(2)
    assert (queue.clear(), len(queue), queue.begin()) == ([30], 0, None)


def test_more_than_may_wait_are_refused() -> None:
    queue = RunQueue[int](1)
    assert all(queue.add(1, number) for number in range(WAITING_MAX))
    assert not queue.add(2, 0)


def test_runs_that_nobody_waits_for_leave_the_queue() -> None:
    queue = RunQueue[int](1)
    for connection, number in ((1, 10), (1, 11), (2, 20), (3, 30)):
        queue.add(connection, number)
    queue.remove(1, 10)
    queue.remove(1, 99)
    queue.drop(2)
    queue.drop(9)
    assert len(queue) == 2
    assert queue.clear() == [11, 30]
    assert (len(queue), queue.begin()) == (0, None)
