"""The first visit to the console, with the built wheel: one walk through a browser."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.visits import FLAGS, PROGRAM, missing
from tests.docs.walk import Walk
from tests.live.client import MODERN
from tests.live.crowd import Crowd, Ear
from tests.live.gateway import SERVER

pytestmark = [pytest.mark.live, pytest.mark.promise("M67"), pytest.mark.promise("M107")]

NEWS_MS = 15_000
"""Milliseconds until a page knows: fronts tell of calls every two seconds, and the answer to a
change stays for five."""
TABLES = """
include = [".mcp.json"]
[gateway]
auth = "keys"
[recording]
calls = "metadata"
"""


def test_a_visitor_calls_a_tool_sees_the_call_restarts_a_server_and_revokes_a_key(
    program: Path, tmp_path: Path
) -> None:
    if why := missing():
        pytest.skip(why)
    command, *arguments = SERVER
    entry = {"mcpServers": {"git": {"command": command, "args": arguments}}}
    (tmp_path / ".mcp.json").write_text(json.dumps(entry))
    (tmp_path / "metamcp.toml").write_text(TABLES)
    with Walk(tmp_path, program) as walk:
        walk.type("metamcp up")
        walk.type("metamcp wait --timeout 60s")
        link: str = json.loads(walk.type("metamcp console --no-open --json"))["url"]
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=PROGRAM, args=list(FLAGS))
            visited(browser.new_page(), link, walk.port)
            browser.close()


def visited(page: Page, link: str, port: int) -> None:
    """Walk from the link to a key that is revoked."""
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(link)
    expect(page.get_by_role("row").filter(has_text="git")).to_contain_text("active")
    page.get_by_role("link", name="Keys", exact=True).click()
    page.get_by_text("New key").click()
    page.get_by_label("Name", exact=True).fill("laptop")
    page.get_by_role("button", name="Make the key").click()
    key = page.locator("figure.code code").first.inner_text()
    page.get_by_role("link", name="Tools", exact=True).click()
    expect(page.get_by_role("heading", name="Tools", level=1)).to_be_visible()
    page.get_by_label("As API key").fill("laptop")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="git__echo").click()
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Arguments as JSON").fill('{"text": "hello"}')
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("It answered after")
    expect(page.locator("figure code").first).to_contain_text("hello")
    page.get_by_role("link", name="Calls", exact=True).click()
    call = page.get_by_role("row").filter(has_text="git__echo").first
    expect(call).to_contain_text("ok", timeout=NEWS_MS)
    page.get_by_role("link", name="Servers", exact=True).click()
    page.get_by_role("link", name="git", exact=True).click()
    expect(page.get_by_role("heading", name="git", level=1)).to_be_visible()
    page.get_by_role("button", name="Restart").click()
    expect(page.locator("#page")).to_contain_text("generation 2", timeout=NEWS_MS)
    with Crowd([Ear(port, MODERN, "/mcp", key)]) as crowd:
        page.get_by_role("link", name="Keys", exact=True).click()
        page.get_by_role("link", name="laptop").click()
        expect(page.locator("#page")).to_contain_text("1 stream")
        page.get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("status").first).to_contain_text("is revoked")
        crowd.hear(lambda ear: ear.ended_s > 0)
