"""Server-sent events: each rule of the format, whole and in pieces of every size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.http import sse
from metamcp_worker.http.sse import EventReader, SseEvent
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.frames import BODY_BYTES_MAX


def whole(stream: bytes) -> list[SseEvent]:
    """The events of a stream; checked to be the same however the stream is cut."""
    events = EventReader().feed(stream)
    for size in (1, 2, 3, 5):
        reader = EventReader()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [event for piece in pieces for event in reader.feed(piece)] == events
    return events


def test_an_event_ends_with_an_empty_line() -> None:
    assert whole(b'data: {"a":1}\n\ndata:b\n\n') == [SseEvent(b'{"a":1}'), SseEvent(b"b")]


def test_what_no_empty_line_ended_is_no_event() -> None:
    assert whole(b"data: a\n\ndata: b\n") == [SseEvent(b"a")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_line_end_of_the_format_is_known(end: bytes) -> None:
    stream = b"event: e" + end + b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end
    assert whole(stream) == [SseEvent(b"a\nb", event="e"), SseEvent(b"c")]


def test_line_ends_may_be_mixed() -> None:
    assert whole(b"data: a\r\ndata: b\rdata: c\n\r\n") == [SseEvent(b"a\nb\nc")]
    assert whole(b"data: a\r\n\rdata: b\n\n") == [SseEvent(b"a"), SseEvent(b"b")]


def test_an_event_is_there_as_soon_as_its_empty_line_is() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\r") == []
    assert reader.feed(b"\n\r") == [SseEvent(b"a")]
    assert reader.feed(b"\ndata: b\r\r") == [SseEvent(b"b")]


def test_an_empty_piece_changes_nothing() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\r") == []
    assert reader.feed(b"") == []
    assert reader.feed(b"\n\r\n") == [SseEvent(b"a")]


def test_a_byte_order_mark_at_the_beginning_is_dropped_and_later_it_is_data() -> None:
    assert whole(b"\xef\xbb\xbfdata: a\n\n") == [SseEvent(b"a")]
    assert whole(b"\xef\xbb\xbf\ndata: a\n\n") == [SseEvent(b"a")]
    assert whole(b"data: \xef\xbb\xbf\n\n") == [SseEvent(b"\xef\xbb\xbf")]


def test_comments_are_passed_over() -> None:
    assert whole(b": hello\n\n:\n\ndata: a\n: data: no\ndata: b\n\n") == [SseEvent(b"a\nb")]


def test_one_blank_after_the_colon_belongs_to_the_format_and_no_more() -> None:
    assert whole(b"data:  a \n\n") == [SseEvent(b" a ")]
    assert whole(b"data:a\n\n") == [SseEvent(b"a")]


def test_data_is_not_touched() -> None:
    data = bytes(byte for byte in range(256) if byte not in b"\r\n")
    assert whole(b"data: " + data + b"\n\n") == [SseEvent(data)]


def test_several_data_lines_are_joined_and_empty_ones_count() -> None:
    assert whole(b"data\ndata:\ndata: x\ndata\n\n") == [SseEvent(b"\n\nx\n")]


def test_an_event_with_an_id_and_no_data_is_reported() -> None:
    assert whole(b"id: 7\ndata:\n\n") == [SseEvent(b"", id=b"7")]
    assert whole(b"id: 7\n\n") == [SseEvent(b"", id=b"7")]
    assert whole(b"retry: 1500\n\n") == [SseEvent(b"", retry_ms=1500)]


def test_an_event_of_nothing_but_a_type_is_none() -> None:
    assert whole(b"event: ping\n\ndata: a\n\n") == [SseEvent(b"a")]


def test_all_fields_of_an_event_are_told_and_none_is_kept_for_the_next() -> None:
    stream = b"id: 1\nevent: endpoint\nretry: 20\ndata: a\n\ndata: b\n\nid\ndata: c\n\n"
    assert whole(stream) == [
        SseEvent(b"a", b"1", "endpoint", 20),
        SseEvent(b"b"),
        SseEvent(b"c", id=b""),
    ]


def test_unknown_fields_and_unfit_values_are_passed_over() -> None:
    stream = b"id: a\0b\nretry: 1.5\nretry: -1\nretry: 12345678901\nDATA: x\ndata : y\nother\n\n"
    assert whole(stream) == []
    assert whole(b"id: " + b"i" * (sse.ID_BYTES_MAX + 1) + b"\ndata: a\n\n") == [SseEvent(b"a")]


@pytest.mark.parametrize("id", [b"a ", b" a", b"a\tb", b"a\x0bb", b"\x7f"])
def test_an_id_that_fits_into_no_header_takes_back_the_one_before(id: bytes) -> None:  # noqa: A002 - the wire's own name
    assert whole(b"id: %b\ndata: a\n\n" % id) == [SseEvent(b"a", id=b"")]


def test_a_line_above_the_limit_is_refused_before_it_ends() -> None:
    reader = EventReader(limit_bytes=10)
    assert reader.feed(b"data: 6789") == []
    with pytest.raises(TooLarge):
        reader.feed(b"x")


def test_many_lines_together_are_refused_above_the_limit() -> None:
    reader = EventReader(limit_bytes=30)
    with pytest.raises(TooLarge):
        reader.feed(b"data\n" * 7)


def test_the_limit_is_of_one_event_and_comments_between_do_not_count() -> None:
    reader = EventReader(limit_bytes=10)
    assert reader.feed(b"data: 678\n\n" * 3) == [SseEvent(b"678")] * 3
    assert reader.feed(b": 3456789\n" * 9 + b"data: 678\n\n") == [SseEvent(b"678")]


def test_the_largest_message_is_one_event() -> None:
    data = b"x" * BODY_BYTES_MAX
    stream = memoryview(b"id: 1\ndata: " + data + b"\n\n")
    reader = EventReader()
    pieces = [bytes(stream[at : at + 65536]) for at in range(0, len(stream), 65536)]
    assert [event for piece in pieces for event in reader.feed(piece)] == [SseEvent(data, id=b"1")]


LINES = st.sampled_from(
    [b"data", b"data: ", b"data:a", b"data:  b", b"id: 1", b"id", b"event: e", b"retry: 5", b": c",
     b"x: y", b"", b"\xef\xbb\xbf", b"\xef\xbb\xbfdata: bom"]
)  # fmt: skip
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r", b"\r\n"]))).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


@given(st.one_of(STREAMS, st.binary()), st.lists(st.integers(0, 40)))
def test_how_a_stream_is_cut_never_matters(stream: bytes, sizes: list[int]) -> None:
    reader = EventReader()
    events: list[SseEvent] = []
    at = 0
    for size in sizes:
        events += reader.feed(stream[at : at + size])
        at += size
    events += reader.feed(stream[at:])
    assert events == EventReader().feed(stream)


@given(st.lists(st.binary().filter(lambda data: b"\r" not in data)))
def test_data_that_was_written_is_read_back(messages: list[bytes]) -> None:
    stream = b"".join(
        b"".join(b"data: " + line + b"\n" for line in data.split(b"\n")) + b"\n"
        for data in messages
    )
    assert [event.data for event in EventReader().feed(stream)] == messages
