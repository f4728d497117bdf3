"""How many lines that are no messages a server may write."""

from pathlib import Path

import pytest

from metamcp_supervisor.lives.floods import FLOOD_LINES_MAX, FLOOD_S, Noise, flood, heard
from metamcp_supervisor.lives.server import Life, Start, WentDown
from metamcp_supervisor.lives.states import ExitClass, Phase
from metamcp_supervisor.wanted.config import Restart, Server
from metamcp_worker.messages import Counted, Stop
from tests.supervisor.stage import Stage, played, until
from tests.supervisor.test_server import after, up


def test_the_lines_of_a_minute_count_together() -> None:
    noise = heard(Noise(), FLOOD_LINES_MAX, now=5.0)
    assert not flood(noise)
    noise = heard(noise, 1, now=5.0 + FLOOD_S - 1)
    assert f"{FLOOD_LINES_MAX + 1} lines within 60 s were no messages" in flood(noise)


def test_each_minute_is_counted_anew() -> None:
    noise = heard(heard(Noise(), FLOOD_LINES_MAX, now=0.0), 7, now=FLOOD_S)
    assert noise == Noise(FLOOD_S, 7)
    assert not flood(noise)


def test_a_server_that_is_always_a_bit_noisy_is_none() -> None:
    noise = Noise()
    for second in range(600):
        noise = heard(noise, FLOOD_LINES_MAX // 60, float(second))
        assert not flood(noise)


@pytest.mark.parametrize("restart", ["always", "on-failure", "never"])
def test_a_flood_is_quarantine_at_once_whatever_the_policy(restart: Restart) -> None:
    life = up(Life(restart=restart))
    life = after(life, WentDown(ExitClass.FLOOD, "it flooded", spare=7), now=1.0)
    assert (life.phase, life.retry_at) == (Phase.QUARANTINED, None)
    assert after(life, Start("client"), now=1e6).phase is Phase.QUARANTINED
    assert after(life, Start("operator"), now=2.0).phase is Phase.QUEUED


@pytest.mark.process
@pytest.mark.promise("M15")
def test_a_server_that_floods_is_quarantined_even_if_it_has_a_spare(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.tree.add(Server(name="git", source="x", command=("x",), spares=1))
        worker = await stage.up("git")
        (await stage.player("git#2")).ready()
        await until(lambda: "spare ready" in stage.told("git"), "the spare")
        worker.say(Counted(counts={"stray_stdout": FLOOD_LINES_MAX + 1}))
        await stage.phase("git", "quarantined")
        life = stage.tree.entries["git"].life
        assert life.reason == "flood"
        assert "flooded its stdout" in life.message
        assert life.retry_at is None
        await until(lambda: worker.signals, "it is killed")
        spare = await stage.player("git#2")
        await until(lambda: spare.told(Stop), "the spare is told to go")

    played(tmp_path, play)
