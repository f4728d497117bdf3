"""Why a server is as it is: its history, the sentence, the screen, and no secret on it."""

import json
import os

import pytest

from metamcp_supervisor.control.describe import command_shown
from metamcp_supervisor.control.explain import Tries, explain_state
from metamcp_supervisor.telemetry.journal import ENDS_MAX, SERVERS_MAX, Histories
from metamcp_supervisor.verbs import Description, Exit, JournalEvent, LogLine, ServerProcess
from metamcp_supervisor.wording.descriptions import facts, format_time, processes
from tests.supervisor.cli.test_ctl import said
from tests.supervisor.control.test_control import peer
from tests.supervisor.small_gateway import server, steered


def event(what: str, cause: str = "", *, time: float = 0.0, who: str = "git") -> JournalEvent:
    return JournalEvent(seq=1, time=time, who=who, what=what, cause=cause, generation=3)


def told(*events: JournalEvent) -> Histories:
    histories = Histories()
    for one in events:
        histories.take(one)
    return histories


@pytest.mark.promise("M80")
@pytest.mark.parametrize(
    ("phase", "more", "sentence"),
    [
        ("idle", {}, "no process of it runs; the first call starts it"),
        ("queued", {}, "it waits for its turn to start"),
        ("warming", {}, "it is starting, and has 30s for its handshake and its lists"),
        ("ready", {}, "it answers calls"),
        (
            "backoff",
            {"reason": "exit", "message": "status 3", "retry_in_s": 4.21},
            ("it went down (exit: status 3); 3 failures in a row, 2 within 120 s (8 are allowed);"
            " next start in 5s"),
        ),
        (
            "failed",
            {"reason": "spawn", "message": "no\nprogram", "retry_in_s": 397.9},
            ("it went down (spawn: no program); 3 failures in a row, 2 within 120 s (8 are"
            " allowed); the circuit is open for the 2nd time in a row; one attempt in 6m38s, or"
            " with the next call"),
        ),
        (
            "failed",
            {"reason": "exit"},
            ('it went down (exit); restart = "never" plans no start,'
            " 'metamcp ctl start git' does"),
        ),
        (
            "disabled",
            {},
            "stopped by an operator; 'metamcp ctl start git' starts it",
        ),
        (
            "draining",
            {"inflight": 2},
            ("it takes no new calls (stopped by an operator); 2 in flight are finished, then it"
            " ends"),
        ),
        (
            "quarantined",
            {"reason": "limit", "message": "memory"},
            ("it is kept out (limit: memory); no timer and no call starts it,"
            " 'metamcp ctl clear git' does"),
        ),
        ("of-tomorrow", {"reason": "exit"}, "it is x, after it went down (exit)"),
    ],
)  # fmt: skip
def test_one_sentence_says_why_and_what_comes_next(
    phase: str, more: dict[str, object], sentence: str
) -> None:
    tries = Tries(failures=3, recent=2, trips=2, because="stopped by an operator", restart="never")
    assert explain_state(server("git", "x", phase=phase, **more), tries) == sentence


def test_a_worker_that_is_silent_and_an_attempt_of_an_open_circuit_are_told() -> None:
    silent = explain_state(server("git"), Tries(degraded=True))
    assert silent == "its worker does not answer at this moment, and is killed if that lasts"
    attempt = explain_state(server("git", "warming"), Tries(probing=True))
    assert attempt.startswith("it gets the one attempt of an open circuit, and has 30s for")


@pytest.mark.parametrize("phase", ["queued", "warming"])
def test_a_start_for_the_sake_of_others_is_told(phase: str) -> None:
    said = explain_state(server("git", phase), Tries(probing=True, for_others=True))
    assert "others wait for the same, and if it fails as before, that does not count" in said
    assert "the one attempt" not in said


def test_what_is_quoted_stays_one_sentence() -> None:
    said = explain_state(
        server("git", "error", phase="backoff", reason="exit", message="x\n" * 900), Tries()
    )
    assert "\n" not in said
    assert len(said) < 500


def test_a_history_knows_since_when_and_how_it_went_down() -> None:
    history = told(
        event("launched", "the start gate is open", time=1.0),
        event("warming→ready", "0.2 s, tools: 3", time=2.0),
        event("restart", "asked by somebody", time=3.0),
        event("ready→error", "exit: status 3: no; next start in 1.0 s", time=12.0),
    ).of("git")
    (end,) = history.ends
    assert (history.since, end.ready_s, end.generation) == (12.0, 10.0, 3)
    assert (end.reason, end.message, end.next) == ("exit", "status 3: no", "error")


def test_a_stop_that_was_asked_for_is_no_exit() -> None:
    history = told(
        event("ready→draining", "stopped by an operator"),
        event("drained"),
        event("draining→stopped"),
    ).of("git")
    assert not history.ends
    assert history.because == "stopped by an operator"


