"""Programs of code mode against real filesystem and git servers, and what they save."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.builtin_definitions import tokens_of_bytes
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway
from tests.live.test_demo import DEMO, INSTALL_S_MAX, needs
from tests.worker.engine.model_server import KEY, Line, ModelServer, call, run

pytestmark = [pytest.mark.live, pytest.mark.promise("M45"), pytest.mark.timeout(600)]

FILES = 40
LINES = 60
SAVED_MIN = 0.95
EXTRA = """
[code]
[suggestions]
[endpoints.default]
namespace = "default"
exposure = "code"
[endpoints.find]
namespace = "default"
exposure = "search"
"""
COUNT = """
const entries = await mcp.call("filesystem__list_directory", { path: args.path });
const lines = (entries.content ?? entries).split("\\n");
return lines.filter((line) => line.endsWith(args.end)).length;
"""
TODOS = """
const found = await mcp.call("filesystem__search_files", { path: args.path, pattern: "**/*.ts" });
const paths = (found.content ?? found).split("\\n");
const texts = await Promise.all(
  paths.map((path) => mcp.servers.filesystem.read_text_file({ path })));
return texts.filter((text) => (text.content ?? text).includes("TODO")).length;
"""
BOTH = """
const log = await mcp.servers.git.git_log({ repo_path: args.repository, max_count: 1 });
const status = await mcp.servers.git.git_status({ repo_path: args.repository });
console.log("two calls");
return [JSON.stringify(log).includes("First words"), JSON.stringify(status).includes("main")];
"""
PYTHON = """
status = await mcp.servers.git.git_status(repo_path=args["repository"])
found = await mcp.call("filesystem__list_directory", {"path": args["path"]})
text = found["content"] if isinstance(found, dict) else found
print("two calls")
return ["main" in str(status), len([one for one in text.split("\\n") if one.endswith(".ts")])]
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with as many files, of which one in four has something to do."""
    needs()
    subprocess.run(
        [sys.executable, "-c", "import demo; demo.install()"],
        cwd=DEMO, check=True, timeout=INSTALL_S_MAX, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(DEMO)},
    )  # fmt: skip
    made = DEMO / "work" / f"code-{os.getpid()}"
    made.mkdir()
    for number in range(FILES):
        first = "// TODO: finish\n" if number % 4 == 0 else "\n"
        lines = "".join(f"export const value{line} = {line};\n" for line in range(LINES))
        (made / f"module{number}.ts").write_text(first + lines)
    yield made
    shutil.rmtree(made)
    shutil.rmtree(repository(made), ignore_errors=True)


def repository(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-repository")


def real_servers() -> dict[str, dict[str, Any]]:
    files = DEMO / "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
    return {
        "git": {
            "command": [str(DEMO / ".venv/bin/mcp-server-git")],
            "write": [str(DEMO / "work")],
        },
        "filesystem": {"command": ["node", str(files), str(DEMO / "work")]},
    }


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    with Gateway(real_servers(), extra=EXTRA) as running:
        yield running


@pytest.fixture(params=[LEGACY, MODERN])
def client(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[Client]:
    with closing(Client(gateway.port, request.param)) as found:
        yield found


def value(client: Client, tool: str, **arguments: Any) -> Any:
    result = client.call(tool, **arguments)["result"]
    assert not result.get("isError"), result
    return result["structuredContent"]["value"]


def test_programs_work_with_real_servers(client: Client, folder: Path) -> None:
    args = {"path": str(folder), "end": ".ts", "repository": str(DEMO / "work" / "repository")}
    assert value(client, "run_code", code=COUNT, args=args) == FILES
    assert value(client, "run_code", code=TODOS, args=args) == FILES // 4
    assert value(client, "run_code", code=BOTH, args=args) == [True, True]
    assert value(client, "run_code", code=PYTHON, args=args, language="python") == [True, FILES]


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_client_finds_loads_and_keeps_tools_and_calls_them_from_a_program(
    gateway: Gateway, folder: Path, era: str
) -> None:
    """The way of a task with git: search, load, call, keep the set; load it and run a program."""
    path = {"repo_path": str(DEMO / "work" / "repository")}

    def names(client: Client) -> set[str]:
        return {one["name"] for one in client.request("tools/list")["result"]["tools"]}

    def done(client: Client, tool: str, **arguments: Any) -> str:
        result = client.call(tool, **arguments)["result"]
        assert not result.get("isError"), result
        return json.dumps(result)

    with closing(Client(gateway.port, era, "/metamcp/find/mcp")) as client:
        assert "git__git_status" in done(client, "search_tools", query="git status")
        assert "git__git_status" not in names(client)
        done(client, "load_tool", name="git__git_status")
        assert "git__git_status" in names(client)
        assert "main" in done(client, "git__git_status", **path)
        about = {"name": f"git-{era}", "description": "Tools for git operations"}
        done(client, "save_tool_set", **about)
        done(client, "unload_tool", name="git__git_status")
        assert "git__git_status" not in names(client)
        done(client, "load_tool_set", name=about["name"])
        assert "git__git_status" in names(client)
        program = "return JSON.stringify(await mcp.call('git__git_status', args)).includes('main')"
        assert value(client, "run_code", code=program, args=path) is True
        done(client, "unload_tool", name="git__git_status")


@pytest.mark.promise("M48")
def test_a_saved_program_works_with_real_servers(client: Client, folder: Path) -> None:
    saved = client.call("save_script", name="count-files", code=COUNT)["result"]
    assert not saved.get("isError"), saved
    args = {"path": str(folder), "end": ".ts"}
    assert value(client, "run_script", name="count-files", args=args) == FILES


def test_a_program_saves_the_tokens_that_the_guide_tells(gateway: Gateway, folder: Path) -> None:
    """Forty files are read, and one number is wanted."""

    def cost(asked: object, answer: object) -> int:
        return tokens_of_bytes(len(json.dumps(asked)) + len(json.dumps(answer)))

    with closing(Client(gateway.port, MODERN)) as client:
        given = {"code": TODOS, "args": {"path": str(folder)}}
        program = cost(given, client.call("run_code", **given)["result"])
        code = "return mcp.raw('filesystem__read_text_file', args)"
        single = 0
        for number in range(FILES):
            args = {"path": str(folder / f"module{number}.ts")}
            single += cost(args, value(client, "run_code", code=code, args=args))
    saved = 1 - program / single
    told = re.search(r"saves (\d+) % of the tokens", (ROOT / "docs/code-mode.md").read_text())
    assert saved >= SAVED_MIN, (program, single)
    assert told is not None
    assert int(told[1]) == int(saved * 100), (program, single)


@pytest.mark.promise("M49")
@pytest.mark.parametrize(("provider", "era"), [("openai", LEGACY), ("anthropic", MODERN)])
def test_an_agent_finds_what_is_to_do_in_real_files(folder: Path, provider: str, era: str) -> None:
    code = TODOS.replace("args.path", codec.dump(str(folder)).decode())
    script: list[Line] = [call("search_tools", query="search files"), run(code), call("finish")]
    with ModelServer(script) as model:
        ai = f'[ai]\nprovider = "{provider}"\nurl = "{model.base}"\nmodel = "small"\n'
        ai += f'key = "{KEY}"\n'
        agents = EXTRA.replace('exposure = "search"', 'builtins = ["agent"]')
        with (
            Gateway(real_servers(), extra=agents + ai) as running,
            closing(Client(running.port, era, "/metamcp/find/mcp")) as client,
        ):
            task = "Find all TODO comments in the folder and count the files."
            found = client.call("run_agent", task=task)["result"]["structuredContent"]
        told = codec.dump(model.asked[1]["messages"][-1]).decode()
    assert (found["ended"], found["result"]) == ("finished", FILES // 4), found["transcript"]
    assert "filesystem__search_files" in told


@pytest.mark.promise("M51")
def test_a_shipped_rule_suggests_a_workflow_of_real_tools_while_no_gateway_runs(
    gateway: Gateway, tmp_path: Path
) -> None:
    places = {"RUNTIME_DIR": tmp_path, "STATE_DIR": gateway.folder / "state"}
    done = subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", "workflow", "suggest", "review my changes",
         "--json"],
        cwd=gateway.folder, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **{f"METAMCP_{name}": str(path) for name, path in places.items()}},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["source"], found["rule"]) == ("rule", "review a change")
    assert found["definition"]["name"] == "review-change"
    assert any("No gateway runs" in note for note in found["notes"]), found["notes"]


@pytest.mark.promise("M48")
def test_the_shipped_scripts_tell_about_any_repository(
    client: Client, gateway: Gateway, folder: Path
) -> None:
    path = str(repository(folder))
    if not Path(path).exists():
        make_repository(Path(path))
    for file in sorted((ROOT / "examples" / "scripts").glob("*.ts")):
        gateway.run("scripts", "import", str(file))
    largest = value(client, "run_script", name="largest-files", args={"path": path, "most": 1})
    assert largest == [{"path": "src/large.ts", "bytes": 3 * LINES}]
    todo = value(client, "run_script", name="todo-list", args={"path": path})
    assert todo == ["src/small.ts:2: // TODO: more"]
    changed = value(client, "run_script", name="changed-files", args={"path": path})
    assert changed["last"].strip("'\"") == "First words"
    assert changed["changes"] == {"src/small.ts": {"added": 1, "removed": 0}}
    assert changed["untracked"] == ["new.txt"]


def make_repository(path: Path) -> None:
    """A repository with one commit, a change and a new file."""
    (path / "src").mkdir(parents=True)
    (path / "src" / "large.ts").write_text("1;\n" * LINES)
    (path / "src" / "small.ts").write_text("1;\n")
    git = ["git", "-c", "user.name=T", "-c", "user.email=t@example.com"]
    for order in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "First words"]):
        subprocess.run([*git, *order], cwd=path, check=True)
    (path / "src" / "small.ts").write_text("1;\n// TODO: more\n")
    (path / "new.txt").write_text("new\n")
