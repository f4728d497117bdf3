"""A server that says how long it wants to be left alone."""

from metamcp_supervisor.servers.server import (
    ServerLife,
    SiblingRecovered,
    Start,
    WentDown,
    WorkerLeft,
)
from metamcp_supervisor.servers.states import ExitClass, ServerPhase
from tests.supervisor.servers.test_server import after, crashed, up


def test_a_server_that_asks_to_be_left_alone_is_until_its_time_or_an_operator_comes() -> None:
    busy = WentDown(ExitClass.CONNECT, "it answered HTTP 503", retry_after_s=100.0)
    life = crashed(up(ServerLife()), 0.0)
    life = after(up(life, 1.0), busy, WorkerLeft(), now=10.0)
    assert (life.phase, life.retry_at) == (ServerPhase.BACKOFF, 110.0)
    assert after(life, Start("client"), SiblingRecovered(ExitClass.CONNECT), now=50.0) == life
    assert after(life, Start("operator"), now=50.0).phase is ServerPhase.QUEUED
    assert after(life, Start("client"), now=110.0).phase is ServerPhase.QUEUED
