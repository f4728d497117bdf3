"""Events and status call the states of servers by the same words, and the log says what runs."""

import json
import re

import pytest

from metamcp_supervisor import VERSION
from metamcp_supervisor.servers.states import PUBLIC
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

STATES = {*PUBLIC.values(), "active"}


def test_events_and_status_have_one_vocabulary_and_the_end_is_called_stopped() -> None:
    with Gateway({"git": fake(), "odd": {"command": ["no-such-program"]}}, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        gateway.wait("git")
        gateway.wait("odd", state="error")
        gateway.ctl("quarantine", "git", "--why", "it eats files")
        assert gateway.server("git")["state"] == "quarantined"
        row = next(line for line in gateway.ctl("status", ok=(3,)).splitlines() if "git" in line)
        assert " quarantined " in row
        assert "it eats files; 'metamcp ctl clear git' lets it out" in row
        assert gateway.stop() == 0
        lines = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    events = [line for line in lines if line["room"] == "events"]
    moves = [line["what"] for line in events if "→" in line["what"]]
    assert {state for move in moves for state in re.split("→", move)} <= STATES
    assert {"ready→quarantined", "quarantined→stopped", "warming→error"} <= set(moves)
    first, second = events[:2]
    assert first["cause"] == (
        f"version {VERSION}, configuration {gateway.config},"
        f" state directory {gateway.folder / 'state'}"
    )
    assert second["cause"] == (
        f"clients at 127.0.0.1:{gateway.port}, metrics and health at 127.0.0.1:{gateway.ops_port}"
    )
