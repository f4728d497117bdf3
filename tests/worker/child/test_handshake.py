"""Which era a server speaks: the probe, the fallback, and what proves what."""

import json
from typing import Any

import pytest

from metamcp_worker.child.actions import CountOnce, Fail, Ready
from metamcp_worker.child.jsonrpc_lines import LEGACY, MODERN
from tests.worker.child.talk import ECHO, TOOLS, Talk, legacy, modern

PREFIX = "io.modelcontextprotocol/"


def protocol(talk: Talk) -> str:
    """Let the server list a tool; the protocol that was agreed on."""
    talk.answers("tools/list", {"tools": [ECHO]})
    found = talk.last_catalogue()
    assert isinstance(found, Ready)
    return found.catalogue.protocol


def failure(talk: Talk) -> Fail:
    (found,) = [one for one in talk.actions if isinstance(one, Fail)]
    return found


def test_the_first_word_is_a_whole_modern_request() -> None:
    talk = Talk()
    assert talk.wrote == [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "server/discover",
            "params": {
                "_meta": {
                    PREFIX + "protocolVersion": MODERN,
                    PREFIX + "clientInfo": {"name": "metamcp", "version": "1.0"},
                    PREFIX + "clientCapabilities": {},
                }
            },
        }
    ]
    assert talk.session.is_probing


@pytest.mark.parametrize("method", ["server/discover", "initialize"])
def test_a_program_that_echoes_is_not_an_mcp_server(method: str) -> None:
    talk = Talk(era="legacy-first" if method == "initialize" else "auto")
    talk.says(talk.asked(method))
    assert failure(talk).message.endswith("so it is not an MCP server")


def test_a_discover_result_makes_it_modern() -> None:
    talk = Talk()
    talk.answers("server/discover", modern())
    assert protocol(talk) == MODERN
    found = talk.last_catalogue().catalogue
    assert json.loads(bytes(found.serverInfo)) == {"name": "m", "x": 1}
    assert json.loads(bytes(found.capabilities)) == TOOLS
    assert not any("initialize" in one["method"] for one in talk.wrote)


@pytest.mark.parametrize("code", [-32601, -32600, -32602, -32000, -32603, 0, 404])
def test_any_error_means_initialize(code: int) -> None:
    talk = Talk()
    talk.refuses("server/discover", code)
    params = talk.asked("initialize")["params"]
    assert params == {
        "protocolVersion": LEGACY[0],
        "capabilities": {
            "elicitation": {"form": {}, "url": {}},
            "sampling": {},
            "roots": {"listChanged": True},
        },
        "clientInfo": {"name": "metamcp", "version": "1.0"},
    }
    talk.answers("initialize", legacy())
    assert talk.wrote[2]["method"] == "notifications/initialized"
    assert protocol(talk) == LEGACY[0]


@pytest.mark.parametrize(
    "result", [{}, [], 5, {"supportedVersions": "x"}, {"supportedVersions": [LEGACY[0]]}]
)
def test_a_result_without_a_modern_version_means_initialize(result: object) -> None:
    talk = Talk()
    talk.answers("server/discover", result)
    talk.answers("initialize", legacy())
    assert protocol(talk) == LEGACY[0]


def test_silence_means_initialize_and_the_late_answer_is_ignored() -> None:
    talk = Talk()
    assert talk.tick(1.9) == []
    assert len(talk.wrote) == 1
    talk.tick(0.2)
    assert talk.wrote[-1]["method"] == "initialize"
    assert talk.answers("server/discover", modern()) == [CountOnce("late_reply")]
    talk.answers("initialize", legacy())
    assert protocol(talk) == LEGACY[0]
    assert not any(one["method"] == "notifications/cancelled" for one in talk.wrote)


@pytest.mark.parametrize(
    ("code", "data"), [(-32022, {"supported": [MODERN], "requested": LEGACY[0]}), (0, None)]
)
def test_a_slow_modern_server_is_probed_once_more(code: int, data: Any) -> None:
    talk = Talk()
    talk.tick(3)
    talk.refuses("initialize", code, data)
    assert talk.wrote[-1]["method"] == "server/discover"
    talk.tick(3)
    talk.answers("server/discover", modern())
    assert protocol(talk) == MODERN


