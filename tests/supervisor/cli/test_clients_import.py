"""`metamcp import`: servers of other clients in metamcp.toml, and none of their secrets."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.cli import server_entries
from metamcp_supervisor.client_files import entries, transfer
from metamcp_supervisor.client_files.clients import CLIENTS
from metamcp_supervisor.client_files.entries import ClientServer
from metamcp_supervisor.client_files.transfer import ImportSource
from metamcp_supervisor.config import places, sources
from tests.supervisor.clienthome import FILES, Home

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def moved(*servers: ClientServer, base: str = "", text: str = "") -> tuple[dict[str, Any], str]:
    """The servers of metamcp.toml, and what was told."""
    there = tomllib.loads(text).get("servers", {})
    found = transfer.moved([ImportSource("/f.json", base, servers)], there, text)
    return tomllib.loads(found.text)["servers"], "\n".join(found.told)


def test_without_a_name_it_lists_what_there_is_where(home: Home) -> None:
    for client in ("claude-code", "codex", "zed"):
        home.fill(client)
    home.works("install", "zed")
    broken = home.folder / ".cursor/mcp.json"
    broken.parent.mkdir()
    broken.write_text("{")
    lines = home.works("import").splitlines()
    assert lines[0] == f"claude-code: {home.folder}/.claude.json: context7"
    assert lines[1].startswith(f"cursor: {broken}: cannot be read: ")
    assert lines[2] == f"codex: {home.folder}/.codex/config.toml: docs"
    assert lines[3].endswith("settings.json: no servers but this gateway")
    assert home.listing() >= {".cursor/mcp.json"}


@pytest.mark.promise("M17")
@pytest.mark.parametrize("client", CLIENTS)
def test_the_servers_of_each_client_are_taken_over(home: Home, client: str) -> None:
    path = home.fill(client)
    home.works("install", client)
    before = path.read_bytes()
    target = home.project / "metamcp.toml"
    home.works("import", client, "--to", str(target))
    assert path.read_bytes() == before, "the file of the client stays as it is"
    names = {
        "claude-code": {"context7"}, "claude-desktop": {"filesystem"}, "cursor": {"filesystem"},
        "vscode": {"github"}, "windsurf": {"a"}, "codex": {"docs"}, "gemini-cli": set[str](),
        "zed": set[str](), "cline": set[str](), "continue": {"sqlite-mcp"}, "goose": {"fetch"},
        "opencode": {"jira"},
    }[client]  # fmt: skip
    if not names:
        assert not target.exists()
        return
    config = sources.load(
        target,
        environ={"DB_URL": "x", "HOME": str(home.folder)},
        cwd=home.project,
        home=home.folder,
    )
    assert set(config.servers) == names
    assert "nothing to add" in home.works("import", client, "--to", str(target))


def test_a_new_file_begins_as_one_of_init_and_says_how_editors_check_it(home: Home) -> None:
    home.fill("cursor")
    home.works("import", "cursor")
    text = (home.folder / ".config/metamcp/metamcp.toml").read_text()
    assert text.startswith(f"{server_entries.NEW}\n[servers.")
    assert "metamcp config schema --write" in text


def test_a_dry_run_prints_the_tables_and_writes_nothing(home: Home) -> None:
    home.fill("codex")
    target = home.project / "metamcp.toml"
    target.write_text("# mine\n")
    output = home.works("import", "codex", "--dry-run")
    assert "[servers.docs]\n" in output
    assert 'command = ["npx", "-y", "@upstash/context7-mcp"]' in output
    assert target.read_text() == "# mine\n"


def test_what_is_there_already_stays_as_it_is(home: Home) -> None:
    home.fill("codex")
    target = home.project / "metamcp.toml"
    text = '# mine\n[servers.docs]\ncommand = ["other"]  # better'
    target.write_text(text)
    output = home.works("import", "codex")
    assert "metamcp.toml has another server of that name; rename one" in output
    assert target.read_text() == text


@pytest.mark.promise("M95")
def test_no_secret_is_copied(home: Home) -> None:
    path = home.folder / ".cursor/mcp.json"
    path.parent.mkdir()
    servers = {
        "far": {
            "url": "https://x.example/mcp",
            "headers": {"Authorization": "Bearer tief-geheim-1", "X-Team": "tief-geheim-2"},
        },
        "near": {
            "command": "npx",
            "args": ["y", "--api-key", "tief-geheim-3", "postgres://me:tief-geheim-4@db/x"],
            "env": {"GITHUB_TOKEN": "tief-geheim-5", "LEVEL": "info", "A_KEY": "${env:OTHER}"},
        },
        "keyed": {"url": "https://x.example/mcp?api_key=tief-geheim-6"},
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    target = home.project / "metamcp.toml"
    output = home.works("import", "cursor", "--to", str(target))
    text = target.read_text()
    assert "tief-geheim" not in text + output
    assert output.count(" is not written: set ") == 6
    config = sources.load(
        target,
        environ={
            "FAR_AUTHORIZATION": "1",
            "FAR_X_TEAM": "2",
            "NEAR_ARGUMENT_3": "three",
            "NEAR_ARGUMENT_4": "four",
            "GITHUB_TOKEN": "5",
            "OTHER": "o",
            "KEYED_URL": "https://x.example/mcp?api_key=6",
        },
        cwd=home.project,
        home=home.folder,
    )
    assert config.servers["far"].headers["Authorization"] == "Bearer 1"
    assert config.servers["near"].command == ("npx", "y", "--api-key", "three", "four")
    assert config.servers["near"].env == {"GITHUB_TOKEN": "5", "LEVEL": "info", "A_KEY": "o"}
    assert config.servers["keyed"].url == "https://x.example/mcp?api_key=6"


def test_two_secrets_of_one_name_get_two_variables() -> None:
    servers, told = moved(
        ClientServer("a", words=("x",), env={"TOKEN": "one"}),
        ClientServer("b", words=("y",), env={"TOKEN": "two"}),
        ClientServer("c", words=("z",), env={"TOKEN": "one"}),
    )
    assert [servers[name]["env"]["TOKEN"] for name in "abc"] == [
        "${env:TOKEN}", "${env:B_TOKEN}", "${env:TOKEN}",
    ]  # fmt: skip
    assert "set B_TOKEN in the environment" in told


def test_the_same_server_in_two_clients_is_taken_once() -> None:
    one, other = ClientServer("a", words=("x",)), ClientServer("a", words=("y",))
    servers, told = moved(one, one, other)
    assert servers == {"a": {"command": ["x"]}}
    assert "a in /f.json is the same as in /f.json" in told
    assert "has another server of that name" in told


@pytest.mark.parametrize(
    ("written", "here"),
    [
        ("${env:A}", "${env:A}"),
        ("${A:-b}", "${A:-b}"),
        ("{env:A}", "${env:A}"),
        ("${{ secrets.A }}", "${env:A}"),
        ("$A", "${env:A}"),
        ("${workspaceFolder}/x", "/p/x"),
        ("${userHome}/x", "${HOME}/x"),
        ("${command:pick}", "$${command:pick}"),
        ("$a", "$a"),
    ],
)
def test_references_are_written_as_they_are_here(written: str, here: str) -> None:
    servers, _ = moved(ClientServer("a", words=("x",), env={"LEVEL": written}), base="/p")
    assert servers["a"]["env"] == {"LEVEL": here}
    assert servers["a"]["cwd"] == "/p"


@pytest.mark.promise("M17")
def test_a_file_can_be_included_as_it_is(home: Home) -> None:
    path = home.fill("cursor")
    home.works("install", "cursor")
    target = home.project / "metamcp.toml"
    target.write_text('# mine\n[servers.x]\ncommand = ["y"]\n')
    assert home.works("import", "cursor", "--include", "--dry-run") == f'include = ["{path}"]\n'
    home.works("import", "cursor", "--include")
    assert "nothing to add" in home.works("import", "cursor", "--include")
    config = sources.load(target, environ={}, cwd=home.project, home=home.folder)
    assert set(config.servers) == {"x", "filesystem"}, "and not the way to the gateway itself"
    home.fill("windsurf")
    result = home.run("import", "windsurf", "--include")
    assert result.exit_code == 65
    assert "has an 'include' already; add to it by hand: " in result.output
    home.fill("codex")
    result = home.run("import", "codex", "--include")
    assert result.exit_code == 1
    assert "not in a shape that can be included" in result.output


def test_variables_that_a_client_hands_on_are_those_of_the_gateway() -> None:
    codex = entries.found(
        "a", {"url": "https://x/", "bearer_token_env_var": "T", "env_http_headers": {"X-A": "B"}}
    )
    goose = entries.found("b", {"cmd": "x", "args": [], "env_keys": ["K"], "envs": {"L": "1"}})
    servers, told = moved(codex, goose)
    assert servers["a"]["headers"] == {"Authorization": "Bearer ${env:T}", "X-A": "${env:B}"}
    assert servers["b"]["env"] == {"K": "${env:K}", "L": "1"}
    assert told == ""


def test_what_needs_an_editor_is_left_out_with_a_sentence(home: Home) -> None:
    found = ClientServer("a", words=("x", "${workspaceFolder}"))
    assert (
        "means the folder that an editor has open"
        in transfer.moved([ImportSource("/f", "", [found])], {}, "").told[0]
    )
    assert home.run("import", "nosuch").exit_code == 2


def test_every_client_has_a_file_here() -> None:
    assert set(FILES) == set(CLIENTS)


LISTED = """{"mcp_servers": [
  {"name": "files", "type": "stdio", "command": "npx", "args": ["-y", "server-filesystem"]},
  {"name": "docs", "type": "url", "url": "https://docs.example.com/mcp"}
], "ai_api": {"provider": "x"}}"""


@pytest.mark.parametrize(
    ("word", "place", "text", "names"),
    [
        ("mcpflip", ".claude/mcpflip/servers.json", '{"git": {"command": "uvx"}}', {"git"}),
        ("meta-mcp", ".meta-mcp/config.json", LISTED, {"files", "docs"}),
        ("~/any.json", "any.json", '{"mcpServers": {"git": {"command": "uvx"}}}', {"git"}),
        ("~/any.json", "any.json", '{"servers": {"git": {"command": "uvx"}}}', {"git"}),
        ("~/any.toml", "any.toml", '[mcp_servers.git]\ncommand = "uvx"\n', {"git"}),
        ("cursor", ".cursor/mcp.json", '{"mcpServers": {"git": {"command": "uvx"}}}', {"git"}),
    ],
)
def test_servers_come_from_a_client_or_any_file_that_is_named(
    home: Home, word: str, place: str, text: str, names: set[str]
) -> None:
    path = home.folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    target = home.project / "metamcp.toml"
    home.works("import", "--from", word, "--to", str(target))
    assert set(tomllib.loads(target.read_text())["servers"]) == names
    assert path.read_text() == text


def test_up_finds_the_file_of_a_client_or_says_why_not(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    for word in ("mcpflip", "goose", "nobody", "./x.json"):
        said = home.run("up", "--from", word)
        assert said.exit_code != 0
        assert "Traceback" not in said.output
    path = home.fill("cursor")
    path.write_text('{"mcpServers": {"git": {"command": ""}}}')
    home.run("up", "--from", "cursor")
    told = capfd.readouterr().err
    assert "servers.json does not exist" in told
    assert "goose has no file here" in told
    assert f"{path}:1: mcpServers.git.command: " in told


def test_the_file_of_a_gateway_before_this_one_is_the_last_that_is_looked_for(home: Home) -> None:
    path = home.folder / ".meta-mcp/config.json"
    path.parent.mkdir()

    def found() -> Path | None:
        return places.find(environ={}, cwd=home.project, home=home.folder, system=home.folder / "x")

    path.write_text('{"theme": "dark"}')
    assert found() is None, "other programs may have such a file"
    path.write_text(LISTED)
    assert found() == path
    own = home.project / "claude_desktop_config.json"
    own.write_text('{"mcpServers": {}}')
    assert found() == own
