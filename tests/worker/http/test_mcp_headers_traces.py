"""`traceparent` as the W3C has it: exactly right, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.http import mcp_headers
from metamcp_worker.http.mcp_headers import (
    TraceContext,
    parsed_traceparent,
    trace_headers,
    traceparent,
)
from metamcp_worker.ipc import messages
from metamcp_worker.ipc.messages import ServerCallTimes

pytestmark = pytest.mark.promise("M88")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"

trace_ids = st.text("0123456789abcdef", min_size=32, max_size=32).filter(
    lambda text: text.strip("0")
)
span_ids = st.text("0123456789abcdef", min_size=16, max_size=16).filter(
    lambda text: text.strip("0")
)


@given(st.builds(TraceContext, trace_ids, span_ids, st.integers(min_value=0, max_value=3)))
def test_what_is_written_is_read_again(context: TraceContext) -> None:
    assert parsed_traceparent(traceparent(context)) == context


@given(st.text(max_size=80))
def test_any_other_text_is_read_or_is_nothing(text: str) -> None:
    found = parsed_traceparent(text)
    assert found is None or text[3:52] == traceparent(found)[3:52]


@pytest.mark.parametrize(
    ("flags", "known", "sampled"),
    [("00", 0, False), ("01", 1, True), ("02", 2, False), ("03", 3, True), ("ff", 3, True)],
)
def test_flags_that_nobody_knows_are_not_passed_on(flags: str, known: int, sampled: bool) -> None:
    found = parsed_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
    assert found is not None
    assert found == TraceContext(TRACE, SPAN, known)
    assert found.is_sampled is sampled


@pytest.mark.parametrize("text", [f"cc-{TRACE}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01-what-comes"])
def test_of_a_later_version_the_known_part_is_read(text: str) -> None:
    assert parsed_traceparent(text) == TraceContext(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-1",
        GOOD.upper(),
        GOOD + "-more",
        GOOD + " ",
        GOOD[:-1],
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-0x",
        f"01-{TRACE}-{SPAN}-01x",
        f"01-{TRACE}-{SPAN}-01-\n",
        GOOD.replace("4", "\N{ARABIC-INDIC DIGIT FOUR}"),
    ],
)
def test_what_is_not_exactly_right_is_nothing(text: str) -> None:
    assert parsed_traceparent(text) is None


def test_headers_say_the_same_and_lists_may_come_in_pieces() -> None:
    headers = [
        (b"traceparent", b" %b\t" % GOOD.encode()),
        (b"tracestate", b"a=1"),
        (b"accept", b"*/*"),
        (b"tracestate", b"b=2"),
        (b"baggage", b"user=\xff"),
    ]
    assert trace_headers(headers) == {"traceparent": GOOD, "tracestate": "a=1,b=2"}
    twice = trace_headers([(b"traceparent", GOOD.encode())] * 2)
    assert parsed_traceparent(twice[mcp_headers.TRACEPARENT]) is None


def test_the_notice_of_a_worker_is_nothing_that_a_server_could_say() -> None:
    leg = ServerCallTimes(7, 1.5, 2.5, True)
    assert messages.unpack_leg(messages.pack_leg(leg)) == leg
    assert messages.unpack_leg(b"") is None
    assert messages.unpack_leg(b"{}") is None
    forged = messages.unpack_leg(b'{"a":12345678901234567890}'[:25])
    assert forged is None or forged.id > 2**62, "no call has such a number"
