"""What a client gets through the gateway is what the server said, byte for byte."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from metamcp_worker import codec
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import SERVER, Gateway, fake

pytestmark = pytest.mark.live

FLAGS = ("--prompts", "--resources")


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {"old": fake("--era", "legacy", *FLAGS), "new": fake("--era", "modern", *FLAGS)}
    with Gateway(servers) as running:
        yield running


def said(era: str, method: str, params: dict[str, object]) -> codec.Envelope:
    """What the server itself answers to one request, asked over its own stdin."""
    kind = "modern" if era == MODERN else "legacy"
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    done = subprocess.run(
        [*SERVER, "--era", kind, *FLAGS],
        input=json.dumps(message).encode() + b"\n",
        capture_output=True,
        timeout=20,
        check=True,
    )
    return codec.envelope(done.stdout.splitlines()[0])


def asked(gateway: Gateway, era: str, method: str, params: dict[str, object]) -> codec.Envelope:
    """What comes through the gateway, not decoded."""
    client = Client(gateway.port, era)
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    name = str(params.get("name", params.get("uri", "")))
    raw = client.post(json.dumps(message).encode(), method, name)
    client.close()
    return codec.envelope(raw)


def with_meta(era: str, params: dict[str, object]) -> dict[str, object]:
    if era != MODERN:
        return params
    meta: dict[str, object] = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {**params, "_meta": meta}


@pytest.mark.promise("M22")
@pytest.mark.parametrize(
    ("era", "server", "tool", "arguments"),
    [
        (LEGACY, "old", "echo", {"text": "plain"}),
        (LEGACY, "old", "fail", {}),
        (MODERN, "new", "echo", {"text": "modern"}),
        (MODERN, "new", "blob", {"kib": 300}),
    ],
)
def test_a_result_is_the_servers_own_bytes(
    gateway: Gateway, era: str, server: str, tool: str, arguments: dict[str, object]
) -> None:
    direct = said(era, "tools/call", with_meta(era, {"name": tool, "arguments": arguments}))
    params = with_meta(era, {"name": f"{server}__{tool}", "arguments": arguments})
    through = asked(gateway, era, "tools/call", params)
    assert bytes(through.result) == bytes(direct.result)
    assert b"x-result" in bytes(through.result)


@pytest.mark.promise("M22")
@pytest.mark.parametrize(("era", "server"), [(LEGACY, "old"), (MODERN, "new")])
def test_an_error_is_the_servers_own_bytes(gateway: Gateway, era: str, server: str) -> None:
    direct = said(era, "tools/call", with_meta(era, {"name": "error", "arguments": {}}))
    params = with_meta(era, {"name": f"{server}__error", "arguments": {}})
    through = asked(gateway, era, "tools/call", params)
    assert bytes(through.error) == bytes(direct.error)
    assert b"x-error" in bytes(through.error)


@pytest.mark.promise("M22")
@pytest.mark.promise("M20")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize(
    ("method", "kind"),
    [("tools/list", "tools"), ("prompts/list", "prompts"), ("resources/list", "resources")],
)
def test_a_definition_changes_in_nothing_but_its_name(
    gateway: Gateway, era: str, method: str, kind: str
) -> None:
    direct = said(LEGACY, method, {})
    through = asked(gateway, era, method, with_meta(era, {}))
    ours = [codec.level(item) for item in codec.items(codec.level(through.result)[kind])]
    for item in codec.items(codec.level(direct.result)[kind]):
        theirs = codec.level(item)
        name = codec.text(theirs["name"])
        exposed = name if kind == "resources" else f"old__{name}"
        mine = next(one for one in ours if codec.text(one["name"]) == exposed)
        assert list(mine) == list(theirs)
        assert all(bytes(mine[key]) == bytes(theirs[key]) for key in theirs if key != "name")


@pytest.mark.promise("M21")
@pytest.mark.parametrize(("era", "server"), [(LEGACY, "old"), (MODERN, "new")])
def test_prompts_and_resources_are_routed_like_tools(
    gateway: Gateway, era: str, server: str
) -> None:
    prompt: dict[str, object] = {"name": "greet", "arguments": {"who": "Ada"}}
    direct = said(era, "prompts/get", with_meta(era, prompt))
    exposed = with_meta(era, {**prompt, "name": f"{server}__greet"})
    assert bytes(asked(gateway, era, "prompts/get", exposed).result) == bytes(direct.result)
    read = asked(gateway, era, "resources/read", with_meta(era, {"uri": "fake://one"}))
    assert b'"x-content"' in bytes(read.result)


@pytest.mark.promise("M22")
def test_a_large_result_crosses_whole(gateway: Gateway) -> None:
    client = Client(gateway.port, LEGACY)
    assert client.text("old__blob", kib=8 * 1024) == "x" * (8 * 1024 * 1024)
    client.close()
