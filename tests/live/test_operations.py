"""What an operator does: look, stop, start, reload, read logs, make mistakes."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import programs
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = pytest.mark.live


SERVERS = {"alpha": fake(), "beta": fake("--tools", "3")}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """One that every test leaves with the same servers, ready."""
    with Gateway(SERVERS) as running:
        yield running


@pytest.fixture
def own() -> Iterator[Gateway]:
    """One whose configuration the test may change, or which it may end."""
    with Gateway(SERVERS) as running:
        yield running


@pytest.mark.promise("M80")
def test_status_shows_every_server_as_table_and_as_json(gateway: Gateway) -> None:
    status = gateway.status()
    assert status["v"] == 1
    assert [server["name"] for server in status["servers"]] == ["alpha", "beta"]
    assert all(server["state"] == "active" and server["pid"] for server in status["servers"])
    table = gateway.ctl("status")
    assert "alpha" in table
    assert "active" in table


@pytest.mark.promise("M71")
def test_a_stopped_server_is_shown_as_stopped_and_its_tools_are_gone(gateway: Gateway) -> None:
    gateway.ctl("stop", "alpha", "--wait")
    assert gateway.server("alpha")["state"] == "stopped"
    client = Client(gateway.port)
    until(lambda: not any(name.startswith("alpha__") for name in client.tools()), "tools go")
    assert any(name.startswith("beta__") for name in client.tools())
    gateway.ctl("start", "alpha", "--wait")
    until(lambda: any(name.startswith("alpha__") for name in client.tools()), "tools are back")
    client.close()


@pytest.mark.promise("M80")
def test_restart_gives_a_new_process_and_a_new_generation(gateway: Gateway) -> None:
    old = gateway.server("alpha")
    gateway.ctl("restart", "alpha", "--wait")
    new = gateway.server("alpha")
    assert new["pid"] != old["pid"]
    assert new["generation"] > old["generation"]


@pytest.mark.promise("M78")
def test_a_reload_restarts_only_what_changed_and_fails_no_call(own: Gateway) -> None:
    before = {server["name"]: server["pid"] for server in own.status()["servers"]}
    with Callers(own.port, ["beta"], callers=8, era=MODERN) as run:
        until(lambda: run.tally.right > 50, "calls are answered")
        own.write({"alpha": fake("--tools", "9"), "beta": fake("--tools", "3"), "new": fake()})
        plan = own.ctl("reload", "--dry-run")
        assert "alpha" in plan
        assert own.status()["servers"][0]["pid"] == before["alpha"], "a dry run changes nothing"
        assert own.process is not None
        own.process.send_signal(signal.SIGHUP)
        until(
            lambda: (
                [s["state"] for s in own.status()["servers"]] == ["active"] * 3
                and own.server("alpha")["pid"] != before["alpha"]
            ),
            "the changed server runs anew",
        )
    assert own.server("beta")["pid"] == before["beta"]
    assert (run.tally.errors, run.tally.broken) == ({}, 0)


@pytest.mark.promise("M78")
def test_a_bad_file_changes_nothing_and_names_every_error(own: Gateway) -> None:
    before = own.status()
    own.config.write_text('[servers.alpha]\ncomand = ["x"]\n[servers.b__d]\ncommand = 5\n')
    done = own.run("ctl", "reload", ok=(65,))
    assert "did you mean 'command'" in done.stdout + done.stderr
    assert "b__d" in done.stdout + done.stderr
    pids = [server["pid"] for server in own.status()["servers"]]
    assert pids == [server["pid"] for server in before["servers"]]


@pytest.mark.promise("M85")
def test_metrics_are_prometheus_text_and_count_the_calls(gateway: Gateway) -> None:
    client = Client(gateway.port)
    for number in range(5):
        client.text("alpha__echo", text=str(number))
    client.close()

    def counted() -> bool:
        families = text_string_to_metric_families(gateway.ops("/metrics")[1])
        return any(
            sample.name == "mcp_server_operation_duration_seconds_count"
            and sample.labels["server"] == "alpha"
            and sample.labels["mcp_method_name"] == "tools/call"
            and sample.value == 5
            for family in families
            for sample in family.samples
        )

    until(counted, "the calls are in the metrics")


@pytest.mark.promise("M86")
def test_health_pages_tell_live_and_ready(gateway: Gateway) -> None:
    for path in ("/livez", "/readyz", "/healthz", "/startupz"):
        assert gateway.ops(path)[0] == 200, path
    assert "[+]" in gateway.ops("/readyz?verbose")[1]


@pytest.mark.promise("M89")
def test_the_servers_stderr_is_in_its_log(own: Gateway) -> None:
    own.write({"alpha": fake("--garbage"), "beta": fake("--tools", "3")})
    own.ctl("reload")
    until(lambda: own.logs("alpha"), "the noise on its stdout is in the log")
    assert own.ctl("logs", "alpha")


def test_events_tell_what_happened_to_whom(gateway: Gateway) -> None:
    gateway.ctl("restart", "alpha", "--wait")
    assert "alpha" in gateway.ctl("events")


def test_an_unknown_name_is_told_with_the_nearest(gateway: Gateway) -> None:
    done = gateway.run("ctl", "restart", "alpa", ok=(8,))
    assert "alpha" in done.stderr


def test_a_second_gateway_in_the_same_folder_is_refused(gateway: Gateway) -> None:
    done = gateway.run("serve", "--config", gateway.config, "--listen", "127.0.0.1:0", ok=(75,))
    assert str(gateway.pid) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_one_sentence_and_its_exit_code() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        gateway = Gateway({"alpha": fake()}, wait=False)
        gateway.port = taken.getsockname()[1]
        with gateway:
            assert gateway.process is not None
            assert gateway.process.wait(timeout=30) == 69
            assert str(gateway.port) in gateway.log.read_text()
            assert "Traceback" not in gateway.log.read_text()


def test_a_command_that_does_not_exist_is_told_and_hurts_nobody() -> None:
    servers = {"good": fake(), "bad": {"command": ["no-such-program-here"]}}
    with Gateway(servers, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        gateway.wait("good")
        bad = until(lambda: gateway.server("bad")["message"] and gateway.server("bad"), "it failed")
        assert bad["state"] == "error"
        assert "no-such-program-here" in bad["message"]
        waiting = gateway.command("ctl", "wait", "--timeout", "1s")
        done = programs.run(waiting, timeout=30)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith("metamcp: bad failed: ")
        assert " (next start in " in done.stderr
        client = Client(gateway.port)
        assert client.text("good__echo", text="hi") == "hi"
        client.close()


@pytest.mark.promise("M15")
def test_a_hanging_server_delays_no_other() -> None:
    names = [f"s{number:02}" for number in range(19)]
    servers = {"aaa": fake("--hang"), **{name: fake() for name in names}}
    with Gateway(servers, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        gateway.wait(*names)
        assert gateway.server("aaa")["state"] == "warming"


def test_interrupt_drains_and_exits_with_zero(own: Gateway) -> None:
    assert own.process is not None
    os.kill(own.pid, signal.SIGINT)
    assert own.process.wait(timeout=30) == 0
    assert "Traceback" not in own.log.read_text()


def test_the_event_journal_is_json_lines_in_the_service_log(gateway: Gateway) -> None:
    lines = gateway.log.read_text().splitlines()
    assert lines
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_waiting_for_a_gateway_that_is_not_there_yet() -> None:
    gateway = Gateway({"alpha": fake()}, wait=False)
    waiting = subprocess.Popen(gateway.command("ctl", "wait", "--for", "ready", "--timeout", "60s"))
    with gateway:
        assert waiting.wait(timeout=60) == 0
        assert gateway.server("alpha")["state"] == "active"


def test_a_gateway_that_starts_knows_every_server_from_its_first_answer(own: Gateway) -> None:
    own.stop()
    database = own.folder / "state" / "metamcp.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")  # the start waits for the database
        own.waits = False
        own.start()
        until((own.folder / "run" / "control.sock").exists, "the gateway listens")
        waiting = subprocess.Popen(own.command("ctl", "wait", "alpha", "--timeout", "60s"))
        with suppress(subprocess.TimeoutExpired):
            waiting.wait(timeout=1)
        other.execute("COMMIT")
        assert waiting.wait(timeout=60) == 0


def test_without_a_gateway_every_verb_says_so() -> None:
    gateway = Gateway({}, wait=False)
    try:
        for arguments in (["status"], ["wait", "--timeout", "100ms"], ["reload"]):
            done = gateway.run("ctl", *arguments, ok=(5,))
            assert "no gateway is running" in done.stderr
    finally:
        gateway.__exit__(None, None, None)
