"""Limits of use: a call passes all that it meets, or counts at none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.access import gate
from metamcp_worker.access.gate import Principal
from metamcp_worker.access.use_limits import DAY_S, LimitReached, Meter, Meters
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.figures import DAY_COUNTS_MAX, DayCount, DayCounts
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec, UseLimits

BOB = Principal(name="key:bob", key="bob")


def made(
    endpoint: UseLimits | None = None,
    server: UseLimits | None = None,
    workspace: UseLimits | None = None,
    key: UseLimits | None = None,
    fronts: int = 1,
) -> Meters:
    found = Meters()
    found.configure(spec(endpoint, server, workspace, fronts))
    found.configure_keys({"bob": key} if key else {})
    return found


def spec(
    endpoint: UseLimits | None = None,
    server: UseLimits | None = None,
    workspace: UseLimits | None = None,
    fronts: int = 1,
) -> FrontSpec:
    dev = EndpointSpec(
        name="dev", servers=("git",), workspace="acme", limits=endpoint or UseLimits()
    )
    return FrontSpec(
        version="1", endpoints=(dev,), hosts=(), fronts=fronts,
        server_limits={"git": server} if server else {},
        workspace_limits={"acme": workspace} if workspace else {},
    )  # fmt: skip


def admit(at: Meters, now: float = 0.0, date: float = 0.0) -> tuple[Meter, ...]:
    return at.admit(BOB.key, "dev", "git", now, date)


def leave(meters: tuple[Meter, ...]) -> None:
    for meter in meters:
        meter.inflight -= 1


def refused(at: Meters, now: float = 0.0, date: float = 0.0) -> LimitReached:
    with pytest.raises(LimitReached) as why:
        admit(at, now, date)
    return why.value


def test_without_limits_there_is_nothing_to_ask() -> None:
    assert made().any is False
    assert made(server=UseLimits(in_flight=1)).any is True
    assert made(key=UseLimits(in_flight=1)).any is True


def test_calls_go_on_at_the_rate_after_the_burst() -> None:
    at = made(key=UseLimits(calls_per_minute=60, burst=2))
    admit(at)
    admit(at)
    why = refused(at)
    assert (why.limit, why.wait_s) == ("calls_per_minute", 1.0)
    assert why.message == "The limit calls_per_minute of this API key is reached; try again in 1 s."
    assert codec.value(why.data) == {
        "reason": "limit", "limit": "calls_per_minute", "retryAfterMs": 1000,
    }  # fmt: skip
    admit(at, now=1.0)
    refused(at, now=1.5)


def test_a_minute_of_calls_may_begin_at_once_without_a_burst() -> None:
    at = made(endpoint=UseLimits(calls_per_minute=5))
    for _ in range(5):
        admit(at)
    assert refused(at).message.startswith("The limit calls_per_minute of the endpoint dev")


def test_a_quota_is_for_a_day_and_can_be_resumed() -> None:
    at = made(workspace=UseLimits(calls_per_day=2))
    at.resume([DayCount("workspace", "acme", 10, 1), DayCount("key", "unlimited", 10, 1)], 0.0)
    admit(at, date=10.5 * DAY_S)
    assert refused(at, date=10.5 * DAY_S).wait_s == DAY_S / 2
    at.resume([DayCount("workspace", "acme", 9, 1)], 0.0)
    refused(at, date=10.5 * DAY_S)
    admit(at, date=11 * DAY_S)


@pytest.mark.promise("M66")
def test_a_quota_that_is_taken_away_and_set_again_goes_on() -> None:
    at = made(endpoint=UseLimits(calls_per_day=2))
    limited = spec(endpoint=UseLimits(calls_per_day=2), server=UseLimits(calls_per_day=3))
    at.resume([DayCount("server", "git", 0, 2)], 0.0)
    admit(at)
    at.configure(spec())
    for _ in range(5):
        admit(at)
    at.configure(limited)
    admit(at)
    assert refused(at).owner == ("endpoint", "dev")
    at.configure(spec(server=UseLimits(calls_per_day=3)))
    assert refused(at).owner == ("server", "git")


@pytest.mark.promise("M66")
def test_a_rate_that_is_set_anew_begins_with_its_whole_burst() -> None:
    at = made(endpoint=UseLimits(calls_per_day=99))
    for _ in range(50):
        admit(at)
    at.configure(spec(endpoint=UseLimits(calls_per_day=99, calls_per_minute=60, burst=2)))
    admit(at)
    admit(at)
    assert refused(at).wait_s == 1.0


@pytest.mark.promise("M66")
def test_every_call_of_a_quota_is_news_once_and_calls_of_others_are_not() -> None:
    at = made(workspace=UseLimits(calls_per_day=9), key=UseLimits(calls_per_day=2))
    at.resume([DayCount("workspace", "acme", 10, 1)], 0.0)
    assert at.news() == []
    for _ in range(2):
        admit(at, date=10.5 * DAY_S)
    refused(at, date=10.5 * DAY_S)
    assert at.news() == [DayCount("workspace", "acme", 10, 2), DayCount("key", "bob", 10, 2)]
    assert at.news() == []
    other = made(workspace=UseLimits(calls_per_minute=9))
    admit(other)
    assert other.news() == []


def test_calls_of_the_day_before_that_nobody_was_told_count_no_more() -> None:
    at = made(key=UseLimits(calls_per_day=2))
    admit(at, date=DAY_S - 1)
    admit(at, date=DAY_S)
    assert at.news() == [DayCount("key", "bob", 1, 1)]


def test_counts_of_many_owners_are_several_messages_that_fit_into_packets() -> None:
    counts = [DayCount("key", f"{n:0128}", 2**31, 2**63 - 1) for n in range(DAY_COUNTS_MAX + 1)]
    found = DayCounts.of(counts)
    assert [one for message in found for one in message.counts] == counts
    assert [len(messages.pack(one)) <= packets.PACKET_BYTES_MAX for one in found] == [True, True]
    assert DayCounts.of([]) == []


def test_calls_in_flight_end_with_their_answers() -> None:
    at = made(server=UseLimits(in_flight=1))
    meters = admit(at)
    assert refused(at).limit == "in_flight"
    leave(meters)
    admit(at)


def test_a_refused_call_counts_nowhere() -> None:
    at = made(endpoint=UseLimits(calls_per_day=9), key=UseLimits(in_flight=1))
    admit(at)
    refused(at)
    used = {meter.owner: meter.today for meter in at.list_meters()}
    assert used["endpoint", "dev"] == 1


@pytest.mark.promise("M66")
def test_refusals_are_counted_by_owner_and_limit_and_those_of_keys_together() -> None:
    at = made(
        endpoint=UseLimits(streams=1, body_max=10),
        key=UseLimits(in_flight=1, body_max=99),
        workspace=UseLimits(calls_per_minute=1),
    )
    admit(at)
    refused(at)
    at.configure_keys({"bob": UseLimits(body_max=5)})
    refused(at)
    at.count_refusal(("endpoint", "dev"), "streams")
    at.too_large(BOB, "dev", 5)
    at.too_large(gate.USER, "dev", 10)
    at.too_large(gate.USER, "dev", 16)
    assert {(one.kind, one.name, one.limit): one.count for one in at.count_refusals()} == {
        ("workspace", "acme", "calls_per_minute"): 2,
        ("endpoint", "dev", "streams"): 1,
        ("key", "", "body_max"): 1,
        ("endpoint", "dev", "body_max"): 1,
    }


def test_limits_are_shared_by_fronts_and_never_become_none() -> None:
    at = made(endpoint=UseLimits(in_flight=3), fronts=2)
    admit(at)
    admit(at)
    refused(at)
    assert at.streams(BOB, "dev") == {}


def test_a_new_limit_counts_at_once_and_what_is_in_flight_stays_counted() -> None:
    at = made(key=UseLimits(in_flight=2))
    meters = admit(at)
    at.configure_keys({"bob": UseLimits(in_flight=1)})
    refused(at)
    leave(meters)
    admit(at)


def test_the_smallest_body_counts_and_streams_are_limited_by_owner() -> None:
    at = made(endpoint=UseLimits(body_max=100, streams=7), key=UseLimits(body_max=10, streams=2))
    assert at.body_max(BOB, "dev") == 10
    assert at.body_max(gate.USER, "dev") == 100
    assert at.streams(BOB, "dev") == {("endpoint", "dev"): 7, ("key", "bob"): 2}


@given(st.lists(st.floats(0.0, 30.0), max_size=200), st.integers(1, 20), st.integers(1, 600))
def test_never_more_than_the_burst_and_the_rate(waits: list[float], burst: int, rate: int) -> None:
    at = made(key=UseLimits(calls_per_minute=rate, burst=burst))
    now, passed = 0.0, 0
    for wait in waits:
        now += wait
        try:
            leave(admit(at, now=now))
            passed += 1
        except LimitReached:
            pass
    assert passed <= burst + now * rate / 60 + 1e-6
