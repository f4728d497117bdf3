"""`metamcp tools hide|show|disable|enable|rename` edit one tool's settings, and the file keeps its
layout."""

import pytest

from metamcp_supervisor.verbs import Exit
from tests.supervisor.clienthome import Home

TOML = """# mine
[servers.git]   # first
command = ["x"] # c

[servers.other]
command=["y"]

[endpoints.default]
namespace = "default"
[namespaces.default]
servers = ["git"]
"""
JSON = """{"mcpServers": {
  "git": {"command": "x",   "args": [ "y" ]}
}}
"""


@pytest.mark.parametrize(
    ("verb", "line"),
    [("hide", "hidden = true"), ("disable", "enabled = false")],
)
@pytest.mark.promise("M67")
def test_a_tool_is_switched_and_switched_back_and_the_rest_of_the_file_stays(
    verb: str, line: str, home: Home
) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML)
    home.works("tools", verb, "git.reset", "--dry-run")
    assert path.read_text() == TOML
    home.works("tools", verb, "git.reset")
    assert path.read_text() == f"{TOML}\n[servers.git.tools.reset]\n{line}\n"
    assert "already" in home.works("tools", verb, "git.reset")
    for spelling in ("git/reset", "git__reset"):
        assert "already" in home.works("tools", verb, spelling)
    home.works("tools", {"hide": "show", "disable": "enable"}[verb], "git/reset")
    assert path.read_text() == TOML


@pytest.mark.promise("M67")
def test_a_tool_gets_another_name_and_its_own_again(home: Home) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML)
    home.works("tools", "rename", "git.reset", "git_back")
    assert path.read_text() == f'{TOML}\n[servers.git.tools.reset]\nname = "git_back"\n'
    home.works("tools", "hide", "git.reset")
    home.works("tools", "rename", "git.reset", "reset")
    assert path.read_text() == f"{TOML}\n[servers.git.tools.reset]\nhidden = true\n"


@pytest.mark.parametrize("group", ["endpoint", "namespace"])
@pytest.mark.promise("M67")
def test_a_tool_is_hidden_at_one_endpoint_or_in_one_namespace(group: str, home: Home) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML)
    home.works("tools", "hide", "git.reset", f"--{group}", "default")
    table = f'[{group}s.default.tools."git.reset"]'
    assert path.read_text() == f"{TOML}\n{table}\nhidden = true\n"
    home.works("tools", "show", "git.reset", f"--{group}", "default")
    assert path.read_text() == f"{TOML}\n{table}\nhidden = false\n"
    result = home.run("tools", "hide", "git.reset", f"--{group}", "defalt")
    assert result.exit_code == Exit.UNKNOWN_NAME
    assert "did you mean 'default'?" in result.output


def test_a_namespace_may_have_the_name_of_a_server(home: Home) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(f'{TOML}[namespaces.other]\nservers = ["other"]\n')
    home.works("tools", "hide", "other.x", "--namespace", "other")
    assert '[namespaces.other.tools."other.x"]' in path.read_text()


def test_a_tool_is_hidden_in_a_file_of_json(home: Home) -> None:
    path = home.project / ".mcp.json"
    path.write_text(JSON)
    home.works("tools", "hide", "git.reset")
    hidden = '[ "y" ], "tools": {"reset": {"hidden": true}}}'
    assert path.read_text() == JSON.replace('[ "y" ]}', hidden)
    home.works("tools", "show", "git.reset")
    assert path.read_text() == JSON
    result = home.run("tools", "hide", "git.reset", "--endpoint", "default")
    assert (result.exit_code, "'metamcp init'" in result.output) == (Exit.CONFIG, True)


def test_a_tool_of_an_included_file_is_hidden_in_its_namespace(home: Home) -> None:
    (home.project / ".mcp.json").write_text(JSON)
    path = home.project / "metamcp.toml"
    path.write_text('include = [".mcp.json"]\n')
    result = home.run("tools", "hide", "git.reset")
    assert (result.exit_code, "name that file with --config" in result.output) == (
        Exit.UNKNOWN_NAME,
        True,
    )
    home.works("tools", "hide", "git.reset", "--namespace", "default")
    table = '[namespaces.default.tools."git.reset"]\nhidden = true\n'
    assert path.read_text() == f'include = [".mcp.json"]\n\n{table}'


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("hide", "gti.reset"), Exit.UNKNOWN_NAME, "has no server 'gti'; did you mean 'git'?"),
        (("hide", "git"), Exit.USAGE, "a tool is written SERVER.TOOL"),
        (("rename", "git.reset", "two words"), Exit.CONFIG, "nothing is changed"),
        (("hide", "git.reset", "--endpoint", "a", "--namespace", "b"), Exit.USAGE, "one of both"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_changed(
    arguments: tuple[str, ...], code: Exit, sentence: str, home: Home
) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML)
    result = home.run("tools", *arguments)
    assert (result.exit_code, sentence in result.output) == (code, True), result.output
    assert path.read_text() == TOML


def test_without_one_of_its_verbs_tools_searches(home: Home) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML)
    assert home.works("tools") == home.works("tools", "search")
    assert home.works("tools", "--json") == home.works("tools", "--json", "search")
    home.works("tools", "--json", "--config", str(path), "hide", "git.reset")
    assert "[servers.git.tools.reset]" in path.read_text()


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("switches"))
