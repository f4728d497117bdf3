"""Log lines: in batches that fit, at a rate that cannot flood."""

from metamcp_worker.child.server_log import BATCH_BYTES_MAX, BYTES_PER_S, LINES_PER_S, ServerLog
from metamcp_worker.ipc import messages, packets


def test_lines_come_in_order_and_nothing_is_sent_twice() -> None:
    log = ServerLog("stderr")
    for word in ("one", "two"):
        log.add(word, 0.0)
    (message,) = log.take()
    assert (message.stream, message.lines, message.dropped) == ("stderr", ("one", "two"), 0)
    assert log.take() == []


def test_above_the_rate_lines_are_counted_instead() -> None:
    log = ServerLog("stderr")
    for number in range(LINES_PER_S + 5):
        log.add(str(number), 10.0)
    assert log.full(10.5)
    log.drop(7)
    (message,) = log.take()
    assert len(message.lines) == LINES_PER_S
    assert message.dropped == 12
    log.add("again", 11.0)
    assert log.take()[0].lines == ("again",)


def test_drops_are_told_even_without_lines() -> None:
    log = ServerLog("stderr")
    log.drop(3)
    (message,) = log.take()
    assert (message.lines, message.dropped) == ((), 3)


def test_every_batch_fits_into_a_packet_even_if_all_must_be_escaped() -> None:
    log = ServerLog("stdout")
    for _ in range(100):
        log.add("\x01" * 8192, 0.0)
    for _ in range(100):
        log.add("x" * 5000, 1.0)
    batches = log.take()
    sizes = [len(messages.pack(message)) for message in batches]
    assert max(sizes) < packets.PACKET_BYTES_MAX
    assert sum(sizes) < 2 * BYTES_PER_S + 2 * packets.PACKET_BYTES_MAX
    assert all(size < BATCH_BYTES_MAX + 200 or len(batches[n].lines) == 1
               for n, size in enumerate(sizes))  # fmt: skip
