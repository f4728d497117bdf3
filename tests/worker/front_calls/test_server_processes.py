"""Which process serves which client, and what the supervisor is told of it."""

import pytest

from metamcp_worker.front_calls.request_facts import McpRequest
from metamcp_worker.front_calls.server_processes import (
    CALLER_BYTES_MAX,
    RootsUnknown,
    ServerProcesses,
)
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.messages import ServerState, ServerWanted
from metamcp_worker.ipc.process_names import By
from metamcp_worker.ipc.roots import Asked

pytestmark = pytest.mark.promise("M77")

ADA, BOB = (process_names.of_session(name) for name in ("ada", "bob"))
HERE = b'{"roots":[{"uri":"file:///here"}]}'


class Told(ServerProcesses):
    """`news`: what the supervisor hears."""

    def __init__(self, by: By = "", *, roots: Asked = "", both: bool = False) -> None:
        self.news: list[ServerWanted] = []
        super().__init__(self.news.append)
        self.learn(
            ServerState(server="git", state="active", listed=True, by=by, roots=roots, both=both)
        )


def client(who: str = ADA, *, modern: bool = False, caller: bytes = b"{}") -> McpRequest:
    return McpRequest(
        "tools/call", {}, {}, caller, modern=modern, who=who, rooted=who, project="0aproject",
        roots=HERE,
    )  # fmt: skip


def test_who_has_to_be_asked_for_roots_is_asked_before_a_call_and_not_for_others() -> None:
    one = client()
    one.unasked = True
    rooted = Told(roots="ahead")
    with pytest.raises(RootsUnknown):
        rooted.find("git", one, calls=True)
    assert rooted.find("git", one) == "git@0aproject"
    assert Told("client").find("git", one, calls=True) == f"git@{ADA}"


def test_the_supervisor_is_told_whom_a_process_serves_when_it_is_to_start() -> None:
    processes = Told("client", roots="ahead")
    name = processes.find("git", client(caller=b'{"a":1}'))
    assert processes.news == []
    processes.request_process(name)
    (news,) = processes.news
    assert news.server == name
    assert news.tenant is not None
    assert (news.tenant.who, news.tenant.caller, news.tenant.roots) == (
        ADA,
        '{"a":1}',
        HERE.decode(),
    )
    processes.find("git", client(BOB, caller=b'"%b"' % (b"x" * CALLER_BYTES_MAX)))
    processes.request_process(f"git@{BOB}")
    assert processes.news[1].tenant is not None
    assert processes.news[1].tenant.caller == "{}"


def test_of_a_project_it_is_told_each_client_once_until_nothing_is_left_of_it() -> None:
    processes = Told("project", roots="ahead")
    names = {processes.find("git", client(who)) for who in (ADA, BOB, BOB, ADA)}
    assert names == {"git@0aproject"}
    assert {one.tenant.who for one in processes.news if one.tenant} == {ADA, BOB}
    assert len(processes.news) == 2
    processes.forget("git@0aproject")
    processes.find("git", client(ADA))
    assert [one.tenant.who for one in processes.news[2:] if one.tenant] == [ADA]


def test_other_roots_of_a_client_are_for_the_processes_that_it_has() -> None:
    processes = Told("client", roots="ahead")
    assert processes.update_roots(client()) == []
    name = processes.find("git", client())
    moved = client()
    moved.roots = b'{"roots":[]}'
    assert processes.update_roots(moved) == [name]
    processes.request_process(name)
    assert processes.news[0].tenant is not None
    assert processes.news[0].tenant.roots == '{"roots":[]}'


def test_a_server_of_both_eras_asks_modern_clients_in_their_calls() -> None:
    both = Told(roots="ahead", both=True)
    modern = client("0b", modern=True)
    modern.unasked = True
    assert both.find("git", modern, calls=True) == "git"
    assert both.find("git", client()) == "git@0aproject"


@pytest.mark.parametrize("modern", [False, True])
def test_clients_with_the_same_roots_share_a_process_whatever_one_of_them_can_do(
    modern: bool,
) -> None:
    processes = Told(roots="ahead")
    names = {processes.find("git", client(who, modern=modern)) for who in (ADA, BOB)}
    assert names == {"git@0aproject"}
    assert [one.tenant.caller for one in processes.news if one.tenant] == ["", ""]
    without = client(ADA, modern=modern)
    without.rooted = ""
    assert processes.find("git", without) == "git", "it has no roots, wherever it works"
    apart = Told("client", roots="ahead")
    assert {apart.find("git", client(who)) for who in (ADA, BOB)} == {f"git@{ADA}", f"git@{BOB}"}


@pytest.mark.parametrize(("who", "modern"), [(ADA, False), ("0b", True)])
def test_nobody_is_asked_ahead_whose_server_asks_in_the_call(who: str, modern: bool) -> None:
    rooted = b'{"clientCapabilities":{"roots":{}}}'
    names: dict[By, str] = {"": "git", "client": f"git@{who}"}
    for by, name in names.items():
        processes = Told(by, roots="in calls")
        one = client(who, modern=modern, caller=rooted)
        one.unasked = True
        assert processes.find("git", one, calls=True) == name


@pytest.mark.promise("M83")
def test_clients_with_a_session_share_the_process_of_their_era() -> None:
    both, eve = Told(both=True), client(process_names.of_client("", "", b"eve"), modern=True)
    assert both.find("git", client()) == both.find("git", client(BOB)) == "git@legacy"
    assert both.find("git", eve) == both.find("git", client("", modern=True)) == "git"
    assert both.heir("git@legacy") == "git@legacy"
    assert Told("client", both=True).find("git", client()) == f"git@{ADA}"
    one = Told()
    assert one.find("git", client()) == one.heir("git@legacy") == "git"
    assert one.heir(f"git@{ADA}") == f"git@{ADA}"
