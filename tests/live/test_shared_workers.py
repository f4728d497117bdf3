"""Servers that share a worker: each is a process of its own, and its faults are its own."""

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import SERVER, Gateway, fake
from tests.live.load import Callers
from tests.live.upgradable import NEXT, Upgradable
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180), pytest.mark.promise("M124")]

SHARED = '[gateway]\nworkers = "shared"\n'
NAMES = ["left", "right", "victim"]
DOWN = -10001
LARGE = "x" * (1 << 20)


def three(**victim: Any) -> dict[str, Any]:
    server = {**fake(), "restart_delay_max": "100ms"}
    return {**dict.fromkeys(NAMES, server), "victim": {**server, **victim}}


def workers(gateway: Gateway) -> dict[str, int]:
    return {each["name"]: each["worker_pid"] for each in gateway.status()["servers"]}


def come_back(gateway: Gateway, generations: dict[str, int]) -> None:
    """Wait until these servers are active in a later generation."""

    def are_back() -> bool:
        rows = {each["name"]: each for each in gateway.status()["servers"]}
        return all(
            rows[name]["state"] == "active" and rows[name]["generation"] > generation
            for name, generation in generations.items()
        )

    until(are_back, "they are back")


def generations(gateway: Gateway) -> dict[str, int]:
    return {each["name"]: each["generation"] for each in gateway.status()["servers"]}


def test_servers_of_a_workspace_share_a_worker_but_those_that_want_their_own() -> None:
    servers = {f"s{number}": fake() for number in range(4)}
    servers["alone"] = {**fake(), "worker": "own"}
    servers |= {name: {**fake(), "worker": "pair"} for name in ("one", "two")}
    extra = f"{SHARED}[workspaces.acme.servers.git]\ncommand = {json.dumps(SERVER)}\n"
    with Gateway(servers, extra=extra) as gateway:
        rows = {each["name"]: each for each in gateway.status()["servers"]}
        assert {rows[f"s{number}"]["worker"] for number in range(4)} == {"default:shared"}
        assert rows["acme:git"]["worker"] == "acme:shared"
        assert rows["one"]["worker"] == rows["two"]["worker"] == "default:pair"
        assert rows["alone"]["worker"] == ""
        assert len({row["worker_pid"] for row in rows.values()}) == 4
        assert len({row["pid"] for row in rows.values()}) == len(rows)
        shown = json.loads(gateway.ctl("describe", "s0", "--json"))
        assert {each["pid"] for each in shown["processes"]} == {rows["s0"]["pid"]}
        with closing(Client(gateway.port)) as client:
            for name in servers:
                assert client.text(f"{name}__echo", text=name) == name


def test_each_server_of_a_shared_worker_starts_in_its_own_folder(tmp_path: Path) -> None:
    servers = {**three(), "far": {**fake(), "cwd": str(tmp_path)}}
    with Gateway(servers, extra=SHARED) as gateway:
        gateway.ctl("restart", "left", "--wait")
        folders = {
            each["name"]: os.readlink(f"/proc/{each['pid']}/cwd")
            for each in gateway.status()["servers"]
        }
        assert folders.pop("far") == str(tmp_path)
        assert set(folders.values()) == {str(gateway.folder)}


def test_a_server_that_is_killed_leaves_those_alone_that_share_its_worker() -> None:
    with Gateway(three(), extra=SHARED) as gateway:
        with Callers(gateway.port, NAMES, callers=6) as run:
            for _ in range(4):
                old = generations(gateway)["victim"]
                os.kill(gateway.server("victim")["pid"], signal.SIGKILL)
                come_back(gateway, {"victim": old})
        assert run.tally.wrong == []
        assert run.tally.broken == run.tally.refused == 0
        assert set(run.tally.failed) <= {"victim"}
        assert set(run.tally.errors) <= {DOWN}
        assert len(set(workers(gateway).values())) == 1


def test_a_shared_worker_that_dies_is_back_and_after_one_more_death_all_are_alone() -> None:
    with Gateway(three(), extra=SHARED) as gateway:
        with Callers(gateway.port, NAMES, callers=6, era=MODERN) as run:
            for _ in range(2):
                old = generations(gateway)
                os.kill(workers(gateway)["victim"], signal.SIGKILL)
                come_back(gateway, old)
        assert run.tally.wrong == []
        assert run.tally.broken == run.tally.refused == 0
        assert set(run.tally.errors) <= {DOWN}
        assert len(set(workers(gateway).values())) == len(NAMES)
        assert {each["restarts"] for each in gateway.status()["servers"]} == {2}


