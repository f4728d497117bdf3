"""What operators decided, as servers are added: in force before the first start of a server."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server, Start
from metamcp_supervisor.servers.decisions import DRAIN, QUARANTINE, STOP
from metamcp_supervisor.servers.server import CallsBlocked, OperatorQuarantine, StopServer
from metamcp_supervisor.verbs import Decision
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.messages import ServerDown, ServerWanted, Stop
from tests.supervisor.stage import Stage, front_up, opened_stage, staged_front, states, until

pytestmark = [pytest.mark.process, pytest.mark.promise("M125")]

GIT = Server(name="git", source="x", command=("git-server",))
OTHER = replace(GIT, name="other", start="lazy")
ADA = process_names.own("git", process_names.of_session("ada"))
WHY = "it was found malicious"


def decide(stage: Stage, kind: str, server: str = "git", reason: str = "operator") -> None:
    stage.manager.decisions.put(
        Decision(server=server, kind=kind, who="ann", when=5.0, why=WHY, reason=reason)
    )


def about(stage: Stage, server: str = "git") -> tuple[str, str]:
    """Kind of the decision about a server, and who made it."""
    decision = stage.manager.decisions.find(server)
    return ("", "") if decision is None else (decision.kind, decision.who)


def started(stage: Stage, server: str = "git") -> list[str]:
    return [player.name for player in stage.players if player.name.startswith(server)]


@pytest.mark.parametrize("start", ["eager", "lazy"])
@pytest.mark.parametrize(("kind", "state"), [(QUARANTINE, "quarantined"), (STOP, "stopped")])
async def test_neither_the_gateway_nor_a_call_starts_it(
    tmp_path: Path, kind: str, state: str, start: Start
) -> None:
    async with opened_stage(tmp_path) as stage:
        front = await front_up(stage)
        decide(stage, kind)
        stage.manager.add(replace(GIT, start=start, sharing="per-session"))
        stage.manager.add(OTHER)
        for name in ("git", ADA, "other"):
            front.say(ServerWanted(server=name))
        await stage.up("other")
        assert started(stage) == []
        assert about(stage) == (kind, "ann")
        assert states(front) == [(state, False)], "it was nothing else for an instant"


async def test_a_quarantine_by_the_gateway_lasts_with_its_reason(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        (await stage.up("git")).down("flood", "it talks without end")
        await stage.phase("git", "quarantined")
        await stage.manager.decisions.save()
    async with opened_stage(tmp_path) as stage:
        stage.manager.decisions.load(["git"])
        stage.manager.add(GIT)
        life = stage.manager.entries["git"].life
        assert (life.phase, life.reason, life.message) == (
            "quarantined", "flood", "it talks without end",
        )  # fmt: skip
        assert about(stage) == (QUARANTINE, "the gateway")
        stage.manager.change(replace(GIT, command=("mended",)), restart=True)
        await stage.up("git")
        assert about(stage) == ("", ""), "a new configuration lets it out"


async def test_a_reason_of_a_later_version_is_an_operators(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        decide(stage, QUARANTINE, reason="a later one")
        stage.manager.add(GIT)
        assert stage.manager.entries["git"].life.reason == "operator"


async def test_an_operator_alone_lets_it_out(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        stage.manager.quarantine("git", WHY, "ann")
        worker.down("clean", "it was stopped")
        stage.manager.change(replace(GIT, command=("other",)), restart=True)
        stage.manager.change(replace(GIT, enabled=False), restart=True)
        stage.manager.change(GIT, restart=True)
        await stage.phase("git", "quarantined")
        stage.manager.start("git")
        assert about(stage) == ("", "")
        await stage.up("git", 2)


async def test_a_drained_server_becomes_ready_without_calls(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        front = await front_up(stage)
        decide(stage, DRAIN)
        stage.manager.add(GIT)
        await stage.up("git")
        assert "ready" not in [state for state, _ in states(front)]
        assert states(front)[-1] == ("draining", True)
        stage.manager.part("git", "ann", yes=False)
        assert about(stage) == ("", "")
        await until(lambda: states(front)[-1] == ("ready", True), "calls come again")


async def test_a_stop_for_this_run_is_not_recorded_and_ends_what_was_decided(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        decide(stage, DRAIN)
        stage.manager.add(GIT)
        await stage.up("git")
        stage.manager.stop("git")
        assert about(stage) == ("", "")
        stage.manager.stop("git", "ann")
        assert about(stage) == (STOP, "ann")


@pytest.mark.parametrize("is_added", [False, True])
async def test_a_server_that_is_switched_off_and_on_in_the_file_starts(
    tmp_path: Path, *, is_added: bool
) -> None:
    async with opened_stage(tmp_path) as stage:
        decide(stage, STOP)
        if is_added:
            stage.manager.add(GIT)
            stage.manager.change(replace(GIT, enabled=False), restart=True)
        else:
            stage.manager.add(replace(GIT, enabled=False))
        assert about(stage) == ("", "")
        stage.manager.change(GIT, restart=True)
        await stage.up("git")


async def test_what_is_decided_about_a_process_for_one_client_ends_with_it(tmp_path: Path) -> None:
    git = replace(GIT, sharing="per-session")
    async with staged_front(tmp_path, git) as (stage, front):
        await stage.up("git")
        front.say(ServerWanted(server=ADA))
        await stage.up(ADA)
        stage.manager.quarantine(ADA, WHY, "ann")
        assert about(stage, ADA) == ("", "")


@pytest.mark.parametrize("kind", [QUARANTINE, STOP])
async def test_a_server_that_is_configured_again_before_it_was_gone_is_kept_down(
    tmp_path: Path, kind: str
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        stage.manager.remove("git")
        await until(lambda: worker.told(Stop), "asked to stop")
        decide(stage, kind)
        stage.manager.add(GIT)
        worker.say(ServerDown(reason="clean", message="it was stopped"))
        worker.leave(0)
        await until(lambda: not stage.manager.entries["git"].is_running, "it has left")
        phase = stage.manager.entries["git"].life.phase
        assert phase == ("quarantined" if kind == QUARANTINE else "disabled")
        assert started(stage) == ["git#1"]


async def test_decisions_are_taken_from_the_lives_that_an_earlier_version_hands_over(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        names = ("evil", "stopped", "drained", "fine")
        for name in names:
            stage.manager.add(replace(GIT, name=name))
            await stage.up(name)
        entries = stage.manager.entries
        stage.manager.feed(entries["evil"], OperatorQuarantine(WHY))
        stage.manager.feed(entries["drained"], CallsBlocked(yes=True))
        stage.manager.feed(entries["stopped"], StopServer())
        next(p for p in stage.players if p.name == "stopped#1").down("clean", "stopped")
        await stage.phase("stopped", "disabled")
        decide(stage, QUARANTINE, "fine")
        stage.manager.record_decisions("an operator of version 0.1.0")
        before = "an operator of version 0.1.0"
        assert {name: about(stage, name) for name in names} == {
            "evil": (QUARANTINE, before), "stopped": (STOP, before), "drained": (DRAIN, before),
            "fine": ("", ""),
        }  # fmt: skip
        decision = stage.manager.decisions.find("evil")
        assert decision is not None
        assert (decision.why, decision.reason) == (WHY, "operator")
