"""What operators decide lasts: over a kill of the gateway, a stop, and an upgrade in place."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.live.client import Client
from tests.live.gateway import Gateway, fake
from tests.live.processes import alive
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M125")]

SERVERS = {
    "evil": fake(),
    "stopped": fake(),
    "lazy": {**fake(), "start": "lazy"},
    "drained": fake(),
    "tuned": fake(),
    "other": fake(),
    "off": {**fake(), "enabled": False},
}
WHY = "it was found malicious"


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS) as running:
        yield running


def kill(gateway: Gateway) -> None:
    """SIGKILL for the supervisor, and a new start when nothing of it is left."""
    os.kill(gateway.pid, signal.SIGKILL)
    assert gateway.process is not None
    gateway.process.wait(timeout=30)
    until(lambda: not alive(gateway.left()), "all that it had started has ended")
    start(gateway)


def restart(gateway: Gateway) -> None:
    assert gateway.stop() == 0
    start(gateway)


def start(gateway: Gateway) -> None:
    """A start that does not wait for servers that are kept out."""
    gateway.waits = False
    gateway.start()
    until(gateway.answers, "it answers")


def upgrade(gateway: Gateway) -> None:
    gateway.ctl("upgrade")
    until(lambda: gateway.status()["upgrades"] == 1, "the next program has taken over")


def decide(gateway: Gateway) -> None:
    gateway.ctl("quarantine", "evil", "--why", WHY)
    gateway.ctl("stop", "stopped", "lazy", "--wait")
    gateway.ctl("drain", "drained")
    gateway.ctl("set", "tuned", "timeout=7s", "idle_stop=2m", "start=lazy", "--until", "2h")
    gateway.ctl("set", "log.levels.http", "debug")


def shown(gateway: Gateway) -> dict[str, Any]:
    """State of each server with the decision about it, and what is set."""
    servers = {server["name"]: server for server in gateway.status()["servers"]}
    every: dict[str, Any] = {
        name: (server["state"], server["reason"], server["message"], server["decision"])
        for name, server in servers.items()
        if name != "tuned"  # which is lazy now
    }
    sets = {**gateway.describe("tuned"), "log": gateway.status()["overrides"]}
    for each in ("overrides", "log"):
        every[each] = [
            {**override, "until": round(override["until"], -1)} for override in sets[each]
        ]
    return every


def never_started(gateway: Gateway, *names: str) -> bool:
    """Whether no process of these servers was started in this run of the gateway."""
    return not any(gateway.server(name)["generation"] for name in names)


@pytest.mark.parametrize("end", [kill, restart, upgrade])
def test_what_was_decided_is_as_before(gateway: Gateway, end: Callable[[Gateway], None]) -> None:
    decide(gateway)
    before = shown(gateway)
    assert before["evil"][:3] == ("quarantined", "operator", WHY)
    assert before["stopped"][0] == before["lazy"][0] == "stopped"
    assert before["drained"][0] == "draining"
    assert [each["key"] for each in before["overrides"]] == ["timeout", "idle_stop", "start"]
    assert [each["key"] for each in before["log"]] == ["log.levels.http"]
    user = f"user id {os.getuid()}"
    assert all(user in each["who"] for each in (*before["overrides"], *before["log"]))
    assert user in before["evil"][3]["who"]
    end(gateway)
    gateway.wait("other")
    until(lambda: gateway.server("drained")["phase"] == "ready", "it runs")
    assert shown(gateway) == before
    assert gateway.describe("tuned")["config"]["timeout"] == "7s"
    if end is not upgrade:
        assert never_started(gateway, "evil", "stopped", "lazy", "off")
    client = Client(gateway.port)
    for name in ("evil", "stopped", "lazy", "drained"):
        assert "error" in client.call(f"{name}__echo", text="a"), name
    assert client.text("other__echo", text="a") == "a"
    client.close()
    assert gateway.server("lazy")["state"] == "stopped"
    assert f"quarantine by {before['evil'][3]['who']}" in gateway.ctl("describe", "evil")


def test_what_ends_a_decision_ends_it_for_good(gateway: Gateway) -> None:
    decide(gateway)
    gateway.ctl("clear", "evil")
    gateway.ctl("start", "stopped", "lazy")
    gateway.ctl("undrain", "drained")
    gateway.ctl("set", "tuned", "--clear")
    gateway.ctl("set", "log.level", "--clear")
    gateway.ctl("stop", "other", "--this-run", "--wait")
    assert json.loads((gateway.folder / "state" / "decisions.json").read_text()) == []
    kill(gateway)
    gateway.wait()
    for name in ("evil", "stopped", "drained", "tuned", "other"):
        assert gateway.server(name)["state"] == "active"
        assert gateway.server(name)["decision"] is None
    assert gateway.describe("tuned")["overrides"] == gateway.status()["overrides"] == []


def test_a_server_that_comes_back_into_the_configuration_is_still_kept_out(
    gateway: Gateway,
) -> None:
    gateway.ctl("quarantine", "evil", "--why", WHY)
    gateway.write({name: SERVERS[name] for name in SERVERS if name != "evil"})
    gateway.ctl("reload")
    until(lambda: "evil" not in gateway.ctl("status"), "it is gone")
    kill(gateway)
    gateway.write(SERVERS)
    gateway.ctl("reload")
    assert gateway.server("evil")["message"] == WHY
    assert never_started(gateway, "evil")
    gateway.write({**SERVERS, "evil": {**fake(), "timeout": "5s", "env": {"MORE": "1"}}})
    gateway.ctl("reload")
    assert gateway.server("evil")["state"] == "quarantined", "another command changes nothing"
    assert never_started(gateway, "evil")


def test_a_drain_lasts_when_the_server_crashes(gateway: Gateway) -> None:
    gateway.ctl("drain", "drained")
    os.kill(gateway.server("drained")["pid"], signal.SIGKILL)
    until(lambda: gateway.server("drained")["restarts"] == 1, "it is started again")
    until(lambda: gateway.server("drained")["phase"] == "ready", "it is ready again")
    assert gateway.server("drained")["state"] == "draining"


def test_a_file_that_cannot_be_read_keeps_every_server_out_until_somebody_clears_it(
    gateway: Gateway,
) -> None:
    file = gateway.folder / "state" / "decisions.json"
    gateway.ctl("stop", "stopped")
    gateway.stop()
    file.write_text('[{"server":"evil","kind":"quar')
    start(gateway)
    sentence = f"what operators decided cannot be read: {file} is not a list of decisions"
    until(lambda: sentence in gateway.log.read_text(), "the log says so")
    assert file.with_name("decisions.json.broken").read_text().startswith('[{"server"')
    names = sorted(SERVERS)
    assert {gateway.server(name)["state"] for name in names} == {"quarantined"}
    assert "decisions.json is not a list of decisions" in gateway.server("evil")["message"]
    assert gateway.server("evil")["decision"]["who"] == "the gateway"
    gateway.ctl("clear", "other")
    kill(gateway)
    gateway.wait("other")
    assert never_started(gateway, *(name for name in names if name != "other"))


def test_an_order_on_a_full_disk_takes_effect_and_says_what_it_does_not_do(
    gateway: Gateway,
) -> None:
    state = gateway.folder / "state"
    (state / "decisions.json").mkdir()  # a file cannot take its place
    done = gateway.run("ctl", "quarantine", "evil", "--why", WHY)
    assert "this does not outlast a restart of the gateway: " in done.stderr
    assert "decisions.json cannot be written: Is a directory" in done.stderr
    assert gateway.server("evil")["state"] == "quarantined"
    done = gateway.run("ctl", "set", "tuned", "timeout=7s")
    assert "this does not outlast a restart of the gateway: " in done.stderr
    assert "timeout 7s until" in done.stdout
    said = json.loads(gateway.ctl("stop", "other", "--json"))
    assert said["warning"].startswith("this does not outlast a restart of the gateway: ")
    (state / "decisions.json").rmdir()
    restart(gateway)
    assert gateway.server("evil")["message"] == WHY, "it was tried once more at the end"


def test_a_setting_whose_time_is_over_is_not_restored_and_none_lasts_longer_than_a_day(
    gateway: Gateway,
) -> None:
    file = gateway.folder / "state" / "decisions.json"
    gateway.ctl("set", "tuned", "timeout=7s", "retry=read-only", "--until", "2h")
    gateway.ctl("set", "other", "timeout=7s")
    gateway.stop()
    timeout, retry, other = json.loads(file.read_text())
    timeout["ends"] = time.time() - 1
    retry["ends"] = time.time() + 1e8  # the clock was set back meanwhile
    other["setting"] = "timeout=long"  # by a version that knows this word
    absent = {**retry, "server": "absent"}
    file.write_text(json.dumps([timeout, retry, other, absent]))
    gateway.start()
    (override,) = gateway.describe("tuned")["overrides"]
    assert override["key"] == "retry"
    assert 86_000 < override["until"] - time.time() < 87_000
    assert gateway.describe("other")["overrides"] == []
    (event,) = gateway.events(type="set over")
    assert event["who"] == "other"
    assert "it is not possible any more: servers.other.timeout" in event["cause"]
    until(lambda: len(json.loads(file.read_text())) == 1, "the others are dropped")
