"""Visits to the console in a browser: its sessions, and what every test asks of a page."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

from tests.live.gateway import SERVER, Gateway, fake

PROGRAM = shutil.which("chromium") or "chromium"
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
FOREIGN = "rebound.example"
"""Name of another site, which leads to this machine as after DNS rebinding."""
FLAGS = (
    *(("--no-sandbox",) if os.geteuid() == 0 else ()),
    f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1",
)
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\x1b[31mred\x1b[0m \u202etfel",
    "wide ",
)
BAD, BROKEN = "bad", "broken"
"""Names of the server that says HOSTILE, and of the one that cannot start."""
_SPEAK = "import os, sys; sys.stderr.write({said}); os.execv(sys.argv[1], sys.argv[1:])"


def _speaking(said: str) -> dict[str, Any]:
    """A server that says this on standard error before it begins. `said`: an expression."""
    return {"command": [sys.executable, "-c", _SPEAK.format(said=said), *SERVER]}


SERVERS: dict[str, dict[str, Any]] = {
    "git": fake(),
    "loud": _speaking("''.join(f'line {n}\\n' for n in range(400))"),
    BAD: _speaking(f"'\\n'.join({HOSTILE!a}) + 'a' * 1000000 + '\\n'"),
    BROKEN: {"command": ["/nonexistent/<script>window.hacked = 3</script>"]},
}


def missing() -> str:
    """What is missing for a browser; nothing if all is there."""
    if shutil.which(PROGRAM) is None:
        return "Chromium is not installed; .ci/run installs it"
    return "" if AXE.exists() else "axe-core is not installed; `make test` installs it"


class Console:
    """Console of a gateway. Logins are limited, so each role logs in once."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.tokens: dict[str, str] = {}
        self.base = self.link("viewer").partition("/#")[0]

    def link(self, role: str = "admin") -> str:
        done = self.gateway.run("console", "--no-open", "--json", "--role", role)
        url: str = json.loads(done.stdout)["url"]
        return url

    def sessions(self) -> list[dict[str, Any]]:
        """The open sessions, the newest last."""
        done = self.gateway.run("console", "sessions", "--json")
        found: list[dict[str, Any]] = json.loads(done.stdout)["sessions"]
        return sorted(found, key=lambda one: -one["age_s"])

    def revoke(self, session: str) -> None:
        command = self.gateway.command("console", "revoke", session)
        subprocess.run(command, capture_output=True, timeout=60, check=True)

    def session(self, context: BrowserContext, role: str = "admin") -> None:
        """Give every tab of the context a session."""
        if role not in self.tokens:
            tab = context.new_page()
            tab.goto(self.link(role))
            expect(tab.locator("#page h1")).to_be_visible()
            self.tokens[role] = tab.evaluate("sessionStorage.getItem('metamcp-session')")
            tab.close()
        context.add_init_script(
            f"if (location.origin === {json.dumps(self.base)})"
            f" sessionStorage.setItem('metamcp-session', {json.dumps(self.tokens[role])})"
        )

    def open(self, tab: Page, path: str) -> None:
        tab.goto(self.base + path)
        expect(tab.locator("#page h1")).to_be_visible()


def judge(tab: Page) -> None:
    """Nothing on the page keeps people out, as far as a program can tell, and nothing of it is
    beyond the edge of the window."""
    if not tab.evaluate("'axe' in window"):
        tab.evaluate(AXE.read_text())
    found = tab.evaluate("axe.run({ resultTypes: ['violations'] })")
    said = [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in found["violations"]
    ]
    assert said == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than it is"
