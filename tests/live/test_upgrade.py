"""Another version of the program takes over a running gateway, and nobody notices."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import metamcp_supervisor
from metamcp_supervisor.control import client as control
from tests import programs
from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import fake
from tests.live.load import Callers
from tests.live.upgradable import CALLED, NEXT, SERVERS, Upgradable, wait_for_answers
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M79")]

STOP = "    grace_s: float\n    heirs: bool = False"
SPEC = "    engine_at_once: bool = False"
SLOW = """
import os, time
order = os.environ.get("METAMCP_HANDOVER", "")
if order.isdecimal():
    here = os.path.dirname(__file__)
    open(os.path.join(here, "begun"), "w").close()
    for _ in range(3000):
        if os.path.exists(os.path.join(here, "go")):
            break
        time.sleep(0.01)
"""
"""A program that takes over begins only when it may."""
BARREN = """
import os, sys
if "nursery" in sys.orig_argv:
    os._exit(1)
"""
"""No nursery of the new program starts."""


@pytest.fixture
def gateway() -> Iterator[Upgradable]:
    with Upgradable() as running:
        yield running


def test_an_upgrade_under_load_costs_no_call_no_session_and_no_process() -> None:
    with Upgradable(extra="[gateway]\nfronts = 2") as gateway:
        client = Client(gateway.port)
        before, pids, past = gateway.status(), gateway.pids(), gateway.events()
        gateway.install(NEXT)
        with (
            Callers(gateway.port, CALLED, callers=2) as legacy,
            Callers(gateway.port, CALLED, callers=2, era=MODERN) as modern,
        ):
            wait_for_answers(legacy, modern)
            said = gateway.upgrade()
            wait_for_answers(legacy, modern)
        for tally in (legacy.tally, modern.tally):
            assert (tally.wrong, tally.errors, tally.refused, tally.broken) == ([], {}, 0, 0)
        assert said.startswith(f"upgraded: {before['version']} → {NEXT} in ")
        assert "2 servers and 3 sessions kept" in said
        after = gateway.status()
        assert (after["pid"], after["version"], after["upgrades"]) == (before["pid"], NEXT, 1)
        assert gateway.pids() == pids
        assert client.text("old__echo", text="still") == "still"
        calls = sum(server["calls"] for server in before["servers"])
        assert sum(server["calls"] for server in after["servers"]) > calls
        events = gateway.events()
        assert events[: len(past)] == past
        numbers = [event["seq"] for event in events]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        client.end()


def test_the_new_program_restarts_servers_and_upgrades_once_more(gateway: Upgradable) -> None:
    gateway.ctl("restart", "new", "--wait")
    restarts = gateway.happened("restart")
    gateway.upgrade()
    assert gateway.happened("restart") == restarts
    assert len(gateway.nurseries()) == 2
    before = gateway.pids()
    for pid, _ in before.values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not set(before.values()) & set(gateway.pids().values()), "they have new workers")
    gateway.wait()
    until(lambda: len(gateway.nurseries()) == 1, "nothing is left of the program before")
    pids = gateway.pids()
    gateway.upgrade()
    assert gateway.pids() == pids
    assert gateway.status()["upgrades"] == 2
    left = gateway.left() - {gateway.pid}
    os.kill(gateway.pid, signal.SIGKILL)
    until(lambda: not processes.alive(left), "everything ends with the gateway")


@pytest.mark.promise("M125")
def test_a_build_whose_messages_have_more_takes_over_under_load_and_gives_back(
    gateway: Upgradable,
) -> None:
    gateway.change("ipc/messages.py", STOP, f"{STOP}\n    reason: str = ''")
    gateway.change("ipc/spec.py", SPEC, f"{SPEC}\n    colour: str = 'blue'")
    pids = gateway.pids()
    with Callers(gateway.port, CALLED, callers=2) as callers:
        wait_for_answers(callers)
        gateway.upgrade()
        shutil.rmtree(gateway.packages / "metamcp_worker")
        gateway.upgrade()
        wait_for_answers(callers)
    tally = callers.tally
    assert (tally.wrong, tally.errors, tally.refused, tally.broken) == ([], {}, 0, 0)
    assert gateway.pids() == pids
    gateway.ctl("restart", "old", "--wait")
    client = Client(gateway.port)
    assert client.text("old__echo", text="on") == "on"
    client.end()


@pytest.mark.promise("M125")
def test_a_build_with_a_message_that_living_processes_cannot_read_is_refused_by_its_name(
    gateway: Upgradable,
) -> None:
    gateway.change("ipc/messages.py", STOP, STOP.replace("grace_s", "grace_ms"))
    pids = gateway.pids()
    done = gateway.run("ctl", "upgrade", ok=(1,))
    assert "only that version has grace_ms in Stop; restart the gateway instead" in done.stderr
    assert gateway.pids() == pids
    assert not gateway.happened("upgrading")


@pytest.mark.promise("M125")
def test_a_build_without_a_feature_takes_over_what_the_feature_had(gateway: Upgradable) -> None:
    gateway.install(NEXT)
    package = gateway.packages / "metamcp_supervisor"
    with (package / "__init__.py").open("a") as file:
        file.write(f"__path__.insert(0, {str(package)!r})\n")
    text = (Path(metamcp_supervisor.__file__).parent / "features.py").read_text()
    assert text.count('"console", ') == 1
    (package / "features.py").write_text(text.replace('"console", ', ""))
    pids = gateway.pids()
    gateway.upgrade()
    assert gateway.pids() == pids
    client = Client(gateway.port)
    assert client.text("old__echo", text="on") == "on"
    client.end()


def test_what_is_not_simply_ready_stays_what_it_is() -> None:
    servers = {
        "slow": fake("--slow-start", "5000"),
        "broken": {"command": ["false"]},
        "stopped": fake(),
        "halted": fake(),
        "later": {**fake(), "start": "lazy", "depends_on": ["stopped"]},
    }
    with Upgradable(servers, wait=False) as gateway:
        until(gateway.answers, "it answers")
        gateway.wait("stopped", "halted")
        gateway.ctl("stop", "stopped", "--wait")
        gateway.ctl("quarantine", "halted", "--why", "a look at it")
        until(lambda: gateway.server("broken")["restarts"] > 1, "it failed more than once")
        slow = gateway.pids()["slow"]
        gateway.ctl("upgrade")
        assert gateway.pids()["slow"] == slow
        assert gateway.server("stopped")["phase"] == "disabled"
        assert gateway.server("halted")["message"] == "a look at it"
        restarts = gateway.server("broken")["restarts"]
        gateway.ctl("start", "broken")
        until(lambda: gateway.server("broken")["restarts"] > restarts, "it is tried again")
        gateway.wait("slow")
        assert gateway.pids()["slow"] == slow


def test_a_program_that_cannot_start_changes_nothing_and_one_that_can_reads_the_files(
    gateway: Upgradable,
) -> None:
    pids, broken = gateway.pids(), gateway.packages / "click.py"
    client = Client(gateway.port)
    broken.write_text("raise ImportError('it is broken')")
    assert "ImportError: it is broken" in refused(gateway)
    broken.unlink()
    gateway.config.write_text("[servers.old]\ncommand = 7\n")
    assert "servers.old.command" in refused(gateway)
    assert gateway.pids() == pids
    assert client.text("new__echo", text="on") == "on"
    client.end()
    gateway.write({"old": SERVERS["old"], "more": fake()})
    gateway.upgrade()
    until(lambda: set(gateway.pids()) == {"old", "more"}, "the other one is gone")
    gateway.wait()
    assert gateway.pids()["old"] == pids["old"]


def refused(gateway: Upgradable) -> str:
    done = gateway.run("ctl", "upgrade", ok=(1,))
    assert "nothing is changed" in done.stderr
    assert not gateway.happened("upgrading")
    return done.stderr


def test_calls_are_answered_and_an_end_is_not_forgotten_while_the_program_begins(
    gateway: Upgradable,
) -> None:
    client = Client(gateway.port)
    (gateway.packages / "sitecustomize.py").write_text(SLOW)
    asked = gateway.command("ctl", "upgrade", "--timeout", "3s")
    assert programs.run(asked).returncode == 6
    until(Path(gateway.packages / "begun").exists, "the new program begins")
    assert client.text("old__echo", text="meanwhile") == "meanwhile"
    client.end()
    os.kill(gateway.pid, signal.SIGTERM)
    (gateway.packages / "go").touch()
    assert gateway.process is not None
    assert gateway.process.wait(timeout=60) == 0
    assert '"what":"stopped"' in gateway.log.read_text()


def test_what_an_operator_did_stays_so() -> None:
    servers = {"git": fake(), "off": {**fake(), "enabled": False}}
    with Upgradable(servers) as gateway:
        gateway.ctl("start", "off", "--wait")
        # The first one is valid with the second one alone.
        gateway.ctl("set", "git", "idle_stop=2m", "start=lazy", "--until", "1h")
        gateway.ctl("set", "log.levels.http", "debug")
        pids, events = gateway.pids(), len(gateway.events())
        gateway.ctl("upgrade")
        assert gateway.pids() == pids
        assert gateway.ctl("status").splitlines()[0].endswith("  log.levels.http debug")
        said = gateway.ctl("describe", "git")
        assert "idle_stop 2m until" in said
        assert "start lazy until" in said
        assert {event["who"] for event in gateway.events()[events:]} <= {"gateway", "front-0"}


def test_without_a_new_nursery_the_fronts_stay_and_serve_what_the_files_say_now(
    gateway: Upgradable,
) -> None:
    (gateway.packages / "sitecustomize.py").write_text(BARREN)
    gateway.write({**SERVERS, "more": fake()})
    gateway.ctl("upgrade")
    until(lambda: gateway.happened("note"), "the nursery did not start")
    gateway.wait("more")
    client = Client(gateway.port)
    assert client.text("more__echo", text="new") == "new"
    client.end()
    assert not gateway.happened("renewed")


def test_a_configuration_that_breaks_while_the_program_begins_does_not_end_it(
    gateway: Upgradable,
) -> None:
    pids = gateway.pids()
    (gateway.packages / "sitecustomize.py").write_text(SLOW)
    asked = gateway.command("ctl", "upgrade", "--timeout", "60s")
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as upgrading:
        until(Path(gateway.packages / "begun").exists, "the new program begins")
        gateway.config.write_text("[servers.old]\ncommand = 7\n")
        (gateway.packages / "go").touch()
        said, _ = upgrading.communicate(timeout=60)
    assert "2 servers" in said
    assert gateway.pids() == pids
    assert "servers.old.command" in gateway.journal()
    gateway.write(SERVERS)
    assert "unchanged" in gateway.ctl("reload")


def test_nobody_who_asks_is_cut_off_by_an_upgrade(gateway: Upgradable) -> None:
    answers, failures, over = list[bytes](), list[str](), threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                with control.connect(str(gateway.folder / "run")) as line:
                    answers.append(line.call("status"))
            except control.Failed as failed:
                failures.append(str(failed))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        until(lambda: len(answers) > 10, "it answers")
        gateway.ctl("upgrade")
        asked = len(answers)
        until(lambda: len(answers) > asked + 10, "it answers still")
    finally:
        over.set()
        for thread in asking:
            thread.join()
    assert not failures
