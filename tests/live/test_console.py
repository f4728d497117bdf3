"""The web console of a real gateway: its link, its process, and what that costs."""

import itertools
import json
import os
import re
import shlex
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Self, cast

import pytest

from metamcp_supervisor.control.client import connect
from tests import programs
from tests.live.console import Markup
from tests.live.gateway import SERVER, Gateway, fake, free_port
from tests.waiting import until

pytestmark = pytest.mark.live

PSS_BYTES_MAX = 25 * 1024 * 1024
PAGE_CPU_S_MAX = 0.020
SERVERS = 50
ROUNDS = 4
PAGES = 25
EVENTS_PER_S = 200
BUSY_S = float(os.environ.get("METAMCP_SOAK_S", "6"))
BUSY_CPU_MAX = 0.05
"""Share of a core for an open page while so much happens."""
OWN = {"Sec-Fetch-Site": "same-origin"}


def told(gateway: Gateway, *arguments: str) -> dict[str, Any]:
    done = gateway.run("console", *arguments, "--json")
    return cast(dict[str, Any], json.loads(done.stdout))


class Visitor:
    """A browser without eyes. `base`: of the console; `token`: of its session."""

    def __init__(self, gateway: Gateway, role: str = "admin") -> None:
        url: str = told(gateway, "--role", role, "--no-open")["url"]
        self.base, _, secret = url.partition("/#k=")
        self.token = ""
        status, body = self.ask("/login", json.dumps({"link": secret}).encode())
        assert status == 200, body
        self.token = json.loads(body)["token"]

    def news(self) -> Iterator[dict[str, Any]]:
        """The kinds of news as they come."""
        headers = {**OWN, "Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.base}/events", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def ask(self, path: str, data: bytes | None = None) -> tuple[int, str]:
        headers = {**OWN, **({"Authorization": f"Bearer {self.token}"} if self.token else {})}
        request = urllib.request.Request(self.base + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


def role(gateway: Gateway) -> dict[str, Any] | None:
    """The process of the console in the status of the gateway; None if nothing asks for it."""
    found = (one for one in gateway.status()["roles"] if one["role"] == "console")
    return next(found, None)


def runs(gateway: Gateway) -> int:
    found = role(gateway)
    return found["pid"] if found else 0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


TALKATIVE = """
import os, runpy, sys, threading, time

pause_s, wanted = 1 / float(sys.argv.pop(1)), sys.argv.pop(1)

def speak():
    number = 0
    while True:
        time.sleep(pause_s)
        if not os.path.exists(wanted):
            continue
        number += 1
        sys.stderr.write(f"event {number}\\n")
        sys.stderr.flush()

threading.Thread(target=speak, daemon=True).start()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LINES_PER_S = 3
"""Lines in the log of each server."""


def wanted(gateway: Gateway) -> Path:
    """A file that is there while the servers are to say something."""
    return gateway.folder / "wanted"


@contextmanager
def talk(gateway: Gateway) -> Generator[None]:
    wanted(gateway).touch()
    try:
        yield
    finally:
        wanted(gateway).unlink()


@pytest.fixture(scope="module")
def fifty() -> Iterator[Gateway]:
    gateway = Gateway({})
    command = [SERVER[0], "-c", TALKATIVE, str(LINES_PER_S), str(wanted(gateway)), *SERVER[1:]]
    gateway.write({f"server-{n}": {"command": command} for n in range(SERVERS)})
    with gateway:
        yield gateway


@pytest.mark.promise("M67", "M107")
def test_the_console_is_off_until_it_is_asked_for_and_nothing_hangs_on_its_process() -> None:
    with Gateway({"git": fake()}) as gateway:
        assert role(gateway) is None
        visitor = Visitor(gateway)
        first = until(lambda: runs(gateway), "its process runs")
        before = gateway.server("git")["pid"]
        assert "git" in visitor.ask("/f/servers")[1]

        os.kill(first, signal.SIGKILL)
        until(lambda: runs(gateway) == 0, "the gateway has seen its end")
        assert gateway.server("git")["pid"] == before
        assert visitor.ask("/f/servers")[0] == 200, "the session has outlived the process"
        assert runs(gateway) not in (0, first)

        status, _ = visitor.ask("/f/servers/git", b"order=restart")
        assert status == 200
        gateway.wait("git")
        until(lambda: gateway.server("git")["pid"] not in (0, before), "it was restarted")
        assert "asked by console session" in gateway.journal()

        (session,) = told(gateway, "sessions")["sessions"]
        assert told(gateway, "revoke", session["id"])["ended"] == [session["id"]]
        assert visitor.ask("/f/servers")[0] == 401


def test_a_configured_address_listens_without_a_process_and_survives_an_upgrade() -> None:
    port = free_port()
    extra = f'[gateway]\nconsole_listen = "127.0.0.1:{port}"'
    with Gateway({"git": fake()}, extra=extra) as gateway:
        assert runs(gateway) == 0
        visitor = Visitor(gateway)
        assert visitor.base == f"http://127.0.0.1:{port}"
        gateway.ctl("upgrade")
        until(lambda: gateway.status()["upgrades"] == 1, "another program runs")
        gateway.wait()
        status, body = visitor.ask("/f/servers")
        assert (status, "has ended" in body) == (401, True), "sessions are of one program"
        assert Visitor(gateway).ask("/f/servers")[0] == 200


@pytest.mark.promise("M107")
def test_an_idle_console_is_small_and_a_page_of_fifty_servers_is_cheap(fifty: Gateway) -> None:
    visitor = Visitor(fifty)
    assert visitor.ask("/f/servers")[1].count('aria-label="logs of ') == SERVERS
    pid = until(lambda: runs(fifty), "its process runs")
    rounds: list[float] = []  # others on the machine can only make one dearer
    for _ in range(ROUNDS):
        before = cpu_s(pid)
        for _ in range(PAGES):
            assert visitor.ask("/f/servers")[0] == 200
        rounds.append((cpu_s(pid) - before) / PAGES)
    spent = min(rounds)
    assert spent <= PAGE_CPU_S_MAX, f"{spent * 1000:.1f} ms of processor time for a page"
    assert pss_bytes(pid) <= PSS_BYTES_MAX, f"{pss_bytes(pid) / 2**20:.1f} MiB"


def test_the_first_page_lists_files_of_clients_with_the_command_that_imports_them() -> None:
    gateway = Gateway({})
    home = gateway.folder / "a home"
    gateway.environ |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
    cursor, windsurf = home / ".cursor/mcp.json", home / ".codeium/windsurf/mcp_config.json"
    for path, text in (
        (cursor, json.dumps({"mcpServers": {"notes": {"command": SERVER[0], "args": SERVER[1:]}}})),
        (windsurf, "{ broken"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    with gateway:
        visitor = Visitor(gateway)
        page = Markup(visitor.ask("/f/")[1])
        assert f"Cursor {cursor} 1 metamcp import cursor" in page.text
        assert f"Windsurf {windsurf} The file cannot be read" in page.text
        _, *words = shlex.split(page.texts[page.texts.index("Copy") - 1])
        environment = {**os.environ, **gateway.environ}
        programs.run([*programs.PROGRAM, *words], env=environment, check=True)
        gateway.ctl("reload")
        assert "/servers/notes" in Markup(visitor.ask("/f/")[1]).links()


ORDERS_PER_S = (EVENTS_PER_S - SERVERS * LINES_PER_S) / 2
"""Servers that are drained or taken back: each is two events, the order and the new state."""


def news_s() -> float:
    """Seconds from news to the page that shows them, as the script in the browser has it."""
    script = resources.files("metamcp_supervisor.console") / "static" / "console.js"
    found = re.search(r"const NEWS_MS = ([0-9_]+);", script.read_text())
    assert found is not None
    return int(found[1]) / 1000


class Restless(threading.Thread):
    """An operator who drains one server after the other, and takes them back. `events`: number of
    events that came of it so far."""

    def __init__(self, gateway: Gateway, names: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.events = 0
        self.done = threading.Event()
        self._directory, self._names = str(gateway.folder / "run"), names

    def run(self) -> None:
        orders = itertools.cycle(itertools.product(("drain", "undrain"), self._names))
        due = time.monotonic()
        with connect(self._directory) as control:
            for order, name in orders:
                if self.done.wait(due - time.monotonic()):
                    return
                control.call(order, {"names": [name]})
                self.events += 2
                due += 1 / ORDERS_PER_S

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join(30)


@pytest.mark.promise("M107")
def test_an_open_page_of_fifty_servers_costs_little_while_200_events_a_second_happen(
    fifty: Gateway,
) -> None:
    servers = [server["name"] for server in fifty.status()["servers"]]
    with talk(fifty), Restless(fifty, servers) as operator:
        visitor, pause = Visitor(fifty), news_s()
        pid = until(lambda: runs(fifty), "its process runs")
        news = visitor.news()
        next(news)
        began, before, events = time.monotonic(), cpu_s(pid), operator.events
        kinds, asked, heard, pages = set[str](), began, 0, 0
        for one in news:  # as the script in the browser: one page for what came meanwhile
            heard += 1
            kinds.update(one["kinds"])
            now = time.monotonic()
            if now - asked >= pause and "servers" in one["kinds"]:
                status, body = visitor.ask("/f/servers")
                assert (status, body.count('aria-label="logs of ')) == (200, SERVERS)
                asked, pages = now, pages + 1
            if now - began > BUSY_S:
                break
        took = time.monotonic() - began
        spent = (cpu_s(pid) - before) / took
        happened = (operator.events - events) / took + SERVERS * LINES_PER_S
    assert kinds >= {"servers", *(f"logs:{name}" for name in servers)}
    assert happened >= 0.9 * EVENTS_PER_S
    assert pages >= BUSY_S / 2, "the page was loaded again and again"
    assert heard / took <= 4.5, "more than four messages in a second"
    assert spent <= BUSY_CPU_MAX, f"{spent:.1%} of a core"
