"""What the supervisor has loaded while it only serves."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

_SERVING = """
import click, sys
from metamcp_supervisor.__main__ import main

assert main.get_command(click.Context(main), "serve")
from metamcp_supervisor.cli import output
from metamcp_supervisor.config import sources
from metamcp_supervisor.gateway import gateway, upgrade_exec
from metamcp_supervisor.systemd import sd_sockets
print(*sys.modules)
print(len(vars(sys.modules["msgspec.inspect"])), len(vars(sys.modules["asyncio.sslproto"])))
"""


def test_a_supervisor_that_serves_has_loaded_nothing_that_only_changes_and_mistakes_need() -> None:
    """Each is a tenth of a MiB or more."""
    done = subprocess.run(
        [sys.executable, "-c", _SERVING], capture_output=True, text=True, timeout=30, check=True
    )
    modules, sizes = done.stdout.splitlines()
    loaded = set(modules.split())
    assert "metamcp_supervisor.servers.quarantine_io" in loaded
    assert loaded.isdisjoint(
        {
            "difflib",
            "metamcp_supervisor.approval.comparison",
            "multiprocessing",
            "pickle",
            "shutil",
            "ssl",
            "tempfile",
        }
    )
    assert all(int(size) < 9 for size in sizes.split()), "they are unread"