def test_one_that_flaps_pushes_nobody_elses_history_out() -> None:
    down = event("ready→error", "exit: once", who="calm")
    histories = told(down, *[event("ready→error", "exit: again")] * 5000)
    assert len(histories.of("git").ends) == ENDS_MAX
    assert [end.message for end in histories.of("calm").ends] == ["once"]


def test_histories_have_a_bound() -> None:
    histories = told(*(event("a→b", "x", who=f"s{n}", time=1.0) for n in range(SERVERS_MAX + 1)))
    assert histories.of("s0").since == 0.0
    assert histories.of(f"s{SERVERS_MAX}").since == 1.0


def test_commands_of_processes_show_no_secret() -> None:
    hidden = {"hunter2secret": "${env:TOKEN}", "value-of-env": "***", "a": "b"}
    command = ("npx", "srv", "hunter2secret", "--x=value-of-env", "--api-key", "k", "alpha")
    shown = ("npx", "srv", "${env:TOKEN}", "--x=***", "--api-key", "***", "alpha")
    assert command_shown(command, hidden) == shown


def test_processes_stand_below_the_one_that_started_them() -> None:
    def one(pid: int, parent: int) -> ServerProcess:
        return ServerProcess(
            pid=pid, parent=parent, command=(f"p{pid}",), rss_bytes=1024, cpu_s=0.0,
            descriptors=None,
        )  # fmt: skip

    rows = processes([one(5, 1), one(6, 5), one(7, 5), one(8, 6)])
    assert [row[-1] for row in rows] == ["p5", "  p6", "    p8", "  p7"]


def test_what_is_older_than_a_day_has_its_date() -> None:
    assert "-" not in format_time(1_000_000_000.0, 1_000_000_100.0)
    assert format_time(1_000_000_000.0, 1_000_200_000.0).startswith("2001-09-0")


@pytest.mark.process
@pytest.mark.promise("M80")
async def test_a_description_is_one_screen_with_processes_exits_and_log() -> None:
    git = server("git", phase="ready", worker_pid=os.getpid(), pid=0, protocol="2026-07-28")
    async with steered(git) as (gateway, directory):
        gateway.journal.add("git", "ready→error", "exit: status 3; next start in 1.0 s")
        gateway.journal.add("git", "warming→ready", "0.2 s")
        gateway.logs.add("git", "stderr", ["its \x1b[2Jlast words"])
        code, out, err = await said(directory, "describe", "git")
        as_json = json.loads((await said(directory, "describe", "git", "--json"))[1])
        unknown = await said(directory, "describe", "gti")
    assert (code, err) == (0, "")
    assert "why         it answers calls\n" in out
    assert "failures: 3 in a row, 2 within 120 s (8 are allowed)" in out
    assert "  metamcp worker git\n" in out
    assert "never  exit    error  status 3" in out
    assert "its \\x1b[2Jlast words" in out
    assert (as_json["v"], as_json["exits"][0]["reason"]) == (1, "exit")
    assert as_json["processes"][0]["descriptors"] > 0
    assert unknown[0] == Exit.UNKNOWN_NAME


async def test_spare_copies_of_a_server_are_among_its_processes() -> None:
    spare = server("git", "idle", phase="idle", pid=0, worker_pids=(os.getpid(),))
    async with steered(spare) as (_, directory), peer(directory) as client:
        found = (await client.ask("describe", name="git"))["result"]
        assert os.getpid() in {process["pid"] for process in found["processes"]}
        footprints = (await client.ask("top"))["result"]["footprints"]
        assert footprints["git"]["processes"] >= 1


async def test_a_server_without_a_process_is_described_as_well() -> None:
    async with (
        steered(server("git", "stopped", phase="disabled", pid=0)) as (_, directory),
        peer(directory) as client,
    ):
        found = (await client.ask("describe", name="git"))["result"]
        assert found["processes"] == found["exits"] == found["log"] == []
        assert found["why"].startswith("it is switched off")
        assert found["config"]["restart"] == "on-failure"


@pytest.mark.parametrize(
    ("sandbox", "text", "refused"),
    [
        ("basic", "sqlite3.OperationalError: unable to open database file", 'write = ["."]'),
        ("strict", "open /srv/x: permission denied", 'read = ["/srv/x"]'),
        ("none", "open /srv/x: permission denied", ""),
        ("basic", "ready", ""),
    ],
)
def test_a_log_that_complains_of_a_right_is_said_to_be_about_the_sandbox(
    sandbox: str, text: str, refused: str
) -> None:
    line = LogLine(seq=1, time=0.0, server="git", stream="stderr", text=text)
    found = Description(
        server=server("git", sandbox=sandbox), why="", since=0.0, failures=0, recent=0,
        recent_max=8, window_s=120.0, trips=0, config={}, source="", endpoints=(), list_hash="",
        exits=(), processes=(), log=(line,),
    )  # fmt: skip
    shown = dict(facts(found, 0.0)).get("refused", "")
    assert bool(shown) == bool(refused)
    assert refused in shown
    if refused:
        assert shown.startswith(f"its log complains: its sandbox '{sandbox}' does not let it ")
