"""Servers with a list that hangs, fails once or fails for ever: only this list is missing."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.live.gateway import Gateway
from tests.live.odd import SERVER
from tests.live.raw import MODERN, Raw
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

KINDS = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
CAPABILITIES = '{"tools":{},"prompts":{},"resources":{}}'
LATE_S = 6.0
"""Seconds in which the other lists are there."""
LOST = {"error": '{"code":-32603,"message":"lost"}'}


def pages(name: str) -> dict[str, object]:
    """The answers of a server whose lists have one definition each, of this name."""
    definitions = {
        "tools": {"name": name, "inputSchema": {"type": "object"}},
        "prompts": {"name": name},
        "resources": {"name": name, "uri": f"odd://{name}"},
        "resourceTemplates": {"name": name, "uriTemplate": f"odd://{name}/{{x}}"},
    }
    return {
        method: {"result": json.dumps({kind: [definitions[kind]]})}
        for kind, method in KINDS.items()
    }


def write(path: Path, name: str, kind: str = "", how: str = "") -> None:
    answers = pages(name)
    if kind:
        method = KINDS[kind]
        answers[method] = {"hangs": None, "once": [LOST, answers[method]], "fails": LOST}[how]
    script = {"era": "legacy", "capabilities": CAPABILITIES, "answers": answers}
    path.write_text(json.dumps(script))


def listed(client: Raw) -> dict[str, set[str]]:
    """The servers that are in each list."""
    return {
        kind: {name.rpartition("__")[2] for name in client.names(method, kind)}
        for kind, method in KINDS.items()
    }


def gives(client: Raw, given: dict[str, set[str]]) -> bool:
    return listed(client) == given


@pytest.mark.promise("M15")
def test_a_list_that_is_lost_costs_no_other_list_and_no_restart(tmp_path: Path) -> None:
    hows = ("hangs", "once", "fails")
    lost = {f"{kind.lower()}-{how}": (kind, how) for kind in KINDS for how in hows}
    servers: dict[str, dict[str, Any]] = {}
    for name, (kind, how) in lost.items():
        write(tmp_path / name, name, kind, how)
        servers[name] = {"command": [*SERVER, str(tmp_path / name)], "list_timeout": "2s"}
    # Only tools are asked for again.
    given = {kind: {name for name, (its, _) in lost.items() if its != kind} for kind in KINDS}
    given["tools"].add("tools-once")
    with Gateway(servers, wait=False) as gateway:
        until(gateway.answers, "it answers")
        for _ in range(2):
            gateway.wait(*lost)
            client = Raw(gateway.port, MODERN)
            until(partial(gives, client, given), "all other lists are there")
            for name in lost:
                found = gateway.server(name)
                assert (found["restarts"], found["start_s"] < LATE_S) == (0, True), found
            told = [line["text"] for line in gateway.logs("prompts-fails")]
            assert any("prompts/list was refused: lost" in text for text in told)
            assert "it did not give tools; 'metamcp logs tools-hangs' says why" in gateway.journal()
            gateway.stop()
            gateway.start()


def test_the_tools_of_a_server_stay_listed_if_it_does_not_list_them_at_its_next_start(
    tmp_path: Path,
) -> None:
    write(tmp_path / "odd", "it")
    entry = {"command": [*SERVER, str(tmp_path / "odd")], "list_timeout": "1s"}
    with Gateway({"odd": entry}) as gateway:
        client = Raw(gateway.port, MODERN)
        everything = {kind: {"it"} for kind in KINDS}
        until(lambda: listed(client) == everything, "all is listed")
        for how in ("hangs", "fails"):
            write(tmp_path / "odd", "it", "tools", how)
            gateway.ctl("restart", "odd", "--wait")
            assert listed(client) == everything
