"""The demo: six real servers from public packages behind one gateway.

    python demo.py run     install what is missing, then run the gateway in the foreground
    python demo.py demo    the same on free ports; call one tool of each server in both protocol
                           eras through the official SDK client, run three scripts and three
                           workflows on a small repository, print the answers, and stop

The gateway and the servers are installed below this folder, without any tools of development.
Needs Python 3.11+, Node.js 20+ with npm, and git.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENV = HERE / ".venv"
PYTHON = VENV / "bin" / "python"
WORK = HERE / "work"
START_S_MAX = 120
CALL_S_MAX = 60

GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Demo",
    "GIT_AUTHOR_EMAIL": "demo@example.com",
    "GIT_COMMITTER_NAME": "Demo",
    "GIT_COMMITTER_EMAIL": "demo@example.com",
}


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = HERE) -> None:
    """One step of the set-up; its own output is what explains a failure."""
    subprocess.run(command, cwd=cwd, check=True, env={**os.environ, **(env or {})})


def install() -> None:
    """Packages and data, once; later calls find them there. Calls at the same time take turns."""
    for program in ("node", "npm", "git"):
        if shutil.which(program) is None:
            sys.exit(f"demo: {program} is needed and not on the PATH; install it and try again")
    with locked():
        packages_and_data()


@contextlib.contextmanager
def locked() -> Generator[None]:
    """Lock the folder of the demo, for this process alone."""
    folder = os.open(HERE, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def packages_and_data() -> None:
    with packages_of_node():
        packages_of_python()
    for name in ("files", "memory"):
        (WORK / name).mkdir(parents=True, exist_ok=True)
    (WORK / "files" / "hello.txt").write_text("Hello from a file.\n")
    repository = WORK / "repository"
    if not (repository / ".git").exists():
        repository.mkdir(parents=True, exist_ok=True)
        (repository / "README.md").write_text("# A repository for the demo\n")
        committed(repository)
    (WORK / "project").mkdir(exist_ok=True)


def committed(repository: Path) -> None:
    """Make a repository of a folder."""
    run("git", "init", "--quiet", "--initial-branch", "main", cwd=repository)
    run("git", "add", ".", cwd=repository)
    run("git", "commit", "--quiet", "-m", "First words", env=GIT, cwd=repository)


def project() -> None:
    """Make the small project anew, with a change that is not committed. The folder itself stays:
    confined servers have the folder that was there when they started."""
    folder = WORK / "project"
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    shutil.copytree(HERE / "project", folder, dirs_exist_ok=True)
    committed(folder)
    with (folder / "shop.py").open("a") as file:
        file.write("    # TODO: prices per country\n")


def packages_of_python() -> None:
    """The gateway and three servers. What is imported gets compiled then, the rest never."""
    stamp = VENV / ".installed"
    wanted = (HERE / "requirements.txt").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("demo: installing the gateway, git, time and fetch from PyPI", flush=True)
    run(sys.executable, "-m", "venv", VENV)
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    run(*pip, "--require-hashes", "-r", "requirements.txt")
    run(*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT)
    stamp.write_text(wanted)


@contextlib.contextmanager
def packages_of_node() -> Generator[None, None, None]:
    """Two servers, installed meanwhile."""
    if (HERE / "node_modules").exists():
        yield
        return
    print("demo: installing filesystem and memory from npm", flush=True)
    command = ("npm", "ci", "--silent", "--no-audit", "--no-fund")
    with subprocess.Popen(command, cwd=HERE) as npm:
        yield
    if npm.returncode:
        sys.exit("demo: npm failed")


class Files(SimpleHTTPRequestHandler):
    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


@contextlib.contextmanager
def web_page() -> Generator[str]:
    """A page for the fetch server, which is confined and may not use the gateway's own pages."""
    handler = partial(Files, directory=str(WORK / "files"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hello.txt"
        finally:
            server.shutdown()
            thread.join()


def calls(page: str) -> list[tuple[str, dict[str, Any]]]:
    """One tool of each server, with arguments."""
    return [
        ("git__git_log", {"repo_path": str(WORK / "repository"), "max_count": 1}),
        ("time__get_current_time", {"timezone": "UTC"}),
        ("fetch__fetch", {"url": page}),
        ("filesystem__read_text_file", {"path": str(WORK / "files" / "hello.txt")}),
        ("memory__read_graph", {}),
        ("notes__add_note", {"text": "called through the gateway"}),
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def call_each(url: str, page: str, mode: str) -> bool:
    """Call one tool of each server; True if every answer is a result without an error."""
    from mcp.client.client import Client

    good = True
    async with Client(url, mode=mode) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        print(f"\n{mode}: {len(names)} tools at {url}")
        for name, arguments in calls(page):
            async with asyncio.timeout(CALL_S_MAX):
                result = await client.call_tool(name, arguments)
            text = " ".join(getattr(block, "text", "") for block in result.content)
            words = " ".join(text.split())[: max(0, shutil.get_terminal_size().columns - 32)]
            good = good and not result.is_error and name in names and bool(words)
            print(f"  {name:28} {'ERROR ' if result.is_error else ''}{words}")
    return good


def programs() -> list[tuple[str, ...]]:
    """Commands of `metamcp` for the scripts and workflows, on the small project."""
    folder = str(WORK / "project")
    args = json.dumps({"path": folder})
    inputs = {"repository": folder, "file": f"{folder}/shop.py", "ask": False}
    total = "def total(names: list[str]) -> int:\n    return sum(PRICES[name] for name in names)"
    stock = '@route("/stock")\ndef stock() -> object:\n    return list(PRICES)'
    refactor = inputs | {"function": "total", "replacement": total}
    endpoint = inputs | {"path": "/stock", "purpose": "names of all goods", "code": stock}
    return [
        ("scripts", "run", "largest-files", "--args", args),
        ("scripts", "run", "todo-list", "--args", args),
        ("scripts", "run", "changed-files", "--args", args),
        ("workflow", "run", "review-change", "--args", json.dumps({"repository": folder})),
        ("workflow", "run", "refactor-function", "--args", json.dumps(refactor)),
        ("workflow", "run", "add-endpoint", "--args", json.dumps(endpoint)),
    ]


def run_programs(folder: str) -> bool:
    """Run the scripts and workflows; True if all went well. `folder`: of the control socket."""
    project()
    env = {**os.environ, "METAMCP_RUNTIME_DIR": folder}
    for file in sorted((ROOT / "examples" / "scripts").glob("*.ts")):
        run(*metamcp("scripts", "import", file), env=env)
    good = True
    for command in programs():
        print("\n$ metamcp", *command[:3], "…", flush=True)
        good &= subprocess.run(metamcp(*command), check=False, env=env).returncode == 0
    return good


def metamcp(*arguments: str | Path) -> list[str]:
    return [str(PYTHON), "-m", "metamcp_supervisor", *map(str, arguments)]


def demo() -> int:
    """Start, wait, call, stop; 0 if all of it went well."""
    with tempfile.TemporaryDirectory(prefix="metamcp-demo-") as folder:
        ports = free_port(), free_port()
        url = f"http://127.0.0.1:{ports[0]}/mcp"
        where = ("--runtime-dir", folder)
        gateway = subprocess.Popen(
            metamcp(
                *("up", "--yes", "--config", HERE / "metamcp.toml", *where),
                *("--state-dir", Path(folder) / "state"),
                *("--listen", f"127.0.0.1:{ports[0]}", "--ops-listen", f"127.0.0.1:{ports[1]}"),
            )
        )
        try:
            ready = subprocess.run(
                metamcp("ctl", *where, "wait", "--for", "ready", "--timeout", f"{START_S_MAX}s"),
                check=False,
            )
            subprocess.run(metamcp("ctl", *where, "status"), check=False)
            with web_page() as page:
                good = ready.returncode == 0 and all(
                    asyncio.run(call_each(url, page, mode)) for mode in ("legacy", "2026-07-28")
                )
            good = good and run_programs(folder)
        finally:
            gateway.terminate()
            code = gateway.wait(timeout=START_S_MAX)
    well = "every server answered in both eras, and every script and workflow went well"
    print(f"\ndemo: {well if good else 'something failed'}")
    return 0 if good and code == 0 else 1


def main() -> int:
    verbs = {"run", "demo"}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        print(__doc__, file=sys.stderr)
        return 2
    install()
    if Path(sys.prefix) != VENV:  # the client is installed there, too
        os.execv(PYTHON, [PYTHON, __file__, sys.argv[1]])
    if sys.argv[1] == "run":
        os.execv(PYTHON, metamcp("up", "--yes", "--config", HERE / "metamcp.toml"))
    return demo()


if __name__ == "__main__":
    sys.exit(main())
