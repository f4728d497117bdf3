"""Pages of the servers and of one server, as values."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from metamcp_supervisor.client_files.clients import CLIENTS
from metamcp_supervisor.client_files.disk import ClientFile
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.console import calls_page, server_page, servers_page
from metamcp_supervisor.console.pages import Page, PageRequest, content
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.verbs import Description, ExitRecord, OverriddenSetting
from tests.supervisor.console.test_fragments import parsed
from tests.supervisor.small_gateway import SmallGateway, server

REASON = f"it ended with status 3; on stderr: {'refused ' * 20}; 'metamcp logs mail' has all of it"


def described(**more: Any) -> Description:
    given: dict[str, Any] = {
        "server": server("git"), "why": "it answers calls", "since": 0.0, "failures": 9,
        "recent": 9, "recent_max": 8, "window_s": 120.0, "trips": 1, "config": {}, "source": "",
        "endpoints": (), "list_hash": "", "exits": (), "processes": (), "log": (),
    }  # fmt: skip
    return Description(**(given | more))


def test_the_page_of_servers_has_the_whole_reason() -> None:
    down = server("mail", "error", reason="exit", message=REASON, retry_in_s=397.9)
    status = SmallGateway(down).status()
    text = parsed(servers_page.page(status, {}, PageRequest(role=Role.VIEWER))).text
    assert text.count(f"exit: {REASON}; next start in 6m38s") == 2  # the banner, and the row
    assert "To start or stop servers needs the role operator." in text


def test_the_servers_of_a_project_are_imported_in_its_folder() -> None:
    path, cursor = Path("/home/me/a b/.cursor/mcp.json"), CLIENTS["cursor"]
    file = ClientFile(
        cursor, path, (Server(name="notes", source="", command=("notes",)),), base="/home/me/a b"
    )
    status = structs.replace(SmallGateway().status(), config_files=("/etc/my gate.toml",))
    text = parsed(servers_page.page(status, {}, PageRequest(role=Role.VIEWER), [file])).text
    assert "cd '/home/me/a b' && metamcp import cursor --to '/etc/my gate.toml'" in text


@pytest.mark.parametrize("page", [servers_page.PAGE, calls_page.PAGE], ids=["servers", "calls"])
def test_a_page_of_servers_or_calls_is_loaded_again_as_time_goes_on(page: Page) -> None:
    assert "times" in str(parsed(content(page, "x")).found[0][1]["data-live"]).split()


def test_the_page_of_a_server_gives_its_moments_to_the_browser() -> None:
    ended = ExitRecord(
        time=60.0, generation=1, ready_s=0.0, reason="exit", message="", next="error"
    )
    for_now = OverriddenSetting(key="log.level", value="debug", written="info", until=180.0)
    found = described(since=120.0, exits=(ended,), overrides=(for_now,), source="/m.toml:5")
    page = parsed(server_page.page(found, (), Role.VIEWER, 125.0))
    moments = [attrs["datetime"] for tag, attrs in page.found if tag == "time"]
    assert moments == [f"1970-01-01T00:0{minute}:00.000Z" for minute in (2, 3, 1)]
    assert " (5s)" in page.text
    assert "Written in /m.toml:5." in page.text
    assert "To steer a server needs the role operator." in page.text
    assert "9 within 120 s (8 are allowed)" in page.text
