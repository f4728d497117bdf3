"""Runs of several engines in a real PostgreSQL, of which one is killed."""

import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from metamcp_worker.ipc.engine_runs import HostAsk, HostDone
from tests.waiting import until
from tests.worker.engine.engines import Engine, by_name, echo, engine, result
from tests.worker.engine.postgres import PASSWORD, Postgres, postgres
from tests.worker.engine.test_run_questions import asks
from tests.worker.engine.test_workflow_runs import call, check_kills, finished, workflow

CRASH_RUNS = int(os.environ.get("METAMCP_CRASH_RUNS_POSTGRES", "2"))
"""Number of random definitions."""
DATABASE, LOST = "10.77.71.1", "10.77.71.2"
"""Addresses of two machines."""
pytestmark = [pytest.mark.process, pytest.mark.promise("M52")]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@contextmanager
def engines(folder: Path, database: str, count: int = 2) -> Generator[list[Engine]]:
    with ExitStack() as stack:
        found: list[Engine] = []
        for number in range(count):
            (folder / f"machine-{number}").mkdir()
            place = folder / f"machine-{number}"
            found.append(stack.enter_context(engine(place, database=database)))
        yield found


def test_a_run_of_a_killed_engine_ends_in_another_without_a_step_twice(
    tmp_path: Path, server: Postgres
) -> None:
    with engines(tmp_path, server.database()) as (one, other):
        second = other.peer(harmless=frozenset("c"))
        first = one.peer({"c": lambda _: one.process.kill()}, harmless=frozenset("c"))
        begun = first.order("workflow/run", definition=workflow(
            {"parallel": [call("a"), call("b")]}, call("c"),
            {"foreach": [1, 2], "steps": [call("d")]},
            {"output": "${{ steps.a.result.x + steps.c.result.x }}"},
        ))  # fmt: skip
        assert first.done(begun) is None
        run = first.asked[0].run
        found = finished(second, run)
        assert (found["status"], found["output"]) == ("done", 2)
        assert by_name([first, second]) == {"a": 1, "b": 1, "c": 2, "d": 2}
        asked = [ask for peer in (first, second) for ask in peer.asked if ask.name == "c"]
        assert len({bytes(ask.meta) for ask in asked}) == 1


def test_an_interrupted_step_that_is_not_safe_parks_and_any_engine_takes_the_decision(
    tmp_path: Path, server: Postgres
) -> None:
    with engines(tmp_path, server.database(), 3) as (one, other, third):
        first = one.peer({"b": lambda _: one.process.kill()})
        rest = [other.peer(), third.peer()]
        assert first.done(first.order("workflow/run", definition=workflow(call("b")))) is None
        run = first.asked[0].run
        parked = [finished(peer, run) for peer in rest]
        assert {(each["status"], each["step"]) for each in parked} == {("needs_decision", "b")}
        assert by_name(rest) == {}
        wrong = rest[0].ask("workflow/decide", run=run, step="c", decision="skip")[1]
        assert "these do: b" in wrong.text
        decided = [
            peer.ask("workflow/decide", run=run, step="b", decision="retry")[1] for peer in rest
        ]
        assert [done.failed for done in decided].count(False) == 1
        assert finished(rest[0], run, parked=False)["status"] == "done"
        assert by_name(rest) == {"b": 1}


def test_any_engine_takes_the_answer_to_a_question(tmp_path: Path, server: Postgres) -> None:
    with engines(tmp_path, server.database()) as (one, other):
        first, second = one.peer(), other.peer()
        run = first.ask("workflow/run", definition=asks(), wait=False)[0]["run"]
        until(
            lambda: second.ask("workflow/status", run=run)[0]["status"] == "needs_answer",
            "it waits",
        )
        wrong = second.ask("workflow/answer", run=run, step="name", content={"age": "x"})[1]
        assert "answer.age" in wrong.text
        second.ask("workflow/answer", run=run, step="name", content={"age": 36})
        assert finished(second, run)["output"]["result"] == {"age": 36}


