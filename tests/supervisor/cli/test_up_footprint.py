"""What a running gateway has in memory: the code that it needs, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest

#: Each is a part of a MiB or several.
NEEDLESS = (
    "cryptography", "email", "http.client", "httpx2", "importlib.metadata", "mcp",
    "opentelemetry", "prometheus_client", "pydantic", "rich", "ruamel.yaml", "sqlite3", "ssl",
    "tomlkit", "typing_extensions", "urllib.request", "zipfile",
    "metamcp_supervisor.cli.ctl", "metamcp_supervisor.cli.config",
)  # fmt: skip

_PROGRAM = """
import sys
from pathlib import Path
import click
from metamcp_supervisor.__main__ import main

main.get_command(click.Context(main), "serve")
from metamcp_supervisor.cli import import_servers, output, up
from metamcp_supervisor.gateway import gateway, upgrade_exec, upgrade_state
from metamcp_supervisor.systemd import sd_sockets

up.CommandLineConfig(Path(sys.argv[1]), {}).confirm(yes=False, ask=None)
print(*sys.modules)
"""


@pytest.mark.process
def test_a_running_gateway_has_loaded_nothing_that_only_other_verbs_need(tmp_path: Path) -> None:
    config = tmp_path / "metamcp.toml"
    config.write_text('[servers.one]\ncommand = ["true"]\n')
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(config)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert "metamcp_supervisor.fronts.fronts" in loaded
    assert loaded.isdisjoint(NEEDLESS), sorted(loaded & set(NEEDLESS))
