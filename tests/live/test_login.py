"""`metamcp login`: a person gets the running gateway authorized towards a remote server."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes.oauth_server import CANARY
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway
from tests.live.person import fetch, login, logout
from tests.waiting import until

pytestmark = pytest.mark.live

ROUNDS = int(os.environ.get("METAMCP_TEST_ROUNDS", "12"))
FAKE = [sys.executable, "-m", "tests.fakes.oauth_server"]


@contextmanager
def started_remote() -> Iterator[tuple[str, str]]:
    """A server that wants OAuth, and its authorization server: their URLs."""
    with subprocess.Popen(FAKE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            url, issuer = process.stdout.readline().split()
            yield url, issuer
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def remote() -> Iterator[tuple[str, str]]:
    with started_remote() as urls:
        yield urls


def state(gateway: Gateway, name: str = "far") -> str:
    found = gateway.server(name)
    return f"{found['state']} {found['reason']} {found['message']}"


def everything(gateway: Gateway) -> str:
    """All that an operator can see."""
    seen = [gateway.ctl("status", "--json", ok=(0, 3)), gateway.ctl("events", "--json")]
    return "".join([*seen, gateway.ctl("logs", "far"), gateway.log.read_text()])


@pytest.mark.promise("M11")
def test_a_server_that_wants_oauth_works_once_a_person_has_logged_in(
    remote: tuple[str, str],
) -> None:
    url, issuer = remote
    extra = f'[servers.far]\nurl = "{url}"\noauth = true'
    with Gateway({}, extra=extra, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        needed = "error authorization it needs authorization: run 'metamcp login far'"
        until(lambda: state(gateway) == needed, f"it says what it needs: {state(gateway)}")
        code, said = login(gateway, "far")
        shown = "".join(said.splitlines(keepends=True)[-2:]).replace("'far'", "'tracker'")
        assert (code, shown in (ROOT / "docs" / "oauth.md").read_text()) == (0, True), said
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
        assert gateway.status()


@pytest.mark.promise("M11")
def test_four_workers_that_are_killed_now_and_then_show_no_token_twice(
    remote: tuple[str, str],
) -> None:
    (url, issuer), before = remote, counts(remote)
    extra = f'[servers.far]\nurl = "{url}"\noauth = true\nsharing = "per-session"\n'
    extra += 'restarts_max = 1000\nrestart_delay_max = "500ms"'
    with Gateway({}, extra=extra, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        assert login(gateway, "far")[0] == 0
        clients = [Client(gateway.port) for _ in range(4)]
        with ThreadPoolExecutor(len(clients)) as pool:
            for number in range(ROUNDS):
                fetch(f"{issuer}/fake/revoke", b"")
                assert [one for one in pool.map(echoed, clients) if "result" not in one] == []
                if number % 3 == 0:
                    kill(gateway, number % len(clients))
        for one in clients:
            one.close()
        new = counts(remote) - before
        assert new == {"refresh_token": ROUNDS, "authorization_code": 1}, "none is reused"


def counts(remote: tuple[str, str]) -> Counter[str]:
    """What was granted, and which tokens were shown twice."""
    return Counter(json.loads(fetch(f"{remote[1]}/fake/counts")))


def echoed(client: Client) -> dict[str, Any]:
    return client.call("far__echo", text="hi")


def kill(gateway: Gateway, number: int) -> None:
    """The process of one of the clients; it is there again afterwards."""
    before = [one for one in gateway.status()["servers"] if one["name"].startswith("far@")][number]
    os.kill(before["worker_pid"], signal.SIGKILL)
    name, ready = before["name"], ("active", before["generation"] + 1)

    def found() -> tuple[str, int]:
        now = gateway.server(name)
        return now["state"], now["generation"]

    until(lambda: found() == ready, "the process is there again", 30)


def test_a_login_that_cannot_be_is_told(remote: tuple[str, str]) -> None:
    url, _ = remote
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
