"""Catalogues on disk: whole or not at all, and trouble is told."""

import asyncio
import os
import resource
import signal
from pathlib import Path

from msgspec import Raw
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.reload import hash_launch
from metamcp_supervisor.servers.catalogues import CatalogueFigures, Catalogues, offer
from metamcp_worker.ipc import server_catalog
from metamcp_worker.ipc.server_catalog import ServerCatalogue

TOOL = Raw(b'{"name":"a","inputSchema":{"type":"object"}}')
DATA = server_catalog.pack(ServerCatalogue(protocol="x", tools=(TOOL, TOOL), prompts=(TOOL,)))


GIT = Server(name="git", source="x", command=("git-server",))
FILE = f"{hash_launch(GIT)}.json"


def kept(
    folder: Path, *puts: bytes, server: Server = GIT
) -> tuple[CatalogueFigures | None, list[str]]:
    """Keep these one after the other; what a fresh start finds, and the trouble on the way."""
    trouble: list[str] = []

    async def work() -> None:
        store = Catalogues(folder, lambda server, sentence: trouble.append(sentence))
        for data in puts:
            store.keep(GIT, data)
        await store.close()

    asyncio.run(work())
    data = Catalogues(folder, lambda server, sentence: trouble.append(sentence)).load(server)
    return offer(data, from_cache=True) if data else None, trouble


def test_the_cost_of_tools_is_a_token_for_four_bytes() -> None:
    found = offer(DATA)
    assert (found.tools, found.prompts, found.token_cost) == (2, 1, 22)


def test_what_was_kept_last_is_found_by_the_next_start(tmp_path: Path) -> None:
    other = server_catalog.pack(ServerCatalogue(protocol="x"))
    found, trouble = kept(tmp_path, other, DATA)
    assert found == offer(DATA, from_cache=True)
    assert trouble == []
    assert [path.name for path in (tmp_path / "catalogue" / "git").iterdir()] == [FILE]


def test_another_program_of_the_same_name_offers_something_else(tmp_path: Path) -> None:
    other = replace(GIT, command=("git-server", "--all"))
    assert kept(tmp_path, DATA, server=other) == (None, [])
    later = replace(GIT, timeout_s=1.0, enabled=False)  # what is started is the same
    assert kept(tmp_path, DATA, server=later)[0] == offer(DATA, from_cache=True)


async def test_another_program_that_offers_the_same_is_known_as_well(tmp_path: Path) -> None:
    other = replace(GIT, command=("git-server", "--all"))
    store = Catalogues(tmp_path, lambda server, sentence: None)
    for server in (GIT, other):
        store.keep(server, DATA)
        await store.close()
    assert store.load(other) == DATA


def test_what_was_offered_before_the_program_changed_does_not_stay(tmp_path: Path) -> None:
    older = tmp_path / "catalogue" / "git" / "0123.json"
    older.parent.mkdir(parents=True)
    older.write_bytes(DATA)
    kept(tmp_path, DATA)
    assert [path.name for path in older.parent.iterdir()] == [FILE]


def test_a_disk_that_takes_nothing_is_told_and_leaves_the_old_file(tmp_path: Path) -> None:
    kept(tmp_path, DATA)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
        found, trouble = kept(tmp_path, server_catalog.pack(ServerCatalogue(protocol="x")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert found == offer(DATA, from_cache=True)
    assert len(trouble) == 1
    assert "could not be kept on disk" in trouble[0]
    assert [path.name for path in (tmp_path / "catalogue" / "git").iterdir()] == [FILE]


def test_what_is_no_file_is_told_and_makes_nobody_wait(tmp_path: Path) -> None:
    (tmp_path / "catalogue" / "git").mkdir(parents=True)
    os.mkfifo(tmp_path / "catalogue" / "git" / FILE)
    found, trouble = kept(tmp_path)
    assert found is None
    assert "is a FIFO, not a regular file" in trouble[0]


def test_a_broken_file_is_told_and_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "catalogue" / "git").mkdir(parents=True)
    (tmp_path / "catalogue" / "git" / FILE).write_bytes(b'{"protocol":')
    found, trouble = kept(tmp_path)
    assert found is None
    assert "cannot be read" in trouble[0]
