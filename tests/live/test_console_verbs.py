"""Verbs of the control socket that the pages of the console ask: settings, files, tools that
drifted, the audit, what an API key has open."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from metamcp_supervisor.control.client import ControlClient, Failed, connect
from metamcp_supervisor.verbs import Exit
from tests.live.client import MODERN, Client
from tests.live.gateway import fake
from tests.live.test_quarantine import WORSE, Pinned, judged
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M67")]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Pinned]:
    gateway = Pinned()
    gateway.extra = '[audit]\nlevel = "full"\n[log]\nlevel = "info"'
    gateway.write({"alpha": gateway.entry, "beta": {**fake(), "timeout": "7s"}})
    with gateway as running:
        running.approved()
        yield running


def asked(gateway: Pinned, verb: str, **params: object) -> Any:
    with control(gateway) as line:
        return json.loads(line.call(verb, params, timeout_s=30.0))


def control(gateway: Pinned) -> ControlClient:
    return connect(str(gateway.folder / "run"))


def test_settings_in_force_say_the_file_and_line_or_the_option_that_sets_them(
    gateway: Pinned,
) -> None:
    found = asked(gateway, "config")
    places = {(one["table"], one["key"]): one["place"] for one in found["settings"]}
    lines = gateway.config.read_text().split("\n")
    at = lines.index('level = "info"') + 1
    assert places["log", "level"] == f"{gateway.config}:{at}"
    at = lines.index('timeout = "7s"') + 1
    assert places["servers.beta", "timeout"] == f"{gateway.config}:{at}"
    assert places["gateway", "listen"] == "--listen"
    assert ("servers.beta", "queue") not in places  # a default
    table = asked(gateway, "config", table="servers.beta")
    defaults = [one["key"] for one in table["settings"] if not one["place"]]
    assert "queue" in defaults
    (env,) = [one["value"] for one in table["settings"] if one["key"] == "env"]
    assert gateway.mark.partition("=")[2] not in env
    with control(gateway) as line, pytest.raises(Failed, match="has no table 'x'") as told:
        line.call("config", {"table": "x"})
    assert told.value.exit == Exit.UNKNOWN_NAME


def test_the_files_are_compared_with_what_is_in_force_without_applying_them(
    gateway: Pinned,
) -> None:
    text = gateway.config.read_text()
    try:
        gateway.config.write_text(text.replace('timeout = "7s"', 'timeout = "9s"'))
        found = asked(gateway, "config-diff")
        assert next(one["why"] for one in found["plan"]["changes"] if one["server"] == "beta")
        (change,) = found["changes"]
        assert change["place"].startswith(str(gateway.config))
        assert (change["before"], change["after"]) == ('"7s"', '"9s"')
        gateway.config.write_text(text + "\n[log]\n")
        with control(gateway) as line, pytest.raises(Failed) as told:
            line.call("config-diff")
        assert told.value.exit == Exit.CONFIG
        assert "written twice" in told.value.details[0]
    finally:
        gateway.config.write_text(text)
    assert asked(gateway, "config-diff")["changes"] == []


def test_a_tool_that_drifted_is_shown_with_both_definitions_and_approved_by_its_mark(
    gateway: Pinned,
) -> None:
    gateway.says(echo=WORSE)
    gateway.ctl("restart", "alpha", "--wait")
    with closing(Client(gateway.port, MODERN)) as client:
        judged(client, "alpha__echo")
        (one,) = asked(gateway, "drift")["tools"]
        assert (one["server"], one["tool"], one["kept"], one["locked"]) == (
            "alpha", "echo", True, True,
        )  # fmt: skip
        assert one["before"] == one["after"] == ""
        (whole,) = asked(gateway, "drift", server="alpha", tool="echo")["tools"]
        assert "id_rsa" not in whole["before"]
        assert "id_rsa" in whole["after"]
        order = {"name": "alpha", "tool": "echo", "offered": "0" * 16}
        with control(gateway) as line, pytest.raises(Failed, match="offers something else since"):
            line.call("lock-approve", order)
        order["offered"] = whole["offered"]
        assert asked(gateway, "lock-approve", **order)["tools"] > 1
        assert asked(gateway, "drift")["tools"] == []
        until(lambda: "result" in client.call("alpha__echo", text="x"), "the tool is released")
    assert "id_rsa" in (gateway.folder / "metamcp.lock").read_text()
    assert asked(gateway, "config-diff")["plan"]["changes"][-1]["server"] != "metamcp.lock"


def test_the_audit_is_asked_proven_and_exported_while_it_is_written(gateway: Pinned) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        client.call("beta__echo", text="for the audit")

    def found() -> Any:
        return asked(gateway, "audit", event="call", server="beta", limit=1)["records"]

    (record,) = until(found, "the call is in the audit")
    assert record["outcome"] == "ok"
    assert "arguments" not in record
    (whole,) = asked(gateway, "audit-show", seq=record["seq"])["records"]
    assert "for the audit" in whole["arguments"]
    proof = asked(gateway, "audit-verify")
    assert proof["broken"] is None
    assert proof["last"] >= record["seq"]
    page = asked(gateway, "audit-export", after=record["seq"] - 1)
    assert page["records"][0]["hash"] == record["hash"]
    assert page["more"] is False
    with control(gateway) as line, pytest.raises(Failed, match="limit is a number from 1 to 200"):
        line.call("audit", {"limit": 1000})


def test_what_an_api_key_has_open_is_counted(gateway: Pinned) -> None:
    made = asked(
        gateway, "keys-change", order={"type": "NewKey", "name": "counted", "expires": "1h"}
    )
    assert asked(gateway, "key-use", name="counted") == {"streams": 0, "sessions": 0, "calls": 0}
    assert made["key"]


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("down", {}),
        ("disable --config /etc/passwd", {}),
        ("disable", {"--config": ["/etc/passwd"]}),
        ("add", {"--dry-run": []}),
    ],
)
def test_an_edit_is_one_of_the_table_with_its_own_options(
    gateway: Pinned, verb: str, options: dict[str, list[str]]
) -> None:
    text = gateway.config.read_text()
    order = {"verb": verb, "words": ["beta"], "options": options}
    with control(gateway) as line, pytest.raises(Failed, match="no edit is named"):
        line.call("edit", order)
    assert gateway.config.read_text() == text


def test_a_word_of_an_edit_is_never_an_option(gateway: Pinned) -> None:
    order = {"verb": "disable", "words": ["--help"]}
    with control(gateway) as line, pytest.raises(Failed, match="has no server '--help'") as refused:
        line.call("edit-preview", order, timeout_s=30.0)
    assert refused.value.exit == Exit.UNKNOWN_NAME
