"""Forms that edit files, as values: the order that a form is, what a page offers."""

import pytest

from metamcp_supervisor.config.origins import SettingShown
from metamcp_supervisor.console import edit_page
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.config_orders import EDITS, FileEdited, SettingsShown
from tests.supervisor.console.test_fragments import parsed
from tests.supervisor.console.test_pages_management import text_of

ADD = {
    "server": "git",
    "command": "uvx mcp-server-git --repository 'my repo'",
    "env": "A=1\n\n B=two words \n",
    "header": "",
    "url": "",
}


def order(verb: str, **given: str) -> dict[str, object]:
    return edit_page.build_order(verb, edit_page.FORMS[verb], given)


def test_a_form_is_an_order_with_words_and_options() -> None:
    added = order("add", **ADD)
    assert added["words"] == ["git", "uvx", "mcp-server-git", "--repository", "my repo"]
    assert added["options"] == {"--env": ["A=1", "B=two words"]}
    moved = order("install", client="cursor", scope="project", exposure="", over="yes")
    assert moved["options"] == {"--scope": ["project"], "--take-over": []}
    changed = order("endpoints set", name="acme:a", settings="exposure=search\nauth=keys")
    assert changed["words"] == ["acme:a", "exposure=search", "auth=keys"]


def test_a_command_with_an_open_quote_is_refused() -> None:
    with pytest.raises(Failed, match="No closing quotation"):
        order("add", server="git", command="uvx 'git")


@pytest.mark.parametrize("verb", edit_page.FORMS)
def test_the_gateway_accepts_what_a_form_can_order(verb: str) -> None:
    options = {field.option for field in edit_page.FORMS[verb].fields if field.option}
    assert options <= EDITS[verb].options
    assert EDITS.keys() == edit_page.FORMS.keys()


def test_a_page_offers_to_write_only_what_changes_a_file() -> None:
    form = edit_page.FORMS["disable"]
    given = {"server": "<b>"}
    for said, buttons in (
        (("--- f", "+++ f", "+enabled = false <i>"), 1),
        (("f: 'git' is disabled already",), 0),
    ):
        page = edit_page.difference("disable", form, given, FileEdited(said=said))
        assert text_of(page).count("Write it") == buttons
        assert "i" not in {tag for tag, _ in parsed(page).found}


def test_the_overview_has_what_files_switch_off_with_the_way_back() -> None:
    found = SettingsShown(
        files=("f",),
        tables=(),
        settings=(
            SettingShown("servers.git", "enabled", "false", "f:1"),
            SettingShown('servers.git.tools."a.b"', "hidden", "true", "f:2"),
            SettingShown("servers.git.tools.c", "enabled", "false", "f:3"),
            SettingShown("servers.time", "enabled", "true", "f:4"),
            SettingShown("servers.time.sandbox", "enabled", "false", "f:5"),
        ),
    )
    page = parsed(edit_page.overview(found))
    links = [str(attrs.get("href")) for tag, attrs in page.found if tag == "a"]
    back = [link for link in links if "server=" in link or "tool=" in link]
    assert back == [
        "/config/edit?verb=enable&server=git",
        "/config/edit?verb=tools+show&tool=git.a.b",
        "/config/edit?verb=tools+enable&tool=git.c",
    ]
