"""The table of clients: its rows, its paths, the options that go with it, and snippets."""

import re
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.client_files import clients
from metamcp_supervisor.client_files.clients import CLIENTS
from tests.supervisor.clienthome import FILES, Home

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.promise("M7")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_snippet_is_what_install_would_write(home: Home, client: str) -> None:
    result = home.run("snippet", client, "--name", "gate")
    assert result.exit_code == 0
    home.works("install", client, "--name", "gate")
    path = home.folder / FILES[client][0]
    assert result.stdout.strip() in path.read_text()
    assert str(path) in result.stderr


@pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))
def test_every_client_has_its_row_in_the_documentation(client: clients.ClientProgram) -> None:
    text = (Path(__file__).parents[3] / "docs/clients.md").read_text()
    (row,) = re.findall(rf"^\| `{client.name}` \|.*", text, re.MULTILINE)
    assert f"`{client.linux[0].replace('$CONFIG', '~/.config')}`" in row
    assert f"`{client.linux[-1].replace('$CONFIG', '~/.config')}`" in row or client.name == "cline"
    same = [path.replace("$CONFIG", "~/.config") for path in client.linux] == [*client.darwin]
    assert "the same" in row if same else f"`{client.darwin[0]}`" in row
    assert f"`{client.project}`" in row if client.project else "| none |" in row
    assert client.kept.place[0] in row
    far = clients.entry(client.kept.shape, "x", url="http://x/")
    leads = set(far) & {"type", "url", "httpUrl", "serverUrl", "uri"}
    assert not clients.can_http(client.kept.shape) or leads <= set(re.findall(r"\w+", row))
    assert "](https://" in row


def test_a_client_that_is_not_known_gets_the_nearest_name(home: Home) -> None:
    result = home.run("install", "claud-code")
    assert result.exit_code == 2
    assert "did you mean 'claude-code'?" in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("install", "zed", "--scope", "project"), "Zed has no file of a project"),
        (("install", "claude-desktop", "--http"), "can name commands only"),
        (("install", "cursor", "--skill"), "--skill is for claude-code"),
        (("install", "cursor", "--url", "x"), "--url is not a URL"),
        (("install", "cursor", "--name", "a b"), "such as 'a-b'"),
        (("snippet", "cursor", "--http", "--start"), "--start is for a command, not for a URL"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    home: Home, arguments: tuple[str, ...], sentence: str
) -> None:
    result = home.run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert home.listing() == set()


def test_variables_of_clients_name_their_files(home: Home, tmp_path: Path) -> None:
    found = clients.candidates(
        CLIENTS["codex"],
        "user",
        platform="darwin",
        environ={"CODEX_HOME": str(tmp_path)},
        home=home.folder,
        cwd=home.project,
    )
    assert found == (tmp_path / "config.toml",)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))
def test_every_client_has_files_on_both_platforms(
    home: Home, client: clients.ClientProgram, platform: clients.Platform
) -> None:
    found = clients.candidates(
        client,
        "user",
        platform=platform,
        environ={"XDG_CONFIG_HOME": "/config"},
        home=Path("/home/me"),
        cwd=home.project,
    )
    assert found
    for path in found:
        assert "$" not in str(path)
        assert "~" not in str(path)
        assert path.parts[1] in ("home", "config" if platform == "linux" else "home")


@pytest.mark.parametrize(
    ("script", "shared", "uvx", "command"),
    [
        ("/home/me/.venv/bin/metamcp", False, None, ("/home/me/.venv/bin/metamcp",)),
        ("/usr/local/bin/metamcp", False, None, ("metamcp",)),
        ("/home/me/.venv/bin/metamcp", True, None, ("metamcp",)),
        ("/c/uv/archive-v0/x/bin/metamcp", False, "/b/uvx", ("/b/uvx", "metamcp")),
        ("", False, None, ("/p", "-m", "metamcp_supervisor")),
    ],
)
def test_a_command_is_one_that_a_desktop_finds(
    script: str, shared: bool, uvx: str | None, command: tuple[str, ...]
) -> None:
    module = ("/p", "-m", "metamcp_supervisor")
    found = clients.command(script, platform="linux", shared=shared, uvx=uvx, module=module)
    assert found == command
    assert clients.is_ours((*found, "connect"), "", ())
