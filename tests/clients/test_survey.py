"""The comparison of public servers with and without a sandbox, of one of them."""

from pathlib import Path

import pytest

from tests.clients import programs, survey

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not programs.STAMP.exists(), reason="`make test` installs the servers"),
]


def test_a_server_that_needs_nothing_is_equal_with_and_without_a_sandbox(tmp_path: Path) -> None:
    entry = {
        "command": ["npx", "-y", "@modelcontextprotocol/server-everything@2026.8.31"],
        "calls": [["echo", {"message": "hello"}]],
    }
    assert survey.compare("everything", entry, tmp_path) == ("equal", [])
