"""SIGSTOP, and SIGCONT when it is late: who can go on does, and what comes too late is nobody's."""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = [pytest.mark.live]


@contextmanager
def stopped(*pids: int) -> Generator[None, None, None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def asking(client: Client, tool: str, **arguments: Any) -> Generator[dict[str, Any], None, None]:
    """A call under way; at the end of the block its answer is there."""
    found: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: found.update(client.call(tool, **arguments)))
    thread.start()
    yield found
    thread.join(60)
    assert not thread.is_alive()


def counted(gateway: Gateway, name: str) -> float:
    """A counter, over all servers."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(gateway.ops("/metrics")[1])
        for sample in family.samples
        if sample.name == name
    )


def test_an_answer_that_comes_after_its_time_is_nobodys() -> None:
    with Gateway({"one": fake() | {"timeout": "1s"}}) as gateway:
        client, pid = Client(gateway.port, MODERN), gateway.server("one")["pid"]
        with stopped(pid):
            late = client.call("one__echo", text="late")
            assert "error" in late
        assert client.text("one__echo", text="new") == "new"
        until(lambda: counted(gateway, "metamcp_late_replies_total") == 1, "it is counted")
        assert gateway.server("one")["pid"] == pid
        client.close()


def test_a_stopped_front_keeps_its_clients_if_it_goes_on_in_time_and_is_replaced_if_not() -> None:
    with Gateway({"one": fake()}, extra="[gateway]\nfronts = 2") as gateway:
        first, second = (front["pid"] for front in gateway.status()["fronts"])
        with stopped(second):  # so that this client is the first one's
            early = Client(gateway.port)
            assert early.text("one__echo", text="in") == "in"
        with asking(early, "one__pid") as found, stopped(first):
            with Callers(gateway.port, ["one"], callers=8, calls=200) as run:
                pass
            assert run.tally.right == 200, "the other front serves who comes now"
        assert "result" in found
        assert {front["pid"] for front in gateway.status()["fronts"]} == {first, second}
        with stopped(first):
            until(lambda: not processes.alive({first}), "it is killed")
        until(
            lambda: [front["state"] for front in gateway.status()["fronts"]] == ["ready"] * 2,
            "there is another one",
        )
        early.close()
        again = Client.joining(early, gateway.port)
        assert again.text("one__echo", text="in") == "in", "its session goes on"
        again.close()


def test_while_the_supervisor_stands_still_calls_are_answered_and_deaths_told_to_callers() -> None:
    with Gateway({"one": fake(), "two": fake()}) as gateway:
        client, before = Client(gateway.port, MODERN), gateway.status()
        assert client.text("one__echo", text="in") == "in"
        with asking(client, "one__work", ms=30_000) as found:
            until(lambda: gateway.server("one")["inflight"], "it is under way")
            with stopped(gateway.pid):
                os.kill(before["servers"][0]["pid"], signal.SIGKILL)
                until(lambda: found, "its caller is told without the supervisor")
                assert found["error"]["data"]["may_have_run"] is True
                with Callers(gateway.port, ["two"], callers=4, calls=200, era=MODERN) as run:
                    pass
                assert run.tally.right == 200
        until(lambda: "result" in client.call("one__echo"), "it is back")
        after = gateway.status()
        assert after["servers"][1]["pid"] == before["servers"][1]["pid"]
        assert after["fronts"][0]["pid"] == before["fronts"][0]["pid"]
        client.close()
