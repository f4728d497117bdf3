"""A gateway that stops says so before it refuses anybody."""

import signal

import pytest

from tests.waiting import until

from .client import MODERN, Client
from .gateway import Gateway, fake

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@pytest.mark.promise("M86")
def test_clients_are_served_while_the_gateway_says_that_it_is_about_to_stop() -> None:
    with Gateway({"one": fake()}, extra='[gateway]\ndrain_delay = "1h"\n') as gateway:
        assert gateway.ops("/readyz")[0] == 200
        assert gateway.process is not None
        gateway.process.terminate()
        until(lambda: gateway.ops("/readyz")[0] == 503, "it is not ready any more")
        assert gateway.ops("/livez")[0] == 200
        client = Client(gateway.port, MODERN)
        assert client.text("one__echo", text="new") == "new"
        client.close()
        gateway.process.send_signal(signal.SIGINT)  # nobody wants to wait any more
        assert gateway.process.wait(60) == 0
