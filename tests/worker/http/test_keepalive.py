"""The options with which the kernel looks after silent connections."""

import socket

from metamcp_worker.http import keepalive


def test_the_options_fit_this_system_and_notice_a_silent_death_within_two_minutes() -> None:
    with socket.socket() as sock:
        for level, option, value in keepalive.OPTIONS:
            sock.setsockopt(level, option, value)
            assert sock.getsockopt(level, option) == value
    assert keepalive.IDLE_S + keepalive.PROBE_S * keepalive.PROBES < 120
