"""What thousands of views have in common is held once."""

from metamcp_supervisor.views.ledger import PAIRS_MAX, Ledger, PairInterner
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import (
    DisclosureState,
    Load,
    Save,
    ViewContent,
    ViewOrder,
    ViewOwner,
)


def test_a_tool_that_many_views_and_tool_sets_name_is_held_once() -> None:
    ledger = Ledger(DisclosureState())
    views = [ViewOwner("find", "local", session) for session in ("s1", "s2")]
    for whose in views:
        order = codec.decode_as(Load, codec.dump(Load((("git", "status"),))))
        ledger.apply(ledger.decide(ViewOrder(whose, order), 1.0))
    ledger.apply(ledger.decide(ViewOrder(views[0], Save("dev")), 1.0))
    dev = ledger.toolset("dev")
    assert dev is not None
    (one,), (other,) = (ledger.find_view(whose).tools for whose in views)
    assert one is other is dev.tools[0]


def test_tools_that_nobody_names_any_more_are_not_held_for_ever() -> None:
    pairs = PairInterner()
    many = tuple(("s", f"t{number}") for number in range(PAIRS_MAX + 1))
    assert pairs.share_pairs(ViewContent(many)) == ViewContent(many)
    (one,) = pairs.share_pairs(ViewContent((("s", "t0"),))).tools
    assert one == many[0]
    assert one is not many[0], "it began anew"