def test_a_shared_worker_that_hangs_is_replaced_with_all_its_servers() -> None:
    with Gateway(three(), extra=SHARED) as gateway:
        old, pid = generations(gateway), workers(gateway)["left"]
        os.kill(pid, signal.SIGSTOP)
        come_back(gateway, old)
        assert not processes.alive({pid})
        assert len(set(workers(gateway).values())) == 1
        with closing(Client(gateway.port, MODERN)) as client:
            assert [client.text(f"{name}__echo", text=name) for name in NAMES] == NAMES


def test_a_server_that_will_not_end_is_killed_and_its_neighbours_are_not() -> None:
    victim = fake("--ignore-eof", "--ignore-term") | {"stop_grace": "100ms"}
    with Gateway(three(**victim), extra=SHARED) as gateway:
        old = {each["name"]: each["pid"] for each in gateway.status()["servers"]}
        gateway.ctl("restart", "victim", "--wait")
        now = {each["name"]: each["pid"] for each in gateway.status()["servers"]}
        assert {name for name in NAMES if old[name] != now[name]} == {"victim"}
        assert len(set(workers(gateway).values())) == 1


def test_a_stopped_server_takes_its_own_daemons_along_and_no_others() -> None:
    with Gateway(three(), extra=SHARED) as gateway:
        with closing(Client(gateway.port, MODERN)) as client:
            daemons = {name: int(client.text(f"{name}__spawn_daemon")) for name in NAMES}
        gateway.ctl("stop", "victim", "--wait")
        until(lambda: not processes.alive({daemons["victim"]}), "the daemon is killed")
        assert processes.alive(set(daemons.values())) == {daemons["left"], daemons["right"]}


def test_a_daemon_that_hides_whose_it_is_does_not_live_in_a_shared_worker(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hidden = f"/usr/bin/setsid /bin/sh -c 'echo $$ >{pid}; exec /bin/sleep 600'"
    begin = f"(/usr/bin/env -i {hidden} &); exec {sys.executable} {SERVER[1]}"
    servers = three(command=["/bin/sh", "-c", begin], sandbox="none")
    with Gateway(servers, extra=SHARED) as gateway:
        until(lambda: pid.exists() and pid.read_text().strip(), "the daemon has begun")
        until(lambda: not processes.alive({int(pid.read_text())}), "it is ended")
        assert gateway.server("victim")["generation"] == 1


def test_a_server_with_large_answers_moves_to_a_worker_of_its_own_when_nobody_calls_it() -> None:
    with Gateway(three(), extra=SHARED) as gateway, closing(Client(gateway.port, MODERN)) as client:
        old = generations(gateway)["victim"]
        assert client.text("victim__echo", text=LARGE) == LARGE
        assert gateway.server("victim")["generation"] == old
        come_back(gateway, {"victim": old})
        assert client.text("victim__echo", text="first") == "first"
        pids = workers(gateway)
        assert pids["left"] == pids["right"] != pids["victim"]
        assert any(
            event["what"] == "alone" and event["who"] == "victim" for event in gateway.events()
        )


def test_an_upgrade_under_load_keeps_a_shared_worker_with_its_servers() -> None:
    with Upgradable(three(), extra=SHARED) as gateway:
        gateway.install(NEXT)
        with Callers(gateway.port, NAMES, callers=4) as run:
            until(lambda: run.tally.right > 50, "calls are answered")
            before = gateway.pids()
            gateway.upgrade()
            right = run.tally.right
            until(lambda: run.tally.right > right + 50, "calls are answered again")
        assert run.tally.wrong == []
        assert run.tally.errors.total() == run.tally.broken == run.tally.refused == 0
        assert gateway.pids() == before
        old = generations(gateway)["victim"]
        os.kill(gateway.server("victim")["pid"], signal.SIGKILL)
        come_back(gateway, {"victim": old})
        gateway.ctl("restart", "left", "--wait")
        assert gateway.pids()["right"] == before["right"]


def test_a_restart_of_a_worker_restarts_its_servers_in_another_process() -> None:
    with Gateway({**three(), "alone": {**fake(), "worker": "own"}}, extra=SHARED) as gateway:
        old, worker, alone = (
            generations(gateway),
            workers(gateway)["left"],
            workers(gateway)["alone"],
        )
        done = gateway.run("ctl", "restart", "--worker", "default:shard", ok=(8,))
        assert "no worker is named 'default:shard'; did you mean 'default:shared'" in done.stderr
        gateway.ctl("restart", "--worker", "default:shared", "--wait")
        now = generations(gateway)
        assert {name for name in now if now[name] > old[name]} == set(NAMES)
        assert len({workers(gateway)[name] for name in NAMES} - {worker}) == 1
        assert workers(gateway)["alone"] == alone
        until(lambda: not processes.alive({worker}), "the worker of before has ended")
