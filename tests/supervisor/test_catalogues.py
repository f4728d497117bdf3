"""Catalogues on disk: whole or not at all, and trouble is told."""

import asyncio
from pathlib import Path

from msgspec import Raw

from metamcp_supervisor.lives.catalogues import Catalogues, Offer, offer
from metamcp_worker import catalogue
from metamcp_worker.catalogue import ServerCatalogue

TOOL = Raw(b'{"name":"a"}')
DATA = catalogue.pack(ServerCatalogue(protocol="x", tools=(TOOL, TOOL), prompts=(TOOL,)))


def kept(folder: Path, *puts: bytes) -> tuple[Offer | None, list[str]]:
    """Keep these one after the other; what a fresh start finds, and the trouble on the way."""
    trouble: list[str] = []

    async def work() -> None:
        store = Catalogues(folder, lambda server, sentence: trouble.append(sentence))
        for data in puts:
            store.keep("git", data)
        await store.close()

    asyncio.run(work())
    found = Catalogues(folder, lambda server, sentence: trouble.append(sentence)).load("git")
    return found, trouble


def test_the_cost_of_tools_is_a_token_for_four_bytes() -> None:
    found = offer(DATA)
    assert (found.tools, found.prompts, found.token_cost) == (2, 1, 6)


def test_what_was_kept_last_is_found_by_the_next_start(tmp_path: Path) -> None:
    other = catalogue.pack(ServerCatalogue(protocol="x"))
    found, trouble = kept(tmp_path, other, DATA)
    assert found == offer(DATA, from_cache=True)
    assert trouble == []
    assert [path.name for path in (tmp_path / "catalogue").iterdir()] == ["git.json"]


def test_a_disk_that_takes_nothing_is_told_and_leaves_the_old_file(tmp_path: Path) -> None:
    kept(tmp_path, DATA)
    (tmp_path / "catalogue" / "git.new").mkdir()
    found, trouble = kept(tmp_path, catalogue.pack(ServerCatalogue(protocol="x")))
    assert found == offer(DATA, from_cache=True)
    assert len(trouble) == 1
    assert "could not be kept on disk" in trouble[0]


def test_a_broken_file_is_told_and_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "catalogue").mkdir()
    (tmp_path / "catalogue" / "git.json").write_bytes(b'{"protocol":')
    found, trouble = kept(tmp_path)
    assert found is None
    assert "cannot be read" in trouble[0]
