"""One gateway in front of every way in which a network fails, and of one good server."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from metamcp_worker.child.http_exchange import RETRY_AFTER_S_MAX
from metamcp_worker.http.fetch import REDIRECTS_MAX
from tests.faults.badnet import Place, answers, black_hole, resets, silent
from tests.live.gateway import Gateway, fake, free_port
from tests.live.load import Callers
from tests.waiting import until
from tests.worker.http.test_fetch_tls import certificate, tls

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

#: What is wrong there -> the class, and words of the sentence that people are told.
TOLD = {
    "refused": ("connect", "refused"),
    "unnamed": ("connect", "cannot be reached"),
    "resets": ("connect", "cannot be reached|broke"),
    "silent": ("start_timeout", "did not"),
    "hole": ("start_timeout", "did not"),
    "busy": ("connect", "HTTP 503 Service Unavailable"),
    "greedy": ("connect", "HTTP 429 Too Many Requests"),
    "circle": ("redirect", "redirects in a circle"),
    "abroad": ("redirect", "another origin is not followed"),
    "closed": ("authorization", "HTTP 401"),
    "forbidden": ("authorization", "HTTP 403"),
    "expired": ("tls", "certificate has expired"),
    "elsewhere": ("tls", "IP address mismatch"),
    "unknown": ("tls", "self-signed certificate"),
    "plain": ("tls", "does not speak TLS there"),
}
BUSY_S = 2
NO_STORM_MAX = 4
"""Connections of one start: both eras are tried, and the transport before this one."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place | str]]:
    folder = tmp_path_factory.mktemp("certificates")
    good = certificate(folder)
    expired, elsewhere = certificate(folder, days=-1), certificate(folder, "127.9.9.9")
    trusted = folder / "trusted.pem"
    trusted.write_text("".join(file.read_text() for file in (expired, elsewhere)))
    found: dict[str, Place | str] = {
        "refused": f"http://127.0.0.1:{free_port()}/mcp",
        "unnamed": "http://no-such-host.invalid/mcp",
        "resets": Place(resets),
        "silent": Place(silent),
        "busy": Place(answers(f"503 X\r\nRetry-After: {BUSY_S}")),
        "greedy": Place(answers("429 X\r\nRetry-After: 99999999")),
        "circle": Place(answers("307 X\r\nLocation: /mcp")),
        "abroad": Place(answers("307 X\r\nLocation: https://elsewhere.invalid/mcp")),
        "closed": Place(answers("401 X")),
        "forbidden": Place(answers("403 X")),
        "expired": Place(silent, tls(expired)),
        "elsewhere": Place(silent, tls(elsewhere)),
        "unknown": Place(silent, tls(good)),
        "plain": Place(answers("400 X")),
    }
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(trusted))
        for place in found.values():
            if isinstance(place, Place):
                stack.enter_context(closing(place))
        found["hole"] = stack.enter_context(black_hole())
        yield found


def entry(name: str, place: Place | str) -> dict[str, Any]:
    url = place if isinstance(place, str) else place.url
    if name == "plain":
        url = url.replace("http:", "https:")
    return {"url": url, "start_timeout": "1s" if name in {"silent", "hole"} else "20s"}


@pytest.fixture(scope="module")
def gateway(places: dict[str, Place | str]) -> Iterator[Gateway]:
    entries = {name: entry(name, place) for name, place in places.items()}
    with Gateway({"good": fake(), **entries}, wait=False) as found:
        until(found.answers, "the gateway answers")
        found.wait("good")
        yield found


def events(gateway: Gateway, name: str) -> list[dict[str, Any]]:
    return gateway.events(who=name)


def untold(gateway: Gateway) -> dict[str, tuple[str, str]]:
    """Those of which something else is said than should be."""
    found = {one["name"]: (one["reason"], one["message"]) for one in gateway.status()["servers"]}
    return {
        name: found[name]
        for name, (reason, words) in TOLD.items()
        if found[name][0] != reason or not any(word in found[name][1] for word in words.split("|"))
    }


@pytest.mark.promise("M15")
def test_a_server_that_cannot_be_reached_is_explained_in_a_sentence(gateway: Gateway) -> None:
    with Callers(gateway.port, ["good"], callers=4, calls=500) as run:
        until(lambda: not untold(gateway), "each is explained")
    assert untold(gateway) == {}
    assert (run.tally.right, run.tally.wrong, run.tally.broken) == (500, [], 0)
    assert gateway.server("good")["generation"] == 1


@pytest.mark.promise("M72")
def test_a_server_that_time_does_not_heal_is_not_asked_again_soon(
    gateway: Gateway, places: dict[str, Place | str]
) -> None:
    unhealed = {"tls", "redirect", "authorization"}
    distrusted = {name for name, (reason, _) in TOLD.items() if reason in unhealed}

    def all_failed() -> bool:
        return all(gateway.server(name)["phase"] == "failed" for name in distrusted)

    until(all_failed, "their circuits are open")
    for now in gateway.status()["servers"]:
        if now["name"] in distrusted:
            place = places[now["name"]]
            assert isinstance(place, Place)
            requests_max = REDIRECTS_MAX + 1 if now["name"] == "circle" else 1
            assert 0 < len(place.times) <= NO_STORM_MAX * requests_max
            assert now["generation"] == 1


@pytest.mark.promise("M72")
def test_a_server_that_wants_to_be_left_alone_is_for_as_long_as_it_says(gateway: Gateway) -> None:
    until(lambda: gateway.server("busy")["generation"] > 2, "it is tried again and again", 60)
    ended, waits = 0.0, list[float]()
    for event in events(gateway, "busy"):
        if event["what"] == "warming→error":
            ended = event["time"]
        elif event["what"] == "error→warming":
            waits.append(event["time"] - ended)
    assert len(waits) >= 2
    assert min(waits) >= BUSY_S - 0.05
    greedy = gateway.server("greedy")
    assert greedy["generation"] == 1
    assert 60 < greedy["retry_in_s"] <= RETRY_AFTER_S_MAX


def test_nothing_of_that_is_an_error_of_the_gateway(gateway: Gateway) -> None:
    log = gateway.log.read_text()
    assert "Traceback" not in log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert [line for line in lines if line.get("what") in {"bug", "error"}] == []
