"""Where a remote server may lead the gateway, and where not."""

import pytest

from metamcp_worker.oauth.addresses import Reach, farthest, is_loopback_name, may_lead, reach

PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "9.255.255.255", "11.0.0.0",
          "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0"]  # fmt: skip
PRIVATE = [
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fd00::1", "fc00::1",
    "10.255.255.255", "100.127.255.255", "::ffff:10.0.0.1", "::ffff:c0a8:101", "fdff::1",
    "::ffff:100.64.0.1",
]  # fmt: skip
LOOPBACK = ["127.0.0.1", "127.9.9.9", "127.255.255.255", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"]
NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "192.0.0.8", "192.0.0.192", "192.88.99.1", "3fff::1", "5f00::1", "::7f00:1",
    "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1",
    "203.0.113.1", "::", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "ff02::1", "ff0e::1",
    "100::1", "2001:db8::1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::ffff:0.0.0.0",
    "::ffff:224.0.0.1",
    # These lead to an IPv4 address, here to one that is not public.
    "64:ff9b::a9fe:a9fe", "64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1",
    "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:c0a8:101::", "2001::1",
    "2001:0:7f00:1::",
]  # fmt: skip
#: Texts that some programs read as 127.0.0.1; addresses have one form here, after the resolver.
OTHERWISE = [
    "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.1", "127.0.0.01", "1",
    "127.0.0.1.", "127.0.0.1:80", "[::1]", "::ffff:0x7f000001", "", " 127.0.0.1", "127.0.0.1\n",
    "\uff11\uff12\uff17.0.0.1",
]  # fmt: skip


@pytest.mark.promise("M99")
@pytest.mark.parametrize("text", OTHERWISE)
def test_an_address_that_others_read_otherwise_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        reach(text)


@pytest.mark.promise("M99")
@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE, *LOOPBACK])
def test_an_address_is_public_private_or_of_this_machine(address: str) -> None:
    kinds = {Reach.PUBLIC: PUBLIC, Reach.PRIVATE: PRIVATE, Reach.LOOPBACK: LOOPBACK}
    found = reach(address)
    assert found is not None
    assert address in kinds[found]


@pytest.mark.promise("M99")
@pytest.mark.parametrize("address", NEVER)
@pytest.mark.parametrize("server", list(Reach))
def test_nobody_leads_to_what_is_no_place_for_a_server(server: Reach, address: str) -> None:
    assert reach(address) is None
    assert not may_lead(server, address)


def test_a_server_leads_to_what_is_as_far_away_as_itself_or_farther() -> None:
    allowed = {
        Reach.PUBLIC: PUBLIC,
        Reach.PRIVATE: [*PUBLIC, *PRIVATE],
        Reach.LOOPBACK: [*PUBLIC, *PRIVATE, *LOOPBACK],
    }
    for server, good in allowed.items():
        every = [*PUBLIC, *PRIVATE, *LOOPBACK]
        assert [one for one in every if may_lead(server, one)] == good


def test_a_server_with_several_addresses_counts_as_its_farthest() -> None:
    assert farthest(["127.0.0.1", "::1"]) is Reach.LOOPBACK
    assert farthest(["127.0.0.1", "10.0.0.1"]) is Reach.PRIVATE
    assert farthest(["10.0.0.1", "8.8.8.8"]) is Reach.PUBLIC
    assert farthest(["127.0.0.1", "169.254.169.254"]) is Reach.PUBLIC
    assert farthest([]) is Reach.PUBLIC


def test_only_names_of_loopback_need_no_encryption() -> None:
    for host in ("localhost", "LOCALHOST.", "127.0.0.1", "127.1.2.3", "[::1]", "::1"):
        assert is_loopback_name(host)
    for host in (
        "localhost.example",
        "127.0.0.1.example",
        "10.0.0.1",
        "0x7f000001",
        "",
        "2130706433",
    ):
        assert not is_loopback_name(host)
