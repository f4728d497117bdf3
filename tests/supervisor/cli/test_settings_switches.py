"""`metamcp disable` and `enable` switch a server, and its file keeps its layout."""

import pytest

from metamcp_supervisor.verbs import Exit
from tests.supervisor.clienthome import Home

TOML = """# mine
[servers.a]   # first
command = ["x"] # c

[servers.b]
command=["y"]
"""
JSON = """{"mcpServers": {
  "a": {"command": "x",   "args": [ "y" ]},
  "b": {"command": "z"}
}}
"""


@pytest.mark.parametrize(
    ("name", "text", "off"),
    [
        ("metamcp.toml", TOML, TOML.replace("# c\n", "# c\nenabled = false\n")),
        (".mcp.json", JSON, JSON.replace('[ "y" ]}', '[ "y" ], "disabled": true}')),
    ],
)
def test_a_server_is_switched_off_and_on_and_the_rest_of_the_file_stays(
    name: str, text: str, off: str, home: Home
) -> None:
    path = home.project / name
    path.write_text(text)
    home.works("disable", "a", "--dry-run")
    assert path.read_text() == text
    home.works("disable", "a")
    assert path.read_text() == off
    assert "'a' is disabled already" in home.works("disable", "a")
    home.works("enable", "a")
    assert path.read_text() == text
    assert home.run("enable", "c").exit_code == Exit.UNKNOWN_NAME


@pytest.mark.parametrize("switch", ['"disabled": true', '"isActive": false', '"enabled": false'])
def test_a_switch_of_another_client_is_taken_as_it_is(switch: str, home: Home) -> None:
    path = home.project / ".mcp.json"
    path.write_text(JSON.replace('{"command": "z"}', f'{{"command": "z", {switch}}}'))
    assert "is disabled already" in home.works("disable", "b")
    home.works("enable", "b")
    assert path.read_text() == JSON


def test_options_without_a_verb_are_told_which_one_they_belong_to(home: Home) -> None:
    result = home.run("--port", "8000", "--config", "my servers.toml")
    assert result.exit_code == Exit.USAGE
    assert "'metamcp up --port 8000 --config 'my servers.toml''" in result.output


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("switches"))