@pytest.mark.parametrize("seed", range(CRASH_RUNS))
def test_no_kill_loses_a_step_or_repeats_a_completed_one(server: Postgres, seed: int) -> None:
    database = server.database()

    def rows(run: str) -> dict[str, tuple[str, int]]:
        with psycopg.connect(database) as base:
            wanted = "SELECT path, status, attempt FROM metamcp.steps WHERE run = %s"
            return {path: (status, n) for path, status, n in base.execute(wanted, (run,))}

    check_kills(seed, rows, database=database)


def test_each_engine_shows_and_cancels_runs_of_the_other(tmp_path: Path, server: Postgres) -> None:
    with engines(tmp_path, server.database()) as (one, other):
        first, second = one.peer(), other.peer()
        steps = workflow(call("a"), {"wait": "1h"}, call("b"))
        run = first.ask("workflow/run", definition=steps, wait=False)[0]["run"]
        assert [each["run"] for each in second.ask("workflow/runs")[0]["runs"]] == [run]
        until(lambda: second.ask("workflow/status", run=run)[0]["status"] == "waiting", "it waits")
        assert second.ask("workflow/cancel", run=run)[0]["status"] == "cancelled"
        assert first.ask("workflow/status", run=run)[0]["status"] == "cancelled"
        assert "ended already" in second.ask("workflow/cancel", run=run)[1].text
        assert by_name([first, second]) == {"a": 1}


def test_an_engine_whose_session_ends_ends_too_before_another_goes_on(
    tmp_path: Path, server: Postgres
) -> None:
    database = server.database()
    with engines(tmp_path, database) as (one, other):
        first, second = one.peer(), other.peer()
        steps = workflow(call("a"), {"wait": "3s"}, call("b"))
        run = first.ask("workflow/run", definition=steps, wait=False)[0]["run"]
        until(lambda: first.ask("workflow/status", run=run)[0]["status"] == "waiting", "it waits")
        (name,) = server.sql(
            "SELECT executor_id FROM metamcp_dbos.workflow_status WHERE status = 'PENDING'",
            database,
        )[0]
        wanted = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ="
        assert server.sql(f"{wanted} 'metamcp engine {name}'") == [(True,)]
        assert finished(second, run)["status"] == "done"
        assert by_name([first, second]) == {"a": 1, "b": 1}
        assert one.process.wait(60) == 1
        one.kill()
        one.start()


def test_secrets_are_nowhere_in_the_database_and_any_text_can_be(
    tmp_path: Path, server: Postgres
) -> None:
    def wrong(ask: HostAsk) -> HostDone:
        return HostDone(call=ask.call, result=result("no\0thing", failed=True))

    steps = workflow(
        call("a", **{"with": {"key": "${{ inputs.key }}"}}), call("b"),
        inputs={"key": {"type": "string", "secret": True}},
    )  # fmt: skip
    with engines(tmp_path, server.database(), 1) as (one,):
        peer = one.peer({"b": wrong})
        secret = "hunter2-hunter2"
        found, _ = peer.ask("workflow/run", definition=steps, inputs={"key": secret})
        assert found["status"] == "failed"
        assert secret.encode() in bytes(peer.asked[0].arguments)
        assert server.holds(found["run"].encode())
        assert not server.holds(secret.encode())


def test_without_the_database_an_order_is_refused_at_once_and_runs_go_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    with postgres() as own, engines(tmp_path, own.database(), 1) as (one,):
        first = one.peer()
        steps = workflow(call("a"), {"wait": "5s"}, call("b"))
        run = first.ask("workflow/run", definition=steps, wait=False)[0]["run"]
        until(lambda: first.ask("workflow/status", run=run)[0]["status"] == "waiting", "it waits")
        own.stop()
        assert one.process.wait(60) == 1
        one.kill()
        one.start()
        second = one.peer()

        def refusal() -> str:
            return second.ask("workflow/runs")[1].text

        until(lambda: "tries again" in refusal(), "the database is missed")
        assert refusal().startswith("The database of workflows cannot be used at 127.0.0.1")
        assert "Connection refused" in refusal()
        assert PASSWORD not in refusal()
        own.start()
        until(lambda: "tries again" not in refusal(), "the database is back")
        assert finished(second, run)["status"] == "done"
        assert by_name([first, second]) == {"a": 1, "b": 1}


