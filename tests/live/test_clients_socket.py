"""A unix socket for clients beside a port with TLS: also over an upgrade, and after a kill."""

import json
import stat

import pytest

from tests import unixhttp
from tests.live.client import MODERN, Client
from tests.live.upgradable import SERVERS, Upgradable
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M6")]

EXTRA = '[gateway]\ntls = "required"\nsocket = "mcp.sock"\n'


class OnSocket(Upgradable):
    """A gateway with TLS at its port; `path`: of its unix socket."""

    def __init__(self) -> None:
        super().__init__(SERVERS, extra=EXTRA)
        self.path = self.folder / "mcp.sock"

    def tools(self) -> int:
        """The number of tools that a client on the socket is shown; 0 if nobody listens."""
        client = Client(self.port, MODERN)
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/list",
            "params": {"_meta": client.meta()},
        }
        connection = unixhttp.Connection(self.path)
        try:
            headers = client.headers("tools/list", "") | {"Host": "localhost"}
            connection.request("POST", "/mcp", json.dumps(body), headers)
            answer = connection.getresponse()
            return len(json.loads(answer.read())["result"]["tools"])
        except OSError:
            return 0
        finally:
            connection.close()


def test_clients_on_the_socket_are_served_in_plain_http_and_its_file_comes_and_goes() -> None:
    with OnSocket() as gateway:
        assert gateway.tools() > 0
        assert stat.filemode(gateway.path.stat().st_mode) == "srw-rw----"
        gateway.install("9.9.9")
        gateway.upgrade()
        assert gateway.tools() > 0
        assert gateway.process is not None
        gateway.process.kill()
        gateway.process.wait(10)
        until(lambda: not gateway.left(), "nothing of the first one is left")
        assert gateway.path.exists()
        gateway.start()
        until(lambda: gateway.tools() > 0, "the next one listens at the same path")
        assert gateway.stop() == 0
        assert not gateway.path.exists()
