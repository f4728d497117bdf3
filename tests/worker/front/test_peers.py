"""Requests of one client have one number, and nobody else has it."""

from metamcp_worker import frames
from metamcp_worker.front.peers import FIRST, PEERS_MAX, Peers
from metamcp_worker.sharing import IDENTITY_BYTES_MAX


def test_a_client_keeps_its_number_and_shares_it_with_no_other_principal_or_endpoint() -> None:
    peers = Peers()
    first = peers.number("local", "default", b'{"name":"a"}')
    assert first >= FIRST  # below it are the numbers of sessions
    assert peers.number("local", "default", b'{"name":"a"}') == first
    others = {
        peers.number("other", "default", b'{"name":"a"}'),
        peers.number("local", "second", b'{"name":"a"}'),
        peers.number("local", "default", b'{"name":"b"}'),
    }
    assert len(others | {first}) == 4


def test_who_does_not_say_who_it_is_stands_alone() -> None:
    peers = Peers()
    assert peers.number("local", "default", b"") == 0
    assert peers.number("local", "default", b"x" * (IDENTITY_BYTES_MAX + 1)) == 0


def test_no_number_is_used_again_when_there_are_too_many_clients() -> None:
    peers = Peers()
    numbers = [
        peers.number("local", "default", b"%d" % client) for client in range(2 * PEERS_MAX + 1)
    ]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) <= frames.NUMBER_MAX
