"""Tools in quarantine at the front: in no list, their names taken, and calls of them told why."""

import resource

import pytest
from msgspec.structs import replace

from metamcp_worker.catalog.catalog import Catalog
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.front.run import EXIT_FAILED
from metamcp_worker.ipc import codec, packets, process_names
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Result
from metamcp_worker.ipc.messages import FrontReady, Reconfigure, ServerState
from metamcp_worker.ipc.spec import FrontSpec, ToolOverride
from tests.waiting import until

from .called import opened_front, request
from .callers import answer_of
from .offers import endpoint, offer, prompt
from .peers import error_data
from .process import front

WHY = "the tool 'x' of 'a' is in quarantine"
CALL = b'{"name":"git__status"}'
KEPT = (("git", "status", WHY),)


def spec(*kept: tuple[str, str, str]) -> FrontSpec:
    return FrontSpec(version="1", endpoints=(endpoint("git"),), hosts=(), quarantined=kept)


@pytest.mark.promise("M40")
def test_it_is_in_no_list_and_its_name_is_nobody_elses() -> None:
    catalog = Catalog()
    for server in ("a", "b"):
        catalog.put(server, offer("x", "y", prompts=[prompt("x")]))
        catalog.set_listed(server, True)
    bare = endpoint("a", "b", style="bare")
    before = catalog.merge(bare)
    catalog.keep_back({("a", "x"): WHY})
    after = catalog.merge(bare)
    (gone,) = {entry.key for entry in before.lists["tools"]} - {
        entry.key for entry in after.lists["tools"]
    }
    assert after.tools.keys() == before.tools.keys()
    assert [name for name, owner in after.tools.items() if owner.kept == WHY] == [gone]
    assert gone not in {entry.key for entry in after.offered}
    assert after.kept == {("a", "x"): WHY}
    assert after.hashes["prompts"] == before.hashes["prompts"]
    assert all(not owner.kept for owner in after.prompts.values())
    catalog.keep_back({})
    assert catalog.merge(bare).hashes == before.hashes


@pytest.mark.promise("M40")
def test_its_own_name_is_no_way_around_where_names_are_bare() -> None:
    catalog = Catalog()
    catalog.put("a", offer("x-y", "a b"))
    catalog.keep_back({("a", "x-y"): WHY, ("a", "a b"): WHY})
    bare = endpoint("a", style="bare")
    found = catalog.merge(replace(bare, naming=replace(bare.naming, hyphens="underscore")))
    assert [found.tool("x-y"), found.tool("a b")] == [None, None]
    assert found.tool("unlisted") is not None


@pytest.mark.promise("M40")
def test_a_server_that_is_held_to_what_is_approved_is_not_asked_for_what_it_does_not_list() -> None:
    """Nobody can have approved such a tool; prompts are not held to anything."""
    catalog = Catalog()
    bare = endpoint("a", style="bare")
    catalog.keep_back({}, held_servers=frozenset("a"))
    unknown = catalog.merge(bare)
    assert (unknown.tool("x"), unknown.prompt("y")) == (None, Owner("a"))
    catalog.put("a", offer("x", prompts=[prompt("y")]))
    found = catalog.merge(bare)
    assert found.tool("x") == Owner("a", b'"x"')
    assert found.tool("unlisted") is None
    assert (found.prompt("unlisted"), found.resource("odd:1")) == (Owner("a"), Owner("a"))
    catalog.keep_back({}, held_servers=frozenset("b"))
    assert catalog.merge(bare).tool("unlisted") == Owner("a")


