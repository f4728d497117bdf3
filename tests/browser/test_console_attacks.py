"""Pages of others try to use the console through the browser of an operator."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.visits import FOREIGN, Console

pytestmark = [pytest.mark.live, pytest.mark.promise("M107")]


@contextmanager
def neighbour(html: str) -> Generator[str]:
    """Another program of this machine, which serves this page on a port of its own."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the library
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_form_of_another_port_changes_nothing(page: Page, console: Console) -> None:
    console.open(page, "/servers/git")
    form = f"""<form method=post action={console.base}/f/servers>
        <input name=order value=stop><input name=names value=git></form>
        <script>document.forms[0].submit()</script>"""
    with neighbour(form) as evil, page.expect_response(f"{console.base}/f/servers") as answer:
        page.goto(evil)
    assert answer.value.status == 403
    assert console.gateway.server("git")["state"] in ("ready", "active")


def test_a_foreign_name_that_leads_to_the_console_gets_nothing(
    chromium: Browser, console: Console
) -> None:
    port = console.base.rpartition(":")[2]
    with chromium.new_context() as context:
        tab = context.new_page()
        for path in ("/", "/f/servers", "/static/console.js"):
            answer = tab.goto(f"http://{FOREIGN}:{port}{path}")
            assert answer is not None
            assert answer.status == 421


def test_the_console_is_in_no_frame(chromium: Browser, console: Console) -> None:
    with (
        neighbour(f"<iframe src={console.base}/servers></iframe>") as evil,
        chromium.new_context() as context,
    ):
        tab = context.new_page()
        said: list[str] = []
        tab.on("console", lambda one: said.append(one.text))
        tab.goto(evil)
        tab.wait_for_load_state("networkidle")
        (frame,) = tab.main_frame.child_frames
        assert not frame.locator("#main").count()
        assert any("frame-ancestors" in one or "X-Frame-Options" in one for one in said)


def test_a_link_that_somebody_copied_opens_nothing_after_its_use(
    chromium: Browser, console: Console
) -> None:
    link = console.link("viewer")
    with chromium.new_context() as context, chromium.new_context() as thief:
        tab = context.new_page()
        tab.goto(link)
        expect(tab.locator("#pulse")).to_have_text("live")
        copied = thief.new_page()
        copied.goto(link)
        expect(copied.get_by_role("alert")).to_contain_text("this link was used")
        assert copied.evaluate("sessionStorage.length") == 0
