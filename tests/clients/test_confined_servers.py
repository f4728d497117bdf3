"""Public servers as they are installed and started everywhere, confined."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.clients import programs
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.promise("M96"),
    pytest.mark.skipif(not programs.STAMP.exists(), reason="`make test` installs the servers"),
]

DEMO = ROOT / "examples" / "demo"
PYTHON = DEMO / ".venv" / "bin"
SQLITE = programs.PYTHON_V1.with_name("mcp-server-sqlite")
INSTALL_S_MAX = 400
TEXT = "a page of this machine"
ZONE = {"timezone": "Europe/Berlin"}


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(TEXT)))
        self.end_headers()
        self.wfile.write(TEXT.encode())

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


@contextmanager
def serving_page() -> Generator[str]:
    """A page of this machine that is not the gateway's, which refuses confined servers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/page"
        finally:
            server.shutdown()
            thread.join()


def node(package: str, script: str, *arguments: str) -> list[str]:
    return ["node", str(programs.MODULES / package / script), *arguments]


def entries(work: Path) -> dict[str, dict[str, Any]]:
    """Eleven of the most installed servers, with nothing about their confinement."""
    official = "@modelcontextprotocol/server-"
    known: dict[str, list[str]] = {
        "git": [str(PYTHON / "mcp-server-git"), "--repository", str(work / "repository")],
        "time": [str(PYTHON / "mcp-server-time"), "--local-timezone", "UTC"],
        "fetch": [str(PYTHON / "mcp-server-fetch"), "--ignore-robots-txt", "--allow-private-ips"],
        "sqlite": [str(SQLITE), "--db-path", str(work / "data" / "test.db")],
        "filesystem": node(f"{official}filesystem", "dist/index.js", str(work / "files")),
        "memory": node(f"{official}memory", "dist/index.js"),
        "thinking": node(f"{official}sequential-thinking", "dist/index.js"),
        "everything": node(f"{official}everything", "dist/index.js"),
        "context7": node("@upstash/context7-mcp", "dist/index.js"),
        "playwright": node("@playwright/mcp", "cli.js"),
        "notion": node("@notionhq/notion-mcp-server", "bin/cli.mjs"),
    }
    found: dict[str, dict[str, Any]] = {name: {"command": one} for name, one in known.items()}
    found["memory"]["env"] = {"MEMORY_FILE_PATH": str(work / "data" / "graph.jsonl")}
    found["launched"] = {
        "command": ["npx", "--no-install", "mcp-server-everything"],
        "cwd": str(programs.HERE),
    }
    return found


#: One call of each server that works without an account, and a part of its answer.
CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "git": ("git_commit", {"message": "More"}, "committed"),
    "time": ("get_current_time", ZONE, "Berlin"),
    "sqlite": ("create_table", {"query": "CREATE TABLE t (a)"}, "success"),
    "filesystem": ("write_file", {"content": "x"}, "wrote"),
    "memory": (
        "create_entities",
        {"entities": [{"name": "a", "entityType": "b", "observations": []}]},
        "entities",
    ),
    "thinking": (
        "sequentialthinking",
        {"thought": "x", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        "thoughtNumber",
    ),
    "everything": ("echo", {"message": "hello"}, "hello"),
    "launched": ("echo", {"message": "hello"}, "hello"),
}
STRICT = ("git", "filesystem", "memory", "time")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders for the servers, with a repository that has a change."""
    subprocess.run(
        [sys.executable, "-c", "import demo; demo.install()"],
        cwd=DEMO, check=True, timeout=INSTALL_S_MAX, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(DEMO)},
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("work")
    for name in ("files", "data", "repository"):
        (folder / name).mkdir()
    changed(folder)
    return folder


def changed(work: Path) -> None:
    """A change in the repository that waits for its commit."""

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=work / "repository", check=True, capture_output=True)

    git("init", "--quiet")
    git("config", "user.name", "Ann")
    git("config", "user.email", "ann@example.com")
    with (work / "repository" / "file").open("a") as file:
        file.write("line\n")
    git("add", ".")


@pytest.fixture(scope="module")
def basic(work: Path) -> Iterator[Gateway]:
    with Gateway(entries(work)) as gateway:
        yield gateway


def arguments(server: str, work: Path) -> dict[str, Any]:
    found = dict(CALLS[server][1])
    if server == "git":
        found["repo_path"] = str(work / "repository")
    if server == "filesystem":
        found["path"] = str(work / "files" / "new.txt")
    return found


def answered(gateway: Gateway, server: str, work: Path) -> None:
    tool, _, part = CALLS[server]
    with closing(Client(gateway.port)) as client:
        answer = client.call(f"{server}__{tool}", **arguments(server, work))
    assert not answer["result"].get("isError"), answer
    assert part in json.dumps(answer["result"]), answer


@pytest.mark.parametrize("server", sorted(entries(Path("/"))))
def test_a_public_server_starts_confined_and_lists_its_tools(basic: Gateway, server: str) -> None:
    found = basic.server(server)
    assert (found["state"], found["sandbox"], found["lacking"]) == ("active", "basic", [])
    assert found["tools"] > 0


@pytest.mark.parametrize("server", CALLS)
def test_a_public_server_works_confined(basic: Gateway, work: Path, server: str) -> None:
    answered(basic, server, work)


def test_a_page_is_fetched_by_a_confined_server(basic: Gateway) -> None:
    with closing(Client(basic.port)) as client, serving_page() as url:
        assert TEXT in client.text("fetch__fetch", url=url)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_git_filesystem_memory_and_time_work_in_the_profile_strict(work: Path) -> None:
    changed(work)
    every = entries(work)
    with Gateway({name: {**every[name], "sandbox": "strict"} for name in STRICT}) as gateway:
        for server in STRICT:
            assert "bubblewrap" in gateway.server(server)["achieved"]
            answered(gateway, server, work)
