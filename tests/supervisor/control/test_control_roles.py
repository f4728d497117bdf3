"""Who may do what on the control socket."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from metamcp_supervisor.control import access_io, client, orders, services
from metamcp_supervisor.control.access import Role, role
from metamcp_supervisor.control.control import ControlLimits
from metamcp_supervisor.verbs import Exit
from tests.supervisor.control.test_control import Peer, peer
from tests.supervisor.small_gateway import server, steered

NOBODY = 65534
GROUP = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")


@pytest.mark.parametrize(
    ("uid", "groups", "group", "expected"),
    [
        (1000, {1000}, None, Role.ADMIN),
        (0, {0}, GROUP, Role.ADMIN),
        (-1, set[int](), None, Role.ADMIN),
        (1001, {1001, GROUP}, GROUP, Role.OPERATOR),
        (1001, {1001}, GROUP, Role.VIEWER),
        (1001, {1001}, None, Role.VIEWER),
    ],
)
def test_a_role_follows_from_user_and_groups(
    uid: int, groups: set[int], group: int | None, expected: Role
) -> None:
    assert role(uid, groups, owner=1000, group=group) is expected


def test_a_verb_about_which_nobody_thought_is_for_admins() -> None:
    assert services.Verb.__struct_defaults__[0] is Role.ADMIN
    least = {name: verb.least for name, verb in orders.verbs().items()}
    changing = {
        name
        for name, verb in orders.verbs().items()
        if issubclass(verb.params, services.ChangeParams)
    }
    assert all(least[name] > Role.VIEWER for name in changing)
    assert least["describe"] is least["status"] is Role.VIEWER


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0o700, (0o600, 0o600)), (0o750, (0o660, 0o640)), (0o755, (0o666, 0o644))],
)
async def test_the_runtime_directory_decides_how_far_the_socket_is_shared(
    mode: int, expected: tuple[int, int]
) -> None:
    async with steered(group=os.getegid(), mode=mode) as (_, directory):
        found = (directory / "control.sock", directory / "token")
        assert tuple(stat.S_IMODE(path.stat().st_mode) for path in found) == expected


def test_a_directory_of_another_group_shares_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert access_io.share(str(tmp_path), (), tmp_path.stat().st_gid + 1) is None
    assert access_io.share(str(tmp_path), (), None) is None, "the group of whoever runs this test"


def test_the_kernel_tells_who_is_there() -> None:
    here, there = socket.socketpair()
    with here, there:
        found = access_io.peer(here)
    assert (found.pid, found.uid) == (os.getpid(), os.geteuid())
    assert os.getegid() in found.groups
    assert found.groups >= set(os.getgroups())
    assert str(found) == f"process {os.getpid()} of user id {os.geteuid()} ({found.command})"
    assert str(access_io.SocketPeer()) == "a client of the control socket"


@contextmanager
def another_user(group: int = NOBODY, user: int = NOBODY) -> Generator[None]:
    """A socket that connects here is of this user for good: the kernel tells who it was then."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def mute(stack: ExitStack, directory: Path, user: int) -> socket.socket:
    """A connection of this user, which says nothing."""
    sock = stack.enter_context(socket.socket(socket.AF_UNIX))
    with another_user(user=user):
        sock.connect(str(directory / "control.sock"))
    return sock


@asynccontextmanager
async def somebody(directory: Path, group: int) -> AsyncGenerator[Peer, None]:
    """A connection of another user, in this group."""
    sock = socket.socket(socket.AF_UNIX)
    with another_user(group):
        try:
            sock.connect(str(directory / "control.sock"))
            token = (directory / "token").read_text()
        except OSError:
            sock.close()
            raise
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    found = Peer(reader, writer)
    try:
        assert (await found.line())["method"] == "hello"
        assert "result" in await found.ask("hello", token=token)
        yield found
    finally:
        writer.close()


@as_root
@pytest.mark.promise("M80")
async def test_a_viewer_looks_and_is_refused_in_one_sentence_when_it_steers() -> None:
    async with (
        steered(server("git"), group=GROUP, mode=0o755) as (gateway, directory),
        somebody(directory, NOBODY) as viewer,
    ):
        assert "result" in await viewer.ask("status")
        seen = (await viewer.ask("describe", name="git"))["result"]
        assert seen["config"] == {"restart": "on-failure"}
        assert seen["source"] == ""
        for verb in ("start", "stop", "restart"):
            error = (await viewer.ask(verb, names=["git"]))["error"]
            assert error["code"] == Exit.DENIED
            assert f"needs the role operator, and user id {NOBODY} is viewer" in error["message"]
        refused = gateway.journal.since(0)
        assert [(event.who, event.what) for event in refused] == [("gateway", "order refused")] * 3
        assert refused[0].cause.startswith("'start git' asked by process ")
        assert f"of user id {NOBODY} (" in refused[0].cause
        assert "'start' needs the role operator" in refused[0].cause


