"""A server that speaks both eras is spoken to in the era of each client; one that speaks one era is
tried once, and reached by a bridge."""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.fakes import one_revision
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw
from tests.waiting import until
from tests.worker.child.test_streamable_http_failures import process

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

URI, UPDATED = "fake://one", "notifications/resources/updated"
CHANGED = "notifications/tools/list_changed"
ASKABLE: dict[str, Any] = {"elicitation": {}}
SERVERS: dict[str, dict[str, Any]] = {
    "both": fake("--era", "both", "--resources"),
    "own": {**fake("--era", "both"), "sharing": "per-session"},
    "old": {**fake("--era", "both"), "era": "legacy"},
    "new": {**fake("--era", "both"), "era": "modern"},
    "only": fake("--era", "modern"),
    "first": fake("--era", "legacy"),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with process("--era", "both") as (_, url):
        SERVERS["far"] = {"url": url}
        with Gateway(SERVERS) as running:
            yield running


@pytest.mark.promise("M21")
def test_the_revision_that_a_server_accepted_at_last_is_the_first_one_at_its_next_starts() -> None:
    def asked(gateway: Gateway) -> str:
        gateway.wait("old")
        return Raw(gateway.port, MODERN).text("old__echo")

    command = [sys.executable, one_revision.__file__, "2024-10-07", one_revision.PLAIN]
    with Gateway({"old": {"command": command}}) as gateway:
        assert asked(gateway) == "2024-10-07, asked 5 times"
        assert spoken(gateway, "old") == {"": "2024-10-07"}
        gateway.ctl("restart", "old", "--wait")
        assert asked(gateway) == "2024-10-07, asked 1 times"
        gateway.stop()
        gateway.start()
        assert asked(gateway) == "2024-10-07, asked 1 times"


@pytest.mark.promise("M12")
def test_a_gateways_own_event_stream_is_a_server_of_2024(gateway: Gateway) -> None:
    url = gateway.url.removesuffix("/mcp") + "/sse"
    with Gateway({"far": {"url": url}}) as another:
        another.wait("far")
        assert Raw(another.port, MODERN).text("far__only__echo", text="hi") == "hi"
        assert spoken(another, "far") == {"": LEGACY}


def spoken(gateway: Gateway, server: str) -> dict[str, str]:
    """The revision that each process of a server speaks."""
    every = gateway.status()["servers"]
    return {
        one["name"].removeprefix(server): one["protocol"]
        for one in every
        if one["name"].partition("@")[0] == server
    }


def asked(client: Raw, server: str) -> str:
    """What is answered to a call in whose middle a client with a session is asked something."""
    params = codec.dump({"name": f"{server}__elicit", "arguments": {}})
    with client.ask("tools/call", params) as stream:
        question = stream.next()
        assert question.method == "elicitation/create", question
        answer = {"action": "accept", "content": {"name": "ada"}}
        client.reply(bytes(question.id), codec.dump(answer))
        _, answered = stream.until(b"1")
    text: str = codec.value(answered.result)["content"][0]["text"]
    return text


def tries(gateway: Gateway, server: str) -> int:
    """How often it was tried whether this server speaks the other era."""
    events = gateway.events(who=f"{server}@legacy")
    first = "started for clients of the earlier era"
    return sum(first in event["cause"] for event in events)


@pytest.mark.promise("M83")
def test_each_client_is_served_in_its_own_era(gateway: Gateway) -> None:
    ada, bob = Raw(gateway.port, LEGACY, capabilities=ASKABLE), Raw(gateway.port, "2025-06-18")
    eve = Raw(gateway.port, MODERN)
    for server in ("both", "far"):
        assert spoken(gateway, server) == {"": MODERN}
        assert ada.text(f"{server}__echo", text="hi") == "hi"
        assert eve.text(f"{server}__echo", text="hi") == "hi"
        assert bob.text(f"{server}__echo", text="hi") == "hi"
        assert spoken(gateway, server) == {"": MODERN, "@legacy": LEGACY}
    assert "ada" in asked(ada, "both")
    old, new = int(ada.text("both__pid")), int(eve.text("both__pid"))
    assert int(bob.text("both__pid")) == old != new
    assert gateway.server("both")["pid"] == new
    os.kill(old, signal.SIGKILL)
    until(lambda: gateway.server("both@legacy")["pid"] not in (0, old), "it is started again")
    assert int(eve.text("both__pid")) == new


@pytest.mark.promise("M83")
def test_a_server_of_one_era_is_tried_once_and_reached_by_a_bridge(gateway: Gateway) -> None:
    ada, eve = Raw(gateway.port, LEGACY, capabilities=ASKABLE), Raw(gateway.port, MODERN)
    assert spoken(gateway, "only") == {"": MODERN}
    assert "ada" in asked(ada, "only")
    assert ada.text("only__pid") == eve.text("only__pid")
    until(lambda: spoken(gateway, "only") == {"": MODERN}, "the process of the other era is gone")
    assert tries(gateway, "only") == 1
    assert "it speaks one era" in gateway.journal()
    assert "ada" in asked(ada, "first")
    assert spoken(gateway, "first") == {"": LEGACY}


def test_a_subscription_to_a_server_of_one_era_is_with_the_process_that_there_is() -> None:
    with Gateway({"new": fake("--era", "modern", "--resources")}) as gateway:
        ada, eve = Raw(gateway.port, LEGACY), Raw(gateway.port, MODERN)
        with ada.listen() as stream, eve.listen(resourceSubscriptions=[URI]) as other:
            ada.result("resources/subscribe", codec.dump({"uri": URI}))
            for _ in range(2):
                eve.text("new__touch")
                stream.news(UPDATED)
                other.news(UPDATED)
                ada.result("resources/unsubscribe", codec.dump({"uri": URI}))
                ada.result("resources/subscribe", codec.dump({"uri": URI}))
        assert tries(gateway, "new") == 1


def test_the_era_that_was_chosen_is_that_of_all_clients(gateway: Gateway) -> None:
    ada, eve = Raw(gateway.port, LEGACY, capabilities=ASKABLE), Raw(gateway.port, MODERN)
    for server, protocol in (("old", LEGACY), ("new", MODERN)):
        assert "ada" in asked(ada, server)
        assert ada.text(f"{server}__pid") == eve.text(f"{server}__pid")
        assert spoken(gateway, server) == {"": protocol}


def test_a_process_for_one_client_speaks_its_era(gateway: Gateway) -> None:
    ada, eve = Raw(gateway.port, LEGACY, capabilities=ASKABLE), Raw(gateway.port, MODERN)
    assert "ada" in asked(ada, "own")
    assert sorted(spoken(gateway, "own").values()) == [LEGACY, MODERN]
    assert eve.text("own__pid") != ada.text("own__pid")
    assert sorted(spoken(gateway, "own").values()) == [LEGACY, MODERN, MODERN]


def test_each_era_has_the_lists_of_its_process(gateway: Gateway) -> None:
    ada, eve = Raw(gateway.port, LEGACY), Raw(gateway.port, MODERN)
    before = ada.names()
    assert before == eve.names()
    with ada.listen() as stream:
        ada.text("both__change")
        assert stream.next().method == CHANGED
    assert set(ada.names()) - set(before) == {"both__new0"}
    assert eve.names() == before


def test_what_is_known_of_the_eras_is_kept_over_a_restart() -> None:
    servers = {
        "both": {**fake("--era", "both"), "start": "lazy", "idle_stop": "1s"},
        "only": fake("--era", "modern"),
    }
    with Gateway(servers) as gateway:
        ada = Raw(gateway.port, LEGACY)
        assert ada.text("only__echo", text="hi") == ada.text("both__echo", text="hi") == "hi"
        assert spoken(gateway, "both")["@legacy"] == LEGACY
        until(lambda: gateway.server("both@legacy")["state"] == "idle", "nobody needs it")
        tried = tries(gateway, "only")
        gateway.stop()
        gateway.start()
        ada = Raw(gateway.port, LEGACY)
        assert gateway.server("both@legacy")["state"] == "idle"
        assert ada.text("only__echo", text="hi") == ada.text("both__echo", text="hi") == "hi"
        assert spoken(gateway, "both")["@legacy"] == LEGACY
        assert tries(gateway, "only") == tried


@pytest.mark.promise("M20")
def test_a_client_before_its_servers_is_answered_all_that_was_announced() -> None:
    servers = {"slow": fake("--slow-start", "1500", "--prompts", "--resources"), "other": fake()}
    with Gateway(servers, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        early = Raw(gateway.port, LEGACY)
        announced = early.initialized["capabilities"]
        assert set(announced) == {"tools", "prompts", "resources", "completions", "logging"}
        assert announced["resources"]["subscribe"]
        early.result("logging/setLevel", b'{"level":"info"}')
        gateway.wait()
        (prompt, *_) = early.names("prompts/list", "prompts")
        ref = {"type": "ref/prompt", "name": prompt}
        asked = codec.dump({"ref": ref, "argument": {"name": "x", "value": ""}})
        assert early.result("completion/complete", asked) == {"completion": {"values": []}}
        early.result("resources/subscribe", codec.dump({"uri": URI}))
