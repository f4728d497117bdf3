"""Durations, sizes, addresses and names, as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_supervisor.config import naming, units
from metamcp_supervisor.config.config import Address
from metamcp_supervisor.config.naming import hint


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1s", 1), ("1.5s", 1.5), ("15m", 900), ("1h30m", 5400), ("24h", 86400)],
)
def test_durations_are_read_with_their_units(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "1", "1 s", "-1s", "1m s", "0s", "0.1ms", "25h", "9" * 40 + "s", "1e9s", "٣s"]
)
def test_what_is_no_sensible_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is too (short|long)"):
        units.duration(text)


@pytest.mark.parametrize(
    ("number", "advice"), [(60, '"60s"'), (2.5, '"2.5s"'), (-1, '"60s"'), (10**4000, '"60s"')]
)
def test_a_bare_number_is_refused_with_advice(number: float, advice: str) -> None:
    with pytest.raises(ValueError, match=f"no unit; write it like {advice}"):
        units.duration(number)


@given(st.integers(1, 86_400_000))
def test_a_written_duration_reads_as_the_same(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert units.duration(units.duration_text(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1K", 1024), ("64K", 65536), ("512M", 512 << 20), ("1.5G", 1536 << 20), ("1T", 1 << 40)],
)
def test_sizes_are_read_in_units_of_1024(text: str, count: int) -> None:
    assert units.size(text) == count


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (512, "no unit"),
        (0.5, "no unit"),
        (True, "must be a size"),
        ("512", "is not a size"),
        ("512MB", "is not a size"),
        ("-1M", "is not a size"),
        ("1" * 20 + "K", "is not a size"),
        ("0M", 'is too small; the smallest size here is "1K"'),
        ("2T", 'is too large; the largest size is "1T"'),
    ],
)
def test_what_is_no_sensible_size_is_refused(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        units.size(value)


@given(st.integers(1, 1 << 30))
def test_a_written_size_reads_as_the_same(kibibytes: int) -> None:
    assert units.size(units.size_text(kibibytes * 1024)) == kibibytes * 1024


def test_a_share_of_processors_is_a_number_or_a_percentage() -> None:
    assert [units.cores(value) for value in ("150%", 1.5, 2, "1%")] == [1.5, 1.5, 2.0, 0.01]
    for value in ("1.5", "0%", 0, -1, 2000, float("nan"), True, None, [1]):
        with pytest.raises(ValueError, match=r"must be (a number of processors|from 0\.01)"):
            units.cores(value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:6270", Address("127.0.0.1", 6270)),
        ("[::1]:0", Address("::1", 0)),
        ("localhost:80", Address("localhost", 80)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert units.address(text) == address
    assert str(units.address(text)) == text


@pytest.mark.parametrize("text", ["6270", ":6270", "::1:6270", "a b:1", "1.2.3:4", "h:65536", "h:"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address|no valid IP|highest port"):
        units.address(text)


def test_a_unix_socket_is_no_address_of_clients() -> None:
    with pytest.raises(ValueError, match=r"cannot be a unix socket, .*only ops_listen can"):
        units.address("unix:/run/x.sock")


def test_only_loopback_addresses_count_as_this_machine() -> None:
    assert all(map(units.is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(units.is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example")))


def test_a_hint_names_the_nearest_word_or_lists_what_there_is() -> None:
    assert hint("comand", {"command", "cwd"}) == "did you mean 'command'?"
    assert hint("zzz", {"b", "a"}) == "there are: a, b"
    assert hint("zzz", set()) == "there are none"
    assert hint("a" * 10_000, [f"a{n}" for n in range(20)]).endswith("and 8 more")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("My Server", "my-server"),
        ("@scope/server.io", "scope-server-io"),
        ("A__B", "a_b"),
        ("Über-tool", "uber-tool"),
        ("日本", ""),
        ("x" * 100, "x" * 64),
    ],
)
def test_foreign_names_are_adapted_the_same_way_every_time(written: str, name: str) -> None:
    assert naming.to_valid_name(written) == name


@given(st.text())
def test_an_adapted_name_is_a_good_one_and_stays_as_it_is(written: str) -> None:
    name = naming.to_valid_name(written)
    assert name == "" or naming.flaw(name) == ""
    assert naming.to_valid_name(name) == name
