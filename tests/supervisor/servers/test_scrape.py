"""What a scrape sees of the lives, beside the status."""

from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers.entry import ServerEntry
from metamcp_supervisor.servers.scrape import StateReader
from tests.supervisor.stage import opened_stage, until


class Single(NamedTuple):
    pid: int


@pytest.mark.process
async def test_whether_the_gateway_lives_is_seen_without_its_servers(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        nobody: dict[str, ServerEntry] = {}
        reader = StateReader(nobody, stage.fronts, stage.heartbeats, Single(7), {}, [])
        seen = reader.pulse()
        assert (seen.fronts, seen.nursery_pid) == (("error",), 7)
        assert seen.loop_lag_s < 5.0
        await until(lambda: reader.pulse().fronts == ("warming",), "a front starts")


@pytest.mark.process
async def test_a_scrape_sees_who_makes_the_one_attempt_of_an_open_circuit(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        for name in ("git", "fs"):
            stage.manager.add(Server(name=name, source="x", command=("npx", name)))
        entries, heartbeats = stage.manager.entries, stage.heartbeats
        reader = StateReader(entries, stage.fronts, heartbeats, Single(7), {}, [])
        assert reader.read().probing == frozenset()
        entry = stage.manager.entries["git"]
        entry.life = replace(entry.life, probing=True)
        assert reader.read().probing == frozenset({"git"})


@pytest.mark.process
async def test_a_scrape_sees_whether_the_process_of_vectors_lives(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        entries, heartbeats = stage.manager.entries, stage.heartbeats
        reader = StateReader(
            entries, stage.fronts, heartbeats, Single(7), {"embedder": Single(8)}, []
        )
        heartbeats.watch(8, lambda verdict: None)
        assert reader.read().beat_ages_s == {}
        heartbeats.beat(8, "embedder")
        assert list(reader.read().beat_ages_s) == [("", "embedder")]
