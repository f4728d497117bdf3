"""Public servers in the profile `basic` answer as they do unconfined, in the home of the operator.

Each server runs twice in one project, confined and not. Nothing about confinement is written.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.clients import programs
from tests.clients.test_confined_servers import (
    DEMO,
    INSTALL_S_MAX,
    PYTHON,
    SQLITE,
    TEXT,
    node,
    serving_page,
)
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.promise("M96"),
    pytest.mark.skipif(not programs.STAMP.exists(), reason="`make test` installs the servers"),
]

CHROMIUM = shutil.which("chromium") or ""
BROWSERS = ("playwright", "devtools")
SHELL = [sys.executable, str(ROOT / "tests" / "fakes" / "shell_server.py")]
MEMORY = "@modelcontextprotocol/server-memory@2026.8.31"
PAGE = "data:text/html,<title>A page</title><p>hello</p>"
KUBE_CONFIG = """apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: x}}]
"""
MANAGER = (
    "import multiprocessing as m\n"
    "def work(shared): shared.append(2)\n"
    "if __name__ == '__main__':\n"
    "    with m.Manager() as manager:\n"
    "        shared = manager.list([1]); p = m.Process(target=work, args=(shared,))\n"
    "        p.start(); p.join(); print(list(shared))\n"
)


def commands() -> dict[str, list[str]]:
    official = "@modelcontextprotocol/server-"
    # Chromium has no sandbox for root.
    of_root = os.geteuid() == 0
    playwright = ["--headless", "--executable-path", CHROMIUM, *["--no-sandbox"] * of_root]
    devtools = ["--headless", "--executablePath", CHROMIUM, "--no-usage-statistics"]
    devtools += ["--chromeArg=--no-sandbox"] * of_root
    found = {
        "git": [str(PYTHON / "mcp-server-git")],
        "fetch": [str(PYTHON / "mcp-server-fetch"), "--ignore-robots-txt", "--allow-private-ips"],
        "sqlite": [str(SQLITE), "--db-path", "new.db"],
        "filesystem": node(f"{official}filesystem", "dist/index.js", "."),
        "memory": ["npx", "-y", MEMORY],
        "shell": SHELL,
    }
    if CHROMIUM:
        found["playwright"] = node("@playwright/mcp", "cli.js", *playwright)
        script = "build/src/bin/chrome-devtools-mcp.js"
        found["devtools"] = node("chrome-devtools-mcp", script, *devtools)
    return found


#: Calls of each server, with a part of the answer: the first reads, the second changes something.
#: `PROJECT` and `WEB_PAGE` stand for the folder and the address of a page.
CALLS: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "git": [
        ("git_status", {"repo_path": "PROJECT"}, "untracked.txt"),
        ("git_create_branch", {"repo_path": "PROJECT", "branch_name": "KIND"}, "Created branch"),
        ("git_add", {"repo_path": "PROJECT", "files": ["untracked.txt"]}, "staged"),
    ],
    "fetch": [("fetch", {"url": "WEB_PAGE"}, TEXT)],
    "sqlite": [
        ("list_tables", {}, "["),
        ("create_table", {"query": "CREATE TABLE IF NOT EXISTS t (a)"}, "success"),
    ],
    "filesystem": [
        ("read_text_file", {"path": "PROJECT/tracked.txt"}, "line"),
        ("write_file", {"path": "PROJECT/made-KIND.txt", "content": "x"}, "wrote"),
    ],
    "memory": [
        ("read_graph", {}, "entities"),
        (
            "create_entities",
            {"entities": [{"name": "KIND", "entityType": "b", "observations": []}]},
            "entities",
        ),
    ],
    "shell": [
        ("sh", {"command": "git config user.name; ls -a ."}, "Ann"),
        ("sh", {"command": f"{sys.executable} manager.py"}, "[1, 2]"),
        ("sh", {"command": "echo x >> tracked.txt && mktemp -d"}, ""),
    ],
    "playwright": [
        ("browser_navigate", {"url": PAGE}, "Page Title: A page"),
        ("browser_take_screenshot", {}, "png"),
    ],
    "devtools": [
        ("list_pages", {}, "about:blank"),
        ("new_page", {"url": PAGE}, "A page"),
    ],
}


class World:
    """A home with what an operator has in it, and a gateway in a project."""

    def __init__(self, folder: Path, page: str) -> None:
        self.page = page
        self.home = folder / "home"
        for name in (".kube/config", ".ssh/id_rsa", ".cache/x", ".config/gh/hosts.yml", "notes/a"):
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text("secret")
        (self.home / ".kube" / "config").write_text(KUBE_CONFIG)
        (self.home / ".gitconfig").write_text("[user]\nname = Ann\nemail = ann@example.com\n")
        servers: dict[str, dict[str, Any]] = {}
        for name, command in commands().items():
            # Two browsers cannot have one profile.
            apart = ["--isolated"] if name in BROWSERS else []
            servers[name] = {"command": command}
            servers[f"{name}-none"] = {"command": [*command, *apart], "sandbox": "none"}
        servers["processes"] = {"command": SHELL, "needs": ["processes"]}
        self.gateway = Gateway(servers)
        self.project = self.gateway.folder
        self.gateway.environ |= {"HOME": str(self.home), "XDG_CACHE_HOME": ""}
        (self.project / ".vscode").mkdir()
        (self.project / ".mcp.json").write_text("{}")
        for name in ("tracked.txt", "untracked.txt"):
            (self.project / name).write_text("line\n")
        (self.project / "manager.py").write_text(MANAGER)
        git = ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
        for words in (["init", "--quiet"], ["add", "tracked.txt"], ["commit", "-qm", "First"]):
            subprocess.run([*git, *words], cwd=self.project, check=True, capture_output=True)

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(arguments).replace("PROJECT", str(self.project))
        text = text.replace("WEB_PAGE", self.page).replace("KIND", server)
        with closing(Client(self.gateway.port)) as client:
            answer: dict[str, Any] = client.call(f"{server}__{tool}", **json.loads(text))
        return answer

    def sh(self, command: str, server: str = "shell") -> tuple[bool, str]:
        """Whether a command of a confined shell failed, and what it printed."""
        result = self.call(server, "sh", {"command": command})["result"]
        return bool(result.get("isError")), result["content"][0]["text"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    subprocess.run(
        [sys.executable, "-c", "import demo; demo.install()"],
        cwd=DEMO, check=True, timeout=INSTALL_S_MAX, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(DEMO)},
    )  # fmt: skip
    with serving_page() as page:
        yield from furnished(World(tmp_path_factory.mktemp("world"), page))


def furnished(made: World) -> Iterator[World]:
    subprocess.run(
        ["npm", "exec", "--yes", f"--package={MEMORY}", "--", "true"],
        check=True, timeout=INSTALL_S_MAX, capture_output=True,
        env={**os.environ, "HOME": str(made.home)},
    )  # fmt: skip
    with made.gateway:
        yield made


@pytest.mark.parametrize("server", CALLS)
def test_a_confined_server_answers_as_one_that_is_not(world: World, server: str) -> None:
    if server not in commands():
        pytest.skip("Chromium is not installed")
    confined, free = (world.gateway.server(name) for name in (server, f"{server}-none"))
    assert (confined["sandbox"], confined["lacking"]) == ("basic", [])
    assert confined["tools"] == free["tools"] > 0
    for tool, arguments, part in CALLS[server]:
        for name in (f"{server}-none", server):
            answer = world.call(name, tool, arguments)
            assert not answer["result"].get("isError"), (name, answer)
            assert part in json.dumps(answer["result"]), (name, answer)


@pytest.mark.parametrize(
    "command",
    [
        "cat ~/.ssh/id_rsa", "ls ~/.ssh", "cat ~/.config/gh/hosts.yml", "ls ~", "ls ~/notes",
        "cat ~/notes/a", "echo x > ~/new", "mkdir ~/.ssh/new", "cat metamcp.toml", "cat .mcp.json",
        "echo x >> metamcp.toml", "echo x > .git/hooks/post-commit", "echo x >> .git/config",
        "echo x > .vscode/tasks.json", "mkdir .claude", "rm -r .vscode", "mv .git other",
        "echo x > .mcp.json", "cat run/token", "kubectl config get-contexts",
    ],
)  # fmt: skip
def test_what_is_closed_is_refused_at_its_real_path(world: World, command: str) -> None:
    failed, text = world.sh(f"LC_ALL=C; cd '{world.project}'; {command}")
    assert failed
    assert "ermission denied" in text, text


def test_what_a_launcher_starts_reads_about_itself_where_that_is_needed(world: World) -> None:
    own, of_gateway = "cat /proc/self/stat", f"cat /proc/{world.gateway.pid}/environ"
    assert [world.sh(own, server)[0] for server in ("shell", "processes")] == [True, False]
    failed, text = world.sh(of_gateway, "processes")
    assert failed
    assert "Permission denied" in text


def test_a_temporary_folder_leaves_room_for_the_name_of_a_socket(world: World) -> None:
    failed, text = world.sh("printf %s $TMPDIR")
    assert not failed
    assert len(text) <= 40


def test_what_is_opened_for_a_known_server_is_told(world: World) -> None:
    assert "mcp-server-git is known since 20" in world.gateway.ctl("describe", "git")
