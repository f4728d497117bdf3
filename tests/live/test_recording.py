"""Logs without secrets, calls that are recorded, looked at, and made once more."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_supervisor.wording.recorded_calls import lines
from metamcp_worker.ipc.records import word
from tests import programs
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M89")]

SERVER = [sys.executable, str(ROOT / "tests" / "fakes" / "indiscreet_server.py")]
SECRET = "hunter2-hunter2"
SERVERS: dict[str, dict[str, Any]] = {
    "loose": {"command": SERVER, "env": {"API_TOKEN": SECRET}},
    "terse": {"command": SERVER, "recording": "metadata", "timeout": "1s"},
    "quiet": {"command": SERVER, "recording": "off"},
}

EXTRA = """
[recording]
calls = "full"
[endpoints.default]
namespace = "default"
[endpoints.desk]
namespace = "default"
exposure = "search"
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS, extra=EXTRA) as running:
        yield running


def metamcp(gateway: Gateway, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`metamcp calls` or `replay` for this gateway."""
    where = ["--state-dir", str(gateway.folder / "state")]
    if verb == "replay":
        where += ["--runtime-dir", str(gateway.folder / "run")]
    return programs.run([*programs.PROGRAM, verb, *where, *arguments])


def recorded(gateway: Gateway) -> list[dict[str, Any]]:
    """All that is in the files."""
    found = lines(gateway.folder / "state" / "calls")
    return [json.loads(line.raw) for line in found if line.call is not None]


def called(gateway: Gateway, tool: str, era: str = MODERN, **arguments: Any) -> dict[str, Any]:
    """Call it, and wait for the line about it."""
    begin = time.time_ns() // 1_000_000 + 1
    until(lambda: time.time_ns() // 1_000_000 >= begin, "no earlier call has its millisecond")
    now = word(begin, 0, 0)
    client = Client(gateway.port, era)
    client.call(tool, **arguments)
    client.end()

    def news() -> list[dict[str, Any]]:
        return [one for one in recorded(gateway) if one["name"] == tool and one["id"] >= now]

    (line,) = until(news, "the call is recorded")
    return line


def test_a_secret_that_a_server_writes_is_masked_wherever_it_is_shown(gateway: Gateway) -> None:
    first, *_ = until(lambda: gateway.logs("loose"), "it has written its first line")
    assert (first["server"], first["stream"]) == ("loose", "stderr")
    assert first["text"] == "started with the token ***"
    gateway.ctl("restart", "loose", "--wait")
    until(lambda: "going with the token ***" in str(gateway.logs("loose")), "its last words")
    assert SECRET not in gateway.ctl("events") + gateway.ctl("describe", "loose")
    log = gateway.log.read_text()
    assert "going with the token ***" in log
    assert SECRET not in log


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_recorded_call_says_what_it_was(gateway: Gateway, era: str) -> None:
    line = called(gateway, "loose__look", era, text="hello")
    assert (line["server"], line["outcome"], line["protocol"]) == ("loose", "ok", era)
    assert line["arguments"] == {"text": "hello"}
    assert "hello" in line["result"]["content"][0]["text"]
    page = metamcp(gateway, "calls", line["id"]).stdout
    assert '"text": "hello"' in page
    assert "front       0, as call" in page


def test_a_call_that_got_no_answer_has_one_id_in_the_log_and_in_its_recording(
    gateway: Gateway,
) -> None:
    line = called(gateway, "terse__think")
    assert line["outcome"] == "-10003"

    def said() -> list[dict[str, Any]]:
        found = map(json.loads, filter(_is_json, gateway.log.read_text().splitlines()))
        return [one for one in found if one.get("call") == line["call"]]

    (one,) = until(said, "the log has it too")
    assert (one["server"], one["front"], one["room"]) == ("terse", line["front"], "front")
    assert one["message"] == "tools/call got no answer in time"


def _is_json(line: str) -> bool:
    return line.startswith("{")


def test_metadata_and_off_keep_bodies_to_themselves(gateway: Gateway) -> None:
    line = called(gateway, "terse__look", text="hello")
    assert line["arguments_bytes"] > 10
    assert not {"arguments", "result"} & set(line)
    client = Client(gateway.port, MODERN)
    client.call("quiet__look")
    client.close()
    called(gateway, "terse__look")
    assert [line for line in recorded(gateway) if line["server"] == "quiet"] == []


def test_a_replay_says_that_the_same_came_of_it(gateway: Gateway) -> None:
    for era in (LEGACY, MODERN):
        line = called(gateway, "loose__look", era, text="again")
        for place in ((), ("--endpoint", "desk")):  # which lists no tool of a server
            done = metamcp(gateway, "replay", line["id"], *place)
            assert done.returncode == 0, done.stderr
            assert done.stdout.endswith("the same as before\n")


def test_a_replay_shows_what_differs_and_asks_before_it_changes_something(
    gateway: Gateway,
) -> None:
    line = called(gateway, "loose__count")
    unasked = metamcp(gateway, "replay", line["id"])
    assert unasked.returncode == 2
    shown = unasked.stderr.replace("loose__count", "git__git_commit")
    assert shown in (ROOT / "docs" / "logs.md").read_text()
    done = metamcp(gateway, "replay", line["id"], "--yes")
    assert done.returncode == 1
    text = line["result"]["content"][0]["text"]
    assert f'-      "text": "{text}"' in done.stdout


def test_what_was_masked_or_not_recorded_is_not_replayed(gateway: Gateway) -> None:
    for tool, arguments, why in (
        ("loose__look", {"text": SECRET}, "a secret was taken out of its arguments"),
        ("terse__look", {"text": "x"}, "its arguments were not recorded"),
    ):
        done = metamcp(gateway, "replay", called(gateway, tool, **arguments)["id"])
        assert done.returncode == 1
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = metamcp(gateway, "replay", called(gateway, "loose__tell")["id"])
    assert "the recorded result is masked" in done.stdout, "its arguments are all there"


def test_calls_are_followed_as_they_end(gateway: Gateway) -> None:
    command = [sys.executable, "-m", "metamcp_supervisor", "calls", "--json", "-f", "--limit", "1"]
    state = ["--state-dir", str(gateway.folder / "state")]
    called(gateway, "loose__look")
    with subprocess.Popen([*command, *state], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        line = called(gateway, "loose__look", text="followed")
        assert json.loads(process.stdout.readline())["id"] == line["id"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130


def test_recording_can_be_switched_for_a_time_without_a_restart(gateway: Gateway) -> None:
    before = gateway.server("quiet")["generation"]
    gateway.ctl("set", "quiet", "recording=metadata", "--until", "10m")
    assert called(gateway, "quiet__look")["server"] == "quiet"
    gateway.ctl("set", "quiet", "--clear")
    assert gateway.server("quiet")["generation"] == before


def test_a_disk_that_takes_nothing_costs_no_call(gateway: Gateway) -> None:
    folder = gateway.folder / "state" / "calls"
    shutil.rmtree(folder)
    folder.write_text("in the way")
    client = Client(gateway.port, MODERN)
    client.call("loose__look")
    words = "calls are not recorded"
    until(lambda: words in gateway.log.read_text() or not client.call("loose__look"), "it is said")
    assert "result" in client.call("loose__look")
    client.close()
    folder.unlink()
    called(gateway, "loose__look")
    assert gateway.log.read_text().count(words) == 1
    said = json.loads(next(line for line in gateway.log.read_text().splitlines() if words in line))
    assert (said["room"], said["level"], said["front"]) == ("recording", "error", 0)
    called(gateway, "loose__look")
    until(lambda: "more could not be written" in metamcp(gateway, "calls").stdout, "it is told")
    until(lambda: counted(gateway, "lost") >= 2, "they are counted")
    assert counted(gateway, "written") > 0


def counted(gateway: Gateway, outcome: str) -> float:
    """Recorded calls, as the page of metrics has them."""
    name = f'metamcp_recorded_calls_total{{outcome="{outcome}"}} '
    (line,) = [line for line in gateway.ops("/metrics")[1].splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))


def test_recorded_calls_are_there_without_a_gateway(gateway: Gateway) -> None:
    line = called(gateway, "loose__look", text="kept")
    gateway.stop()
    try:
        done = metamcp(gateway, "calls", "--json", "--limit", "1")
        assert json.loads(done.stdout)["id"] == line["id"]
        assert oct(os.stat(gateway.folder / "state" / "calls").st_mode)[-3:] == "700"
        refused = metamcp(gateway, "replay", line["id"])
        assert refused.returncode == 5
        assert "no gateway is running" in refused.stderr
    finally:
        gateway.start()
