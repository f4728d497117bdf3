"""A server that ends before its handshake: one verdict, wherever somebody looks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.servers.specs import PRIVATE
from tests.live.gateway import SERVER, Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

ENDS = "import sys; sys.stderr.write('/tmp is not a repository\\n')"


def test_a_failed_start_is_one_whatever_the_status_that_the_server_ended_with() -> None:
    servers: dict[str, dict[str, Any]] = {
        "good": fake(),
        "git": {"command": [sys.executable, "-c", ENDS], "restart": "never"},
    }
    with Gateway(servers, wait=False) as gateway:
        check_failed(gateway, "git")
        assert gateway.ops("/readyz")[0] == 200  # nobody said that it is required
        servers["git"]["required"] = True
        gateway.write(servers)
        gateway.ctl("reload")
        gateway.wait("git", state="error")
        assert gateway.ops("/readyz")[0] == 503
        assert "required, so /readyz is 503" in gateway.ctl("status", ok=(3,))
        gateway.ctl("stop", "--wait", "git")
        assert gateway.ops("/readyz")[0] == 503
        gateway.ctl("status", ok=(3,))  # as `/readyz` has it
        gateway.ctl("wait", ok=(7,))


NEEDS = """
import os, sys
if "TICKETS_TOKEN" not in os.environ:
    sys.exit("TICKETS_TOKEN is not set")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def with_server(gateway: Gateway) -> list[dict[str, str]]:
    """The checks of doctor once a server is among them."""
    checks: list[dict[str, str]] = json.loads(gateway.ctl("doctor", "--json", ok=(0, 1)))["checks"]
    return checks if any(each["check"] == "server" for each in checks) else []


def test_a_variable_that_a_failed_server_does_not_get_is_named_until_it_is_inherited() -> None:
    entry: dict[str, Any] = {
        "command": [sys.executable, "-c", NEEDS, *SERVER[1:]],
        "restart": "never",
    }
    gateway = Gateway({"tickets": entry}, wait=False)
    gateway.environ |= {"TICKETS_TOKEN": "s3cret-value", "OTHER": "x"}
    with gateway:
        until(gateway.answers, "the gateway answers")
        gateway.wait("tickets", state="error")
        shown = gateway.ctl("describe", "tickets")
        assert "does not get this variable of the gateway: TICKETS_TOKEN (see inherit_env" in shown
        assert "s3cret-value" not in shown
        # Its first start is tried again at once, so it may be under way.
        found = until(lambda: with_server(gateway), "doctor finds it down")
        (told,) = [each for each in found if each["check"] == "environment"]
        assert "TICKETS_TOKEN" in told["text"]
        assert [each["text"][:9] for each in found if each["check"] == "server"] == ["tickets: "]
        entry["inherit_env"] = ["TICKETS_*"]
        gateway.write({"tickets": entry})
        gateway.ctl("reload")
        gateway.wait("tickets")
        assert "TICKETS_TOKEN (" not in gateway.ctl("describe", "tickets")


def test_a_folder_that_cannot_be_made_is_named_and_not_the_program() -> None:
    gateway = Gateway({"one": {**fake(), "restart": "never", "sandbox": "basic"}}, wait=False)
    with gateway:
        until(gateway.answers, "the gateway answers")
        gateway.wait("one")
        gateway.ctl("stop", "one")
        folder = gateway.folder / "state" / PRIVATE
        shutil.rmtree(folder)
        folder.write_text("in the way")
        gateway.ctl("start", "one")
        gateway.wait("one", state="error")
        said = gateway.server("one")["message"]
        assert f"the folder {folder}" in said
        assert "cannot be made" in said
        assert "choose another state_dir" in said
        assert "'metamcp ctl describe one' shows how" in gateway.ctl("doctor", ok=(0, 1))


def test_doctor_looks_at_the_settings_that_the_gateway_was_started_with() -> None:
    gateway = Gateway({"one": fake()}, wait=False)
    gateway.environ |= {"METAMCP_TLS": "required", "METAMCP_AUTH": "keys"}
    with gateway:
        gateway.wait("one")
        found = json.loads(gateway.ctl("doctor", "--json", ok=(0, 1)))["checks"]
        (told,) = [each["text"] for each in found if each["check"] == "security"]
        assert "no TLS" not in told
        assert "no credential" not in told


def check_failed(gateway: Gateway, name: str) -> None:
    """`status`, `wait` and their exit codes say that its start failed."""
    until(gateway.answers, "the gateway answers")
    gateway.wait(name, state="error")
    waiting = gateway.run("ctl", "wait", name, "--timeout", "100ms", ok=(1,))
    assert "it ended with status 0 before it was ready; on stderr: " in waiting.stderr
    assert "repository" in waiting.stderr
    found = next(server for server in gateway.status()["servers"] if server["name"] == name)
    assert (found["state"], found["reason"]) == ("error", "exit")
    shown = gateway.ctl("status", ok=(3,))
    assert "1 of 2 not ready" in shown
    assert "before it was ready" in shown


def test_up_shows_the_reason_of_a_failed_start(tmp_path: Path) -> None:
    config = tmp_path / "metamcp.toml"
    config.write_text(f"[servers.git]\ncommand = {json.dumps([sys.executable, '-c', ENDS])}\n")
    where = ("--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state"))
    process = subprocess.Popen(
        [sys.executable, "-m", "metamcp_supervisor", "up", "--config", str(config), *where],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    seen = ""
    while "Endpoint" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    process.terminate()
    process.communicate(timeout=60)
    assert " error " in seen
    assert "exit: it ended with status 0 before it was ready" in seen
