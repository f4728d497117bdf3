"""Events and lines of servers outlast the gateway's process, however it ends."""

import os
import shutil
import signal
from typing import Any

import pytest

from metamcp_supervisor.audit import audit_segments
from metamcp_supervisor.telemetry.logs import FOLDER, event_file
from metamcp_worker.ipc import audit_records
from metamcp_worker.ipc.audit_records import ChainRow
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M125")]

AUDITED = '[audit]\nlevel = "metadata"'


def killed(gateway: Gateway) -> None:
    """End the supervisor without a chance to write anything, and start the next one."""
    os.kill(gateway.pid, signal.SIGKILL)
    assert gateway.process is not None
    gateway.process.wait(timeout=30)
    until(lambda: not gateway.left(), "nothing is left of it")
    gateway.start()


def crashed(gateway: Gateway, name: str) -> None:
    """End a server, and wait until it serves again."""
    pid = gateway.server(name)["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: gateway.server(name)["pid"] not in (0, None, pid), "it is started again")
    gateway.wait(name)


def audited(gateway: Gateway) -> list[tuple[int, str, str]]:
    """Time, who and text of each event in the audit."""
    folder = gateway.folder / "state" / audit_records.FOLDER
    rows = (row for path in audit_segments.segments(folder) for row in audit_segments.rows(path))
    records = [audit_records.read(row.body) for row in rows if isinstance(row, ChainRow)]
    return [(record.ts, record.who, record.text) for record in records if record.event == "gateway"]


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


def test_after_a_kill_events_lines_and_ends_of_before_are_there_and_numbers_go_on() -> None:
    with Gateway({"one": fake("--garbage"), "two": fake()}) as gateway:
        crashed(gateway, "one")
        until(lambda: gateway.logs("one"), "its lines are there")
        events, lines = gateway.events(), gateway.logs("one")
        killed(gateway)
        after = gateway.events()
        assert after[: len(events)] == events
        assert numbers(after) == list(range(1, len(after) + 1))
        assert after[len(events)]["what"] == "starting"
        assert [event["seq"] for event in gateway.events(since=len(events))] == numbers(
            after[len(events) :]
        )
        until(lambda: len(gateway.logs("one")) > len(lines), "it writes again")
        assert gateway.logs("one")[: len(lines)] == lines
        assert lines[0]["text"] in gateway.ctl("logs", "one", "--since", "1h")
        assert '"seq":1,' in gateway.ctl("events", "--json").splitlines()[0]
        described = gateway.describe("one")
        assert [end["reason"] for end in described["exits"]] == ["signal"]
        assert described["since"] > after[len(events)]["time"]
        assert gateway.stop() == 0
        gateway.start()
        again = gateway.events()
        assert again[: len(after)] == after
        stopped = next(event for event in again if event["what"] == "stopped")
        assert again[stopped["seq"]]["what"] == "starting"


def test_an_upgrade_goes_on_with_both_and_a_kill_after_it_too() -> None:
    with Gateway({"one": fake("--garbage")}) as gateway:
        until(lambda: gateway.logs("one"), "its lines are there")
        events, lines = gateway.events(), gateway.logs("one")
        gateway.ctl("upgrade")
        until(lambda: gateway.events(type="renewed"), "the fronts are of the new program")
        after = gateway.events()
        assert after[: len(events)] == events
        assert [event["what"] for event in after].count("upgraded") == 1
        killed(gateway)
        again = gateway.events()
        assert again[: len(after)] == after
        assert numbers(again) == list(range(1, len(again) + 1))
        assert gateway.logs("one")[: len(lines)] == lines


def test_the_audit_has_each_event_once_over_a_kill_an_upgrade_and_a_stop() -> None:
    with Gateway({"one": fake()}, extra=AUDITED) as gateway:
        until(lambda: _starts(gateway) == 1, "the audit has its start")
        killed(gateway)
        until(lambda: _starts(gateway) == 2, "and the next one")
        gateway.ctl("upgrade")
        until(lambda: gateway.events(type="renewed"), "the fronts are of the new program")
        gateway.stop()
        records = audited(gateway)
        assert len(records) == len(set(records))
        events = [
            (int(event.time * 1e9), event.who, ": ".join(filter(None, (event.what, event.cause))))
            for event in event_file(gateway.folder / "state", pytest.fail).read()
            if event.what != "stopped"  # the audit ends before the gateway
        ]
        assert [event for event in records if event not in events] == []
        assert [event for event in events if event not in records] == []


def test_an_audit_that_is_switched_off_and_on_again_has_no_event_twice() -> None:
    servers = {"one": fake()}
    with Gateway(servers, extra=AUDITED) as gateway:
        until(lambda: _starts(gateway) == 1, "the audit has its start")
        for extra in ("", AUDITED):
            gateway.extra = extra
            gateway.write(servers)
            gateway.ctl("reload")
        gateway.ctl("restart", "one", "--wait")
        until(lambda: _starts(gateway) > 1, "the audit goes on")
        records = audited(gateway)
        assert len(records) == len(set(records))


def _starts(gateway: Gateway) -> int:
    return sum(
        text.startswith("warming→ready") and who == "one" for _, who, text in audited(gateway)
    )


def test_a_place_that_cannot_be_written_is_reported_once_and_the_gateway_goes_on() -> None:
    with Gateway({"one": fake("--garbage")}, wait=False) as gateway:
        gateway.stop()
        shutil.rmtree(gateway.folder / "state", ignore_errors=True)
        (gateway.folder / "state").mkdir()
        place = gateway.folder / "state" / FOLDER
        place.touch()
        gateway.start()
        gateway.wait_ready()
        until(lambda: gateway.logs("one"), "its lines are in memory")
        (note,) = [event for event in gateway.events() if str(place) in event["cause"]]
        assert (note["who"], note["what"]) == ("gateway", "note")
        assert "Not a directory; events and lines of servers that cannot be kept" in note["cause"]
        assert gateway.events()[0]["seq"] == 1
