"""`metamcp login`: a person gets the running gateway authorized towards a remote server."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes.oauth_server import CANARY
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway
from tests.live.person import fetch, login, logout
from tests.waiting import until

pytestmark = pytest.mark.live

FAKE = [sys.executable, "-m", "tests.fakes.oauth_server"]


@contextmanager
def remote() -> Generator[tuple[str, str]]:
    """A server that wants OAuth, and its authorization server: their URLs."""
    with subprocess.Popen(FAKE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            url, issuer = process.stdout.readline().split()
            yield url, issuer
        finally:
            process.terminate()


def state(gateway: Gateway, name: str = "far") -> str:
    found = gateway.server(name)
    return f"{found['state']} {found['reason']} {found['message']}"


def everything(gateway: Gateway) -> str:
    """All that an operator can see."""
    seen = [gateway.ctl("status", "--json", ok=(0, 3)), gateway.ctl("events", "--json")]
    return "".join([*seen, gateway.ctl("logs", "far"), gateway.log.read_text()])


@pytest.mark.promise("M11")
def test_a_server_that_wants_oauth_works_once_a_person_has_logged_in() -> None:
    with remote() as (url, issuer):
        extra = f'[servers.far]\nurl = "{url}"\noauth = true'
        with Gateway({}, extra=extra, wait=False) as gateway:
            until(gateway.answers, "the gateway answers")
            needed = "error authorization it needs authorization: run 'metamcp login far'"
            until(lambda: state(gateway) == needed, f"it says what it needs: {state(gateway)}")
            code, said = login(gateway, "far")
            assert (code, said.splitlines()[-1]) == (0, "metamcp: 'far' is ready")
            client = Client(gateway.port)
            assert client.text("far__echo", text="hi") == "hi"
            fetch(f"{issuer}/fake/revoke", b"")
            assert client.text("far__echo", text="hi again") == "hi again"
            error: dict[str, Any] = client.call("far__write", text="x")["error"]
            assert error["code"] == -10005
            fetch(error["data"]["authorization_url"])
            assert client.text("far__write", text="x") == "written: x"
            client.close()
            assert "the tokens for 'far' are removed" in logout(gateway, "far")
            until(lambda: state(gateway) == needed, "it needs a login again")
            assert CANARY not in everything(gateway)
            assert json.loads(gateway.ctl("status", "--json", ok=(0, 3)))


def test_a_login_that_cannot_be_is_told() -> None:
    with remote() as (url, _):
        extra = f'[servers.far]\nurl = "{url}"\noauth = true\n[servers.plain]\nurl = "{url}"'
        gateway = Gateway({}, extra=extra)
        try:
            assert login(gateway, "fra")[0] == 8
            code, said = login(gateway, "plain")
            assert (code, "server 'plain' has no `oauth`" in said) == (2, True)
            code, said = login(gateway, "far")
            assert (code, "no gateway is running" in said) == (0, True)
            assert "the tokens for 'far' are removed" in logout(gateway, "far")
            assert "nothing is stored for 'far'" in logout(gateway, "far")
        finally:
            gateway.__exit__(None, None, None)
