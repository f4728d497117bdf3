"""What is told of views: the difference leads from what was known to what is known now."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import (
    DisclosureDelta,
    DisclosureState,
    ToolSet,
    ViewContent,
    ViewOwner,
    format_pair,
    is_named,
    read,
    shift,
)

VIEWS = some.dictionaries(
    some.builds(
        ViewOwner, some.sampled_from(["a", "b"]), some.just("me"), some.sampled_from("123")
    ),
    some.builds(
        ViewContent, some.lists(some.tuples(some.just("s"), some.sampled_from("tu"))).map(tuple)
    ),
)
SETS = some.lists(
    some.builds(ToolSet, some.sampled_from(["x", "y", "z"]), some.just((("s", "t"),))),
    unique_by=lambda one: one.name,
)


def known(views: dict[ViewOwner, ViewContent], sets: list[ToolSet]) -> DisclosureState:
    return DisclosureState(
        tuple((whose, one) for whose, one in views.items() if one != ViewContent()), tuple(sets)
    )


KNOWN = some.builds(known, VIEWS, SETS)


@given(KNOWN, KNOWN)
def test_the_difference_leads_from_one_to_the_other(
    before: DisclosureState, after: DisclosureState
) -> None:
    news = codec.decode_as(DisclosureDelta, codec.dump(shift(before, after)))
    views = dict(before.views) | {whose: one for one, those in news.views for whose in those}
    assert {whose: one for whose, one in views.items() if one != ViewContent()} == dict(after.views)
    sets = {one.name: one for one in (*before.toolsets, *news.put) if one.name not in news.drop}
    assert sets == {one.name: one for one in after.toolsets}


@given(KNOWN)
def test_where_nothing_changed_there_is_nothing_to_tell(same: DisclosureState) -> None:
    assert shift(same, same) == DisclosureDelta()


def test_what_is_shown_to_many_is_told_once() -> None:
    tools = (("s", "t"),)
    sessions = [ViewOwner("desk", "me", str(number)) for number in range(3)]
    after = DisclosureState(tuple((whose, ViewContent(tools)) for whose in sessions))
    assert shift(DisclosureState(), after) == DisclosureDelta(
        ((ViewContent(tools), tuple(sessions)),)
    )


SERVERS = some.from_regex(r"[a-z0-9](?:[a-z0-9-]|_(?!_))*(?<!_)", fullmatch=True)
TOOLS = some.text(min_size=1).filter(lambda text: text[0] not in "_")


@given(SERVERS, TOOLS, some.sampled_from(["__", ".", "/"]))
def test_a_tool_is_read_in_three_spellings_whatever_its_own_name_has(
    server: str, tool: str, separator: str
) -> None:
    assert read(f"{server}{separator}{tool}") == (server, tool) == read(format_pair((server, tool)))


@pytest.mark.parametrize("text", ["", "git", "git.", "git__", "/status", "__status", "git_status"])
def test_a_text_without_server_or_tool_names_none(text: str) -> None:
    assert read(text) is None
    assert not is_named(text, "git", "status", "other")


@pytest.mark.parametrize("exposed", ["git__status", "git_status", "git.status", "status"])
def test_a_tool_is_named_in_three_spellings_however_an_endpoint_calls_it(exposed: str) -> None:
    for text in ("git__status", "git.status", "git/status", exposed):
        assert is_named(text, "git", "status", exposed)
    for text in ("git__log", "hub/status", "stat"):
        assert not is_named(text, "git", "status", exposed)
