"""One gateway in front of every kind of bad server, and of one good one that notices nothing."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from tests.live.client import Client
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until
from tests.worker.child.test_streamable_http_failures import process

pytestmark = [pytest.mark.live, pytest.mark.timeout(180), pytest.mark.promise("M15")]

#: Servers that are odd and work all the same.
ODD = {
    "garbage": fake("--garbage"),
    "utf8": fake("--bad-utf8"),
    "pieces": fake("--half-lines"),
    "talks": fake("--stderr-flood"),
    "circle": fake("--cursor-loop"),
    "stays": {**fake("--ignore-eof", "--ignore-term"), "stop_grace": "100ms"},
    "forks": fake("--daemons", "20"),
}

#: Servers that cannot work -> what people are told.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "silent": ({**fake("--hang"), "start_timeout": "1s"}, "start_timeout: "),
    "deaf": ({**fake("--deaf"), "start_timeout": "1s"}, "start_timeout: "),
    "missing": ({"command": ["no-such-program"]}, "no program 'no-such-program' on the PATH"),
    "sorry": ({"command": ["sh", "-c", "echo no license >&2; exit 3"]}, "no license"),
    "brief": (fake("--exit-after", "300"), "it ended"),
    "floods": (
        fake("--era", "legacy", "--stdout-flood"),
        "it is kept out (flood: it was throttled for 60 s: ",
    ),
    "storms": (
        fake("--era", "legacy", "--flood", "tools/list_changed"),
        "it is kept out (flood: it was throttled",
    ),
    "drips": ({"flood": "lines"}, "it is kept out (flood: it was throttled"),
    "shouts": ({"flood": "news"}, "it is kept out (flood: it was throttled"),
    "leaks": ({**fake("--leak", "50"), "memory_max": "128M"}, "memory_max is 128 MiB"),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    bad = {name: entry for name, (entry, _) in BAD.items()}
    with ExitStack() as stack:
        for name, entry in bad.items():
            if what := entry.get("flood"):
                flags = ("--era", "legacy", "--flood", what)
                bad[name] = {"url": stack.enter_context(process(*flags))[1]}
        found = stack.enter_context(Gateway({"good": fake(), **ODD, **bad}, wait=False))
        until(found.answers, "the gateway answers")
        found.wait("good", *ODD)
        yield found


def processor_s(*pids: int) -> float:
    """The processor time that these processes took so far."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


def told(gateway: Gateway, name: str) -> str:
    return str(gateway.describe(name)["why"])


@pytest.mark.parametrize("name", ["storms", "floods", "drips", "shouts"])
def test_a_server_that_sends_without_end_is_held_back_and_answers(
    gateway: Gateway, name: str
) -> None:
    until(lambda: gateway.server(name)["reason"] == "throttled", "it is throttled", 40)
    assert "is held back (throttled: it sends more notifications" in told(gateway, name)
    worker, front = gateway.server(name)["worker_pid"], gateway.status()["fronts"][0]["pid"]
    used_s, began = processor_s(worker, front), time.monotonic()
    client = Client(gateway.port)
    assert client.text(f"{name}__echo", text="a") == "a"
    for number in range(200):
        assert client.text("good__echo", text=str(number)) == str(number)
    assert client.text(f"{name}__echo", text="b") == "b"
    client.close()
    assert processor_s(worker, front) - used_s < max(0.2 * (time.monotonic() - began), 1.0)


@pytest.mark.parametrize("name", sorted(ODD))
def test_an_odd_server_works(gateway: Gateway, name: str) -> None:
    client = Client(gateway.port)
    assert client.text(f"{name}__echo", text="a") == "a"
    client.close()


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_server_is_explained_in_a_sentence(gateway: Gateway, name: str) -> None:
    words = BAD[name][1]
    until(lambda: words in told(gateway, name), f"it is told that {words!r}", 100)
    now = gateway.server(name)
    assert now["phase"] != "ready" or now["generation"] > 1


def test_only_an_operator_lets_one_that_floods_try_again(gateway: Gateway) -> None:
    until(lambda: gateway.server("floods")["phase"] == "quarantined", "it is put away", 100)
    flooded = gateway.server("floods")["generation"]
    client = Client(gateway.port)
    assert client.call("floods__echo", text="a")["error"]["code"] == -10001
    client.close()
    assert gateway.server("floods")["generation"] == flooded
    gateway.ctl("clear", "floods")
    until(lambda: gateway.server("floods")["generation"] > flooded, "it is started again")


def test_the_good_one_answers_every_call_meanwhile(gateway: Gateway) -> None:
    with Callers(gateway.port, ["good"], callers=8, calls=2000) as run:
        pass
    assert (run.tally.right, run.tally.wrong, run.tally.broken) == (2000, [], 0)
    assert gateway.server("good")["generation"] == 1
