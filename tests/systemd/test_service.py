"""The gateway as a service of a real systemd: what `metamcp systemd install` gives an operator.

The tests share one machine and are read from top to bottom; each leaves the service running.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import processes
from tests.systemd.machine import SOURCES, Machine, missing
from tests.waiting import until

WHY_NOT = missing()
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.promise("M81"),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]

PORT = 6270
SECRET = "s3cret"
CONFIG = "etc/metamcp/metamcp.toml"
DROP_INS = "etc/systemd/system/metamcp.service.d"
UNIT = "metamcp.service"


def config(machine: Machine, *flags: str) -> str:
    """One scripted server that gets a credential. It is lazy, so that clients who come first after
    a restart see its tools as they were: their calls wait for its start."""
    env = {**machine.environment(), "API_KEY": "${credential:api}"}
    items = ", ".join(f"{key} = {json.dumps(value)}" for key, value in env.items())
    command = [machine.python, f"{SOURCES}/tests/fakes/stdio_server.py", *flags]
    return f'[servers.git]\nstart = "lazy"\ncommand = {json.dumps(command)}\nenv = {{ {items} }}\n'


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """Configured and with the units installed; nothing is started yet."""
    with Machine() as made:
        for folder in ("etc/metamcp", "etc/secrets", DROP_INS):
            (made.root / folder).mkdir(parents=True)
        (made.root / CONFIG).write_text(config(made))
        (made.root / "etc/secrets/api").write_text(f"{SECRET}\n")
        (made.root / "etc/secrets/api").chmod(0o600)
        drop_in(made, "LoadCredential=api:/etc/secrets/api")
        made.metamcp("systemd", "install")
        yield made


@pytest.fixture
def service(machine: Machine) -> Machine:
    started(machine, "start")
    return machine


def started(machine: Machine, verb: str) -> None:
    """Start or restart, and all servers have had their lists once."""
    machine.run("systemctl", verb, UNIT)
    machine.metamcp("ctl", "--runtime-dir", "/run/metamcp", "wait", "--timeout", "30s")


def drop_in(machine: Machine, *lines: str, name: str = "test") -> None:
    text = "\n".join(["[Service]", *lines, ""])
    (machine.root / DROP_INS / f"{name}.conf").write_text(text)


def answer(client: "subprocess.Popen[str]") -> str:
    """What the server said to this client."""
    said, _ = client.communicate(timeout=30)
    assert client.returncode == 0, said
    return said


def echo(machine: Machine) -> "subprocess.Popen[str]":
    return machine.ask(PORT, "git__echo", '{"text": "hello"}')


def listeners(machine: Machine) -> dict[str, int]:
    """Address of each listener on the port, as the kernel writes it -> clients in its queue."""
    found: dict[str, int] = {}
    for line in machine.run("/bin/cat", "/proc/net/tcp").splitlines()[1:]:
        fields = line.split()
        address, _, port = fields[1].partition(":")
        if int(port, 16) == PORT and fields[3] == "0A":
            found[address] = int(fields[4].partition(":")[2], 16)
    return found


def main_pid(machine: Machine) -> int:
    return int(machine.show("MainPID"))


def front(machine: Machine) -> int:
    """The process that accepts clients, as this machine counts it."""
    said = machine.metamcp("ctl", "--runtime-dir", "/run/metamcp", "status", "--json")
    status: dict[str, Any] = json.loads(said)
    return machine.outside(status["fronts"][0]["pid"])


def kill_with_a_client_in_the_queue(machine: Machine) -> "subprocess.Popen[str]":
    """Nobody accepts, a client comes, and the supervisor is killed."""
    first = machine.outside(main_pid(machine))
    os.kill(front(machine), signal.SIGSTOP)
    client = echo(machine)
    until(lambda: any(listeners(machine).values()), "a client waits in the queue")
    os.kill(first, signal.SIGKILL)
    return client


def test_the_start_is_over_when_clients_are_served(machine: Machine) -> None:
    started(machine, "start")
    assert machine.show("SubState") == "running"
    assert answer(echo(machine)) == "hello"
    until(lambda: machine.show("StatusText") == "1 of 1 servers ready", "the status is told")
    verify = ("systemd-analyze", "verify", "--man=no", UNIT, "metamcp.socket")
    assert machine.run(*verify) == ""


def test_the_journal_finds_records_by_their_level_and_their_server(service: Machine) -> None:
    def journal(*wanted: str) -> list[dict[str, str]]:
        said = service.run("journalctl", "--no-pager", "--output=json", "--unit", UNIT, *wanted)
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    assert answer(echo(service)) == "hello"
    records = until(lambda: journal("METAMCP_SERVER=git", "METAMCP_EVENT=warming→ready"), "ready")
    first = records[0]
    assert (first["SYSLOG_IDENTIFIER"], first["PRIORITY"]) == ("metamcp", "6")
    assert first["_TRANSPORT"] == "journal"
    assert first["MESSAGE"].startswith("events: git warming→ready: ")
    assert int(first["_PID"]) == main_pid(service)
    service.metamcp("ctl", "--runtime-dir", "/run/metamcp", "restart", "nobody", ok=False)
    refused = journal("--priority=warning", "METAMCP_EVENT=order refused")
    assert [record["METAMCP_WHO"] for record in refused] == ["gateway"]

    file = service.root / CONFIG
    before = file.read_text()
    file.write_text(f"{before}[audit]\n")
    service.run("systemctl", "reload", UNIT)
    until(lambda: journal("METAMCP_WHO=audit", "METAMCP_EVENT=ready"), "the audit runs")
    file.write_text(before)
    service.run("systemctl", "reload", UNIT)
    (last,) = until(lambda: journal("METAMCP_ROOM=audit"), "what its process said at the end")
    assert last["_TRANSPORT"] == "journal"
    assert int(last["_PID"]) != main_pid(service)


def test_servers_get_credentials_and_nothing_that_is_meant_for_the_service(
    service: Machine,
) -> None:
    found = json.loads(answer(service.ask(PORT, "git__environ")))["environ"]
    assert found["API_KEY"] == SECRET
    assert found["HOME"] == "/var/lib/metamcp/servers/git/home"
    assert not [name for name in found if name.startswith(("NOTIFY", "LISTEN_", "WATCHDOG"))]
    assert SECRET not in service.journal()


def test_the_service_runs_as_a_user_of_its_own_and_measures_its_servers(
    service: Machine,
) -> None:
    for pid in service.pids():
        assert Path(f"/proc/{pid}").stat().st_uid not in {0, os.getuid()}

    def measured() -> bool:
        status: dict[str, Any] = json.loads(service.metamcp("status", "--json"))
        return int(status["servers"][0]["rss_bytes"]) > 0

    until(measured, "memory is measured within the sandbox")


def test_a_reload_is_told_and_so_is_one_that_is_refused(service: Machine) -> None:
    pid = main_pid(service)
    service.run("systemctl", "reload", UNIT)
    (service.root / CONFIG).write_text("[servers.git]\ncommand = 7\n")
    try:
        service.run("systemctl", "reload", UNIT, ok=False)
        until(lambda: "was refused" in service.show("StatusText"), "the refusal is told")
    finally:
        (service.root / CONFIG).write_text(config(service))
    service.run("systemctl", "reload", UNIT)
    assert (main_pid(service), service.show("SubState")) == (pid, "running")
    assert answer(echo(service)) == "hello"


@pytest.mark.promise("M79")
def test_an_upgrade_leaves_the_service_and_its_servers_running(service: Machine) -> None:
    assert answer(echo(service)) == "hello"  # it is lazy, and runs now
    pid, before = main_pid(service), server_of(service)
    said = service.metamcp("ctl", "--runtime-dir", "/run/metamcp", "upgrade")
    assert "1 server and" in said
    assert answer(echo(service)) == "hello"
    assert (main_pid(service), server_of(service)) == (pid, before)
    until(lambda: service.show("SubState") == "running", "the new program is ready")
    service.run("systemctl", "reload", UNIT)
    assert (service.show("NRestarts"), service.show("ActiveState")) == ("0", "active")


def test_root_restores_the_state_of_the_service(service: Machine) -> None:
    service.metamcp("keys", "create", "ada")
    service.run("sh", "-c", "umask 077; echo correct horse > /root/passphrase")
    passphrase = ("--passphrase-file", "/root/passphrase")
    service.metamcp("backup", "/root/metamcp.backup", *passphrase)
    service.metamcp("keys", "revoke", "ada", "--yes")
    service.run("systemctl", "stop", UNIT)
    assert "/var/lib/metamcp: " in service.metamcp("restore", "/root/metamcp.backup", *passphrase)
    started(service, "start")
    assert "ada" in service.metamcp("keys", "list")
    assert not (service.root / "root/.local/state/metamcp").exists()


def server_of(machine: Machine) -> int:
    said = machine.metamcp("ctl", "--runtime-dir", "/run/metamcp", "status", "-o", "pid")
    return int(said)


def test_a_client_in_the_queue_of_a_killed_gateway_is_answered_by_the_next(
    service: Machine,
) -> None:
    before = service.pids()
    client = kill_with_a_client_in_the_queue(service)
    assert answer(client) == "hello"
    assert service.show("NRestarts") == "1"
    assert "mcp-http: goes on with the sockets of before" in service.journal()
    assert not processes.alive(before)


def test_a_restart_refuses_nobody(service: Machine) -> None:
    pid = main_pid(service)
    service.run("systemctl", "restart", "--no-block", UNIT)
    for _ in range(3):
        assert answer(echo(service)) == "hello"
    assert until(lambda: main_pid(service), "the service is there again") != pid
    assert service.show("NFileDescriptorStore") == "2"


def test_another_address_takes_the_place_of_the_kept_one(service: Machine) -> None:
    elsewhere = f'[gateway]\nlisten = "127.0.0.2:{PORT}"\n'
    (service.root / CONFIG).write_text(elsewhere + config(service))
    started(service, "restart")
    assert list(listeners(service)) == ["0200007F"]
    (service.root / CONFIG).write_text(config(service))
    started(service, "restart")
    assert answer(echo(service)) == "hello"


def test_a_supervisor_that_hangs_is_aborted_and_started_anew(service: Machine) -> None:
    drop_in(service, "WatchdogSec=2", name="watchdog")
    service.run("systemctl", "daemon-reload")
    started(service, "restart")
    pid = main_pid(service)
    os.kill(service.outside(pid), signal.SIGSTOP)
    until(lambda: main_pid(service) not in {0, pid}, "a new supervisor runs")
    journal = service.journal()
    assert "Watchdog timeout (limit 2s)!" in journal
    assert "Fatal Python error: Aborted" in journal  # and where it hung
    assert answer(echo(service)) == "hello"
    (service.root / DROP_INS / "watchdog.conf").unlink()
    service.run("systemctl", "daemon-reload")


def test_a_stop_ends_servers_that_ignore_it(service: Machine) -> None:
    stubborn = config(service, "--ignore-term", "--ignore-eof")
    (service.root / CONFIG).write_text(stubborn + 'stop_grace = "200ms"\n')
    started(service, "restart")
    assert answer(echo(service)) == "hello"
    before = service.pids()
    assert len(before) >= 4  # supervisor, nursery, front, worker, server
    service.run("systemctl", "stop", UNIT)
    assert (service.show("SubState"), service.show("Result")) == ("dead", "success")
    assert not processes.alive(before)
    (service.root / CONFIG).write_text(config(service))
    started(service, "start")


def test_the_socket_unit_starts_the_gateway_for_the_first_client(machine: Machine) -> None:
    machine.run("systemctl", "stop", UNIT)
    machine.run("systemctl", "start", "metamcp.socket")
    assert machine.show("SubState") == "dead"
    assert answer(echo(machine)) == "hello"
    assert "mcp-http: listens on the sockets of systemd" in machine.journal()
    assert machine.show("NFileDescriptorStore") == "1"  # the ops port; the other is the unit's
    assert answer(kill_with_a_client_in_the_queue(machine)) == "hello"


def test_units_are_removed_and_the_configuration_stays(machine: Machine) -> None:
    again = machine.metamcp("systemd", "install", "--now")
    assert "metamcp.service: unchanged" in again
    machine.metamcp("systemd", "uninstall")
    assert not (machine.root / "etc/systemd/system/metamcp.service").exists()
    assert not machine.pids()
    assert (machine.root / CONFIG).exists()
    machine.metamcp("systemd", "install", "--now")
    assert answer(echo(machine)) == "hello"


def test_the_machine_powers_off_with_the_gateway_running(service: Machine) -> None:
    before = service.pids()
    assert service.power_off() == 0
    assert not processes.alive(before)
