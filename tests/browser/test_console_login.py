"""Somebody at another machine logs in by an API key, over TLS."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import APIResponse, Browser, BrowserContext, Page, Route, expect

from tests.browser.test_console_attacks import neighbour
from tests.browser.visits import judge
from tests.live.console_abroad import ConsoleAbroad
from tests.live.gateway import fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M107")]


@pytest.fixture(scope="module")
def abroad(chromium: Browser) -> Iterator[ConsoleAbroad]:
    with ConsoleAbroad({"git": fake()}) as found:
        yield found


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser that was told to go on although it does not know the authority."""
    with chromium.new_context(ignore_https_errors=True) as found:
        yield found


def log_in(tab: Page, key: str) -> None:
    tab.get_by_label("API key").fill(key)
    tab.get_by_role("button", name="Log in").click()


def test_a_key_opens_the_page_that_was_asked_for_until_the_key_is_revoked(
    abroad: ConsoleAbroad, context: BrowserContext
) -> None:
    made = abroad.key("ann", "console:operator")
    tab = context.new_page()
    sent: list[str] = []
    tab.on("request", lambda one: sent.append(one.url + str(one.headers)))
    tab.goto(f"{abroad.base}/servers/git")
    expect(tab.get_by_label("API key")).to_be_focused()
    judge(tab)
    log_in(tab, "mmcp_wrong")
    expect(tab.get_by_role("alert")).to_have_text("this API key does not open the console")
    log_in(tab, f" {made['key']}\n".strip("\n"))
    expect(tab.locator("#page h1")).to_have_text("git")
    expect(tab.get_by_title("Role of this session")).to_have_text("operator")
    expect(tab.locator("#pulse")).to_have_text("live")
    assert not [one for one in sent if made["key"] in one]
    kept = (
        "JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie, location.href])"
    )
    assert made["key"] not in tab.evaluate(kept)

    abroad.keys("revoke", made["id"])
    expect(tab.get_by_role("alert")).to_have_text("This session has ended.")
    expect(tab.locator("#frame")).to_be_empty()
    log_in(tab, made["key"])
    expect(tab.get_by_role("alert")).to_have_text("this API key does not open the console")
    log_in(tab, abroad.key("ann", "console:viewer")["key"])
    expect(tab.locator("#page h1")).to_have_text("git")
    expect(tab.locator("#pulse")).to_have_text("live")
    expect(tab.get_by_title("Role of this session")).to_have_text("viewer")


def test_who_logs_out_ends_the_session_in_every_tab(
    abroad: ConsoleAbroad, context: BrowserContext
) -> None:
    made = abroad.key("ann", "console:viewer")
    tab = context.new_page()
    tab.goto(abroad.base)
    log_in(tab, made["key"])
    expect(tab.locator("#pulse")).to_have_text("live")
    other = context.new_page()
    token = tab.evaluate("sessionStorage.getItem('metamcp-session')")
    other.add_init_script(f"sessionStorage.setItem('metamcp-session', '{token}')")
    other.goto(abroad.base)
    other.get_by_role("button", name="Log out").click()
    expect(other.get_by_role("alert")).to_have_text("You are logged out.")
    tab.bring_to_front()
    expect(tab.get_by_role("alert")).to_have_text("This session has ended.")
    # The tab that followed the news leaves its place to the other one, which has no session now.
    nobody = "navigator.locks.query().then(all => !all.held.concat(all.pending).length)"
    until(lambda: other.evaluate(nobody), "nobody follows the news")
    expect(other.get_by_role("alert")).to_have_text("You are logged out.")
    assert not [one for one in abroad.sessions() if one["key"] == made["id"]]


def test_a_page_that_comes_after_a_logout_leaves_the_reason_for_the_login(
    abroad: ConsoleAbroad, context: BrowserContext
) -> None:
    late: list[tuple[Route, APIResponse]] = []
    tab = context.new_page()
    tab.goto(abroad.base)
    log_in(tab, abroad.key("ann", "console:viewer")["key"])
    expect(tab.locator("#page h1")).to_be_visible()
    tab.route("**/f/tools", lambda route: late.append((route, route.fetch())))
    tab.locator("#rail").get_by_role("link", name="Tools").click()
    expect(tab.locator("main")).to_have_attribute("aria-busy", "true")
    tab.get_by_role("button", name="Log out").click()
    expect(tab.get_by_role("alert")).to_have_text("You are logged out.")
    ((route, answer),) = late
    with tab.expect_response("**/f/tools"):
        route.fulfill(response=answer)
    expect(tab.locator("main")).not_to_have_attribute("aria-busy", "true")
    expect(tab.get_by_role("alert")).to_have_text("You are logged out.")
    expect(tab.locator("#page")).to_have_count(0)


def test_who_replaces_the_key_of_the_own_session_still_sees_the_new_one(
    abroad: ConsoleAbroad, context: BrowserContext
) -> None:
    made = abroad.key("root", "console:admin")
    tab = context.new_page()
    tab.on("dialog", lambda dialog: dialog.accept())
    tab.goto(f"{abroad.base}/keys/{made['id']}")
    log_in(tab, made["key"])
    tab.get_by_role("button", name="Rotate").click()
    expect(tab.get_by_role("alert")).to_have_text("This session has ended.")
    new = tab.locator("figure.code code").first.text_content()
    assert new is not None
    log_in(tab, new)
    expect(tab.get_by_title("Role of this session")).to_have_text("admin")


def test_the_form_of_another_site_logs_nobody_in(
    abroad: ConsoleAbroad, context: BrowserContext
) -> None:
    made = abroad.key("lent", "console:admin")
    form = f"""<form method=post enctype=text/plain action={abroad.base}/login>
        <input name='{{"key":"{made["key"]}","x":"' value='"}}'></form>
        <script>document.forms[0].submit()</script>"""
    tab = context.new_page()
    with neighbour(form) as evil, tab.expect_response(f"{abroad.base}/login") as answer:
        tab.goto(evil)
    assert answer.value.status == 403
    assert not [one for one in abroad.sessions() if one["key"] == made["id"]]
