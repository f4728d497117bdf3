"""The audit with the true binary: no answer without its record, whatever is killed or full."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.audit import audit_segments as reader
from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc.audit_records import AuditRecord, ChainRow
from tests import programs
from tests.live import processes
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M90")]

KILLS = int(os.environ.get("METAMCP_AUDIT_KILLS", "3"))
"""Kills of each kind; by hand more."""


def folder(gateway: Gateway) -> Path:
    return gateway.folder / "state" / audit.FOLDER


def records(gateway: Gateway) -> list[tuple[int, AuditRecord]]:
    found: list[tuple[int, AuditRecord]] = []
    for path in reader.segments(folder(gateway)):
        rows = (row for row in reader.rows(path) if isinstance(row, ChainRow))
        found += [(row.seq, audit.read(row.body)) for row in rows]
    return found


def command(gateway: Gateway, *words: str, ok: int = 0) -> str:
    state = ("--state-dir", str(gateway.folder / "state"))
    line = [sys.executable, "-m", "metamcp_supervisor", "audit", *words, *state]
    done = programs.run(line)
    assert done.returncode == ok, done.stderr + done.stdout
    return done.stdout


def writer(gateway: Gateway) -> int:
    """The process that has the lock of the segments, 0 if there is none."""
    lock = str(folder(gateway) / "lock")
    for pid in processes.below(gateway.pid):
        try:
            links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            continue
        if lock in links:
            return pid
    return 0


def fronts(gateway: Gateway) -> list[int]:
    ready = gateway.events(type="warming→ready")
    causes = (event["cause"] for event in ready if event["who"].startswith("front-"))
    pids = (int(cause.removeprefix("process ")) for cause in causes)
    return [pid for pid in pids if pid in processes.below(gateway.pid)]


class Callers:
    """Threads that call a tool with a number of its own each time. `answered`: those numbers."""

    def __init__(self, gateway: Gateway, count: int) -> None:
        self.answered: list[str] = []
        self._gateway = gateway
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _call(self, caller: int) -> None:
        client, count = None, 0
        while not self._over.is_set():
            count += 1
            text = f"{caller}.{count}"
            try:
                client = client or Client(self._gateway.port, MODERN)
                answer = client.call("new__echo", text=text)
            except (OSError, http.client.HTTPException, ValueError, AssertionError):
                if client is not None:  # its front was killed
                    client.close()
                client = None
                continue
            if "result" in answer:
                self.answered.append(text)
        if client is not None:
            client.close()

    def wait(self, count: int) -> None:
        """Wait for so many further answers."""
        wanted = len(self.answered) + count
        until(lambda: len(self.answered) >= wanted, "calls are answered")

    def end(self) -> set[str]:
        self._over.set()
        for thread in self._threads:
            thread.join(30)
        return set(self.answered)


def recorded(gateway: Gateway, texts: set[str]) -> set[str]:
    """Those texts with which a recorded call was made."""
    salt = (folder(gateway) / audit.SALT).read_bytes()
    found = {record.args_hmac for _, record in records(gateway) if record.event == "call"}

    def one(text: str) -> str:
        return audit.pseudonym(salt, json.dumps({"text": text}))

    return {text for text in texts if one(text) in found}


@pytest.fixture(scope="module", params=["process", "power"])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    servers = {"new": fake("--era", "modern")}
    extra = f'[gateway]\nfronts = 2\n[audit]\ndurability = "{request.param}"\n'
    with Gateway(servers, extra=extra) as found:
        yield found


def test_calls_lists_and_refusals_of_both_eras_leave_records(gateway: Gateway) -> None:
    for era in (MODERN, LEGACY):
        with closing(Client(gateway.port, era)) as client:
            client.tools()
            assert client.text("new__echo", text="secret words") == "secret words"
            assert "error" in client.request("tools/call", {"name": "nonsense", "arguments": {}})
    until(lambda: len(json_lines(gateway, "--outcome", "refused")) == 2, "refusals are recorded")
    assert len([one for one in json_lines(gateway) if one["event"] == "list"]) >= 2
    for name in ("echo", "new__echo"):
        calls = json_lines(gateway, "--tool", name, "--since", "1h", "--server", "new")
        assert [one["outcome"] for one in calls] == ["ok", "ok"]
    assert "secret words" not in command(gateway, "export", "--json")
    assert "new__echo" in command(gateway, "show", str(calls[0]["seq"]))
    assert "hold" in command(gateway, "verify")


def json_lines(gateway: Gateway, *words: str) -> list[Any]:
    text = command(gateway, "list", "--json", *words)
    return [json.loads(line) for line in text.splitlines()]


def test_orders_of_an_operator_and_events_of_servers_leave_records(gateway: Gateway) -> None:
    gateway.ctl("restart", "new")
    gateway.wait_ready()
    made, _ = (
        json.loads(subprocess.check_output(gateway.command("keys", *words, "--json"), timeout=60))
        for words in (("create", "laptop"), ("list",))
    )

    def told() -> bool:
        found = [record for _, record in records(gateway)]
        orders = [record.text for record in found if record.event == "order"]
        events = [record.text for record in found if record.who == "new"]
        return any("restart new" in text for text in orders) and any("ready" in t for t in events)

    until(told, "the order and its effect are recorded")
    assert f"audit: ready, process {writer(gateway)}" in gateway.ctl("status", ok=(0, 3))
    orders = [one["text"] for one in json_lines(gateway, "--event", "order")]
    change = f"'keys-change created {made['id']} laptop' asked by"
    until(
        lambda: any(record.text.startswith(change) for _, record in records(gateway)),
        "the change of a key is recorded",
    )
    assert not any(text.startswith("'keys'") for text in orders)


def _renewed(gateway: Gateway, times: int) -> bool:
    return gateway.journal().count("renewed") == times


@pytest.mark.parametrize("durability", ["process", "power"])
def test_an_event_is_recorded_once_whatever_program_goes_on(durability: str) -> None:
    extra = f'[audit]\nlevel = "metadata"\ndurability = "{durability}"\n'
    with Gateway({"one": fake()}, extra=extra) as gateway:
        for number in (1, 2):
            gateway.ctl("upgrade")
            until(partial(_renewed, gateway, number), "all is renewed")
        journal = [(one["who"], one["what"], one["time"]) for one in gateway.events()]

        def recorded() -> list[tuple[str, str, float]]:
            events = (one for _, one in records(gateway) if one.event == "gateway")
            return [(one.who, one.text.partition(":")[0], one.ts / 1e9) for one in events]

        until(lambda: len(recorded()) >= len(journal), "all events are recorded")
        found = recorded()
    assert len(set(found)) == len(found) == len(journal)
    assert {one[:2] for one in found} == {one[:2] for one in journal}


def test_numbers_are_dense_with_sixty_four_clients(gateway: Gateway) -> None:
    callers = Callers(gateway, 64)
    until(lambda: len(callers.answered) > 500, "calls are answered")
    answered = callers.end()
    until(lambda: recorded(gateway, answered) == answered, "all are in the chain")
    numbers = [seq for seq, _ in records(gateway)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("victim", ["writer", "front"])
def test_no_answered_call_is_without_its_record_when_a_process_is_killed(
    gateway: Gateway, victim: str
) -> None:
    callers = Callers(gateway, 8)
    for _ in range(KILLS):
        callers.wait(100)
        until(lambda: bool(writer(gateway)) and bool(fronts(gateway)), "there is a victim")
        os.kill(writer(gateway) if victim == "writer" else fronts(gateway)[-1], signal.SIGKILL)
    callers.wait(100)
    answered = callers.end()
    until(lambda: recorded(gateway, answered) == answered, "all are in the chain")
    found = [(record.origin, record.n) for _, record in records(gateway)]
    assert len(found) == len(set(found)), "a record was written twice"
    assert "hold" in command(gateway, "verify")


@contextmanager
def on_a_small_disk(gateway: Gateway, size: str) -> Generator[Path]:
    """A file system for the records of the audit."""
    if os.geteuid():
        pytest.skip("only root may mount")
    state = folder(gateway)
    state.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(state)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no mount here")
    try:
        yield state
    finally:
        subprocess.run(["umount", "-l", str(state)], check=False)
        shutil.rmtree(gateway.folder, ignore_errors=True)


FILLER = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    try:
        os.write(file, bytes(4096))
    except OSError:
        print("full", flush=True)
        os.close(1)
        break
while True:
    try:
        os.write(file, bytes(4096))
    except OSError:
        os.sched_yield()
"""
"""Another program, which takes each block that becomes free."""


