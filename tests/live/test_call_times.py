"""How long a call may take: with progress and without, and for ever."""

from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SHORT = {"timeout": "2s", "timeout_max": "6s"}
PROGRESS = "notifications/progress"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {era: {**fake("--era", era), **SHORT} for era in ("legacy", "modern")}
    with Gateway(servers) as running:
        yield running


def call(
    gateway: Gateway, client_era: str, tool: str, token: bytes = b"", **arguments: object
) -> tuple[list[str | None], Any, Any]:
    """The messages before the answer, its result and its error."""
    client = Raw(gateway.port, client_era)
    params = codec.dump({"name": tool, "arguments": arguments})
    meta = b'"progressToken":%b' % token if token else b""
    with client.ask("tools/call", params, meta=meta) as stream:
        before, answer = stream.until(b"1")
    error = codec.value(answer.error) if answer.error else None
    return [one.method for one in before], answer.result and codec.value(answer.result), error


@pytest.mark.promise("M23")
@pytest.mark.parametrize("client", [LEGACY, MODERN])
@pytest.mark.parametrize("server", ["legacy", "modern"])
@pytest.mark.parametrize("token", [b"", b"7"])
def test_a_call_that_reports_progress_is_not_ended_whoever_asked_for_it(
    gateway: Gateway, client: str, server: str, token: bytes
) -> None:
    before, result, _ = call(gateway, client, f"{server}__progress", token, n=4, every_ms=900)
    assert result["content"][0]["text"] == "4 steps"
    assert before.count(PROGRESS) == (4 if token else 0)


@pytest.mark.parametrize("server", ["legacy", "modern"])
def test_a_call_without_progress_ends_after_its_time(gateway: Gateway, server: str) -> None:
    _, _, error = call(gateway, MODERN, f"{server}__sleep", ms=30_000)
    assert error["message"].endswith("did not answer tools/call within 2 s")


def test_a_call_with_progress_for_ever_ends_after_the_longest_time(gateway: Gateway) -> None:
    _, _, error = call(gateway, MODERN, "legacy__progress", n=100, every_ms=500)
    assert error["message"].endswith("within 6 s, the most for a call with progress")
