"""Known servers: which one a command starts, what it gets for its needs, and who confirms that."""

from pathlib import Path

import pytest

from metamcp_supervisor.config import confirmation, sandboxes
from tests.supervisor.configs import loaded, messages


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @playwright/mcp@latest --headless", "@playwright/mcp"),
        ("npx chrome-devtools-mcp@1.2 -y", "chrome-devtools-mcp"),
        ("npx --package=@playwright/mcp@0.0.83 -- mcp-server-playwright", "@playwright/mcp"),
        ("bunx @playwright/mcp", "@playwright/mcp"),
        ("npm exec -- @playwright/mcp", "@playwright/mcp"),
        ("node /a/node_modules/@playwright/mcp/cli.js --x", "@playwright/mcp"),
        ("uvx mcp-server-git --repository .", "mcp-server-git"),
        ("uvx mcp-server-git==1.0", "mcp-server-git"),
        ("uvx --from=mcp-server-git[all] git-it", "mcp-server-git"),
        ("uv tool run mcp-server-git", "mcp-server-git"),
        ("python3 -m mcp_server_git", "mcp-server-git"),
        ("/opt/venv/bin/mcp-server-git", "mcp-server-git"),
        ("/usr/bin/chromium --headless", "chromium"),
        ("docker run -i --rm mcp/git", "docker"),
        ("npx -y other-server mcp-server-git-not", ""),
        ("my-server @playwright/mcp", ""),
        ("npx -y a b c @playwright/mcp", ""),
        ("mcp-server-git-evil", ""),
    ],
)
def test_a_known_server_is_found_in_the_command(command: str, name: str) -> None:
    found = sandboxes.find_known_server(command.split())
    assert (found.name if found else "") == name


def test_every_known_server_has_known_needs_and_a_source() -> None:
    table = sandboxes.known_table()
    for server in table.servers:
        assert set(server.needs) <= set(table.needs)
        assert server.source.startswith("https://")
    assert len({server.name for server in table.servers}) == len(table.servers)


def test_the_table_of_a_server_comes_before_what_is_known_of_it(tmp_path: Path) -> None:
    browser = 'command = ["npx", "@playwright/mcp"]'
    text = f"[servers.a]\n{browser}\n[servers.b]\n{browser}\nneeds = []\n"
    text += '[servers.c]\ncommand = ["x"]\nneeds = ["kube"]\n'
    servers = loaded(tmp_path, text).servers
    assert [sandboxes.needs(servers[name]) for name in "abc"] == [
        ("browser", "display"), (), ("kube",),
    ]  # fmt: skip
    assert [sandboxes.needed_rights(servers[name], "/home/ann").browser for name in "abc"] == [
        True, False, False,
    ]  # fmt: skip
    assert sandboxes.needed_rights(servers["c"], "/home/ann").write == ("~/.kube",)


def test_a_working_directory_that_is_the_home_is_not_opened_as_a_whole(tmp_path: Path) -> None:
    text = f'[servers.a]\ncommand = ["mcp-server-git"]\ncwd = "{tmp_path}"\n'
    server = loaded(tmp_path, text).servers["a"]
    assert sandboxes.needed_rights(server, "/home/ann").write == (".",)
    assert sandboxes.needed_rights(server, str(tmp_path)).write == ()
    assert sandboxes.needed_rights(server, str(tmp_path / "ann")).write == ()


def test_nothing_is_opened_for_a_known_server_that_is_not_confined(tmp_path: Path) -> None:
    text = '[servers.a]\ncommand = ["npx", "@playwright/mcp"]\nsandbox = "none"\n'
    server = loaded(tmp_path, text).servers["a"]
    assert sandboxes.needs(server) == ()
    assert sandboxes.needs_text(server) == ""


def test_a_known_server_gets_the_folders_that_it_makes_in_the_home(tmp_path: Path) -> None:
    command = 'command = ["uvx", "arxiv-mcp-server"]'
    found = loaded(
        tmp_path, f"[servers.a]\n{command}\n[servers.b]\n{command}\nneeds = []\n"
    ).servers
    assert sandboxes.needed_rights(found["a"], "/home/ann").write == ("~/.arxiv-mcp-server/",)
    assert "it gets ~/.arxiv-mcp-server, which it makes" in sandboxes.needs_text(found["a"])
    assert sandboxes.needed_rights(found["b"], "/home/ann").write == ()
    assert sandboxes.needs_text(found["b"]) == ""


def test_an_unknown_need_is_told(tmp_path: Path) -> None:
    got, *_ = messages(tmp_path, '[servers.a]\ncommand = ["x"]\nneeds = ["brwser"]')
    assert "servers.a.needs: 'brwser' is not known; there are: project, browser, " in got


def test_what_is_opened_is_confirmed_with_the_command(tmp_path: Path) -> None:
    known = loaded(tmp_path, '[servers.a]\ncommand = ["npx", "mcp-server-kubernetes"]\n')
    question = confirmation.question(known, "f")
    date = sandboxes.known_table().version
    whose = f"mcp-server-kubernetes is known since {date}"
    assert question.splitlines()[1:] == [
        '  a: ["npx","mcp-server-kubernetes"]',
        f"    it gets ~/.kube with its credentials, to change ({whose})",
    ]
    without = '[servers.a]\ncommand = ["npx", "mcp-server-kubernetes"]\nneeds = []\n'
    other = loaded(tmp_path, without)
    assert confirmation.digest(known, "f") != confirmation.digest(other, "f")
