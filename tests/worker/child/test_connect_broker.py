"""Which addresses a confined server may connect to, decided on values."""

import socket
import struct

import pytest

from metamcp_worker.child.connect_broker import (
    ConnectRules,
    is_loopback,
    is_open,
    port_of,
    refused_call,
)

RULES = ConnectRules(
    folders=("/state/servers/git/home", "/work/project", "/run/user/7/bus"),
    hidden=("/state", "/work/project/run"),
)


@pytest.mark.parametrize(
    ("path", "opened"),
    [
        ("/work/project/.cache/a.sock", True),
        ("/state/servers/git/home/a.sock", True),
        ("/run/user/7/bus", True),
        ("/run/user/7/bus2", False),
        ("/run/user/7/other", False),
        ("/work/projects/a.sock", False),
        ("/work/project/run/control.sock", False),
        ("/state/a.sock", False),
        ("/state/servers/other/home/a.sock", False),
        ("/tmp/tmux-0/default", False),
        ("/work/project/a.sock (deleted)", True),
        ("", False),
    ],
)
def test_a_unix_socket_is_open_below_the_folders_of_a_server_but_not_among_files_of_the_gateway(
    path: str, opened: bool
) -> None:
    assert is_open(path, RULES) is opened


def address_of(host: str, port: int = 8080) -> bytes:
    """The address as the kernel has it."""
    if ":" in host:
        family, text = socket.AF_INET6, socket.inet_pton(socket.AF_INET6, host)
        return struct.pack("=H", family) + port.to_bytes(2, "big") + bytes(4) + text + bytes(4)
    return struct.pack("=H", socket.AF_INET) + port.to_bytes(2, "big") + socket.inet_aton(host)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("0.0.0.0", True), ("::1", True), ("::", True),
        ("::ffff:127.0.0.1", True), ("::ffff:0.0.0.0", True), ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False), ("fe80::1", False), ("::2", False), ("1.127.0.0", False),
    ],
)  # fmt: skip
def test_every_way_to_write_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(address_of(host)) is loopback
    assert port_of(address_of(host, 443)) == 443


@pytest.mark.parametrize(
    ("name", "arguments", "right", "path"),
    [
        ("ptrace", (), "system_calls", "ptrace"),
        ("socket", (socket.AF_INET, socket.SOCK_STREAM, 0), "network", "IPv4"),
        ("socket", (socket.AF_INET6, socket.SOCK_DGRAM, 17), "network", "IPv6"),
        ("socket", (socket.AF_UNIX, socket.SOCK_DGRAM, 0), "datagrams", ""),
        ("socketpair", (socket.AF_UNIX, socket.SOCK_DGRAM, 0), "datagrams", ""),
        ("socket", (40, 1, 0), "system_calls", "socket of family 40, protocol 0"),
        ("socket", (2, 1, 262), "system_calls", "socket of family 2, protocol 262"),
    ],
)
def test_a_system_call_that_is_refused_tells_which_right_was_missing(
    name: str, arguments: tuple[int, ...], right: str, path: str
) -> None:
    assert refused_call(name, (*arguments, 0, 0, 0, 0, 0, 0)) == (right, path)


def test_an_address_that_is_cut_is_no_loopback_and_has_no_port() -> None:
    assert not is_loopback(b"\x02\x00")
    assert port_of(b"\x02\x00") == 0
