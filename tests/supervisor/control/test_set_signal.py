"""`set`, `signal` and `calls` over the control socket, and orders that are refused."""

import json
import signal

import pytest

from metamcp_supervisor.cli import listings
from metamcp_supervisor.config.config import Problem
from metamcp_supervisor.control.set_signal import name_of, number_of
from metamcp_supervisor.verbs import CallsUnderWay, Exit
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.figures import CallUnderWay
from tests.supervisor.cli.test_ctl import said
from tests.supervisor.control.test_control import peer
from tests.supervisor.small_gateway import server, steered


def under_way(server: str, age_s: float, state: str = "running", **more: str) -> CallUnderWay:
    given = {"name": "", "client": "", "session": "", "endpoint": "default", **more}
    return CallUnderWay(
        server=server, method="tools/call", age_s=age_s, state=state, front="front-0",
        progress=False, **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "number"),
    [("HUP", 1), ("SIGHUP", 1), ("sigusr1", 10), ("KILL", 9), ("15", 15), ("64", 64), ("1", 1)],
)
def test_a_signal_has_a_name_or_a_number(text: str, number: int) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize("text", ["0", "65", "-9", "999999", "SIG", "", "SEGV", "²"])
def test_what_is_no_signal_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        number_of(text)
    assert caught.value.code == Exit.USAGE
    assert "HUP, INT, QUIT" in caught.value.message
    assert name_of(signal.SIGWINCH) == "SIGWINCH"
    assert name_of(34) == "signal 34"


@pytest.mark.process
async def test_a_signal_goes_to_the_process_of_the_server_and_into_the_journal() -> None:
    async with steered(server("git"), server("far", pid=0)) as (gateway, directory):
        code, out, _ = await said(directory, "signal", "git", "HUP")
        assert (code, out) == (0, "git: SIGHUP sent to process 4121\n")
        assert gateway.signals == [("git", 1)]
        (event,) = gateway.journal.since(0)
        assert (event.who, event.what) == ("git", "signal")
        assert event.cause.startswith("SIGHUP to process 4121; asked by process ")
        code, _, err = await said(directory, "signal", "far", "HUP")
        assert code == Exit.FAILED
        assert "far has no process of its own" in err
        assert (await said(directory, "signal", "git", "NOPE"))[0] == Exit.USAGE


@pytest.mark.process
@pytest.mark.promise("M80")
async def test_a_setting_is_told_with_its_end_and_its_value_in_the_file() -> None:
    async with steered(server("git")) as (gateway, directory):
        code, out, err = await said(directory, "set", "git", "timeout=5s", "--until", "2h")
        assert (code, err) == (0, "")
        assert out.startswith("git: timeout 5s until ")
        assert out.endswith(" (else 60s)\n")
        shown = (await said(directory, "describe", "git"))[1]
        assert "set         timeout 5s until " in shown
        assert (await said(directory, "set", "git", "--clear"))[1] == "git: as in the file\n"
        assert "set  " not in (await said(directory, "describe", "git"))[1]
        assert [event.what for event in gateway.journal.since(0)] == ["set", "set over"]