@as_root
@pytest.mark.promise("M80")
async def test_a_member_of_the_group_steers_and_the_journal_has_its_name() -> None:
    async with (
        steered(server("git"), group=GROUP, mode=0o750) as (gateway, directory),
        somebody(directory, GROUP) as operator,
    ):
        assert "result" in await operator.ask("restart", names=["git"])
        seen = (await operator.ask("describe", name="git"))["result"]
        assert "--api-key" in seen["config"]["command"]
        error = (await operator.ask("reload"))["error"]
        assert error["code"] == Exit.DENIED
        assert "needs the role admin" in error["message"]
        asked = gateway.journal.since(0)[0]
        assert f"process {os.getpid()} of user id {NOBODY} (" in asked.cause


@as_root
@pytest.mark.promise("M80")
@pytest.mark.parametrize(
    "method", ["workflow/run", "workflow/cancel", "workflow/decide", "suggest"]
)
async def test_what_changes_in_workflows_is_for_developers_and_runs_are_seen_by_operators(
    method: str,
) -> None:
    async with (
        steered(server("git"), group=GROUP, mode=0o750) as (_, directory),
        somebody(directory, GROUP) as operator,
    ):
        error = (await operator.ask("workflow-change", method=method))["error"]
        assert error["code"] == Exit.DENIED
        assert "'workflow-change' needs the role developer" in error["message"]
        error = (await operator.ask("workflow", method=method))["error"]
        assert "method" in error["message"], "it is not an order of this verb"
        error = (await operator.ask("workflow", method="workflow/runs"))["error"]
        assert error["code"] == Exit.UNKNOWN_NAME, "an operator sees runs; here is no endpoint"


@as_root
@pytest.mark.promise("M80")
async def test_other_users_take_no_place_of_the_owner() -> None:
    async with steered(server("git"), group=GROUP, mode=0o755) as (_, directory):
        with ExitStack() as stack:
            for number in range(200):
                mute(stack, directory, NOBODY - number % 4)
            async with peer(directory) as owner:
                assert "result" in await owner.ask("status")


@as_root
async def test_one_connection_too_many_of_a_user_is_told_so_and_another_user_gets_in() -> None:
    limits = ControlLimits(user_max=1, others_max=2)
    async with steered(limits=limits, group=GROUP, mode=0o755) as (_, directory):
        with ExitStack() as stack:
            told: list[str] = []
            for user in (NOBODY, NOBODY, NOBODY - 1, NOBODY - 2):
                sock = mute(stack, directory, user)
                told.append((await asyncio.to_thread(sock.recv, 4096)).decode())
        assert '"method":"hello"' in told[0]
        assert f"1 connections of user id {NOBODY} to the control socket" in told[1]
        assert '"method":"hello"' in told[2]
        assert "2 connections of other users" in told[3]


async def test_a_client_that_shows_no_token_is_let_go_after_two_seconds() -> None:
    async with steered() as (_, directory), peer(directory, "") as silent:
        begun = asyncio.get_running_loop().time()
        assert (await silent.line())["error"]["code"] == Exit.TIMEOUT
        assert await silent.line() == {}
        assert 1.9 < asyncio.get_running_loop().time() - begun < 4.5


@as_root
async def test_a_stranger_does_not_get_into_a_shared_directory() -> None:
    async with steered(group=GROUP, mode=0o750) as (_, directory):
        with pytest.raises(PermissionError):
            async with somebody(directory, NOBODY):
                pass


@as_root
async def test_a_foreign_gateway_is_trusted_when_it_is_named_and_shares_itself() -> None:
    async with steered(group=GROUP, mode=0o750) as (_, directory):
        # Once as root, so that nothing is left to import that somebody else cannot read.
        (await asyncio.to_thread(client.connect, str(directory))).close()
        for path in directory.iterdir():
            os.chown(path, NOBODY + 1, -1)
        os.setegid(GROUP)
        os.seteuid(NOBODY)
        try:
            gateway = await asyncio.to_thread(client.connect, str(directory))
            gateway.close()
        finally:
            os.seteuid(0)
            os.setegid(0)
