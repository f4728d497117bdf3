"""Remote servers behind the whole gateway: every way, both eras, and their deaths."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway, fake, free_port
from tests.live.raw import LEGACY, MODERN, Raw
from tests.waiting import until
from tests.worker.child.test_streamable_http_failures import process
from tests.worker.child.test_streamable_http_sdk import WAYS, serving

pytestmark = pytest.mark.live

BIG = 16 * 1024 * 1024 - 1024


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """One server of each kind, and a local one beside them."""
    with ExitStack() as stack:
        entries: dict[str, dict[str, Any]] = {
            way: {"url": url} for way, url in stack.enter_context(serving()).items()
        }
        for era in ("legacy", "modern"):
            _, url = stack.enter_context(process("--era", era, "--answer", "events"))
            entries[era] = {"url": url, "headers": {"X-Team": "blue"}}
        yield stack.enter_context(Gateway({**entries, "local": fake()}))


@pytest.mark.promise("M11", "M12")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_every_kind_of_remote_server_is_listed_and_called(gateway: Gateway, era: str) -> None:
    client = Raw(gateway.port, era)
    names = client.names()
    for name in (*WAYS, "legacy", "modern", "local"):
        assert f"{name}__echo" in names
        assert client.text(f"{name}__echo", text=f"hi {name} ä") == f"hi {name} ä"


@pytest.mark.promise("M11")
@pytest.mark.parametrize("way", WAYS)
def test_the_largest_result_comes_from_a_remote_server(gateway: Gateway, way: str) -> None:
    client = Raw(gateway.port, MODERN)
    assert len(client.text(f"{way}__big", size=BIG)) == BIG


@pytest.mark.promise("M22")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize("name", ["legacy", "modern"])
def test_what_nobody_knows_crosses_from_a_remote_server(
    gateway: Gateway, name: str, era: str
) -> None:
    client = Raw(gateway.port, era)
    params = b'{"name":"%b__%b","arguments":{"text":"hi"}}'
    result = client.answer("tools/call", params % (name.encode(), b"echo")).result
    assert b'"x-kept": 1.0' in bytes(result)
    error = codec.value(client.answer("tools/call", params % (name.encode(), b"fail")).error)
    assert (error["code"], error["x-kept"]) == (-31999, 1.0)


@pytest.mark.promise("M23")
@pytest.mark.parametrize("way", ["stateful", "sse"])
def test_progress_of_a_remote_server_reaches_the_client(gateway: Gateway, way: str) -> None:
    params = b'{"name":"%b__progress","arguments":{}}' % way.encode()
    with Raw(gateway.port, LEGACY).ask("tools/call", params, meta=b'"progressToken":"p"') as stream:
        before, answer = stream.until(b"1")
    assert [codec.value(one.params)["progressToken"] for one in before] == ["p"]
    assert answer.result


@pytest.mark.promise("M75", "M18")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_remote_server_that_dies_and_comes_back_is_used_again(era: str) -> None:
    port = free_port()
    with (
        process("--era", era, port=port) as (first, url),
        Gateway({"far": {"url": url}}) as gateway,
    ):
        client = Raw(gateway.port, MODERN)
        assert client.text("far__echo", text="hi") == "hi"
        first.kill()
        first.wait()
        away = client.answer("tools/call", b'{"name":"far__echo","arguments":{}}')
        assert codec.value(away.error)["code"] == -10001
        until(lambda: gateway.server("far")["state"] == "error", "the loss is noticed")
        assert "refused" in gateway.server("far")["message"]
        with process("--era", era, port=port):
            gateway.ctl("restart", "far", "--wait")
            assert client.text("far__echo", text="back") == "back"