@pytest.mark.process
@pytest.mark.promise("M89")
async def test_levels_of_the_log_are_set_like_settings_of_a_server() -> None:
    async with steered(server("log")) as (gateway, directory):
        words = ("log.level", "debug", "log.levels.http=error", "--until", "2h")
        code, out, err = await said(directory, "set", *words)
        assert (code, err) == (0, "")
        first, second = out.splitlines()
        assert first.startswith("log: log.level debug until ")
        assert first.endswith(" (else info)")
        assert second.startswith("log: log.levels.http error until ")
        head = (await said(directory, "status"))[1].splitlines()[0]
        assert head.endswith("/mcp  log.level debug  log.levels.http error")
        out = (await said(directory, "set", "log.level", "--clear", "--json"))[1]
        assert json.loads(out) == {"v": 1, "name": "", "overrides": []}
        assert "log.level" not in (await said(directory, "status"))[1]
        assert (await said(directory, "set", "log", "timeout=5s"))[1].startswith("log: timeout")
        told = [(event.who, event.what) for event in gateway.journal.since(0)]
        assert told == [("gateway", "set"), ("gateway", "set over"), ("log", "set")]
        (one, *_) = gateway.journal.since(0)
        assert one.cause.startswith("log.level debug until ")
        assert "; asked by process " in one.cause


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("log.level", "loud"), Exit.CONFIG, "log.level: 'loud' is not a choice; "),
        (("log.levels.http=loud",), Exit.CONFIG, "log.levels.http: 'loud' is not a level"),
        (
            ("log.levels.fornt=info",),
            Exit.CONFIG,
            "log.levels.fornt: is neither a room of the gateway",
        ),
        (("log.format", "json"), Exit.CONFIG, "log.format: cannot be set for a time"),
        (("log.level",), Exit.USAGE, "log.level has no level; say it as in: log.level debug"),
        (("log.level", "debug", "info"), Exit.USAGE, "'info' is not a level of the log"),
        (("log.level", "debug", "log.level=info"), Exit.USAGE, "'log.level' is there twice"),
        (("log.level", "debug", "--until", "2d"), Exit.USAGE, "24h"),
        (("log.level", "debug", "--clear"), Exit.USAGE, "'debug' is too much"),
        (("git", "timeout=5"), Exit.CONFIG, "servers.git.timeout: is not a duration"),
        (("git", "timeout"), Exit.USAGE, "is not KEY=VALUE"),
        (("git", "timeout=5s", "timeout=6s"), Exit.USAGE, "'timeout' is there twice"),
        (("git",), Exit.USAGE, "say what to set"),
        (("git", "timeout=5s", "--clear"), Exit.USAGE, "say what to set"),
        (("git", "timeout=5s", "--until", "2d"), Exit.USAGE, "24h"),
        (("got", "timeout=5s"), Exit.UNKNOWN_NAME, "did you mean 'git'"),
    ],
)
async def test_what_cannot_be_set_is_refused(
    arguments: tuple[str, ...], code: Exit, words: str
) -> None:
    async with steered(server("git")) as (gateway, directory):
        found, out, err = await said(directory, "set", *arguments)
        assert (found, out) == (code, "")
        assert words in err
        assert not gateway.overrides.all


@pytest.mark.process
async def test_calls_are_a_table_of_who_waits_for_what() -> None:
    async with steered(server("git"), server("fs")) as (gateway, directory):
        gateway.under_way = (
            under_way("git", 12.0, name="git__log", client="raw\n1", session="5f8a"),
            under_way("fs", 0.5, "held"),
        )
        code, out, _ = await said(directory, "calls")
        assert code == 0
        titles, first, second, foot = out.splitlines()
        assert tuple(titles.split()) == listings.CALL_COLUMNS
        assert " ".join(first.split()) == (
            "git tools/call git__log 12.0s running no raw 1 5f8a default front-0"
        )
        assert "500ms  held" in second
        assert foot == "2 under way; front-1 did not say"
        gateway.under_way = (under_way("git", 12.0, client="x" * 64),)
        assert f"{'x' * 23}…  " in (await said(directory, "calls"))[1]
        gateway.under_way = ()
        out = (await said(directory, "calls"))[1]
        assert out == "no call is under way; front-1 did not say\n"
        gateway.under_way = (under_way("git", 12.0), under_way("fs", 0.5))
        out = (await said(directory, "calls", "--slow", "1s"))[1]
        assert "fs" not in out
        assert (await said(directory, "calls", "got"))[0] == Exit.UNKNOWN_NAME


def test_what_is_not_shown_is_said() -> None:
    assert listings.calls_foot(CallsUnderWay(calls=())) == "no call is under way"
    found = CallsUnderWay(calls=(under_way("git", 1.0),), more=7)
    assert listings.calls_foot(found) == "1 under way; 7 more are not shown"


@pytest.mark.process
@pytest.mark.promise("M80")
async def test_an_order_that_is_refused_is_in_the_journal_with_who_and_why() -> None:
    async with steered(server("git")) as (gateway, directory), peer(directory) as client:
        assert (await client.ask("stop", names=["got"]))["error"]["code"] == Exit.UNKNOWN_NAME
        assert (await client.ask("stop"))["error"]["code"] == Code.INVALID_PARAMS
        gateway.problems = (Problem("metamcp.toml", "servers.git", "is wrong"),)
        assert (await client.ask("reload"))["error"]["code"] == Exit.CONFIG
        assert "error" in await client.ask("reload", dry_run=True), "a question is no order"
        assert "error" in await client.ask("status", wrong=1)
        assert "error" in await client.ask("logs", name="got")
        causes = [event.cause for event in gateway.journal.since(0) if "refused" in event.what]
    assert len(causes) == 3
    assert causes[0].startswith("'stop got' asked by process ")
    assert causes[0].endswith("no server is named 'got'; did you mean 'git'?")
    assert "'stop' asked by process " in causes[1]
    assert causes[2].endswith("stays in force: metamcp.toml: servers.git: is wrong")
