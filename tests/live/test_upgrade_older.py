"""A real earlier program hands a gateway over to this one, and takes it back.

It needs the history of the repository, so it runs each night and when the messages change.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.live.client import MODERN, Client
from tests.live.load import Callers
from tests.live.upgradable import CALLED, SERVERS, Upgradable, wait_for_answers
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M79"), pytest.mark.promise("M125")]

OLDER = "466cbb0775e81eee64689bcaaad7223376c7a03e"
"""Commit of the earlier program. A release replaces it by its tag: the step from the release before
is what users do."""
ROOT = Path(__file__).parents[2]
PACKAGES = ("supervisor/metamcp_supervisor", "worker/metamcp_worker")
ARCHIVE_S_MAX = 60.0


def write_older(folder: Path) -> None:
    """Write both packages of the earlier program into `folder`."""
    for package in PACKAGES:
        command = ("git", "archive", f"{OLDER}:{Path(package).parent}", Path(package).name)
        archive = subprocess.run(
            command, cwd=ROOT, capture_output=True, timeout=ARCHIVE_S_MAX, check=False
        )
        assert archive.returncode == 0, f"fetch the whole history: {archive.stderr.decode()}"
        subprocess.run(("tar", "-x", "-C", folder), input=archive.stdout, check=True)


def knows_shared_workers(gateway: Upgradable) -> bool:
    return "worker" in gateway.status()["servers"][0]


def calls(gateway: Upgradable) -> int:
    return sum(server["calls"] for server in gateway.status()["servers"])


def test_an_earlier_program_is_upgraded_under_load_and_comes_back(tmp_path: Path) -> None:
    write_older(tmp_path)
    gateway = Upgradable(extra="[gateway]\nfronts = 2")
    shutil.copytree(tmp_path, gateway.packages, symlinks=True, dirs_exist_ok=True)
    with gateway:
        assert not knows_shared_workers(gateway), "the earlier program runs"
        client, pids = Client(gateway.port), gateway.pids()
        with (
            Callers(gateway.port, CALLED, callers=2) as legacy,
            Callers(gateway.port, CALLED, callers=2, era=MODERN) as modern,
        ):
            wait_for_answers(legacy, modern)
            gateway.extra = "[gateway]\nfronts = 3"  # it waits for a restart, over both upgrades
            gateway.write(SERVERS)
            for package in gateway.packages.iterdir():
                shutil.rmtree(package)
            gateway.upgrade()
            assert knows_shared_workers(gateway), "this program runs"
            assert len(gateway.status()["fronts"]) == 2
            wait_for_answers(legacy, modern)
            shutil.copytree(tmp_path, gateway.packages, symlinks=True, dirs_exist_ok=True)
            gateway.upgrade()
            assert not knows_shared_workers(gateway), "the earlier program runs again"
            assert len(gateway.status()["fronts"]) == 2
            wait_for_answers(legacy, modern)
        for tally in (legacy.tally, modern.tally):
            assert (tally.wrong, tally.errors, tally.refused, tally.broken) == ([], {}, 0, 0)
        assert gateway.pids() == pids
        assert gateway.status()["upgrades"] == 2
        assert client.text("old__echo", text="still") == "still"
        answers = legacy.tally.right + modern.tally.right + 1
        until(lambda: calls(gateway) == answers, "each call ran once")
        client.end()