def test_a_wrong_password_is_told_without_it(tmp_path: Path, server: Postgres) -> None:
    database = server.database().replace(PASSWORD, "wrong-battery")
    with engines(tmp_path, database, 1) as (one,):
        peer = one.peer()
        until(lambda: "password" in peer.ask("workflow/runs")[1].text, "it is told")
        assert "wrong-battery" not in peer.ask("workflow/runs")[1].text


def test_many_runs_of_two_engines_end_once_each_although_one_is_killed(
    tmp_path: Path, server: Postgres
) -> None:
    with engines(tmp_path, server.database()) as (one, other):
        names = frozenset(f"t{n}" for n in range(10))
        left = [60]

        def counting(ask: HostAsk) -> HostDone | None:
            left[0] -= 1
            if left[0] == 0:
                one.process.kill()
            return echo(ask)

        first = one.peer(dict.fromkeys(names, counting), harmless=names)
        second = other.peer(harmless=names)
        steps = [call(name) for name in sorted(names)]
        for peer in (first, second):
            for _ in range(10):
                peer.order("workflow/run", definition=workflow(*steps), wait=False)
        until(lambda: one.process.poll() is not None, "the engine is killed")

        def ended() -> list[str]:
            runs = second.ask("workflow/runs")[0]["runs"]
            return [each["run"] for each in runs if each["status"] == "done"]

        begun = {ask.run for peer in (first, second) for ask in peer.asked}
        until(lambda: begun <= set(ended()), "all runs have ended")
        done = [(ask.run, ask.name) for peer in (first, second) for ask in peer.asked]
        again = len(done) - len(set(done))
        assert again <= 10, "more than the step of each run that was under way"
        assert {name for _, name in done} == names
        one.kill()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces need root and the program ip",
)
def test_a_run_of_a_machine_that_is_lost_goes_on_elsewhere_and_that_engine_ends(
    tmp_path: Path,
) -> None:
    machine, cable = f"mm-lost-{os.getpid()}", f"mmd{os.getpid()}"[:15]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)

    ip("netns", "add", machine)
    try:
        ip("link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", machine)
        ip("addr", "add", f"{DATABASE}/24", "dev", cable)
        ip("link", "set", cable, "up")
        ip("-n", machine, "addr", "add", f"{LOST}/24", "dev", "cable")
        ip("-n", machine, "link", "set", "cable", "up")
        with postgres(DATABASE) as own, ExitStack() as stack:
            here = own.database()
            there = here.replace("127.0.0.1", DATABASE)
            places = [tmp_path / name for name in ("lost", "left")]
            for place in places:
                place.mkdir()
            wrapper = ("ip", "netns", "exec", machine)
            lost = stack.enter_context(engine(places[0], wrapper=wrapper, database=there))
            left = stack.enter_context(engine(places[1], database=here))
            first, second = lost.peer(), left.peer()
            steps = workflow(call("a"), {"wait": "10s"}, call("b"))
            run = first.ask("workflow/run", definition=steps, wait=False)[0]["run"]
            until(lambda: second.ask("workflow/status", run=run)[0]["status"] == "waiting", "so")
            ip("link", "set", cable, "down")
            assert finished(second, run)["status"] == "done"
            assert by_name([first, second]) == {"a": 1, "b": 1}
            assert lost.process.wait(60) == 1
            ip("link", "set", cable, "up")
            lost.kill()
            lost.start()
    finally:
        ip("netns", "del", machine)