def test_a_slow_server_that_refuses_both_is_asked_for_an_older_revision() -> None:
    talk = Talk()
    talk.tick(3)
    talk.refuses("initialize", -32602)
    talk.refuses("server/discover", -32601)
    assert talk.wrote[-1]["params"]["protocolVersion"] == LEGACY[1]
    talk.answers("initialize", legacy())
    assert protocol(talk) == LEGACY[0]


def test_a_second_contradiction_ends_it() -> None:
    talk = Talk()
    talk.tick(3)
    talk.refuses("initialize", -32022, {"supported": [MODERN]})
    talk.refuses("server/discover", -32601)
    assert failure(talk).reason == "protocol"


@pytest.mark.parametrize("data", [None, {}, {"supported": 3}, {"supported": [LEGACY[1]]}])
def test_a_refused_version_that_leaves_room_means_initialize(data: Any) -> None:
    talk = Talk()
    talk.refuses("server/discover", -32022, data)
    assert talk.wrote[-1]["method"] == "initialize"


def test_a_server_of_another_future_is_named_with_its_versions() -> None:
    talk = Talk()
    talk.refuses("server/discover", -32022, {"supported": ["2031-01-01"]})
    assert failure(talk).reason == "protocol"
    assert "2031-01-01" in failure(talk).message


@pytest.mark.parametrize("version", LEGACY)
def test_every_legacy_revision_is_taken(version: str) -> None:
    talk = Talk()
    talk.refuses("server/discover", -32601)
    talk.answers("initialize", legacy(version=version))
    assert protocol(talk) == version


@pytest.mark.parametrize(
    "result",
    [
        {},
        5,
        {"protocolVersion": 3},
        {"protocolVersion": "1999-01-01", "capabilities": {}},
        {"protocolVersion": MODERN, "capabilities": {}},
    ],
)
def test_a_broken_or_foreign_handshake_is_a_protocol_failure(result: object) -> None:
    talk = Talk()
    talk.refuses("server/discover", -32601)
    talk.answers("initialize", result)
    assert failure(talk).reason == "protocol"
    assert talk.tick(100) == []


def test_a_refused_initialize_is_told_in_the_servers_words() -> None:
    talk = Talk()
    talk.refuses("server/discover", -32601)
    for version in LEGACY:
        assert talk.asked("initialize")["params"]["protocolVersion"] == version
        talk.refuses("initialize", -32000)
    asked = ", ".join(LEGACY)
    assert failure(talk).message == f"it refused initialize: no (-32000); it was asked for {asked}"


@pytest.mark.parametrize(
    ("message", "data", "asked"),
    [
        ("no", {"supported": [LEGACY[3], LEGACY[2]]}, LEGACY[2:4]),
        (f"not {LEGACY[0]}, but {LEGACY[1]}", None, LEGACY[1:2]),
        ("no", [{"versions": {"max": LEGACY[2]}}], LEGACY[2:3]),
        ("no", {"supported": [LEGACY[0]]}, LEGACY[1:]),
        (f"not {LEGACY[0]}, but 1999-01-01", None, LEGACY[1:]),
    ],
)
def test_after_a_refusal_it_is_asked_for_what_its_error_names_or_else_for_each_older_revision(
    message: str, data: Any, asked: tuple[str, ...]
) -> None:
    talk = Talk()
    talk.refuses("server/discover", -32601)
    for version in (LEGACY[0], *asked):
        assert talk.asked("initialize")["params"]["protocolVersion"] == version
        number = talk.asked("initialize")["id"]
        error = {"code": -32001, "message": message, "data": data}
        talk.says({"jsonrpc": "2.0", "id": number, "error": error})
    assert failure(talk).reason == "protocol"
    assert message in failure(talk).message


def test_a_revision_that_the_refused_probe_names_is_the_first_one_asked_for() -> None:
    talk = Talk()
    talk.refuses("server/discover", -32000, {"supported": [LEGACY[3]], "requested": MODERN})
    assert talk.asked("initialize")["params"]["protocolVersion"] == LEGACY[3]
    talk.answers("initialize", legacy(version=LEGACY[3]))
    assert protocol(talk) == LEGACY[3]


