"""Credentials of a client stay with the gateway."""

import http.client
import json
from pathlib import Path

import pytest

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway
from tests.live.raw import MODERN, Raw
from tests.worker.child.test_streamable_http_failures import process

pytestmark = pytest.mark.live

SECRET = "do-not-pass-this-on"
CREDENTIALS = {
    "Authorization": f"Bearer {SECRET}", "Cookie": f"sid={SECRET}", "X-API-Key": SECRET,
    "Proxy-Authorization": f"Basic {SECRET}", "X-Forwarded-For": SECRET,
}  # fmt: skip


@pytest.mark.promise("M99")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_no_credential_of_a_client_reaches_a_remote_server(era: str, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    with process("--era", era, "--heads", str(heads)) as (_, url):
        remote = {"url": url, "headers": {"X-Team": "blue", "Authorization": "Bearer its-own"}}
        with Gateway({"far": remote}) as gateway:
            client = Raw(gateway.port, MODERN)
            stamp = codec.dump({"_meta": client.stamp})[1:-1]
            body = (
                b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"far__echo",'
                b'"arguments":{"text":"hi"},%b}}' % stamp
            )
            named = {
                "Content-Type": "application/json", "MCP-Protocol-Version": MODERN,
                "Accept": "application/json, text/event-stream",
                "Mcp-Method": "tools/call", "Mcp-Name": "far__echo",
            }  # fmt: skip
            connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
            connection.request("POST", "/mcp", body, {**named, **CREDENTIALS})
            answer = json.loads(connection.getresponse().read())
            connection.close()
            assert answer["result"]["content"], answer
    seen = heads.read_text()
    assert SECRET not in seen
    for line in seen.splitlines():
        _, headers = json.loads(line)
        assert headers["authorization"] == "Bearer its-own"
        assert headers["x-team"] == "blue"
        assert "cookie" not in headers
