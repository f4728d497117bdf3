"""The commands of docs/systemd.md, typed as they stand there in a machine that systemd runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import lines
from tests.docs.walk import offline, wheel
from tests.systemd.machine import PACKAGES, ROOT, SOURCES, Machine, missing
from tests.waiting import until

WHY_NOT = missing()
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.promise("M111"),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]
OPT = f"{SOURCES}/bin/"
"""Programs of the virtual environment that the page makes."""
#: Without PAM, which knows the users of another machine, somebody has to say where their files are.
MANAGER = "[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """With a wheel, a session manager for its only user, and a configuration for each service."""
    with Machine() as made:
        wheel(made.root / "opt")
        root = made.root
        for path, text in {
            "etc/systemd/system/user@.service.d/session.conf": MANAGER,
            "etc/systemd/user.conf.d/test.conf": made.manager(),
            "etc/metamcp/metamcp.toml": config(made, 6270),
            "srv/mcp/gateway.toml": config(made, 6270),
            "root/.config/metamcp/metamcp.toml": config(made, 6280),
            "root/bin/sudo": '#!/bin/sh\nexec "$@"\n',
            "root/bin/python3": f'#!/bin/sh\nexec {made.python} "$@"\n',
            "root/bin/metamcp": f'#!/bin/sh\nexec {made.python} -P -m metamcp_supervisor "$@"\n',
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            (root / path).chmod(0o755 if "/bin/" in path else 0o644)
        made.run("systemctl", "daemon-reload")
        made.run("systemctl", "start", "user@0.service")
        yield made


def config(machine: Machine, port: int) -> str:
    """One scripted server, and ports that no other service of the machine has."""
    items = ", ".join(f'{key} = "{value}"' for key, value in machine.environment().items())
    command = json.dumps([machine.python, f"{SOURCES}/tests/fakes/stdio_server.py"])
    listen = f'listen = "127.0.0.1:{port}"\nops_listen = "127.0.0.1:{port + 1}"'
    return f"[gateway]\n{listen}\n[servers.git]\ncommand = {command}\nenv = {{ {items} }}\n"


def typed(machine: Machine, line: str) -> str:
    """What a command prints that is typed in a login shell of the machine."""
    settings = {
        **machine.environment(), **offline(Path("/opt")), "HOME": "/root",
        "XDG_RUNTIME_DIR": "/run/user/0", "PATH": "/root/bin:/usr/bin:/usr/sbin",
        "SYSTEMD_PAGER": "cat",
    }  # fmt: skip
    if line.startswith((OPT, "python3 ")):
        # What the wheel depends on; pip and venv are to see nothing but the new environment.
        settings["PYTHONPATH"] = PACKAGES if line.startswith(f"{OPT}metamcp") else ""
    words = [f"{name}={value}" for name, value in settings.items()]
    return machine.run("/usr/bin/env", *words, "/bin/sh", "-c", line)


def test_the_commands_of_the_page_do_what_they_say(machine: Machine) -> None:
    said: dict[str, str] = {}
    for line in lines((ROOT / "docs" / "systemd.md").read_text()):
        if line == "sudo systemctl enable --now metamcp.socket":
            machine.run("systemctl", "stop", "metamcp.service")  # as the page says
        said[line] = typed(machine, line)
        if line.startswith("systemctl restart"):
            until(lambda: "1 of 1 servers ready" in machine.show("StatusText"), "it serves again")
    assert len(said) > 8
    assert "metamcp.service" in said["systemctl status metamcp.service"]
    assert f"{OPT}metamcp" in machine.run("systemctl", "cat", "metamcp.service")
    client = machine.ask(6270, "git__echo", '{"text": "hello"}')
    assert client.communicate(timeout=30)[0] == "hello"
