"""A server gets the request that the front saw, whatever the client wrote: with real processes."""

import http.client
import json
from collections.abc import Iterator

import pytest

from metamcp_worker.ipc import codec
from tests.fuzz.targets import readers
from tests.live.gateway import Gateway
from tests.live.odd import SERVER
from tests.live.raw import MODERN, Raw

pytestmark = [pytest.mark.live, pytest.mark.promise("M98")]

SAFE = b'{"name":"safe","inputSchema":{"type":"object"}}'
#: Parameters of tools/call that some readers take for a call of `other`, and some for `safe`.
CALLS = {
    "twice": b'{"name":"other","name":"odd__safe"}',
    "escaped": rb'{"n\u0061me":"other","name":"odd__safe"}',
    "escaped last": rb'{"name":"other","nam\u0065":"odd__safe"}',
    "capitals": b'{"Name":"other","name":"odd__safe","NAME":"other"}',
    "in the arguments": b'{"name":"odd__safe","arguments":{"name":"other","method":"x","id":9}}',
    "arguments twice": b'{"arguments":{"a":1},"name":"odd__safe","arguments":{"b":2}}',
    "line ends": b'{\r\n"name":\n"odd__safe",\r"arguments":{\n}}',
    "escaped value": rb'{"name":"odd__s\u0061fe"}',
    "another member": b'{"name":"odd__safe","params":{"name":"other"},"method":"tools/list"}',
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    script = tmp_path_factory.mktemp("script") / "odd.json"
    script.write_text(json.dumps({
        "era": "modern", "capabilities": '{"tools":{}}',
        "answers": {
            "tools/list": {"result": f'{{"tools":[{SAFE.decode()}]}}'},
            "tools/call": {"result": "PARAMS"},
        },
    }))  # fmt: skip
    with Gateway({"odd": {"command": [*SERVER, str(script)]}}) as gateway:
        yield Raw(gateway.port, MODERN)


@pytest.mark.parametrize("case", CALLS)
def test_every_reader_finds_the_tool_that_the_front_saw(client: Raw, case: str) -> None:
    stamp = codec.dump({"_meta": client.stamp})[1:-1]
    sent = b"{" + stamp + b"," + CALLS[case][1:]
    read_by = readers(raw_answer(client, sent))
    assert len(read_by) == 2
    for read in read_by:
        assert read["params"]["name"] == "safe"
        assert "arguments" not in read["params"] or read["params"]["arguments"] != {"a": "1"}


def raw_answer(client: Raw, params: bytes) -> bytes:
    """The raw result; its header says `odd__safe`."""
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % params
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    connection.request("POST", "/mcp", body, {
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "odd__safe",
    })  # fmt: skip
    answer = codec.envelope(connection.getresponse().read())
    connection.close()
    assert answer.result, bytes(answer.error)
    return bytes(answer.result)
