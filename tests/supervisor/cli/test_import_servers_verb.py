"""`metamcp import`: servers of other clients in metamcp.toml, and none of their secrets."""

import contextlib
import json
import os
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metamcp_supervisor.__main__ import main
from metamcp_supervisor.cli import server_entries
from metamcp_supervisor.client_files.clients import CLIENTS
from metamcp_supervisor.config import places, sources
from tests.supervisor.clienthome import FILES, Home

OTHER_USER = 65534
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def imported(home: Home, *files: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The servers of metamcp.toml, and what was printed. Each file has these entries."""
    words: list[str] = []
    for number, entries in enumerate(files):
        path = home.project / f"file{number}.json"
        path.write_text(json.dumps({"mcpServers": entries}))
        words += ["--from", str(path)]
    target = home.project / "metamcp.toml"
    output = home.works("import", *words, "--to", str(target))
    return tomllib.loads(target.read_text())["servers"] if target.exists() else {}, output


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


def test_two_secrets_of_one_name_get_two_variables(home: Home) -> None:
    tokens = {"a": "tief-geheim-1", "b": "tief-geheim-2", "c": "tief-geheim-1"}
    entries = {name: {"command": "x", "env": {"TOKEN": each}} for name, each in tokens.items()}
    servers, told = imported(home, entries)
    assert [servers[name]["env"]["TOKEN"] for name in "abc"] == [
        "${env:TOKEN}", "${env:B_TOKEN}", "${env:TOKEN}",
    ]  # fmt: skip
    assert "set B_TOKEN in the environment" in told


def test_the_same_server_in_two_files_is_taken_once(home: Home) -> None:
    one, other = {"a": {"command": "x"}}, {"a": {"command": "y"}}
    servers, told = imported(home, one, one, other)
    assert servers == {"a": {"command": ["x"]}}
    first = home.project / "file0.json"
    assert f"a in {home.project}/file1.json is the same as in {first}" in told
    assert "has another server of that name" in told


@pytest.mark.parametrize(
    ("written", "here"),
    [
        ("${env:A}", "${env:A}"),
        ("${A:-b}", "${A:-b}"),
        ("{env:A}", "${env:A}"),
        ("{file:/a/b}", "${file:/a/b}"),
        ("${{ secrets.A }}", "${env:A}"),
        ("$A", "${env:A}"),
        ("Bearer $A", "Bearer ${env:A}"),
        ("${workspaceFolder}/x${/}y", "PROJECT/x/y"),
        ("${workspaceFolderBasename}", "project"),
        ("${userHome}/x", "${HOME}/x"),
        ("${A%/*}", "$${A%/*}"),
        ("$a", "$a"),
        ("a $A", "a $A"),
    ],
)
def test_references_mean_the_same_under_import_and_up(home: Home, written: str, here: str) -> None:
    environ = {"HOME": str(home.folder), "A": "value-of-a"}
    here = here.replace("PROJECT", str(home.project))
    servers, _ = imported(home, {"a": {"command": "x", "env": {"LEVEL": written}}})
    assert servers["a"] == {"command": ["x"], "env": {"LEVEL": here}}
    if "file:" in written:
        return
    values = [
        sources.load(
            home.project / name, environ=environ, cwd=home.project, home=home.folder
        ).servers["a"].env
        for name in ("metamcp.toml", "file0.json")
    ]  # fmt: skip
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"command": "x", "args": "y"}, "a.args: must be a list of strings, not a string"),
        ({"command": "x", "args": [True]}, "a.args[0]: must be a string"),
        ({"type": "ws", "url": "wss://x/"}, "a: the server 'a' is left out: it has the type 'ws'"),
        ({"command": "x", "env": {"A": "${command:pick}"}}, "a.env.A: references of the kind"),
        ({"command": "cmd", "args": ["/c", "npx", "-y", "b"]},
         "a.command: is a command of Windows; here it would be: npx -y b"),
    ],
)  # fmt: skip
def test_what_up_refuses_import_refuses_in_the_same_words(
    home: Home, entry: dict[str, Any], message: str
) -> None:
    servers, told = imported(home, {"a": entry, "b": {"command": "z"}})
    assert list(servers) == ["b"]
    (line,) = [each for each in told.splitlines() if "mcpServers.a" in each]
    assert f"{home.project}/file0.json:1: mcpServers.{message}" in line
    config = sources.load(
        home.project / "file0.json", environ={}, cwd=home.project, home=home.folder
    )
    assert line in [*map(str, config.problems), *config.warnings]


@pytest.mark.parametrize("folder", [".", ".vscode", ".gemini", ".kiro/settings"])
def test_a_file_that_is_named_keeps_its_folder(home: Home, folder: str) -> None:
    path = home.project / folder / "servers.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    args = ["${workspaceFolder}/x"]
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "./b", "args": args}}}))
    target = home.folder / "metamcp.toml"
    home.works("import", "--from", str(path), "--to", str(target))
    table = {"command": ["./b", f"{home.project}/x"], "cwd": str(home.project)}
    assert tomllib.loads(target.read_text())["servers"]["a"] == table


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"Accept": "text/event-stream"}, "Accept: is set by the gateway for each message"),
        ({"X-None": None}, "X-None: is null and left alone"),
    ],
)
def test_a_header_that_is_not_sent_is_named(
    home: Home, headers: dict[str, Any], message: str
) -> None:
    servers, told = imported(home, {"a": {"url": "https://x/", "headers": headers}})
    assert servers == {"a": {"url": "https://x/"}}
    assert f"{home.project}/file0.json:1: mcpServers.a.headers.{message}" in told


def test_two_names_that_become_the_same_are_refused_like_up_does(home: Home) -> None:
    entries = {"a b": {"command": "x"}, "a-b": {"command": "y"}, "c": {"command": "z"}}
    servers, told = imported(home, entries)
    assert list(servers) == ["c"]
    config = sources.load(
        home.project / "file0.json", environ={}, cwd=home.project, home=home.folder
    )
    (problem,) = map(str, config.problems)
    assert "the server 'a-b' is already at" in problem
    assert problem in told.splitlines()


def test_a_strict_import_writes_nothing_where_something_is_not_carried_over(home: Home) -> None:
    path = home.project / "file.json"
    path.write_text('{"mcpServers": {"a": {"command": "x", "watchPaths": ["src"]}}}')
    target = home.project / "metamcp.toml"
    words = ("import", "--from", str(path), "--to", str(target))
    result = home.run(*words, "--strict")
    assert result.exit_code == 65
    assert f"{path}:1: mcpServers.a.watchPaths: is not carried over" in result.output
    assert "1 thing is not carried over; nothing is written" in result.output
    assert not target.exists()
    assert "watchPaths: is not carried over" in home.works(*words)
    assert target.exists()


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
    target.unlink()
    home.fill("codex")
    home.works("import", "codex", "--include", "--to", str(target))
    config = sources.load(target, environ={}, cwd=home.project, home=home.folder)
    assert set(config.servers) == {"docs"}, "a file in TOML too"


def test_variables_that_a_client_hands_on_are_those_of_the_gateway(home: Home) -> None:
    servers, told = imported(
        home,
        {
            "a": {
                "url": "https://x/",
                "bearer_token_env_var": "T",
                "env_http_headers": {"X-A": "B"},
            },
            "b": {"cmd": "x", "args": [], "env_keys": ["K"], "envs": {"L": "1"}},
        },
    )
    assert servers["a"]["headers"] == {"Authorization": "Bearer ${env:T}", "X-A": "${env:B}"}
    assert servers["b"]["env"] == {"K": "${env:K}", "L": "1"}
    assert " is not " not in told


def test_what_needs_an_editor_is_left_out_with_a_sentence(home: Home) -> None:
    path = home.fill("cursor")
    path.write_text('{"mcpServers": {"a": {"command": "x", "args": ["${workspaceFolder}"]}}}')
    assert "means the folder that an editor has open" in home.works("import", "cursor")
    assert home.run("import", "nosuch").exit_code == 2


def test_the_servers_of_this_project_in_the_own_file_of_claude_code_are_found(home: Home) -> None:
    path = home.folder / ".claude.json"
    mine = {"here": {"command": "./tool"}, "both": {"command": "mine"}, "off": {"command": "z"}}
    project = {"mcpServers": mine, "disabledMcpServers": ["off"]}
    other = {"mcpServers": {"there": {"command": "y"}}}
    user = {"all": {"command": "x"}, "both": {"command": "yours"}}
    projects = {str(home.project): project, "/elsewhere": other}
    path.write_text(json.dumps({"mcpServers": user, "projects": projects}))
    target = home.folder / "metamcp.toml"
    told = home.works("import", "claude-code", "--to", str(target))
    servers = tomllib.loads(target.read_text())["servers"]
    assert {name: each["command"] for name, each in servers.items()} == {
        "here": ["./tool"], "both": ["mine"], "off": ["z"], "all": ["x"],
    }  # fmt: skip
    assert servers["off"]["enabled"] is False
    assert servers["here"]["cwd"] == str(home.project)
    assert 'projects."/elsewhere".mcpServers: is not carried over' in told
    assert "mcpServers.both: is not carried over: this folder has its own" in told
    config = sources.load(path, environ={}, cwd=home.project, home=home.folder)
    assert {name: each.command for name, each in config.servers.items()} == {
        name: tuple(each["command"]) for name, each in servers.items()
    }
    assert config.servers["here"].cwd == home.project
    assert not config.servers["off"].enabled


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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_file_that_may_not_be_written_is_named_and_no_other_one_is_written() -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        (folder / "metamcp.toml").write_text("")
        (folder / "other.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
        folder.chmod(0o755)
        os.seteuid(OTHER_USER)
        try:
            done = CliRunner(env={"HOME": name}).invoke(main, ["import", "other.json"])
        finally:
            os.seteuid(0)
        assert done.exit_code == 77
        assert f"{folder}/metamcp.toml may not be written by this user" in done.output
        assert not (folder / ".config").exists()
