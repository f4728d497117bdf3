"""Who gets a process for itself: the decisions, with values."""

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server, Sharing
from metamcp_supervisor.servers import per_client
from metamcp_supervisor.servers.per_client import ProcessCount, ProcessRefusal, ProcessSharing
from metamcp_supervisor.servers.server import ServerLife
from metamcp_supervisor.servers.states import ExitClass, ServerPhase
from metamcp_worker.ipc.process_names import (
    CLIENT_PROCESSES_MAX,
    PROCESSES_MAX,
    SESSIONS_PROCESSES_MAX,
)
from metamcp_worker.ipc.roots import Asked

READY = ServerLife(phase=ServerPhase.READY)


@pytest.mark.parametrize(
    ("policy", "contested", "asks_roots", "division"),
    [
        ("shared", True, "ahead", ProcessSharing()),
        ("per-workspace", True, "ahead", ProcessSharing()),
        ("per-session", False, "", ProcessSharing("client")),
        ("per-session", False, "ahead", ProcessSharing("client", "ahead")),
        ("per-project", False, "", ProcessSharing("project", "ahead")),
        ("auto", False, "", ProcessSharing()),
        ("auto", True, "", ProcessSharing("client")),
        ("auto", False, "in calls", ProcessSharing()),
        ("auto", True, "in calls", ProcessSharing("client", "in calls")),
        ("auto", False, "ahead", ProcessSharing("", "ahead")),
        ("auto", True, "ahead", ProcessSharing("client", "ahead")),
    ],
)
def test_auto_is_shared_until_the_server_needs_to_know_its_client(
    policy: Sharing, contested: bool, asks_roots: Asked, division: ProcessSharing
) -> None:
    server = Server(name="git", source="x", sharing=policy)
    assert per_client.division(server, contested=contested, asks_roots=asks_roots) == division


def test_a_process_that_is_not_for_all_rests_sooner_unless_the_configuration_says_when() -> None:
    server = Server(name="git", source="x", start="lazy")
    assert (server.rest_s, per_client.own(server, "git@1").rest_s) == (600.0, 300.0)
    server = replace(server, idle_stop_s=900.0)
    assert (server.rest_s, per_client.own(server, "git@1").rest_s) == (900.0, 900.0)


def test_a_process_for_one_client_is_started_as_its_server_is_but_by_a_call_and_alone() -> None:
    server = Server(
        name="git", source="x", command=("git",), spares=1, required=True, depends_on=("db",)
    )
    own = per_client.own(server, "git@1f")
    assert (own.name, own.lazy, own.spares, own.required) == ("git@1f", True, 0, False)
    assert (own.command, own.depends_on) == (server.command, server.depends_on)


@pytest.mark.parametrize(
    "life",
    [
        READY,
        ServerLife(phase=ServerPhase.IDLE),
        ServerLife(phase=ServerPhase.BACKOFF),
        ServerLife(phase=ServerPhase.FAILED),
        ServerLife(phase=ServerPhase.STOPPING, restarting=True),
        ServerLife(phase=ServerPhase.DRAINING, resting=True),
    ],
)
def test_a_client_gets_its_own_however_the_server_itself_is(life: ServerLife) -> None:
    assert (
        per_client.refusal(life, shared=False, count=ProcessCount(SESSIONS_PROCESSES_MAX - 1))
        is None
    )


@pytest.mark.parametrize(
    ("life", "state"),
    [
        (ServerLife(phase=ServerPhase.DISABLED), "stopped"),
        (ServerLife(phase=ServerPhase.DRAINING), "stopped"),
        (ServerLife(phase=ServerPhase.STOPPING), "stopped"),
        (ServerLife(phase=ServerPhase.READY, parted=True), "draining"),
        (None, "stopped"),
    ],
)
def test_of_a_server_that_an_operator_keeps_from_calls_nobody_gets_one(
    life: ServerLife | None, state: str
) -> None:
    refused = per_client.refusal(life, shared=False, count=ProcessCount())
    assert refused is not None
    assert refused.state == state


def test_of_a_server_in_quarantine_nobody_gets_one_and_all_are_told_why() -> None:
    life = ServerLife(
        phase=ServerPhase.QUARANTINED, reason=ExitClass.OPERATOR, message="it eats files"
    )
    refused = per_client.refusal(life, shared=False, count=ProcessCount())
    assert refused == ProcessRefusal("quarantined", "operator", "it eats files")


def test_of_a_shared_server_nobody_gets_one() -> None:
    refused = per_client.refusal(READY, shared=True, count=ProcessCount())
    assert refused is not None
    assert "try again" in refused.message


def test_there_are_not_more_than_there_may_be() -> None:
    refused = per_client.refusal(READY, shared=False, count=ProcessCount(SESSIONS_PROCESSES_MAX))
    assert refused is not None
    assert (refused.state, refused.reason) == ("error", "no_place")
    assert refused.message.startswith("64 clients have a process of it")


def test_one_that_will_not_run_again_makes_room_for_another() -> None:
    assert per_client.spent(ServerLife(phase=ServerPhase.FAILED), running=False)
    assert per_client.spent(ServerLife(phase=ServerPhase.DISABLED), running=False)
    assert not per_client.spent(ServerLife(phase=ServerPhase.FAILED), running=True)
    assert not per_client.spent(ServerLife(phase=ServerPhase.BACKOFF), running=False)


def test_one_that_its_client_forgot_is_not_started_again() -> None:
    down = ServerLife(phase=ServerPhase.BACKOFF)
    assert per_client.forgotten(down, 600.0, 600.0)
    assert not per_client.forgotten(down, 599.0, 600.0)
    assert not per_client.forgotten(READY, 9999.0, 600.0)


def test_processes_for_single_clients_stand_below_their_server() -> None:
    names = ["git", "db", "git@2", "old@1", "db@1", "git@1"]
    assert per_client.in_order(names) == ["old@1", "git", "git@1", "git@2", "db", "db@1"]


def test_what_is_wanted_under_a_name_is_a_server_or_one_for_a_client() -> None:
    git = Server(name="git", source="x")
    assert per_client.find_settings({"git": git}, "git") is git
    assert per_client.find_settings({"git": git}, "git@1") == per_client.own(git, "git@1")
    assert per_client.find_settings({"git": git}, "db@1") is None


@pytest.mark.parametrize(
    ("count", "reason", "words"),
    [
        (ProcessCount(gateway=PROCESSES_MAX), "no_place", "256 processes serve single clients"),
        (
            ProcessCount(client=CLIENT_PROCESSES_MAX),
            "too_many_roots",
            "this client has 16 processes",
        ),
    ],
)
def test_neither_one_client_nor_all_of_them_take_every_place(
    count: ProcessCount, reason: str, words: str
) -> None:
    refused = per_client.refusal(READY, shared=False, count=count)
    assert refused is not None
    assert refused.reason == reason
    assert refused.message.startswith(words)
