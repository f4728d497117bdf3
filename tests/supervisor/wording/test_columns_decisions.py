"""What an operator sees of decisions that last: in the table of servers, and in `describe`."""

import asyncio

import pytest
from msgspec import structs

from metamcp_supervisor.control import describe
from metamcp_supervisor.verbs import Decision, OverriddenSetting
from metamcp_supervisor.wording import columns, descriptions
from tests.supervisor.small_gateway import SmallGateway, server

pytestmark = pytest.mark.promise("M125")

ANN = "process 12 of user id 1000 (metamcp)"
NOW = 1_800_000_000.0
EVIL = {"reason": "operator", "message": "it is evil"}


@pytest.mark.parametrize(
    ("state", "kind", "more", "text"),
    [
        ("stopped", "stop", {}, f"stop by {ANN}"),
        ("draining", "drain", {}, f"drain by {ANN}"),
        ("stopped", "stop", {"required": True}, f"required, so /readyz is 503; stop by {ANN}"),
        (
            "quarantined", "quarantine", EVIL,
            "operator: it is evil; 'metamcp ctl clear git' lets it out",
        ),
    ],
)  # fmt: skip
def test_the_table_of_servers_says_who_decided(
    state: str, kind: str, more: dict[str, object], text: str
) -> None:
    decision = Decision(server="git", kind=kind, who=ANN, when=NOW)
    shown = SmallGateway(server("git", state=state, decision=decision, **more)).status()
    (row,) = columns.status_rows(shown)
    assert row[-1] == text


def test_describe_says_who_decided_and_when() -> None:
    decision = Decision(server="git", kind="drain", who=ANN, when=NOW)
    gateway = SmallGateway(server("git", decision=decision))
    description = asyncio.run(describe.describe(gateway, gateway.servers["git"], private=False))
    setting = OverriddenSetting(
        key="timeout", value="5s", written="1m", until=NOW + 60, who=ANN, when=NOW
    )
    description = structs.replace(description, overrides=(setting,))
    rows = dict(descriptions.facts(description, NOW + 1))
    assert rows["decided"] == f"drain by {ANN}, {columns.clock(NOW)}"
    assert rows["set"] == f"timeout 5s until {columns.clock(NOW + 60)} (else 1m), by {ANN}"
