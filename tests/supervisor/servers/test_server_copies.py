"""What workers say of their servers beyond up and down, and what is known of them at their end."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.config import Server
from metamcp_worker.ipc.messages import Heartbeat, WorkerExit
from tests.supervisor.stage import Stage, opened_stage, until

pytestmark = [pytest.mark.process, pytest.mark.promise("M73")]

GIT = Server(name="git", source="x", command=("x",))


def news(stage: Stage) -> list[tuple[str, str]]:
    return [(event.what, event.cause) for event in stage.journal.since(0)]


async def test_missed_probes_are_told_once_and_take_no_calls_away(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        for seq, missed in enumerate((0, 1, 1, 2, 0, 0)):
            worker.say(Heartbeat(seq=seq, probes_missed=missed))
        await until(lambda: ("heard again", "") in news(stage), "the end of the silence")
        told = [one for one in news(stage) if one[0] == "probe missed"]
        assert told == [
            ("probe missed", "it did not answer, 1 in a row"),
            ("probe missed", "it did not answer, 2 in a row"),
        ]
        assert not stage.manager.entries["git"].life.degraded


async def test_the_stacks_of_a_worker_that_is_gone_are_in_the_log_of_its_server(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        text = "Fatal Python error: Aborted\n\n  File spin.py, line 3"
        stage.manager.copies.on_exit(WorkerExit(pid=worker.pid, signal=6, stacks=text))
        lines = [(line.stream, line.text) for line in stage.logs.tail("git", 9)]
        assert lines == [("stacks", text.splitlines()[0]), ("stacks", text.splitlines()[2])]
        assert "stacks" in dict(news(stage))
