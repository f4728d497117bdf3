"""Listening sockets, real ones."""

import os
import socket

import pytest

from metamcp_supervisor.config.config import Address
from metamcp_supervisor.systemd import listen
from metamcp_supervisor.systemd.listen import CannotBind, bind, with_actual_port


def test_a_free_port_is_chosen_when_none_is_asked_for() -> None:
    sockets = bind(Address("127.0.0.1", 0), "--listen")
    address = with_actual_port(Address("127.0.0.1", 0), sockets)
    with socket.create_connection((address.host, address.port), timeout=5):
        pass
    for sock in sockets:
        assert not sock.get_inheritable()
        sock.close()


def test_every_address_of_a_name_gets_the_same_port() -> None:
    sockets = bind(Address("localhost", 0), "--listen")
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in sockets:
        sock.close()


def test_a_port_in_use_names_the_port_its_holder_and_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotBind) as caught:
            bind(Address("127.0.0.1", port), "--ops-listen")
    message = str(caught.value)
    assert f"port {port} on 127.0.0.1 is in use by " in message
    assert "--ops-listen" in message


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_one_sentence(host: str) -> None:
    with pytest.raises(CannotBind, match=host):
        bind(Address(host, 0), "--listen")


def test_a_queue_waits_for_a_front_that_is_being_replaced() -> None:
    assert listen.BACKLOG >= 1024


def test_a_copy_for_another_front_makes_nobody_wait_who_accepts_on_the_socket_now() -> None:
    (before,) = bind(Address("127.0.0.1", 0), "--listen")
    adopted = socket.socket(fileno=before.detach())  # as after an upgrade, by its number
    (copy,) = listen.copies([adopted], -1)
    assert not os.get_blocking(copy)
    assert not os.get_blocking(adopted.fileno())
    os.close(copy)
    adopted.close()
