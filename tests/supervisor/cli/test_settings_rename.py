"""`metamcp rename SERVER NEW`: everything that names the server by its own name goes along."""

from pathlib import Path

import pytest

from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.approval.lock import Lock, LockedServer
from metamcp_supervisor.verbs import Exit
from tests.supervisor.clienthome import Home

TOML = """# mine
[servers.git]   # first
command = ["x"] # c

[servers.git.tools.reset] # no
hidden = true

[servers.other]
command=["y"]
depends_on = ["git"]

[namespaces.tools]
servers = [
  "git",   # first
  "other",
] # both
description = "git"

[endpoints.t]
namespace = "tools"

[endpoints.t.tools."git.log"] # off
enabled = false

[workspaces.acme.namespaces.default]
servers = ["default:git"]

[[policies]]
name = "p"
match = "gi*/*"
effect = "log"
"""


@pytest.mark.promise("M67")
def test_tables_lists_and_tools_of_a_server_get_its_name(home: Home) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML)
    home.works("rename", "git", "vcs", "--dry-run")
    assert path.read_text() == TOML
    result = home.run("rename", "git", "vcs")
    assert result.exit_code == Exit.OK, result.output
    assert "the policy 'p' is about 'git'" in result.output
    renamed = TOML
    for old, new in (
        ("[servers.git", "[servers.vcs"), ('["git"]', '["vcs"]'), ('  "git", ', '  "vcs", '),
        ('"git.log"', '"vcs.log"'), ("default:git", "default:vcs"),
    ):  # fmt: skip
        renamed = renamed.replace(old, new)
    assert path.read_text() == renamed
    home.works("rename", "vcs", "git")
    assert path.read_text() == TOML


def test_tools_on_one_line_go_along(home: Home) -> None:
    path = home.project / "metamcp.toml"
    text = '[servers.git]\ncommand = ["x"]\n[namespaces.n]\nservers = ["*"]\n'
    path.write_text(f'{text}tools = {{"git.log" = {{hidden = true}}}}\n')
    home.works("rename", "git", "vcs")
    assert path.read_text().endswith('tools = {"vcs.log" = {hidden = true}}\n')


def test_what_was_approved_stays_approved(home: Home) -> None:
    (home.project / "metamcp.toml").write_text(TOML)
    lock = home.project / "metamcp.lock"
    lock_io.save(
        lock, Lock({name: LockedServer("git", "1") for name in ("git", "acme:git", "other")})
    )
    home.works("rename", "git", "vcs")
    renamed = lock_io.load(lock)
    assert renamed is not None
    assert renamed.servers.keys() == {"vcs", "acme:vcs", "other"}
    assert renamed.servers["vcs"].version == "1"


def test_a_server_of_a_workspace_with_the_same_name_keeps_it(home: Home) -> None:
    own = '[servers.git]\ncommand = ["x"]\n[workspaces.acme.servers.git]\ncommand = ["y"]\n'
    (home.project / "metamcp.toml").write_text(own)
    lock = home.project / "metamcp.lock"
    lock_io.save(lock, Lock({name: LockedServer() for name in ("git", "acme:git")}))
    home.works("rename", "git", "vcs")
    renamed = lock_io.load(lock)
    assert renamed is not None
    assert renamed.servers.keys() == {"vcs", "acme:git"}


def test_a_server_in_a_file_of_json_is_renamed(home: Home) -> None:
    path = home.project / ".mcp.json"
    before = '{"mcpServers": {\n  "a": {"command": "x"}, // js\n  "b": {"command": "y"}\n}}\n'
    path.write_text(before)
    home.works("rename", "a", "c")
    assert path.read_text() == before.replace('"a"', '"c"')


def test_a_file_with_a_mistake_is_refused_before_anything_is_written(home: Home) -> None:
    path = home.project / "metamcp.toml"
    text = f'{TOML}[endpoints.desk]\nnamespace = "nope"\n'
    path.write_text(text)
    result = home.run("rename", "git", "vcs")
    assert (result.exit_code, path.read_text()) == (Exit.CONFIG, text)
    assert "no namespace is named 'nope'" in result.output


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("gti", "a"), Exit.UNKNOWN_NAME, "did you mean 'git'?"),
        (("git", "other"), Exit.FAILED, "has a server 'other' already"),
        (("git", "two words"), Exit.USAGE, "such as 'two-words'"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_changed(
    words: tuple[str, str], code: Exit, sentence: str, home: Home
) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML)
    result = home.run("rename", *words)
    assert (result.exit_code, sentence in result.output) == (code, True), result.output
    assert path.read_text() == TOML


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)
