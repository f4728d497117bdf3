"""The skill of Claude Code: one copy and a link to it, again and again."""

import json
import re
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.__main__ import verbs
from metamcp_supervisor.cli import install
from tests.supervisor.clienthome import Home

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux")
COPY = ".local/share/metamcp/skill/SKILL.md"
LINK = ".claude/skills/metamcp/SKILL.md"
INSTALL = ("install", "claude-code", "--skill")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.promise("M39")
def test_the_skill_is_a_copy_and_a_link_to_it(home: Home) -> None:
    home.works(*INSTALL)
    copy, link = home.folder / COPY, home.folder / LINK
    assert link.is_symlink()
    assert link.resolve() == copy
    assert link.read_text() == install.text()
    assert home.works(*INSTALL).count("unchanged") == 3
    home.works("uninstall", "claude-code")
    assert home.listing() == set()
    assert not copy.parent.parent.exists()
    assert not link.parent.exists()


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ((), ["--exposure", "servers", "--naming", "bare"]),
        (("--exposure", "all"), ["--exposure", "all"]),
        (("--no-start",), []),
    ],
)
def test_the_gateway_that_is_started_shows_what_the_skill_calls(
    more: tuple[str, ...], options: list[str], home: Home
) -> None:
    home.works(*INSTALL, *more)
    entry = json.loads((home.folder / ".claude.json").read_text())["mcpServers"]["metamcp"]
    words = {"--exposure", "servers", "all", "--naming", "bare"}
    assert [word for word in entry["args"] if word in words] == options


@pytest.mark.promise("M39")
@pytest.mark.parametrize("found", ["older", "dangling", "file of ours", "link elsewhere, ours"])
def test_what_is_there_of_it_is_brought_up_to_date(home: Home, found: str) -> None:
    copy, link = home.folder / COPY, home.folder / LINK
    for path in (copy, link):
        path.parent.mkdir(parents=True)
    older = "---\nname: metamcp\n---\n<!-- metamcp skill 0: older -->\n"
    if found == "older":
        copy.write_text(older)
        link.symlink_to(copy)
    elif found == "dangling":
        link.symlink_to(home.folder / "gone")
    elif found == "file of ours":
        link.write_text(older)
    else:
        (home.folder / "other.md").write_text(older)
        link.symlink_to(home.folder / "other.md")
    home.works(*INSTALL)
    assert link.resolve() == copy
    assert copy.read_text() == install.text()


@pytest.mark.promise("M39")
def test_a_skill_of_somebody_else_stays(home: Home) -> None:
    link = home.folder / LINK
    link.parent.mkdir(parents=True)
    link.write_text("# my own\n")
    result = home.run(*INSTALL)
    assert result.exit_code == 1
    assert "is there and not of this skill" in result.output
    assert "left: it is not of this skill" in home.works("uninstall", "claude-code")
    assert link.read_text() == "# my own\n"
    home.works(*INSTALL, "--force")
    assert link.read_text() == install.text()
    assert link.with_name("SKILL.md.metamcp-backup").read_text() == "# my own\n"


def test_a_dry_run_makes_nothing(home: Home) -> None:
    output = home.works(*INSTALL, "--dry-run")
    assert "would be linked to" in output
    assert home.listing() == set()


def test_variables_say_where_it_lies(home: Home, tmp_path: Path) -> None:
    home.environ |= {"XDG_DATA_HOME": str(tmp_path / "d"), "CLAUDE_CONFIG_DIR": str(tmp_path / "c")}
    home.works(*INSTALL)
    assert (
        tmp_path / "c/skills/metamcp/SKILL.md"
    ).resolve() == tmp_path / "d/metamcp/skill/SKILL.md"


@pytest.mark.promise("M39")
def test_the_skill_has_the_eight_commands_and_names_what_there_is() -> None:
    text = install.text()
    head, body = text.removeprefix("---\n").split("\n---\n", 1)
    assert re.search(r"^name: metamcp$", head, re.MULTILINE)
    description = re.search(r"^description: (.+)$", head, re.MULTILINE)
    assert description is not None
    assert len(description[1]) <= 1024, "clients cut what is longer"
    headings = re.findall(r"^## (\w+)", body, re.MULTILINE)
    commands = ["activate", "deactivate", "status", "add", "setup", "update", "uninstall", "help"]
    assert [heading for heading in headings if heading in commands] == commands
    for verb in re.findall(r"`(?:\n?)metamcp[ \n]([a-z]+)", body):
        assert verb in verbs(), verb
    for tool in ("gateway_activate", "gateway_deactivate", "gateway_status"):
        assert tool in body
