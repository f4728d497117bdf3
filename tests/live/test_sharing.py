"""A process of a server for each client: what it keeps is its own, and goes with it."""

import http.client
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live import processes
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.raw import LEGACY, MODERN, PREFIX, Raw, Stream
from tests.waiting import until
from tests.worker.child.test_streamable_http_failures import process

pytestmark = [pytest.mark.live, pytest.mark.promise("M77"), pytest.mark.timeout(120)]

SERVERS: dict[str, dict[str, Any]] = {
    "own": {**fake("--era", "legacy", "--resources"), "sharing": "per-session"},
    "named": {**fake(), "sharing": "per-session"},
    "brief": {**fake(), "sharing": "per-session", "idle_stop": "1s"},
    "notes": {
        "module": "notes:server",
        "cwd": str(ROOT / "examples/demo"),
        "sharing": "per-session",
    },
    "shared": fake("--era", "legacy"),
    "auto": {**fake("--era", "legacy"), "sharing": "auto"},
}
ASKABLE: dict[str, Any] = {"elicitation": {}}
ELICIT = b'{"name":"own__elicit","arguments":{}}'
URI, OTHER_URI = "fake://one", "fake://two"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with process("--era", "legacy") as (_, url):
        SERVERS["far"] = {"url": url, "sharing": "per-session"}
        with Gateway(SERVERS) as running:
            yield running


def named(gateway: Gateway, name: str) -> Raw:
    """A client of the revision without sessions that says this of itself; nothing for no name."""
    made = Raw(gateway.port, MODERN)
    if name:
        made.stamp[PREFIX + "clientInfo"] = {"name": name, "version": "1"}
    else:
        del made.stamp[PREFIX + "clientInfo"]
    return made


