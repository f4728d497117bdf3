"""When a stream is taken up again."""

from metamcp_worker.child import http_exchange
from metamcp_worker.child.http_exchange import ResumeState
from metamcp_worker.http.sse import SseEvent


def test_a_stream_without_event_ids_cannot_be_taken_up() -> None:
    stream = ResumeState()
    stream.saw(SseEvent(b"x"))
    assert stream.plan_reconnect() is None


def test_the_server_says_when_to_come_back() -> None:
    stream = ResumeState()
    stream.saw(SseEvent(b"", id=b"e1", retry_ms=500))
    assert stream.plan_reconnect() == 0.5
    assert stream.last_id == b"e1"


def test_the_id_of_the_last_event_that_had_one_counts() -> None:
    stream = ResumeState()
    stream.saw(SseEvent(b"", id=b"e1"))
    stream.saw(SseEvent(b"x"))
    assert stream.last_id == b"e1"
    stream.saw(SseEvent(b"x", id=b""))
    assert stream.plan_reconnect() is None


def test_without_progress_a_stream_is_given_up() -> None:
    stream = ResumeState()
    stream.saw(SseEvent(b"", id=b"e1"))
    waits = [stream.plan_reconnect() for _ in range(http_exchange.ATTEMPTS_MAX + 1)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, None]


def test_a_stream_that_brings_events_is_taken_up_for_ever() -> None:
    stream = ResumeState()
    for number in range(100):
        stream.saw(SseEvent(b"{}", id=b"%d" % number, retry_ms=200))
        assert stream.plan_reconnect() == 0.2


def test_a_stream_that_brings_no_messages_is_taken_up_less_and_less_often() -> None:
    stream = ResumeState(endless=True)
    waits = list[float | None]()
    for _ in range(10):
        stream.saw(SseEvent(b"", id=b"e1", retry_ms=10))
        waits.append(stream.plan_reconnect())
    assert waits[:3] == [0.1, 0.2, 0.4]
    assert waits[-1] == http_exchange.EMPTY_S_MAX
    stream.saw(SseEvent(b"{}", id=b"e2"))
    assert stream.plan_reconnect() == 0.1


def test_a_stream_of_no_request_is_never_given_up() -> None:
    stream = ResumeState(endless=True)
    waits = [stream.plan_reconnect() for _ in range(50)]
    assert waits[:3] == [1.0, 2.0, 4.0]
    assert waits[-1] == http_exchange.DELAY_S_MAX


def test_what_a_server_says_about_waiting_has_bounds() -> None:
    stream = ResumeState(endless=True)
    stream.saw(SseEvent(b"", retry_ms=0))
    assert stream.plan_reconnect() == http_exchange.RETRY_S_MIN
    assert stream.plan_reconnect() == 2.0
    stream.saw(SseEvent(b"", retry_ms=999_999_999))
    assert stream.plan_reconnect() == http_exchange.RETRY_S_MAX


def test_a_stream_can_begin_anew() -> None:
    stream = ResumeState(endless=True)
    stream.saw(SseEvent(b"", id=b"e1"))
    stream.reset()
    assert stream.last_id == b""
