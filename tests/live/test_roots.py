"""Servers that ask for roots: each client gets its own in both eras, each project a process."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live import processes
from tests.live.bridge import Bridge
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, PREFIX, Raw
from tests.live.test_sharing import end, named, pid, rows
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

TRIES = 12
CAPABILITIES: dict[str, Any] = {"roots": {"listChanged": True}}
SERVERS: dict[str, dict[str, Any]] = {
    "auto": fake("--era", "legacy", "--roots"),
    "late": fake("--era", "legacy"),
    "own": {**fake("--era", "legacy", "--roots"), "sharing": "per-session"},
    "shared": {**fake("--era", "legacy"), "sharing": "shared"},
    "team": {**fake("--era", "legacy"), "sharing": "per-project", "cwd": "${project}"},
    "fresh": {**fake("--era", "modern"), "sharing": "per-project"},
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS) as running:
        yield running


def root(folder: object) -> dict[str, Any]:
    return {"roots": [{"uri": f"file://{folder}"}]}


class Rooted(Raw):
    """A client in this folder, which says so whenever it is asked. `asked`: how often that was."""

    def __init__(self, gateway: Gateway, era: str, folder: object) -> None:
        super().__init__(gateway.port, era, capabilities=CAPABILITIES)
        self.folder, self.asked = folder, 0

    def call(self, tool: str, **arguments: object) -> str:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if self.era == MODERN:
            result = self.result("tools/call", codec.dump(params))
            while result["resultType"] == "input_required":
                self.asked += 1
                params["inputResponses"] = {
                    key: root(self.folder) for key in result["inputRequests"]
                }
                params |= {k: result[k] for k in ("requestState",) if k in result}
                result = self.result("tools/call", codec.dump(params))
        else:
            with self.ask("tools/call", codec.dump(params)) as stream:
                result = self.heard(stream)
        found: str = result["content"][0]["text"]
        return found

    def heard(self, stream: Any) -> Any:
        """The result, and all that is asked before it answered."""
        while (message := stream.next()).method is not None:
            self.say(message)
        assert message.result, bytes(message.error)
        return codec.value(message.result)

    def say(self, message: Any) -> None:
        assert message.method == "roots/list", message
        self.asked += 1
        self.reply(bytes(message.id), codec.dump(root(self.folder)))

    def roots(self, server: str) -> list[str]:
        """What the server knows of them."""
        return [one["uri"] for one in json.loads(self.call(f"{server}__known_roots"))]


@pytest.fixture(params=[LEGACY, MODERN])
def era(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.promise("M23")
@pytest.mark.parametrize("server", ["auto", "own"])
def test_each_client_gets_its_own_roots(gateway: Gateway, era: str, server: str) -> None:
    clients = [Rooted(gateway, era, f"/f{number}") for number in (1, 2, 3)]
    for _ in range(2):
        assert [one.roots(server) for one in clients] == [
            ["file:///f1"], ["file:///f2"], ["file:///f3"],
        ]  # fmt: skip
    assert len({one.call(f"{server}__pid") for one in clients}) == 3
    if era == LEGACY:
        assert [one.asked for one in clients] == [1, 1, 1]
        for one in clients:
            end(one)
        until(lambda: len(rows(gateway, server)) in (0, 3), "theirs go with their sessions")


@pytest.mark.promise("M82")
def test_who_has_no_roots_shares_the_process_that_was_there_first(gateway: Gateway) -> None:
    one, other = Raw(gateway.port, LEGACY), named(gateway, "other")
    first = gateway.server("auto")["pid"]
    assert [pid(client, "auto") for client in (one, other)] == [first] * 2
    assert one.text("auto__known_roots") == "[]"
    assert "unroutable" not in gateway.journal()
    end(one)


@pytest.mark.promise("M23")
def test_a_client_whose_roots_change_is_asked_again_and_its_process_told(gateway: Gateway) -> None:
    client = Rooted(gateway, LEGACY, "/before")
    assert client.roots("own") == ["file:///before"]
    process = client.call("own__pid")
    with client.listen() as stream:
        client.folder = "/after"
        client.tell("notifications/roots/list_changed")
        client.say(stream.next())
        until(lambda: client.roots("own") == ["file:///after"], "the server asked again")
    client.folder = "/later"  # nobody listens, so the next call asks
    client.tell("notifications/roots/list_changed")
    assert client.call("own__pid") == process
    until(lambda: client.roots("own") == ["file:///later"], "the server asked again")
    os.kill(int(process), signal.SIGKILL)
    generations = {"generation": 2}.items()
    until(lambda: any(generations <= row.items() for row in rows(gateway, "own").values()), "again")
    assert client.roots("own") == ["file:///later"]
    end(client)


@pytest.mark.promise("M82")
def test_clients_with_the_same_roots_share_a_process_and_leave_it_with_other_roots(
    gateway: Gateway,
) -> None:
    before = set(rows(gateway, "auto"))
    clients = [Rooted(gateway, LEGACY, "/same") for _ in range(4)]
    clients.append(Rooted(gateway, MODERN, "/same"))
    assert len({client.call("auto__pid") for client in clients}) == 1
    (same,) = set(rows(gateway, "auto")) - before
    first = clients[0]
    first.folder = "/elsewhere"
    first.tell("notifications/roots/list_changed")
    assert first.roots("auto") == ["file:///elsewhere"]
    assert clients[1].roots("auto") == ["file:///same"]
    for client in clients[:4]:
        end(client)
    until(lambda: set(rows(gateway, "auto")) - before == {same}, "that goes with its session")


def has_own_roots(client: Rooted, tool: str) -> bool:
    return str(client.folder) in client.call(tool)


@pytest.mark.promise("M82")
@pytest.mark.parametrize("flag", ["--roots", "--roots-late"])
def test_three_clients_that_come_before_the_server_was_met_get_no_foreign_roots(flag: str) -> None:
    """Twelve servers that nobody has met yet, called first by one, two or three clients. They keep
    the roots that they are told; one kind asks when it starts, the other in its first calls."""
    tries = [f"try{number}" for number in range(TRIES)]
    server = {**fake("--era", "legacy", flag), "start": "lazy"}
    with Gateway(dict.fromkeys(tries, server)) as gateway, ThreadPoolExecutor(3) as pool:
        clients = [Rooted(gateway, LEGACY, f"/f{number}") for number in range(3)]
        also = Rooted(gateway, LEGACY, "/f0")
        for number, name in enumerate(tries):
            call = f"{name}__known_roots"
            for callers in (clients[: 1 + number % 3], clients):
                texts = list(pool.map(Rooted.call, callers, [call] * len(callers)))
                for client, text in zip(callers, texts, strict=True):
                    assert not re.findall(r"/f\d", text.replace(str(client.folder), "")), text
            for client in clients:
                until(partial(has_own_roots, client, call), "it gets its own from then on")
            assert also.call(f"{name}__pid") == clients[0].call(f"{name}__pid")
            assert len(rows(gateway, name)) == len(clients)
        for client in clients:
            end(client)


@pytest.mark.promise("M82")
def test_a_server_that_asks_in_calls_is_shared_and_asks_each_client_for_its_own(
    gateway: Gateway, era: str
) -> None:
    process = gateway.server("late")["pid"]
    clients = [Rooted(gateway, era, f"/f{number}") for number in (1, 2)]
    for _ in range(2):
        for one in clients:
            assert json.loads(one.call("late__roots"))["roots"] == root(one.folder)["roots"]
    assert {one.call("late__pid") for one in clients} == {str(process)}
    assert [one.asked for one in clients] == [2, 2]
    assert not rows(gateway, "late")


@pytest.mark.promise("M82")
def test_a_project_has_one_process_until_its_last_client_has_gone(
    gateway: Gateway, tmp_path: Path
) -> None:
    here, there = tmp_path / "a b", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    one, two, other = (Rooted(gateway, LEGACY, where) for where in (here, here, there))
    for client in (one, two, other):
        client.folder = str(client.folder).replace(" ", "%20")
    pids = [int(client.call("team__pid")) for client in (one, two, other)]
    assert pids[0] == pids[1] != pids[2]
    assert json.loads(one.call("team__environ"))["cwd"] == str(here)
    assert json.loads(other.call("team__environ"))["cwd"] == str(there)
    assert len(rows(gateway, "team")) == 2
    end(one)
    end(other)
    until(lambda: not processes.alive({pids[2]}), "the last one of its project has gone")
    assert int(two.call("team__pid")) == pids[0]
    gateway.ctl("upgrade")
    assert int(two.call("team__pid")) == pids[0]
    end(two)
    until(lambda: not rows(gateway, "team"), "nobody is left")
    plain = Raw(gateway.port, LEGACY)
    assert json.loads(plain.text("team__environ"))["cwd"] == str(gateway.folder)
    end(plain)


@pytest.mark.promise("M82")
def test_a_client_that_moves_to_another_folder_moves_to_another_project(
    gateway: Gateway, tmp_path: Path
) -> None:
    client = Rooted(gateway, LEGACY, tmp_path)
    assert json.loads(client.call("team__environ"))["cwd"] == str(tmp_path)
    client.folder = tmp_path.parent
    client.tell("notifications/roots/list_changed")
    assert json.loads(client.call("team__environ"))["cwd"] == str(tmp_path.parent)
    end(client)


@pytest.mark.promise("M82")
def test_clients_of_both_eras_are_in_one_project_also_where_the_server_asks_on(
    gateway: Gateway,
) -> None:
    old, new = Rooted(gateway, LEGACY, "/p"), Rooted(gateway, MODERN, "/p")
    assert old.call("fresh__pid") == new.call("fresh__pid")
    assert new.call("fresh__pid") != Rooted(gateway, MODERN, "/q").call("fresh__pid")
    assert "file:///p" in new.call("fresh__roots")
    end(old)


def test_a_project_without_a_folder_gets_one_clear_sentence(gateway: Gateway) -> None:
    client = Rooted(gateway, MODERN, "")
    params: dict[str, Any] = {"name": "team__pid", "arguments": {}}
    asked = client.result("tools/call", codec.dump(params))["inputRequests"]
    params["inputResponses"] = {key: {"roots": [{"uri": "https://x/"}]} for key in asked}
    refused = codec.value(client.answer("tools/call", codec.dump(params)).error)
    assert "not a folder of this machine" in refused["message"]


def test_one_client_cannot_take_all_places(gateway: Gateway) -> None:
    client = Rooted(gateway, MODERN, "/f")
    client.stamp[PREFIX + "clientInfo"] = {"name": "greedy", "version": "1"}
    for number in range(16):
        client.folder = f"/greedy{number}"
        client.call("fresh__pid")
    client.folder = "/greedy16"
    with pytest.raises(AssertionError, match="this client has 16 processes of it"):
        client.call("fresh__pid")
    assert Rooted(gateway, MODERN, "/modest").call("fresh__pid")


@pytest.mark.promise("M82")
@pytest.mark.parametrize("server", ["team", "fresh"])
def test_a_client_of_the_bridge_without_roots_is_in_the_project_of_its_folder(
    gateway: Gateway, tmp_path: Path, server: str
) -> None:
    here, there = tmp_path / "hier ü", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    where = ("--runtime-dir", str(gateway.folder / "run"))
    with (
        Bridge(*where, folder=here, forked=True) as one,
        Bridge(*where, folder=here, era=MODERN, forked=True) as two,
        Bridge(*where, folder=there, forked=True) as other,
    ):
        pids = [client.text(f"{server}__pid") for client in (one, two, other)]
        assert pids[0] == pids[1] != pids[2]
        if server == "team":
            told = [json.loads(one.text("team__environ"))["cwd"] for one in (one, two, other)]
            assert told == [str(here), str(here), str(there)]
