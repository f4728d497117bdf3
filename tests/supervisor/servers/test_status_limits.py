"""Limits of use in the status: those that are set, with what they refused and how much is used."""

import pytest

from metamcp_supervisor.config.config import Address, Server
from metamcp_supervisor.servers.status import GatewayFacts, limits
from metamcp_supervisor.verbs import LimitStatus
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc.spec import UseLimits
from tests.supervisor.configs import config

pytestmark = pytest.mark.promise("M66")

GIT = Server(
    name="git", source="x", command=("git",), limits=UseLimits(in_flight=3, calls_per_day=10)
)


def facts(*servers: Server, **keys: UseLimits) -> GatewayFacts:
    return GatewayFacts(
        version="1", state="active", now=0.0, started=0.0, listen=Address("127.0.0.1", 1),
        ops_listen=Address("127.0.0.1", 2), config=config(*servers), config_hash="",
        config_read=0.0, nursery_pid=0, key_limits=keys,
        calls_today={("server", "git"): 4, ("key", "a"): 9, ("key", "b"): 5, ("key", "gone"): 99},
    )  # fmt: skip


def test_without_limits_nothing_is_shown() -> None:
    assert limits(facts(Server(name="free", source="x")), {}) == ()


def test_an_owner_has_its_own_row_and_all_keys_have_one() -> None:
    a, b = UseLimits(calls_per_day=90), UseLimits(calls_per_day=10, calls_per_minute=5)
    refused = {("server", "git", "in_flight"): 2, ("key", "", "calls_per_minute"): 7}
    git, keys = limits(facts(GIT, a=a, b=b), refused)
    assert git == LimitStatus(
        kind="server", name="git", refused={"calls_per_day": 0, "in_flight": 2},
        calls_today=4, calls_per_day=10,
    )  # fmt: skip
    assert keys == LimitStatus(
        kind="key", name="", refused={"calls_per_minute": 7, "calls_per_day": 0},
        calls_today=5, calls_per_day=10,
    )  # fmt: skip


def test_a_sentence_tells_what_is_used_and_refused_and_nothing_if_there_is_nothing() -> None:
    dev = LimitStatus(kind="endpoint", name="dev", refused={"streams": 0})
    git = LimitStatus(kind="server", name="git", refused={}, calls_today=4, calls_per_day=10)
    keys = LimitStatus(kind="key", name="", refused={"in_flight": 2, "streams": 0, "body_max": 1})
    used = LimitStatus(kind="key", name="", refused={}, calls_today=2, calls_per_day=3)
    assert columns.limit_lines((used,)) == [
        "API keys: 2 of 3 calls today by the key that used most"
    ]
    assert columns.limit_lines((dev, git, keys)) == [
        "server git: 4 of 10 calls today",
        "API keys: refused by in_flight 2, body_max 1",
    ]