def end(client: Raw) -> None:
    """Close the session, as clients that leave for good do."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    headers = {"MCP-Protocol-Version": client.era, "Mcp-Session-Id": client.session}
    connection.request("DELETE", "/mcp", headers=headers)
    assert connection.getresponse().status == 200
    connection.close()


def count(client: Raw, server: str) -> int:
    """What the server keeps, one more each time."""
    return int(client.text(f"{server}__leak", mib=1))


def pid(client: Raw, server: str) -> int:
    return int(client.text(f"{server}__pid"))


def rows(gateway: Gateway, server: str) -> dict[str, dict[str, Any]]:
    """The processes of a server for single clients, as status shows them."""
    every = gateway.status()["servers"]
    return {one["name"]: one for one in every if one["name"].startswith(f"{server}@")}


def elicit(client: Raw, server: str) -> Stream:
    """A call in whose middle its client is asked something."""
    return client.ask("tools/call", codec.dump({"name": f"{server}__elicit", "arguments": {}}))


def replaced(gateway: Gateway, front: int) -> None:
    """SIGKILL to a front, and its successor serves."""
    os.kill(front, signal.SIGKILL)
    until(lambda: not processes.alive({front}), "it is dead")

    def served() -> bool:
        fronts = gateway.status()["fronts"]
        return all(one["state"] == "ready" and one["pid"] != front for one in fronts)

    until(served, "and replaced")


def updated(stream: Stream) -> str:
    """Of which resource it says next that it changed."""
    told = stream.next()
    assert told.method == "notifications/resources/updated", told
    uri: str = codec.value(told.params)["uri"]
    return uri


def both_asked(one: Raw, other: Raw, server: str) -> None:
    """Two clients are asked at the same time, and each answer is for its own question."""
    with ExitStack() as stack:
        streams = [stack.enter_context(elicit(client, server)) for client in (one, other)]
        for client, stream, word in zip((one, other), streams, ("ada", "bob"), strict=True):
            question = stream.next()
            assert question.method == "elicitation/create", question
            answer = {"action": "accept", "content": {"name": word}}
            client.reply(bytes(question.id), codec.dump(answer))
        for stream, word in zip(streams, ("ada", "bob"), strict=True):
            _, answered = stream.until(b"1")
            assert word in codec.value(answered.result)["content"][0]["text"]


def test_each_session_has_a_process_of_its_own_and_what_it_keeps_is_its_own(
    gateway: Gateway,
) -> None:
    ada, bob = Raw(gateway.port, LEGACY), Raw(gateway.port, "2025-06-18")
    assert [count(ada, "own") for _ in range(3)] == [1, 2, 3]
    assert count(bob, "own") == 1
    assert len({pid(ada, "own"), pid(bob, "own"), gateway.server("own")["pid"]}) == 3
    names = [server["name"] for server in gateway.status()["servers"]]
    at = names.index("own")
    assert all(name.startswith("own@") for name in names[at + 1 : at + 3])
    assert names[at + 3] == "named"
    assert {row["pid"] for row in rows(gateway, "own").values()} == {
        pid(ada, "own"), pid(bob, "own"),
    }  # fmt: skip
    assert "@" not in gateway.ops("/metrics")[1]
    gateway.ctl("set", names[at + 1], "timeout=5s", ok=(1,))
    assert "has the settings of 'own'" in gateway.ctl("events", "--type", "refused")
    end(ada)
    end(bob)


def test_with_its_session_a_process_goes(gateway: Gateway) -> None:
    ada, bob = Raw(gateway.port, LEGACY), Raw(gateway.port, LEGACY)
    hers, his = pid(ada, "own"), pid(bob, "own")
    end(ada)
    until(lambda: not processes.alive({hers}), "hers is gone")
    until(lambda: len(rows(gateway, "own")) == 1, "and nothing of it is left")
    assert pid(bob, "own") == his
    end(bob)
    until(lambda: not rows(gateway, "own"), "his too")


def test_a_shared_server_is_one_process_for_all(gateway: Gateway) -> None:
    clients = [Raw(gateway.port, LEGACY), Raw(gateway.port, LEGACY), named(gateway, "raw")]
    assert [count(client, "shared") for client in clients] == [1, 2, 3]
    assert not rows(gateway, "shared")
    for client in clients[:2]:
        end(client)


def test_clients_without_a_session_are_told_apart_by_what_they_say_of_themselves(
    gateway: Gateway,
) -> None:
    assert count(named(gateway, "ada"), "named") == 1
    assert count(named(gateway, "bob"), "named") == 1
    assert count(named(gateway, "ada"), "named") == 2
    server = gateway.server("named")["pid"]
    assert {pid(named(gateway, ""), "named") for _ in range(2)} == {server}
    assert pid(named(gateway, "ada"), "named") != server


def test_what_its_client_does_not_use_for_long_is_ended_and_begins_anew(gateway: Gateway) -> None:
    carl = Raw(gateway.port, LEGACY)
    assert count(carl, "brief") == 1
    until(lambda: not rows(gateway, "brief"), "nobody needed it for a second")
    assert count(carl, "brief") == 1
    end(carl)


def test_two_clients_are_asked_at_the_same_time_where_each_has_its_own(gateway: Gateway) -> None:
    ada, bob = (Raw(gateway.port, LEGACY, capabilities=ASKABLE) for _ in range(2))
    both_asked(ada, bob, "own")
    end(ada)
    end(bob)


def test_a_client_without_a_session_is_asked_by_its_own_process_too(gateway: Gateway) -> None:
    ada, bob = named(gateway, "ada"), named(gateway, "bob")
    waiting: dict[Raw, Any] = {}
    for client in (ada, bob):
        client.stamp[PREFIX + "clientCapabilities"] = ASKABLE
        waiting[client] = client.result("tools/call", ELICIT)
        assert waiting[client]["resultType"] == "input_required"
    for client, word in ((bob, "bob"), (ada, "ada")):
        answers = {"k1": {"action": "accept", "content": {"name": word}}}
        more = {"requestState": waiting[client]["requestState"], "inputResponses": answers}
        result = client.result(
            "tools/call", codec.splice(ELICIT, {key: codec.dump(one) for key, one in more.items()})
        )
        assert word in result["content"][0]["text"]


@pytest.mark.parametrize(("server", "tool"), [("far", "echo"), ("notes", "add_note")])
def test_a_server_elsewhere_or_inside_its_worker_has_a_worker_for_each_client(
    gateway: Gateway, server: str, tool: str
) -> None:
    ada, bob = Raw(gateway.port, LEGACY), Raw(gateway.port, LEGACY)
    said = [client.text(f"{server}__{tool}", text="hi") for client in (ada, bob)]
    assert said == [{"far": "hi", "notes": "1 kept"}[server]] * 2
    workers = {row["worker_pid"] for row in rows(gateway, server).values()}
    assert len(workers | {gateway.server(server)["worker_pid"]}) == 3
    for client in (ada, bob):
        end(client)
    until(lambda: not processes.alive(workers), "they go with their sessions")


def test_a_server_is_shared_until_the_first_question_that_reaches_nobody(gateway: Gateway) -> None:
    ada, bob = (Raw(gateway.port, LEGACY, capabilities=ASKABLE) for _ in range(2))
    shared = pid(ada, "auto")
    assert pid(bob, "auto") == shared
    assert not rows(gateway, "auto")
    hers = ada.start("tools/call", b'{"name":"auto__ask_late","arguments":{"ms":5000}}')
    until(lambda: gateway.server("auto")["inflight"] == 1, "the server works on it")
    with elicit(bob, "auto") as his:
        _, refused = his.until(b"1")
        assert "error" in codec.value(refused.result)["content"][0]["text"]
    hers.close()
    until(lambda: pid(bob, "auto") != shared, "he has his own now")
    (event,) = (event for event in gateway.events() if event["what"] == "sharing")
    assert event["who"] == "auto"
    assert "a process of its own" in event["cause"]
    ada = Raw(gateway.port, LEGACY, capabilities=ASKABLE)
    both_asked(ada, bob, "auto")
    assert pid(ada, "auto") not in {shared, pid(bob, "auto")}
    end(ada)
    end(bob)


def test_a_resource_that_changed_in_one_process_is_news_for_its_client_alone(
    gateway: Gateway,
) -> None:
    ada, bob = Raw(gateway.port, LEGACY), Raw(gateway.port, LEGACY)
    with ada.listen() as hers, bob.listen() as his:
        for client, uri in ((ada, URI), (bob, URI), (bob, OTHER_URI)):
            client.result("resources/subscribe", codec.dump({"uri": uri}))
        assert ada.text("own__touch", uri=URI) == "1"
        assert updated(hers) == URI
        assert bob.text("own__touch", uri=OTHER_URI) == "1"
        assert updated(his) == OTHER_URI
    end(ada)
    end(bob)


def test_a_process_that_is_killed_comes_back_and_only_its_client_notices(gateway: Gateway) -> None:
    ada, bob = Raw(gateway.port, LEGACY), Raw(gateway.port, LEGACY)
    assert [count(client, "own") for client in (ada, bob, bob)] == [1, 1, 2]
    victim = pid(ada, "own")
    name = next(name for name, row in rows(gateway, "own").items() if row["pid"] == victim)
    os.kill(victim, signal.SIGKILL)
    until(lambda: rows(gateway, "own")[name]["generation"] == 2, "the next one")
    until(lambda: rows(gateway, "own")[name]["state"] == "active", "is ready")
    assert count(ada, "own") == 1
    assert count(bob, "own") == 3
    assert gateway.server("own")["generation"] == 1
    end(ada)
    end(bob)


def test_what_an_operator_does_to_a_server_he_does_to_all_of_it(gateway: Gateway) -> None:
    ada = Raw(gateway.port, LEGACY)
    first = pid(ada, "own")
    gateway.ctl("restart", "own", "--wait")
    until(lambda: not processes.alive({first}), "hers too")
    assert count(ada, "own") == 1
    second = pid(ada, "own")
    gateway.ctl("stop", "own", "--wait")
    until(lambda: not processes.alive({second}), "it is stopped")

    def refused() -> Any:
        return codec.value(ada.answer("tools/call", b'{"name":"own__pid","arguments":{}}').error)

    try:
        until(lambda: "it was stopped" in refused()["message"], "the front hears that it stopped")
        assert (refused()["code"], refused()["data"]["server"]) == (-10001, "own")
    finally:
        gateway.ctl("start", "own", "--wait")
    assert pid(ada, "own") not in {first, second, gateway.server("own")["pid"]}
    gateway.write({**SERVERS, "own": {**SERVERS["own"], "sharing": "shared"}})
    gateway.ctl("reload")
    until(lambda: not rows(gateway, "own"), "shared now")
    assert pid(ada, "own") == gateway.server("own")["pid"]
    gateway.write(SERVERS)
    gateway.ctl("reload")
    end(ada)


def test_an_upgrade_of_the_gateway_keeps_what_they_keep(gateway: Gateway) -> None:
    ada = Raw(gateway.port, LEGACY)
    assert count(ada, "own") == 1
    process = pid(ada, "own")
    gateway.ctl("upgrade")
    assert (pid(ada, "own"), count(ada, "own")) == (process, 2)
    end(ada)
    until(lambda: not processes.alive({process}), "it goes with its session")


def test_a_session_that_another_front_goes_on_with_keeps_its_process() -> None:
    with Gateway({"own": SERVERS["own"]}, extra="[gateway]\nfronts = 2") as gateway:
        ada = Raw(gateway.port, LEGACY)
        assert count(ada, "own") == 1
        process = pid(ada, "own")
        for seen, front in enumerate(gateway.status()["fronts"], 2):
            replaced(gateway, front["pid"])
            assert (pid(ada, "own"), count(ada, "own")) == (process, seen)
        end(ada)
        until(lambda: not processes.alive({process}), "it goes with its session")