@pytest.mark.parametrize("durability", ["process", "power"])
def test_calls_go_on_for_sixteen_mebibytes_of_records_beside_a_program_that_fills_the_disk(
    durability: str,
) -> None:
    extra = f'[audit]\nrequired = true\nlevel = "full"\ndurability = "{durability}"\n'
    gateway = Gateway({"new": fake("--era", "modern")}, extra=extra)
    with on_a_small_disk(gateway, "48m") as state, gateway, closing(Client(gateway.port)) as client:
        text = "x" * 60_000  # about as long in the record, as argument and as result
        assert client.text("new__echo", text="before") == "before"
        words = [sys.executable, "-c", FILLER, str(state / "ballast")]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as filler:
            assert filler.stdout is not None
            assert filler.stdout.readline() == b"full\n"
            calls = 0
            while "result" in (answer := client.call("new__echo", text=f"{calls}{text}")):
                calls += 1
            filler.kill()
        assert "audit unavailable" in json.dumps(answer)
        assert calls * 2 * len(text) > 0.95 * audit.RESERVE_BYTES
        (state / "ballast").unlink()
        everything = {f"{n}{text}" for n in range(calls)}
        until(lambda: recorded(gateway, everything) == everything, "all are in the chain")
        until(lambda: "result" in client.call("new__echo", text="after"), "calls are answered")
        assert "hold" in command(gateway, "verify")


@pytest.mark.parametrize("required", [True, False])
def test_a_full_disk_refuses_calls_or_leaves_a_gap(required: bool) -> None:
    extra = f"[audit]\nrequired = {str(required).lower()}\n"
    gateway = Gateway({"new": fake("--era", "modern")}, extra=extra)
    with (
        on_a_small_disk(gateway, "2m") as state,
        gateway,
        closing(Client(gateway.port, MODERN)) as client,
    ):
        assert client.text("new__echo", text="a") == "a"
        ballast = state / "ballast"
        with ballast.open("wb") as file:
            try:
                while True:
                    os.write(file.fileno(), b"x" * 4096)
            except OSError:
                pass

        def refused() -> bool:
            return "audit unavailable" in json.dumps(client.call("new__echo", text="b" * 9000))

        if required:
            until(refused, "calls are refused")
        else:
            assert not any(refused() for _ in range(200))
        ballast.unlink()
        until(lambda: not refused(), "calls are answered again")
        until(lambda: any(one.event == "gap" for _, one in records(gateway)), "there is a gap")
        assert "hold" in command(gateway, "verify")
