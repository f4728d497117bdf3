"""A person who logs in for a gateway: at a terminal, and in a browser."""

import subprocess
import urllib.request

from tests import programs
from tests.live.gateway import ROOT, Gateway

END_S = 60


def fetch(url: str, data: bytes | None = None) -> str:
    """Open a page, and go where it leads."""
    with urllib.request.urlopen(url, data, timeout=10) as page:
        text: str = page.read().decode()
        return text


def login(gateway: Gateway, name: str) -> tuple[int, str]:
    """`metamcp login`, and its link opened; the exit code, and what was said beside the link."""
    command = _command(gateway, "login", name, "--no-browser")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        if link:
            fetch(link)
        _, said = process.communicate(timeout=END_S)
        return process.returncode, said


def logout(gateway: Gateway, name: str) -> str:
    command = _command(gateway, "logout", name)
    done = programs.run(command, timeout=END_S, check=True)
    return done.stderr


def _command(gateway: Gateway, *words: str) -> list[str]:
    state = str(gateway.folder / "state")
    return gateway.command(*words, "--config", gateway.config, "--state-dir", state)
