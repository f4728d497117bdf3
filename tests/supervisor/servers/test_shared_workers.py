"""Which servers share a worker."""

from typing import Any

import pytest

from metamcp_supervisor.servers.shared_workers import find_worker
from tests.supervisor.configs import server


@pytest.mark.parametrize(
    ("settings", "workers", "worker"),
    [
        ({}, "each", ""),
        ({}, "shared", "default:shared"),
        ({"name": "acme:git"}, "shared", "acme:shared"),
        ({"worker": "shared"}, "each", "default:shared"),
        ({"worker": "pair"}, "each", "default:pair"),
        ({"worker": "own"}, "shared", ""),
        ({"command": (), "url": "https://x/mcp"}, "shared", "default:shared-remote"),
        ({"command": (), "module": "notes:server"}, "shared", ""),
        ({"command": (), "transport": "carrier"}, "shared", ""),
        ({"name": "git@legacy"}, "shared", "default:shared"),
        ({"name": "git@0123456789ab"}, "shared", ""),
    ],
)
def test_servers_of_a_workspace_share_a_worker_unless_they_run_code_in_it_or_are_for_one_client(
    settings: dict[str, Any], workers: str, worker: str
) -> None:
    assert find_worker(server(**{"name": "git", **settings}), workers) == worker
