"""The commands of the pictures, run for real: a gateway in a terminal, and others beside it.

Owns: servers, commands, sizes, and which words differ from one run to the next. Never: drawing.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.live.client import Client
from tests.live.gateway import ROOT, toml
from tests.pictures.svg import Run, runs
from tests.terminal import Terminal
from tests.waiting import until

COLUMNS, LINES = 100, 30
WIDE = 130
"""Columns for messages that are one long line."""
PATH_SHOWN = "/home/ada/project"
"""Shown in place of the folder, whose path is as long."""
PORT_SHOWN, OPS_SHOWN = "6270", "6271"
PORTS = range(6300, 9900)
"""Ports with as many digits as the usual ones."""
CALLS = 12
METAMCP = (sys.executable, "-m", "metamcp_supervisor")
NAMED = str(ROOT / "tests" / "fakes" / "named_server.py")
SERVERS = {
    "files": {
        "read_file": "Read a file as text.",
        "write_file": "Write a file, and make it if it is missing.",
        "list_directory": "List the files and folders in a folder.",
        "search_files": "Find files whose name has a pattern.",
    },
    "git": {
        "git_status": "Show which files have changed.",
        "git_diff": "Show what has changed since the last commit.",
        "git_log": "Show the newest commits.",
        "git_commit": "Record changes with a message.",
    },
    "time": {
        "get_current_time": "Tell the time in a time zone.",
        "convert_time": "Convert a time to another time zone.",
    },
}
"""Servers and their tools."""
FAILS = "echo 'Error: SEARCH_API_KEY is not set' >&2; exit 1"
MISTAKE = """[servers.git]
comand = ["uvx", "mcp-server-git"]
timeout = "90 minuts"

[endpoints.dev]
namespace = "development"
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture. `name`: of its file; `title`: what it shows, for people who do not see it."""

    name: str
    title: str
    prompt: str
    runs: tuple[Run, ...]
    columns: int


@dataclass(frozen=True, slots=True)
class Running:
    """Gateway in a terminal. `shown`: texts that differ, and what a picture shows instead."""

    folder: Path
    port: int
    terminal: Terminal
    shown: dict[str, str]

    @property
    def environ(self) -> dict[str, str]:
        return _environ(self.folder)

    def command(self, *words: str) -> list[str]:
        return [*METAMCP, *words]


def all_scenes() -> Iterator[Scene]:
    """Every picture of a terminal, made now."""
    with _folder() as folder:
        yield _mistake(folder)
    with gateway() as running:
        yield from _running(running)


@contextmanager
def gateway() -> Generator[Running]:
    """A gateway with three servers that work, and one that fails."""
    commands = {
        name: [sys.executable, NAMED, *(f"{tool}={about}" for tool, about in tools.items())]
        for name, tools in SERVERS.items()
    }
    lines = [f"[servers.{name}]\ncommand = {toml(words)}" for name, words in commands.items()]
    lines.append(f"[servers.search]\nrestart = 'never'\ncommand = {toml(['sh', '-c', FAILS])}")
    with _folder() as folder, _free(2) as ports:
        listen = f"[gateway]\nlisten = '127.0.0.1:{ports[0]}'"
        lines.insert(0, f"{listen}\nops_listen = '127.0.0.1:{ports[1]}'")
        lines.append("[recording]\ncalls = 'full'")
        (folder / "metamcp.toml").write_text("\n".join(lines))
        with _terminal(folder, "up", "--yes") as terminal:
            terminal.until("Ctrl-C")
            yield Running(
                folder, ports[0], terminal,
                {str(folder): PATH_SHOWN, f":{ports[0]}": f":{PORT_SHOWN}",
                 f":{ports[1]}": f":{OPS_SHOWN}"},
            )  # fmt: skip


def masked(text: str) -> str:
    """A text without what differs from one run to the next: numbers, and blanks that fill up."""
    text = re.sub(r"MetaMCP \S+ starts", "MetaMCP # starts", text)
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{6,}\b", "#", text)  # hashes and ids
    text = re.sub(r"\d[\d.:]*(?:\s?(?:ms|s|m|h|[KMG](?:iB)?|%)\b)?", "#", text)
    text = re.sub(r"# #(?= |$)", "#", text, flags=re.MULTILINE)  # 1m 5s
    return "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.splitlines())


@contextmanager
def _folder() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="mcp-", dir="/tmp") as made:
        assert len(made) == len(PATH_SHOWN)
        yield Path(made)


@contextmanager
def _free(count: int) -> Generator[list[int]]:
    """Ports that stay bound, so that no other test gets them; a gateway can listen on them."""
    found: list[int] = []
    with ExitStack() as held:
        for port in PORTS:
            sock = held.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                sock.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                break
        yield found


def _environ(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "METAMCP_RUNTIME_DIR": str(folder / "run"),
        "METAMCP_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }


def _scene(terminal: Terminal, name: str, title: str, prompt: str, shown: dict[str, str]) -> Scene:
    found: list[Run] = []
    for run in runs(terminal.screen, prompt):
        text = run.text
        for word, instead in shown.items():
            text = text.replace(word, instead)
        found.append(Run(run.line, run.column, text, run.classes))
    return Scene(name, title, prompt, tuple(found), terminal.screen.columns)


def _terminal(folder: Path, *words: str, columns: int = COLUMNS) -> Terminal:
    return Terminal(
        [*METAMCP, *words], cwd=folder, environ=_environ(folder), columns=columns, lines=LINES
    )


def _mistake(folder: Path) -> Scene:
    config = folder / "metamcp.toml"
    config.write_text(MISTAKE)
    with _terminal(folder, "up", columns=WIDE) as terminal:
        assert terminal.finish() == 65
    scene = _scene(
        terminal, "mistakes", "metamcp up names every mistake of a configuration with its line",
        "metamcp up", {str(folder): PATH_SHOWN},
    )  # fmt: skip
    config.unlink()
    return scene


def _running(running: Running) -> Iterator[Scene]:
    folder, shown = running.folder, running.shown
    yield _scene(
        running.terminal, "up",
        "metamcp up starts four servers, one of which fails, and says where clients connect",
        "metamcp up --yes", shown,
    )  # fmt: skip
    client = work(running)
    with _terminal(folder, "status") as beside:
        assert beside.finish() == 3
        yield _scene(
            beside, "status", "metamcp status shows a row for each server", "metamcp status", shown
        )
    with _terminal(folder, "top") as beside:

        def has_rates(text: str) -> bool:
            _call(client, 1)
            return bool(re.search(r"git +active +[1-9]", text))

        beside.until(has_rates)
        yield _scene(
            beside, "top", "metamcp top shows how much each server uses", "metamcp top", shown
        )
        beside.press(b"q")
        beside.finish()
    client.close()


def work(running: Running) -> Client:
    """Make some calls, and wait until the gateway has measured them. The client that called."""
    client = Client(running.port)
    _call(client, CALLS)
    until(lambda: _measured(running.folder), "the gateway has measured calls and memory")
    return client


def _call(client: Client, count: int) -> None:
    tools = list(SERVERS["git"])
    for number in range(count):
        client.call(f"git__{tools[number % len(tools)]}", query="x")


def _measured(folder: Path) -> bool:
    done = subprocess.run(
        [*METAMCP, "status", "--json"],
        cwd=folder, env=_environ(folder), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    servers = {each["name"]: each for each in json.loads(done.stdout)["servers"]}
    counted = servers["git"]["calls"] >= CALLS and servers["git"]["p95_s"] is not None
    return counted and all(servers[name]["rss_bytes"] for name in SERVERS)
