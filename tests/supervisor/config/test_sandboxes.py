"""The confinement of a server as it is written, and what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.config import sandboxes
from metamcp_supervisor.config.show import tables
from tests.supervisor.configs import loaded, messages

COMMAND = 'command = ["x"]'


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((COMMAND, 'sandbox = "stict"'), "sandbox: 'stict' is not a choice; did you mean 'strict'"),
        (("url = 'https://x/'", 'sandbox = "basic"'), "sandbox: is only for a server with 'comm"),
        (("module = 'a:b'", 'read = ["/x"]'), "read: is only for a server with 'command', which"),
        ((COMMAND, 'sandbox = "none"', 'read = ["/x"]'), 'read: means nothing with sandbox = "no'),
        ((COMMAND, 'read = ["/"]'), "read: '/' would show it other processes and devices; name"),
        ((COMMAND, 'write = ["/proc/1"]'), "write: '/proc/1' would show it other processes"),
        ((COMMAND, 'network = "all"'), "network: 'all' is not a choice; there are: host, none"),
        ((COMMAND, "network = { ports = [1] }"), "network.ports: unknown key 'ports'"),
        ((COMMAND, "network = { tcp_ports = [0] }"), "network.tcp_ports: must be a list of up to"),
    ],
)
def test_a_wrong_setting_is_told(tmp_path: Path, settings: tuple[str, ...], message: str) -> None:
    got, *_ = messages(tmp_path, "\n".join(["[servers.git]", *settings]))
    assert f"servers.git.{message}" in got


def test_a_server_with_a_command_is_confined_unless_its_launcher_makes_a_container(
    tmp_path: Path,
) -> None:
    commands = {"git": "git-server", "box": "/usr/bin/podman", "docker": "docker"}
    text = "".join(f'[servers.{name}]\ncommand = ["{one}"]\n' for name, one in commands.items())
    found = loaded(tmp_path, f'{text}[servers.far]\nurl = "https://x/"\n').servers
    profiles = {name: sandboxes.profile(server) for name, server in found.items()}
    assert profiles == {"git": "basic", "box": "none", "docker": "basic", "far": "none"}


def test_a_strict_server_has_no_network_unless_it_is_written(tmp_path: Path) -> None:
    strict = f'{COMMAND}\nsandbox = "strict"\n'
    text = f'[servers.a]\n{strict}[servers.b]\n{strict}network = "host"\n[servers.c]\n{COMMAND}\n'
    found = loaded(tmp_path, text).servers.values()
    assert [sandboxes.network(server) for server in found] == ["none", "host", "host"]


def test_the_confinement_is_shown_as_it_is_written(tmp_path: Path) -> None:
    keys = 'read = ["/srv"]\nunix_sockets = ["/s"]\nnetwork = { tcp_ports = [443] }\n'
    keys += 'disk_max = "2G"\n'
    shown: Any = tables(loaded(tmp_path, f"[servers.a]\n{COMMAND}\n{keys}"))["servers"]
    names = ("sandbox", "read", "write", "unix_sockets", "network", "disk_max")
    assert {key: shown["a"].get(key) for key in names} == {
        "sandbox": "basic", "read": ["/srv"], "write": None, "unix_sockets": ["/s"],
        "network": {"tcp_ports": [443]}, "disk_max": "2G",
    }  # fmt: skip
