"""Requests of one client have one number, and nobody else has it."""

from metamcp_worker.front_calls.server_processes import FIRST, PEERS_MAX, ModernClient, Peers
from metamcp_worker.ipc import frames
from metamcp_worker.ipc.process_names import IDENTITY_BYTES_MAX


def test_a_client_keeps_its_number_and_shares_it_with_no_other_principal_or_endpoint() -> None:
    peers = Peers()
    first = peers.find("local", "default", b'{"name":"a"}')
    assert first.number >= FIRST  # below it are the numbers of sessions
    assert peers.find("local", "default", b'{"name":"a"}') == first
    every = [
        first,
        peers.find("other", "default", b'{"name":"a"}'),
        peers.find("local", "second", b'{"name":"a"}'),
        peers.find("local", "default", b'{"name":"b"}'),
    ]
    assert len({one.number for one in every}) == len({one.who for one in every}) == 4


def test_who_does_not_say_who_it_is_stands_alone() -> None:
    peers = Peers()
    assert peers.find("local", "default", b"") == ModernClient()
    assert peers.find("local", "default", b"x" * (IDENTITY_BYTES_MAX + 1)) == ModernClient()


def test_no_number_is_used_again_when_there_are_too_many_clients() -> None:
    peers = Peers()
    numbers = [
        peers.find("local", "default", b"%d" % client).number for client in range(2 * PEERS_MAX + 1)
    ]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) <= frames.NUMBER_MAX
