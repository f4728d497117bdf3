"""The options with which the kernel looks after silent connections."""

import socket

from metamcp_worker.http import tcp


def test_the_options_fit_this_system_and_notice_a_silent_death_within_two_minutes() -> None:
    with socket.socket() as sock:
        for level, option, value in tcp.OPTIONS:
            sock.setsockopt(level, option, value)
            assert sock.getsockopt(level, option) == value
    assert tcp.IDLE_S + tcp.PROBE_S * tcp.PROBES < 120
