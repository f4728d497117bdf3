"""What a scrape sees of the lives, beside the status."""

from dataclasses import replace
from pathlib import Path

import pytest

from metamcp_supervisor.lives.reading import Reader
from metamcp_supervisor.wanted.config import Server
from tests.supervisor.stage import Stage, played


@pytest.mark.process
def test_a_scrape_sees_who_makes_the_one_attempt_of_an_open_circuit(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        for name in ("git", "fs"):
            stage.tree.add(Server(name=name, source="x", command=("npx", name)))
        reader = Reader(stage.tree.entries, stage.fronts, stage.hearts, [])
        assert reader.read().probing == frozenset()
        entry = stage.tree.entries["git"]
        entry.life = replace(entry.life, probing=True)
        assert reader.read().probing == frozenset({"git"})

    played(tmp_path, play)
