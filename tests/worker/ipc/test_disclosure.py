"""What is told of views: the difference leads from what was known to what is known now."""

from hypothesis import given
from hypothesis import strategies as some

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Everything, Shift, Shown, ToolSet, ViewOwner, shift

VIEWS = some.dictionaries(
    some.builds(
        ViewOwner, some.sampled_from(["a", "b"]), some.just("me"), some.sampled_from("123")
    ),
    some.builds(Shown, some.lists(some.tuples(some.just("s"), some.sampled_from("tu"))).map(tuple)),
)
SETS = some.lists(
    some.builds(ToolSet, some.sampled_from(["x", "y", "z"]), some.just((("s", "t"),))),
    unique_by=lambda one: one.name,
)


def known(views: dict[ViewOwner, Shown], sets: list[ToolSet]) -> Everything:
    return Everything(
        tuple((whose, one) for whose, one in views.items() if one != Shown()), tuple(sets)
    )


KNOWN = some.builds(known, VIEWS, SETS)


@given(KNOWN, KNOWN)
def test_the_difference_leads_from_one_to_the_other(before: Everything, after: Everything) -> None:
    news = codec.typed(Shift, codec.dump(shift(before, after)))
    views = dict(before.views) | {whose: one for one, those in news.views for whose in those}
    assert {whose: one for whose, one in views.items() if one != Shown()} == dict(after.views)
    sets = {one.name: one for one in (*before.toolsets, *news.put) if one.name not in news.drop}
    assert sets == {one.name: one for one in after.toolsets}


@given(KNOWN)
def test_where_nothing_changed_there_is_nothing_to_tell(same: Everything) -> None:
    assert shift(same, same) == Shift()


def test_what_is_shown_to_many_is_told_once() -> None:
    tools = (("s", "t"),)
    sessions = [ViewOwner("desk", "me", str(number)) for number in range(3)]
    after = Everything(tuple((whose, Shown(tools)) for whose in sessions))
    assert shift(Everything(), after) == Shift(((Shown(tools), tuple(sessions)),))