@pytest.mark.promise("M40")
@pytest.mark.parametrize("modern", [True, False])
async def test_what_nobody_has_approved_cannot_be_called_by_a_name_that_no_list_has(
    modern: bool,
) -> None:
    async with opened_front(endpoint("git", style="bare"), git=offer("status")) as front:
        unlisted = request("tools/call", b'{"name":"unlisted"}', modern=modern)
        await front.sent("git", unlisted)
        bare = endpoint("git", style="bare")
        front.steps.configure(FrontSpec(version="1", endpoints=(bare,), hosts=(), held=("git",)))
        front.calls.refresh()
        refusal = front.refusal(unlisted)
        said = (refusal.code, refusal.message)
        assert said == (Code.INVALID_PARAMS, "Unknown tool: unlisted")
        assert front.peers["git"].quiet()
        await front.sent("git", request("tools/call", b'{"name":"status"}', modern=modern))
        await front.sent("git", request("prompts/get", b'{"name":"unlisted"}', modern=modern))


def test_further_names_of_it_are_no_way_around() -> None:
    catalog = Catalog()
    catalog.put("a", offer("x"))
    catalog.keep_back({("a", "x"): WHY})
    other = ToolOverride(server="a", tool="x", name="first", aliases=("second",))
    found = catalog.merge(replace(endpoint("a", style="bare"), overrides=(other,)))
    owners = [found.tool("first"), found.tool("second")]
    assert [owner and owner.kept for owner in owners] == [WHY, WHY]


@pytest.mark.promise("M40")
@pytest.mark.parametrize("modern", [True, False])
async def test_a_call_is_told_why_and_no_server_hears_of_it(modern: bool) -> None:
    async with opened_front(git=offer("status")) as front:
        front.steps.configure(spec(*KEPT))
        front.calls.refresh()
        refusal = front.refusal(request("tools/call", CALL, modern=modern))
        assert (refusal.code, refusal.message) == (Code.INVALID_PARAMS, WHY)
        assert refusal.data == b'{"reason":"quarantine"}'
        assert front.peers["git"].quiet()
        front.steps.configure(spec())
        front.calls.refresh()
        await front.sent("git", request("tools/call", CALL, modern=modern))


@pytest.mark.promise("M40")
async def test_a_call_that_waits_for_its_server_is_refused_if_its_tool_comes_back_as_another() -> (
    None
):
    async with opened_front(git=offer("status", "log")) as front:
        idle = ServerState(server="git", state="idle", listed=True, hold_ms=10_000)
        front.calls.server_state(idle)
        view = front.view
        waits = front.calls.start(view, request("tools/call", CALL), None)
        stays = front.calls.start(view, request("tools/call", b'{"name":"git__log"}'), None)
        front.steps.configure(spec(*KEPT))
        answer = await answer_of(waits)
        assert codec.value(answer.body)["message"] == WHY
        assert error_data(answer.body) == {"reason": "quarantine", "may_have_run": False}
        peer = await front.attach("git", 2)
        front.calls.server_state(replace(idle, state="ready", generation=2))
        peer.write(Result((await peer.call()).id, b"1"))
        assert (await answer_of(stays)).body == b"1"
        assert peer.quiet()


async def test_what_one_process_offers_otherwise_only_its_own_client_does_without() -> None:
    async with opened_front(git=offer("status")) as front:
        state = ServerState(server="git", state="ready", listed=True, by="client")
        front.calls.server_state(state)
        own = process_names.own("git", "0123456789ab")
        front.steps.configure(spec((own, "status", WHY)))
        front.calls.refresh()
        assert [entry.key for entry in front.view.merged.lists["tools"]] == ["git__status"]
        asked = replace(request("tools/call", CALL), who="0123456789ab")
        assert front.refusal(asked).message == WHY
        await front.sent("git", request("tools/call", CALL))


@pytest.mark.process
@pytest.mark.promise("M40")
@pytest.mark.parametrize("lost", ["descriptor", "bytes"])
def test_a_front_that_cannot_be_told_of_a_quarantine_ends_and_shows_nothing(lost: str) -> None:
    with front() as one:
        one.serve()
        one.heard(FrontReady)
        if lost == "bytes":
            one.send(Reconfigure(vital=True), [packets.blob(b"[]")])
        else:
            usual = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
            one.send(Reconfigure(vital=True), [packets.blob(codec.dump(spec(*KEPT)))])
        until(lambda: one.process.poll() is not None, "its end")
        assert one.process.returncode == EXIT_FAILED
