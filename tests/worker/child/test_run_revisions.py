"""Servers that refuse every revision but one: a whole worker finds it, however they refuse."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from metamcp_worker.child.jsonrpc_lines import LEGACY
from tests.fakes.one_revision import CODE, DATA, NAMING, PLAIN, WAYS
from tests.worker.child.worker import ROOT, ChildWorker

pytestmark = pytest.mark.process

FAKE = (sys.executable, str(ROOT / "tests" / "fakes" / "one_revision.py"))


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with subprocess.Popen(FAKE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip().removesuffix("/mcp")
        server.stdin.close()


def check(revision: str, way: str, worker: ChildWorker, tries_max: int) -> None:
    with worker:
        catalogue = worker.ready()
        assert catalogue.protocol == revision
        assert int(json.loads(bytes(catalogue.serverInfo))["version"]) <= tries_max
        front = worker.front()
        assert front.text(front.tool("echo")).startswith(revision)
        worker.stop()


def tries(revision: str, way: str) -> int:
    """How many times `initialize` is sent at most. The probe of the modern era went before."""
    return 2 if way in NAMING else 1 + LEGACY.index(revision)


@pytest.mark.promise("M10")
@pytest.mark.parametrize("revision", LEGACY)
@pytest.mark.parametrize("way", [PLAIN, CODE, DATA])
def test_a_program_is_asked_for_the_one_revision_that_it_speaks(revision: str, way: str) -> None:
    check(revision, way, ChildWorker(command=(*FAKE, revision, way)), tries(revision, way))


@pytest.mark.promise("M11")
@pytest.mark.parametrize("place", ["mcp", "sse"])
@pytest.mark.parametrize("revision", LEGACY)
@pytest.mark.parametrize("way", WAYS)
def test_a_remote_server_is_asked_for_the_one_revision_that_it_speaks(
    site: str, revision: str, way: str, place: str
) -> None:
    url = f"{site}/{revision}/{way}/{place}"
    check(revision, way, ChildWorker(command=(), url=url), tries(revision, way))


@pytest.mark.parametrize("place", ["mcp", "sse"])
def test_a_known_revision_is_used_at_once(site: str, place: str) -> None:
    url = f"{site}/{LEGACY[3]}/{PLAIN}/{place}"
    worker = ChildWorker(command=(), url=url, known_protocol=LEGACY[3])
    check(LEGACY[3], PLAIN, worker, 1)


def test_a_server_that_speaks_none_of_them_is_told_in_its_own_words(site: str) -> None:
    with ChildWorker(command=(), url=f"{site}/1999-01-01/text/mcp") as worker:
        down = worker.down()
        assert down.reason == "protocol"
        assert "unsupported version (supported: 1999-01-01)" in down.message
