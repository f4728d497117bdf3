"""Recorded calls at the prompt: read as they are, shown, and which of them can be made again."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec import Raw

from metamcp_supervisor.calls.tool_call import RequestForm, outcome_of
from metamcp_supervisor.cli import listings, recordings
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_supervisor.wording import recorded_calls
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.records import FinishedCall, word

pytestmark = pytest.mark.promise("M89")

MS = 1_790_000_000_000


def call(number: int = 1, **more: Any) -> FinishedCall:
    plain: dict[str, Any] = {
        "id": word(MS + number, 0, number), "time": "2026-09-21T13:33:20.000Z", "server": "git",
        "method": "tools/call", "outcome": "ok", "duration_ms": 1.5, "front": 0, "call": number,
        "name": "git__status", "endpoint": "default", "protocol": "2026-07-28",
    }  # fmt: skip
    return FinishedCall(**{**plain, **more})


def written(folder: Path, name: str, *lines: object, tail: bytes = b"") -> Path:
    """A file of the state directory `folder`."""
    path = folder / "calls" / f"calls-{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(codec.dump(line) + b"\n" for line in lines) + tail)
    return path


def run(folder: Path, *arguments: str, command: click.Command = recordings.calls) -> Result:
    """The command at the prompt, its output no terminal."""
    return CliRunner().invoke(command, ["--state-dir", str(folder), *arguments])


def test_calls_of_all_files_are_one_table_with_the_newest_last(tmp_path: Path) -> None:
    written(tmp_path, "1", call(1), call(4, outcome="-10003"))
    written(tmp_path, "2", call(2, server="notes", name="notes__find"), call(3))
    lines = run(tmp_path).stdout.splitlines()
    assert lines[0].split()[:4] == ["TIME", "ID", "SERVER", "NAME"]
    assert [call(n).id in lines[n] for n in (1, 2, 3, 4)] == [True] * 4
    assert "-10003 timed_out" in lines[4]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--server", "notes"), [2]),
        (("--tool", "git__status"), [1, 3, 4]),
        (("--tool", "git.status"), [1, 3, 4]),
        (("--tool", "git/status"), [1, 3, 4]),
        (("--errors",), [4]),
        (("--limit", "2"), [4, 5]),
        (("--since", "1h"), []),
    ],
)
def test_calls_can_be_narrowed_down(
    tmp_path: Path, options: tuple[str, ...], numbers: list[int]
) -> None:
    written(tmp_path, "1", call(1), call(2, server="notes", name="n__x"), call(3))
    written(tmp_path, "2", call(4, outcome="tool_error"), call(5, outcome="cancelled", name="n__x"))
    found = run(tmp_path, "--json", *options).stdout.splitlines()
    assert [json.loads(line)["call"] for line in found] == numbers


def test_lines_that_are_lost_are_told_and_half_ones_are_passed_over(tmp_path: Path) -> None:
    written(tmp_path, "1", call(1), {"lost": 7}, tail=b'{"half\n')
    written(tmp_path, "1", call(2))
    done = run(tmp_path)
    assert done.stdout.splitlines()[-1] == "7 more could not be written"
    assert len(done.stdout.splitlines()) == 4
    for_programs = run(tmp_path, "--json")
    assert [json.loads(line)["call"] for line in for_programs.stdout.splitlines()] == [1, 2]
    assert for_programs.stderr == "metamcp: 7 more could not be written\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_follower_is_told_of_calls_that_are_lost(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (
        recorded_calls.RecordedLine(b'{"lost":3}\n', lost=3),
        recorded_calls.RecordedLine(b"{}\n", call=call(9)),
    ):
        recordings.follow_line(line, lambda call: call.server == "notes", as_json=as_json)
    told = '{"lost":3}\n' if as_json else "… 3 more could not be written\n"
    assert capsys.readouterr().out == told, "nobody knows whose they were"


@pytest.mark.parametrize("command", [recordings.calls, recordings.replay])
@pytest.mark.parametrize("follow", [True, False])
def test_a_state_directory_that_is_not_there_is_said(
    tmp_path: Path, command: click.Command, follow: bool
) -> None:
    word = ["1m81dxcsw0000003"] if command is recordings.replay else ["-f"] if follow else []
    done = run(tmp_path / "gone", *word, command=command)
    assert (done.exit_code, done.stdout) == (Exit.UNKNOWN_NAME, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"metamcp: there are no recorded calls: {tmp_path / 'gone'} does not ")


def test_where_nothing_was_recorded_it_says_so_and_what_turns_it_on(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.exit_code, done.stdout) == (Exit.UNKNOWN_NAME, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"metamcp: there are no recorded calls in {tmp_path / 'calls'}: is it ")
    assert line.endswith('; calls = "metadata" in [recording] turns it on')


@pytest.mark.parametrize(
    ("recording", "said"),
    [
        ("", "recording is off in {file}; calls = "),
        (
            '[recording]\ncalls = "full"\n',
            "recording is on in {file}; no call has ended since a gateway read it",
        ),
        ('[servers.git]\ncommand = ["x"]\nrecording = "full"\n', "recording is on in {file}; no"),
    ],
)
def test_it_says_whether_the_configuration_wants_recordings(
    tmp_path: Path, recording: str, said: str
) -> None:
    file = tmp_path / "metamcp.toml"
    file.write_text(f'[gateway]\nstate_dir = "{tmp_path}"\n{recording}')
    done = CliRunner().invoke(recordings.calls, ["--config", str(file)])
    assert done.exit_code == Exit.UNKNOWN_NAME
    assert said.format(file=file) in done.stderr
    written(tmp_path, "1", call(1))
    assert CliRunner().invoke(recordings.calls, ["--config", str(file)]).exit_code == 0


def test_that_no_call_fits_is_no_error(tmp_path: Path) -> None:
    written(tmp_path, "1", call(1))
    done = run(tmp_path, "--server", "notes")
    assert done.exit_code == 0
    assert done.stdout.startswith("no recorded call fits in ")
    assert "'metamcp ctl calls'" in done.stdout


def test_days_can_be_looked_back(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    times = {number: (now - timedelta(days=number)).isoformat() for number in (1, 3, 100)}
    written(tmp_path, "1", *(call(number, time=when) for number, when in times.items()))
    for since, numbers in (("2d", [1]), ("4d12h", [1, 3]), ("366d", [1, 3, 100])):
        found = run(tmp_path, "--json", "--since", since).stdout.splitlines()
        assert [json.loads(line)["call"] for line in found] == numbers, since


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("367d", 'is too long; the longest duration here is "366d"'),
        ("2 d", 'is not a duration; write it like "500ms", "30s", "15m", "2d" or "1h30m"'),
    ],
)
def test_a_time_that_is_no_sensible_one_is_refused(tmp_path: Path, text: str, why: str) -> None:
    done = run(tmp_path, "--since", text)
    assert done.exit_code == Exit.USAGE
    assert why in done.stderr


def test_one_call_is_shown_whole_and_nothing_of_it_reaches_the_terminal(tmp_path: Path) -> None:
    body = Raw(b'{"b":1,"a":"\\u001b[2J"}')
    one = call(arguments=body, arguments_bytes=22, result=Raw(b'"cut \\u001b[2J"'), result_bytes=99,
               cut=("result",))  # fmt: skip
    written(tmp_path, "1", one)
    out = run(tmp_path, one.id.upper()).stdout
    assert "arguments (22 bytes)" in out
    assert "result (99 bytes, cut)\n  cut \\x1b[2J\n" in out
    assert "\x1b" not in out


def test_an_id_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    written(tmp_path, "1", call(1))
    for command in (recordings.calls, recordings.replay):
        done = run(tmp_path, "nothing", command=command)
        assert done.exit_code == Exit.UNKNOWN_NAME
        assert len(done.stderr.splitlines()) == 1


def test_a_body_without_a_value_is_shown_as_it_is(tmp_path: Path) -> None:
    one = call(arguments=Raw(b'{"a":1e999,"b":"\xc2\x9b31m"}'), arguments_bytes=20)
    written(tmp_path, "1", one)
    done = run(tmp_path, one.id)
    assert done.exit_code == 0
    assert '  {"a":1e999,"b":"\\x9b31m"}\n' in done.stdout


def test_the_past_and_what_follows_it_are_told_once_each(tmp_path: Path) -> None:
    written(tmp_path, "1", call(1), tail=codec.dump(call(2))[:20])
    following = recorded_calls.RecordingFollower(tmp_path / "calls")
    assert [line.call for line in following.news()] == [call(1)]
    written(tmp_path, "1", tail=codec.dump(call(2))[20:] + b"\n")
    assert [line.call for line in following.news()] == [call(2)]
    assert list(following.news()) == []


def test_a_file_that_is_gone_when_it_is_looked_at_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, "1", call(1))
    (tmp_path / "calls" / "calls-2.jsonl").symlink_to(tmp_path / "gone")
    following = recorded_calls.RecordingFollower(tmp_path / "calls")
    assert [line.call for line in following.news()] == [call(1)]


def test_what_is_added_is_followed_once_it_is_whole(tmp_path: Path) -> None:
    written(tmp_path, "1", call(1))
    following = recorded_calls.RecordingFollower(tmp_path / "calls")
    assert [line.call for line in following.news()] == [call(1)]
    written(tmp_path, "1", tail=codec.dump(call(2))[:20])
    assert list(following.news()) == []
    written(tmp_path, "1", tail=codec.dump(call(2))[20:] + b"\n")
    written(tmp_path, "2", call(3))
    assert [line.call for line in following.news()] == [call(2), call(3)]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"arguments_bytes": 5}, "its arguments were not recorded"),
        ({"arguments": Raw(b"{}"), "masked": ("arguments",)}, "a secret was taken out"),
        ({"arguments": Raw(b'"{"'), "cut": ("arguments",)}, "its arguments were cut"),
        ({"method": "resources/read", "name": "x://a?key=***"}, "a secret was taken out"),
    ],
)
def test_what_is_not_known_whole_is_not_made_again(more: dict[str, Any], why: str) -> None:
    with pytest.raises(Failed, match=why):
        recorded_calls.params(call(**more))


def test_a_call_is_made_again_as_it_was() -> None:
    assert recorded_calls.params(call(arguments=Raw(b'{"a":1}'), arguments_bytes=7)) == {
        "name": "git__status", "arguments": Raw(b'{"a":1}'),
    }  # fmt: skip
    assert recorded_calls.params(call())["arguments"] == Raw(b"{}"), "it had none"
    assert recorded_calls.params(call(method="resources/read", name="x://a")) == {"uri": "x://a"}


def test_a_modern_request_repeats_in_headers_what_its_revision_wants() -> None:
    tool = {"inputSchema": {"properties": {"r": {"type": "string", "x-mcp-header": "Region"}}}}
    asked = {"name": "git__é", "arguments": Raw(b'{"r":"west","n":1e999}')}
    said = RequestForm().headers("tools/call", asked, tool)
    assert said == {
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
        "Mcp-Name": "=?base64?Z2l0X1/DqQ==?=", "Mcp-Param-Region": "west",
    }  # fmt: skip
    unfit = {"inputSchema": {"x-mcp-header": "Root"}}
    assert RequestForm().headers("tools/call", asked, unfit).keys() == said.keys() - {
        "Mcp-Param-Region"
    }


def test_outcomes_have_one_word_each() -> None:
    assert recorded_calls.outcome(call()) == "ok"
    assert recorded_calls.outcome(call(outcome="-32000")) == "-32000"
    answers = {
        b'{"id":1,"result":{}}': "ok",
        b'{"id":1,"result":{"isError":true}}': "tool_error",
        b'{"id":1,"error":{"code":-10001}}': "-10001",
        b'{"id":1,"error":{"code":"\\u001b[2J"}}': "-32603",
        b'{"id":1,"error":"no"}': "-32603",
        b'{"id":1,"error":{"code":0,"message":"of an SDK"}}': "0",
    }
    for raw, said in answers.items():
        assert outcome_of(codec.envelope(raw))[0] == said


def test_the_help_tells_calls_that_are_over_from_those_under_way() -> None:
    over = CliRunner().invoke(recordings.calls, ["--help"]).stdout
    under_way = CliRunner().invoke(listings.calls, ["--help"]).stdout
    assert "'metamcp ctl calls'" in over
    assert "'metamcp calls'" in under_way
