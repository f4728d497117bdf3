"""The way of each kind of user, from an empty home to work done: by the built wheel, with public
servers and the official SDK. Nobody edits a file by hand."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp.client.client import Client as SdkClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.visits import FLAGS, PROGRAM, missing
from tests.live import processes
from tests.live.gateway import free_port
from tests.packages.checkout import ROOT
from tests.waiting import until

pytestmark = pytest.mark.process

NODE = ROOT / "tests" / "clients" / "node_modules" / "@modelcontextprotocol"
TOKENS_MAX = 1000
"""Tokens of the tools that a client has in its context after the first steps of the README."""
TOKEN_BYTES = 4
TALK_S = 60
WRITE = "Write it"
"""Button of the console that writes a file."""
NEWS_MS = 30_000
"""Milliseconds until the gateway has read a file again and a page knows."""


class User:
    """A person with an empty home. `commands`: what was typed."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program = folder, program
        self.home, self.project = folder / "home", folder / "project"
        for each in (self.home, self.project):
            each.mkdir()
        self.environment = {
            **os.environ,
            "HOME": str(self.home),
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(folder),
            "METAMCP_TEST_GATEWAY": folder.name,
        }
        self.commands: list[Sequence[str]] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def types(self, *words: str) -> str:
        """Type a command and return what it prints."""
        self.commands.append(words)
        done = subprocess.run(
            [self.program, *words],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}"
        return done.stdout

    def starts(self, *words: str) -> None:
        """Type a command that stays in the foreground of another terminal."""
        self.commands.append(words)
        log = (self.folder / "log").open("wb")
        self.started.append(
            subprocess.Popen(
                [self.program, *words], cwd=self.project, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        )  # fmt: skip
        log.close()

    def ends(self) -> None:
        for process in self.started:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        for pid in processes.marked(self.folder.name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def client(self, entry: dict[str, Any]) -> SdkClient:
        """The official client, which starts what an entry in its file says."""
        parameters = StdioServerParameters(
            command=entry["command"],
            args=entry["args"],
            env={**self.environment, **entry.get("env", {})},
            cwd=self.project,
        )
        return SdkClient(stdio_client(parameters))


@pytest.fixture
def user(program: Path, tmp_path: Path) -> Iterator[User]:
    found = User(tmp_path, program)
    yield found
    found.ends()


def node(package: str, *words: str) -> dict[str, Any]:
    """Return the entry of a public server in the file of a client."""
    return {"command": "node", "args": [str(NODE / package / "dist" / "index.js"), *words]}


def seven(user: User) -> dict[str, Any]:
    """Return entries of seven servers as a developer has them."""
    docs, files = user.folder / "docs", user.project / "src"
    for folder in (docs, files):
        folder.mkdir()
        (folder / "a.txt").write_text(f"hello from {folder.name}\n")
    notes = {"MEMORY_FILE_PATH": str(user.project / "notes.json")}
    return {
        "everything": node("server-everything"),
        "files": node("server-filesystem", str(files)),
        "docs": node("server-filesystem", str(docs)),
        "memory": node("server-memory"),
        "notes": {**node("server-memory"), "env": notes},
        "thinking": node("server-sequential-thinking"),
        "more": node("server-everything"),
    }


def text_of(result: types.CallToolResult) -> str:
    assert not result.is_error, result.content
    return "".join(getattr(each, "text", "") for each in result.content)


def tokens(tools: Sequence[types.Tool]) -> int:
    whole = (tool.model_dump_json(by_alias=True, exclude_none=True) for tool in tools)
    return sum(len(each.encode()) for each in whole) // TOKEN_BYTES


def talk(talking: Any) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(TALK_S):
            return await talking

    return asyncio.run(bounded())


@pytest.mark.promise("M7", "M105")
def test_a_developer_with_seven_servers_gets_his_context_back(user: User) -> None:
    file = user.project / ".mcp.json"
    servers = seven(user)
    before = json.dumps({"mcpServers": servers}, indent=3) + "\n"
    file.write_text(before)
    said = user.types("install", "claude-code", "--take-over", "--yes")
    (entry,) = json.loads(file.read_text())["mcpServers"].values()

    async def works() -> int:
        async with user.client(entry) as client:
            tools = (await client.list_tools()).tools
            found = text_of(await client.call_tool("search_tools", {"query": "read a text file"}))
            assert "docs__read_text_file" in found
            arguments = {"path": str(user.folder / "docs" / "a.txt")}
            called = {"name": "docs__read_text_file", "arguments": arguments}
            assert "hello from docs" in text_of(await client.call_tool("call_tool", called))
            return tokens(tools)

    assert talk(works()) <= TOKENS_MAX
    assert "in the context of Claude Code before" in said
    user.types("uninstall", "claude-code")
    assert file.read_text() == before
    assert len(user.commands) == 2


@pytest.mark.promise("M39")
def test_a_user_of_three_tools_activates_a_server(user: User) -> None:
    user.types("init")
    user.types("add", "docs", "--", *words(node("server-filesystem", str(user.project))))
    user.types("add", "memory", "--", *words(node("server-memory")))
    user.types("install", "claude-code", "--skill", "--yes")
    entry = json.loads((user.home / ".claude.json").read_text())["mcpServers"]["metamcp"]

    async def works() -> None:
        async with user.client(entry) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"gateway_status", "gateway_activate", "gateway_deactivate"} == names
            status = text_of(await client.call_tool("gateway_status", {}))
            assert "docs" in status
            await client.call_tool("gateway_activate", {"name": "docs"})
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "list_directory" in names
            assert "create_entities" not in names
            await client.call_tool("gateway_deactivate", {"name": "docs"})

    talk(works())
    skill = user.home / ".claude/skills/metamcp/SKILL.md"
    assert "gateway_status" in skill.read_text()
    assert len(user.commands) == 4


ASKS = {
    "name": "asks",
    "steps": [
        {
            "id": "who",
            "elicit": {
                "message": "Who are you?",
                "schema": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
            },
        },
        {"output": {"greeting": "${{ 'Hello ' + steps.who.result.name }}"}},
    ],
}


@pytest.mark.promise("M52")
def test_a_user_of_a_json_file_runs_a_workflow_that_waits_for_him(user: User) -> None:
    file = user.home / ".meta-mcp" / "config.json"
    file.parent.mkdir()
    listed = {"name": "file_mcp", "type": "stdio", **node("server-filesystem", str(user.project))}
    storage = str(file.with_name("storage.db"))
    file.write_text(json.dumps({"mcp_servers": [listed], "storage_path": storage}))
    port, ops = free_port(), free_port()
    user.starts(
        "serve", "--port", str(port), "--ops-listen", f"127.0.0.1:{ops}", "--config", str(file)
    )
    url = f"http://127.0.0.1:{port}/mcp"
    user.types("wait", "--config", str(file))

    async def begins() -> str:
        async with SdkClient(streamable_http_client(url)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"get_catalog", "suggest_workflow", "run_workflow"} <= names
            catalog = text_of(await client.call_tool("get_catalog", {}))
            assert "read_text_file" in catalog
            task = {"task": "Refactor the function in src/main.py to improve efficiency"}
            suggested = await client.call_tool("suggest_workflow", task)
            assert "Suggested" in text_of(suggested)
            run = await client.call_tool("run_workflow", {"definition": ASKS, "wait": False})
            assert run.structured_content is not None, run.content
            return str(run.structured_content["run"])

    async def answers(run: str) -> dict[str, Any]:
        async def fill(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
            assert "Who are you?" in params.message
            return types.ElicitResult(action="accept", content={"name": "Ada"})

        client = SdkClient(streamable_http_client(url), elicitation_callback=fill)
        async with client:
            while True:
                found = await client.call_tool("workflow_status", {"run": run})
                assert found.structured_content is not None, found.content
                state: dict[str, Any] = found.structured_content
                if state["status"] not in ("needs_answer", "running"):
                    return state

    run = talk(begins())
    until(
        lambda: "1 run of a workflow waits" in user.types("status", "--config", str(file)),
        "the status says that a run waits",
    )
    found = talk(answers(run))
    assert found["output"] == {"greeting": "Hello Ada"}, found
    assert (file.parent / "storage" / "workflows.db").exists()
    assert {words[0] for words in user.commands} == {"serve", "wait", "status"}


@pytest.mark.promise("M61", "M63")
def test_two_workspaces_have_keys_and_encryption(user: User) -> None:
    user.types("init")
    for name in ("acme", "bolt"):
        folder = user.folder / name
        folder.mkdir()
        (folder / "a.txt").write_text(f"hello from {name}\n")
        user.types("add", name, "--", *words(node("server-filesystem", str(folder))))
        user.types("workspaces", "add", name, "limits.calls_per_minute=600")
        user.types("namespaces", "add", f"{name}:default", f"servers=default:{name}")
    user.types("endpoints", "add", "acme:acme", "namespace=default", "exposure=search")
    user.types("config", "set", "gateway.tls=required", "gateway.auth=keys")
    user.types("tls", "init", "--name", "localhost")
    port, ops = free_port(), free_port()
    listen = ("--port", str(port), "--ops-listen", f"127.0.0.1:{ops}")
    user.starts("up", "--yes", *listen)
    until(lambda: ready(user), "all servers are ready")
    key = json.loads(user.types("keys", "create", "ada", "--workspace", "acme", "--json"))["key"]
    authority = json.loads(user.types("tls", "show", "--json"))["ca"]

    async def works() -> None:
        trusting = ssl.create_default_context(cafile=authority)
        headers = {"Authorization": f"Bearer {key}"}
        for name, is_open in (("acme", True), ("bolt", False)):
            url = f"https://localhost:{port}/metamcp/{name}/mcp"
            async with httpx2.AsyncClient(verify=trusting, headers=headers) as http:
                if not is_open:
                    assert (await http.post(url, json={})).status_code == 404
                    continue
                async with SdkClient(streamable_http_client(url, http_client=http)) as client:
                    assert len((await client.list_tools()).tools) < 10
                    called = {
                        "name": f"{name}__read_text_file",
                        "arguments": {"path": str(user.folder / name / "a.txt")},
                    }
                    text = text_of(await client.call_tool("call_tool", called))
                    assert "hello from acme" in text

    talk(works())
    assert len(user.commands) <= 14


@pytest.mark.promise("M67")
def test_a_user_of_the_console_does_it_all_by_clicks(user: User) -> None:
    if why := missing():
        pytest.skip(why)
    port, ops = free_port(), free_port()
    user.types("init")
    user.starts("up", "--yes", "--port", str(port), "--ops-listen", f"127.0.0.1:{ops}")
    until(lambda: ready(user), "the gateway answers")
    link = json.loads(user.types("console", "--no-open", "--json"))["url"]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=PROGRAM, args=list(FLAGS))
        clicked(browser.new_page(), link, user)
        browser.close()
    entry = json.loads((user.project / ".mcp.json").read_text())["mcpServers"]["metamcp"]

    async def works() -> set[str]:
        async with user.client(entry) as client:
            arguments = {"path": str(user.project)}
            found = text_of(await client.call_tool("files__list_directory", arguments))
            assert "metamcp.toml" in found
            return {tool.name for tool in (await client.list_tools()).tools}

    names = talk(works())
    assert "files__read_text_file" in names
    assert "files__write_file" not in names
    assert not [name for name in names if name.startswith("notes")]
    assert len(user.commands) == 3


def clicked(page: Page, link: str, user: User) -> None:
    """Add two servers, switch one of them off, hide a tool, and connect a client."""
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(link)
    for name, entry in (
        ("files", node("server-filesystem", str(user.project))),
        ("notes", node("server-memory")),
    ):
        page.get_by_role("link", name="Servers", exact=True).click()
        page.get_by_role("link", name="Add a server").click()
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("Command").fill(" ".join(words(entry)))
        writes(page, f"[servers.{name}]")
        page.get_by_role("link", name="What a reload would do").click()
        page.get_by_role("button", name="Reload").click()
        expect(page.locator("#page")).to_contain_text("is in force")
        page.get_by_role("link", name="Servers", exact=True).click()
        row = page.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text("active", timeout=NEWS_MS)
    page.get_by_role("link", name="notes", exact=True).click()
    page.get_by_role("link", name="Switch a server off").click()
    writes(page, "enabled = false")
    page.get_by_role("link", name="Servers", exact=True).click()
    row = page.get_by_role("row").filter(has_text="notes")
    expect(row).to_contain_text("stopped", timeout=NEWS_MS)
    page.get_by_role("link", name="Tools", exact=True).click()
    page.get_by_role("link", name="files__write_file").click()
    page.get_by_role("link", name="Hide a tool").click()
    writes(page, "hidden = true")
    page.get_by_role("link", name="Servers", exact=True).click()
    page.get_by_role("link", name="Connect a client").click()
    page.get_by_label("Client").select_option("claude-code")
    page.get_by_label("File").select_option("project")
    writes(page, "mcpServers")


def writes(page: Page, line: str) -> None:
    """Look at the difference, which has this line, and write it."""
    write, show = (page.get_by_role("button", name=each) for each in (WRITE, "Show the difference"))
    expect(write.or_(show).first).to_be_visible(timeout=NEWS_MS)
    if not write.is_visible():
        show.click()
    expect(page.locator("pre.diff")).to_contain_text(line)
    write.click()
    expect(page.get_by_role("status").first).to_contain_text("Written.")


def ready(user: User) -> bool:
    """Whether all servers of the gateway of this folder are ready."""
    done = subprocess.run(
        [user.program, "wait", "--timeout", "1s"],
        cwd=user.project, env=user.environment, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode == 0


def words(entry: dict[str, Any]) -> list[str]:
    return [entry["command"], *entry["args"]]