def test_the_search_for_a_revision_ends_after_ten_seconds() -> None:
    talk = Talk()
    talk.refuses("server/discover", -32601)
    talk.refuses("initialize", -32602)
    assert talk.tick(9.9) == []
    talk.tick(0.2)
    asked = f"{LEGACY[0]}, {LEGACY[1]}"
    assert failure(talk).message == f"it refused initialize: no (-32602); it was asked for {asked}"


def test_a_known_revision_is_the_first_one_asked_for_and_the_newer_ones_come_after_it() -> None:
    talk = Talk(known_protocol=LEGACY[3])
    talk.refuses("server/discover", -32601)
    assert talk.asked("initialize")["params"]["protocolVersion"] == LEGACY[3]
    talk.refuses("initialize", -32602)
    assert talk.asked("initialize")["params"]["protocolVersion"] == LEGACY[0]


def test_a_revision_by_hand_is_the_only_one_asked_for() -> None:
    talk = Talk(era="legacy", protocol=LEGACY[2], known_protocol=LEGACY[3])
    assert talk.asked("initialize")["params"]["protocolVersion"] == LEGACY[2]
    talk.refuses("initialize", -32602, {"supported": [LEGACY[1], MODERN]})
    assert failure(talk).message == "it refused initialize: no (-32602)"


@pytest.mark.parametrize("wrong", [None, [], "x", 3])
def test_wrong_types_beside_the_version_count_as_nothing(wrong: object) -> None:
    talk = Talk()
    talk.refuses("server/discover", -32601)
    result = {"protocolVersion": LEGACY[0], "capabilities": wrong, "serverInfo": wrong}
    talk.answers("initialize", result)
    found = talk.last_catalogue().catalogue
    assert bytes(found.capabilities) == bytes(found.serverInfo) == b"{}"


def test_a_server_that_exits_when_probed_can_be_spared_the_probe() -> None:
    talk = Talk(era="legacy-first")
    assert talk.wrote[0]["method"] == "initialize"
    assert not talk.session.is_probing
    talk.answers("initialize", legacy())
    assert protocol(talk) == LEGACY[0]


@pytest.mark.parametrize(
    ("code", "data"), [(-32022, {"supported": [MODERN]}), (-32601, None), (-32600, None)]
)
def test_a_server_that_refuses_initialize_is_asked_whether_it_is_modern(
    code: int, data: Any
) -> None:
    talk = Talk(era="legacy-first")
    talk.refuses("initialize", code, data)
    talk.answers("server/discover", modern())
    assert protocol(talk) == MODERN


def test_one_that_refuses_everything_is_told_by_its_first_refusal() -> None:
    talk = Talk(era="legacy-first")
    talk.refuses("initialize", -32600)
    talk.refuses("server/discover", -32601)
    for _ in LEGACY[1:]:
        talk.refuses("initialize", -32601)
    assert failure(talk).message.startswith("it refused initialize: no (-32600); it was asked for")


def test_one_that_refuses_the_parameters_of_initialize_is_probed_last() -> None:
    talk = Talk(era="legacy-first")
    for _ in LEGACY:
        talk.refuses("initialize", -32602)
    talk.answers("server/discover", modern())
    assert protocol(talk) == MODERN


def test_where_one_era_is_chosen_the_other_is_not_tried() -> None:
    talk = Talk(era="legacy")
    talk.refuses("initialize", -32022, {"supported": [MODERN]})
    assert failure(talk).message == "it refused initialize: no (-32022)"
    assert [one["method"] for one in talk.wrote] == ["initialize"]
    talk = Talk(era="modern")
    talk.tick(5)
    talk.refuses("server/discover", -32601)
    assert failure(talk).message == (
        f"it does not speak {MODERN}, which its configuration wants: it refused server/discover: no"
    )
    assert [one["method"] for one in talk.wrote] == ["server/discover"]


def test_a_start_that_takes_too_long_says_what_it_waited_for() -> None:
    talk = Talk(start_timeout_s=10.0)
    talk.tick(10)
    assert failure(talk).reason == "start_timeout"
    assert "initialize" in failure(talk).message
