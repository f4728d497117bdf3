"""A new key for the tokens of remote servers, under a gateway that runs."""

import json

import pytest

from tests.live.client import Client
from tests.live.gateway import Gateway
from tests.live.person import fetch, login
from tests.live.test_login import started_remote
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M11")]


def test_a_running_gateway_and_the_next_one_go_on_with_their_tokens() -> None:
    with started_remote() as (url, issuer):
        extra = f'[servers.far]\nurl = "{url}"\noauth = true'
        with Gateway({}, extra=extra, wait=False) as gateway:
            until(gateway.answers, "the gateway answers")
            assert login(gateway, "far")[0] == 0
            client = Client(gateway.port)
            assert client.text("far__echo", text="one") == "one"
            done = gateway.run("keys", "rotate-tokens", "--json")
            assert json.loads(done.stdout)["files"] == 1
            fetch(f"{issuer}/fake/revoke", b"")  # the worker refreshes, and stores what it gets
            assert client.text("far__echo", text="two") == "two"
            client.close()
            assert gateway.stop() == 0
            gateway.start()
            until(gateway.answers, "the next gateway answers")
            until(lambda: gateway.server("far")["state"] == "active", "it needs no login")
            client = Client(gateway.port)
            assert client.text("far__echo", text="three") == "three"
            client.close()
            counts = json.loads(fetch(f"{issuer}/fake/counts"))
            assert (counts["authorization_code"], counts["refresh_token"]) == (1, 1)
