"""Servers that are activated and deactivated: states, messages, processes, and what is in view."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client as Sdk

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway
from tests.live.raw import LEGACY, MODERN, Raw
from tests.live.viewed import (
    WHOLE,
    called,
    done,
    endpoint,
    eras,
    heard,
    listeners,
    named,
    names,
    opened_client,
    pids,
    refused,
    said,
)
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M35")]

BARE = endpoint("default", exposure='"servers"', naming='{ style = "bare" }')
CHROME = ["chrome_navigate", *(f"chrome_{number:02}" for number in range(1, 26))]
"""26, named as their server names them."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """What has no server in error or warming."""
    github = named("search", "crash", restart="never")
    with Gateway({"chrome": named(*CHROME), "github": github}, extra=BARE) as running:
        yield running


@pytest.fixture(autouse=True)
def begin(request: pytest.FixtureRequest) -> None:
    """Nothing is active."""
    if "gateway" in request.fixturenames:
        client = Raw(request.getfixturevalue("gateway").port, MODERN)
        for server in ("chrome", "github"):
            assert not called(client, "gateway_deactivate", name=server)["isError"]


async def states(client: Sdk) -> dict[str, dict[str, Any]]:
    rows = (await done(client, "gateway_status"))["servers"]
    return {row["name"]: row for row in rows}


@pytest.mark.promise("M15")
@eras
async def test_each_server_has_its_state_and_one_that_fails_or_waits_keeps_none_from_being_used(
    tmp_path: Path, mode: str
) -> None:
    gate = tmp_path / "gate"
    servers = {
        "chrome": named(*CHROME),
        "linear": {"command": ["no-such-program-at-all"]},
        "slow": named("--gate", str(gate), "wait"),
    }

    with Gateway(servers, extra=BARE, wait=False) as running:
        until(running.answers, "it answers")
        running.wait("chrome")
        until(lambda: running.server("linear")["state"] == "error", "linear cannot be started")
        async with opened_client(running, mode) as client:
            assert await names(client) == WHOLE
            found = await states(client)
            told = {
                name: [row["state"], row["ready"], row["active"]] for name, row in found.items()
            }
            assert told == {
                "chrome": ["ready", True, False],
                "linear": ["error", False, False],
                "slow": ["warming", False, False],
            }
            assert [row["tools"] for row in found.values()] == [26, 0, 0]
            error = found["linear"]["error"]
            assert error.startswith("cannot start linear: no program 'no-such-program-at-all'")
            assert [name for name, row in found.items() if "error" in row] == ["linear"]
            why = await refused(client, "gateway_activate", name="linear")
            assert why.startswith("linear was not activated: it is in error: cannot start linear: ")
            await done(client, "gateway_activate", name="chrome")
            assert (await states(client))["chrome"]["state"] == "active"
            waits = await client.call_tool("gateway_activate", {"name": "slow"})
            assert said(waits) == (
                "slow is activated; its tools come into view as soon as it is ready."
            )
            assert await names(client) == [*WHOLE, *CHROME]
            with listeners(running) as streams:
                gate.touch()
                heard(streams)
            assert await names(client) == [*WHOLE, *CHROME, "wait"]


@eras
async def test_3_tools_become_29_and_3_again_while_the_process_lives_on(
    gateway: Gateway, mode: str
) -> None:
    before = pids(gateway)["chrome"]

    async with opened_client(gateway, mode) as client:
        with listeners(gateway) as streams:
            for _ in range(2):
                assert await names(client) == WHOLE
                active = await client.call_tool("gateway_activate", {"name": "chrome"})
                assert said(active).startswith("chrome is active: its 26 tools are in view: ")
                assert active.structured_content == {
                    "name": "chrome", "state": "active", "ready": True, "active": True,
                    "tools": 26,
                }  # fmt: skip
                heard(streams)
                assert await names(client) == [*WHOLE, *CHROME]
                assert len(await names(client)) == 29
                found = await client.call_tool("chrome_navigate", {"query": "about:blank"})
                assert json.loads(said(found)) == {
                    "name": "chrome_navigate", "arguments": {"query": "about:blank"},
                }  # fmt: skip
                over = await done(client, "gateway_deactivate", name="chrome")
                assert (over["state"], over["ready"], over["active"]) == ("ready", True, False)
                heard(streams)
        assert await names(client) == WHOLE
        assert pids(gateway)["chrome"] == before
        os.kill(before, 0)


@eras
async def test_a_crash_takes_the_tools_out_of_the_list_and_stores_what_happened(
    gateway: Gateway, mode: str
) -> None:

    async with opened_client(gateway, mode) as client:
        await done(client, "gateway_activate", name="github")
        await done(client, "gateway_activate", name="chrome")
        assert "search" in await names(client)
        with listeners(gateway) as streams:
            Raw(gateway.port, MODERN).answer("tools/call", codec.dump({"name": "crash"}))
            heard(streams)
        assert await names(client) == [*WHOLE, *CHROME], "the others stay"
        github = (await states(client))["github"]
        assert (github["state"], github["ready"], github["active"]) == ("error", False, False)
        assert "3" in github["error"], "its exit code"
        why = await refused(client, "gateway_activate", name="github")
        assert why == (
            f"github was not activated: it is in error: {github['error']};"
            " `metamcp ctl start github` starts it."
        )
        with listeners(gateway) as streams:
            gateway.ctl("start", "github", "--wait")
            heard(streams)
        assert (await states(client))["github"]["state"] == "active", "it is so once it is back"
        assert "search" in await names(client)


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_the_gateway_answers_for_itself_what_is_no_tool_of_a_server(
    gateway: Gateway, era: str
) -> None:
    client = Raw(gateway.port, era)
    if era == LEGACY:
        assert client.initialized["capabilities"]["tools"] == {"listChanged": True}
        assert client.result("ping") == {}
    else:
        found = client.result("server/discover")
        assert found["capabilities"]["tools"] == {"listChanged": True}
    unknown = codec.value(client.answer("no/such/method").error)
    assert (unknown["code"], unknown["message"]) == (-32601, "Unknown method: no/such/method")
    failed = called(client, "gateway_activate", name="crome")
    assert failed["isError"]
    assert failed["content"][0]["text"] == (
        "There is no server 'crome' behind this endpoint; there are: chrome, github."
    )


@pytest.mark.promise("M37")
def test_what_one_session_chooses_is_its_own_and_a_crash_takes_it_away_at_once(
    tmp_path: Path,
) -> None:
    """Nothing of this is written in the configuration."""
    there = tmp_path / "there"
    there.touch()
    server = named("search", "note", hide_after="60s", restart_delay_max="100ms")
    command = ["sh", "-c", f'test -e {there} && exec "$@"', "sh", *server["command"]]
    found = '[endpoints.{0}]\nnamespace = "default"\nexposure = "{0}"\n'
    extra = found.format("servers") + found.format("search")
    with Gateway({"github": {**server, "command": command}}, extra=extra) as gateway:
        for exposure, order in (
            ("servers", ("gateway_activate", {"name": "github"})),
            ("search", ("load_tool", {"name": "github.search"})),
        ):
            path = f"/metamcp/{exposure}/mcp"
            mine, yours, modern = (Raw(gateway.port, era, path) for era in (LEGACY, LEGACY, MODERN))
            before = yours.names()
            assert not called(mine, order[0], **order[1])["isError"]
            assert (len(mine.names()) > len(before), yours.names(), modern.names()) == (
                True, before, before,
            )  # fmt: skip
        active = Raw(gateway.port, LEGACY, "/metamcp/servers/mcp")
        called(active, "gateway_activate", name="github")
        there.unlink()
        os.kill(pids(gateway)["github"], signal.SIGKILL)
        until(lambda: active.names() == WHOLE, "the tools are gone", 10.0)
        there.touch()
        until(lambda: len(active.names()) > len(WHOLE), "they are back with it")
