"""The gateway as a service of one user, under a real `systemd --user`; and who may install what."""

import json
from collections.abc import Iterator

import pytest

from tests.systemd.machine import SOURCES, Machine, missing

WHY_NOT = missing()
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.promise("M81"),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]

PORT = 6270
SESSION = ("/usr/bin/env", "XDG_RUNTIME_DIR=/run/user/0", "HOME=/root")
#: Without PAM, which knows the users of another machine, somebody has to say where their files are.
MANAGER = "[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """With a session manager for its only user, and a configuration in that user's home."""
    with Machine() as made:
        items = ", ".join(f'{key} = "{value}"' for key, value in made.environment().items())
        command = json.dumps([made.python, f"{SOURCES}/tests/fakes/stdio_server.py"])
        for path, text in {
            "etc/systemd/system/user@.service.d/session.conf": MANAGER,
            "etc/systemd/user.conf.d/test.conf": made.manager(),
            "root/.config/metamcp/metamcp.toml": (
                f"[servers.git]\ncommand = {command}\nenv = {{ {items} }}\n"
            ),
        }.items():
            (made.root / path).parent.mkdir(parents=True)
            (made.root / path).write_text(text)
        made.run("systemctl", "daemon-reload")
        made.run("systemctl", "start", "user@0.service")
        yield made


def metamcp(machine: Machine, *arguments: str, prefix: tuple[str, ...] = SESSION) -> list[str]:
    settings = [f"{name}={value}" for name, value in machine.environment().items()]
    return [*prefix, *settings, machine.python, "-P", "-m", "metamcp_supervisor", *arguments]


def test_a_user_has_a_gateway_of_his_own_and_ctl_finds_it(machine: Machine) -> None:
    machine.run(*metamcp(machine, "systemd", "install", "--user", "--now"))
    machine.run(*metamcp(machine, "ctl", "wait", "--timeout", "30s"))
    client = machine.ask(PORT, "git__echo", '{"text": "hello"}')
    assert client.communicate(timeout=30)[0] == "hello"
    show = ("systemctl", "--user", "show", "--value", "--property=StatusText", "metamcp.service")
    assert machine.run(*SESSION, *show).strip() == "1 of 1 servers ready"


def test_what_was_installed_is_what_this_version_shows(machine: Machine) -> None:
    assert ": installed\n" in machine.run(*metamcp(machine, "systemd", "show", "--user"))
    again = machine.run(*metamcp(machine, "systemd", "install", "--user"))
    assert "metamcp.service: unchanged" in again
    machine.run(*metamcp(machine, "systemd", "uninstall", "--user"))
    nothing = machine.run(*metamcp(machine, "systemd", "uninstall", "--user"))
    assert "there are no units of the gateway" in nothing


def test_a_service_of_the_machine_is_not_installed_by_anybody(machine: Machine) -> None:
    nobody = ("/usr/bin/setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/env")
    install = metamcp(machine, "systemd", "install", prefix=nobody)
    assert "needs root: use sudo, or --user" in machine.run(*install, ok=False)
    assert not (machine.root / "etc/systemd/system/metamcp.service").exists()
