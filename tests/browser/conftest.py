"""Chromium in front of the console of a real gateway, for the tests of this folder."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.visits import BROKEN, FLAGS, PROGRAM, SERVERS, Console, missing
from tests.live.gateway import Gateway
from tests.waiting import until


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser. It ends with the module: while it runs, nothing else may start an event loop."""
    if why := missing():
        pytest.skip(why)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=PROGRAM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gateway(chromium: Browser) -> Iterator[Gateway]:
    with Gateway(SERVERS, wait=False) as found:
        until(found.answers, "the gateway answers")
        found.wait(*(name for name in SERVERS if name != BROKEN))
        yield found


@pytest.fixture(scope="module")
def console(gateway: Gateway) -> Console:
    return Console(gateway)


@pytest.fixture
def page(chromium: Browser, console: Console) -> Iterator[Page]:
    """A tab with the session of an admin. No script may fail, and the policy must block nothing."""
    with chromium.new_context() as context:
        console.session(context)
        tab = context.new_page()
        faults: list[str] = []
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on(
            "console",
            lambda said: (
                faults.append(said.text)
                if said.type == "error" and "Failed to load resource" not in said.text
                else None
            ),
        )
        yield tab
        assert faults == []
