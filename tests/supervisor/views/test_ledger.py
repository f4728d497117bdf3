"""What orders change in views and tool sets: histories beside a plain model, and every refusal."""

from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from metamcp_supervisor.views.ledger import (
    CHARACTERS_MAX,
    NAMES_TOLD_MAX,
    TOOL_CHARACTERS_MAX,
    VIEWS_MAX,
    Ledger,
    OrderImpossible,
)
from metamcp_worker.ipc.disclosure import (
    DESCRIPTION_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    TOOLS_MAX,
    TOOLSETS_MAX,
    Activate,
    Amend,
    AnyOrder,
    Build,
    Deactivate,
    Delete,
    DeleteScript,
    DisclosureState,
    Equip,
    Load,
    Pair,
    Save,
    SaveScript,
    ToolSet,
    Unequip,
    Unload,
    ViewContent,
    ViewOrder,
    ViewOwner,
)

T = TypeVar("T", Pair, str)

ME = ViewOwner("desk", "local")
ANN, BOB = ViewOwner("desk", "ann"), ViewOwner("desk", "bob")
SESSION = ViewOwner("desk", "local", "8a01")
STATUS, LOG, QUERY = ("git", "status"), ("git", "log"), ("db", "query")


def done(ledger: Ledger, order: AnyOrder, whose: ViewOwner = ME, now: float = 1.0) -> None:
    ledger.apply(ledger.decide(ViewOrder(whose, order), now))


def refusal(ledger: Ledger, order: AnyOrder, whose: ViewOwner = ME) -> str:
    with pytest.raises(OrderImpossible) as found:
        ledger.decide(ViewOrder(whose, order), 1.0)
    return str(found.value)


def after(*orders: AnyOrder) -> Ledger:
    ledger = Ledger(DisclosureState())
    for order in orders:
        done(ledger, order)
    return ledger


# A plain model


class Model:
    """The same in the plainest way. A view is [tools, servers, name of the tool set]."""

    def __init__(self) -> None:
        self.views: dict[ViewOwner, tuple[list[Pair], list[str], str]] = {}
        self.sets: dict[str, tuple[list[Pair], str, float, float]] = {}

    def carry_out(self, whose: ViewOwner, order: AnyOrder, now: float) -> bool:
        """Was it possible?"""
        principals = ViewOwner(whose.endpoint, whose.principal)
        tools, servers, name = self.views.get(whose, self.views.get(principals, ([], [], "")))
        match order:
            case Equip(wanted):
                if wanted not in self.sets:
                    return False
                self.see(whose, self.sets[wanted][0], [], wanted)
            case Unequip():
                self.see(whose, [], [], "")
            case Activate(server):
                self.see(whose, tools, unique([*servers, server]), name)
            case Deactivate(server):
                self.see(whose, tools, [one for one in servers if one != server], name)
            case Load(more):
                both = unique([*tools, *more])
                self.see(whose, both, servers, name if both == tools else "")
            case Unload(less):
                left = [one for one in tools if one not in less]
                self.see(whose, left, servers, name if left == tools else "")
            case Build():
                if order.toolset in self.sets and not order.replace:
                    return False
                if not order.tools:
                    return False
                self.put(order.toolset, order.tools, order.description, now)
                if order.equip:
                    self.see(whose, self.sets[order.toolset][0], [], order.toolset)
            case Save(wanted, description):
                if not tools:
                    return False
                old = self.sets.get(wanted, ([], "", 0.0, 0.0))[1]
                self.put(wanted, tools, description or old, now)
            case Amend(wanted, add, remove):
                if wanted not in self.sets:
                    return False
                mine, description, *_ = self.sets[wanted]
                left = unique([*(one for one in mine if one not in remove), *add])
                if not set(remove) <= set(mine) or not left:
                    return False
                self.put(wanted, left, description, now)
            case SaveScript() | DeleteScript():  # another test looks at scripts
                return False
            case Delete(wanted):
                if wanted not in self.sets:
                    return False
                del self.sets[wanted]
                for one, view in list(self.views.items()):
                    if view[2] == wanted:
                        self.see(one, [], view[1], "")
        return True

    def see(self, whose: ViewOwner, tools: list[Pair], servers: list[str], name: str) -> None:
        self.views.pop(whose, None)
        if tools or servers or name or whose.session:
            self.views[whose] = tools, servers, name

    def put(self, name: str, tools: Iterable[Pair], description: str, now: float) -> None:
        created = self.sets[name][2] if name in self.sets else now
        self.sets[name] = unique(tools), description, created, now
        for whose, view in list(self.views.items()):
            if view[2] == name:
                self.see(whose, unique(tools), view[1], name)

    def everything(self) -> tuple[dict[ViewOwner, ViewContent], list[ToolSet]]:
        views = {
            whose: ViewContent(
                tuple(tools), tuple(servers), name, own=not (tools or servers or name)
            )
            for whose, (tools, servers, name) in self.views.items()
        }
        sets = [
            ToolSet(name, tuple(tools), description, created, updated)
            for name, (tools, description, created, updated) in sorted(self.sets.items())
        ]
        return views, sets


def unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))


names = some.sampled_from(["dev", "data", "all"])
pairs = some.lists(some.sampled_from([STATUS, LOG, QUERY]), max_size=4).map(tuple)
servers = some.sampled_from(["git", "db"])
words = some.sampled_from(["", "for work"])
orders = some.one_of(
    some.builds(Equip, names),
    some.just(Unequip()),
    some.builds(Activate, servers),
    some.builds(Deactivate, servers),
    some.builds(Load, pairs),
    some.builds(Unload, pairs),
    some.builds(Build, names, pairs, words, some.booleans(), some.booleans()),
    some.builds(Save, names, words),
    some.builds(Amend, names, pairs, pairs),
    some.builds(Delete, names),
)
histories = some.lists(some.tuples(some.sampled_from([ME, ANN, SESSION]), orders), max_size=40)


@pytest.mark.promise("M31")
@given(histories)
def test_any_history_comes_to_what_the_plain_model_comes_to(
    history: list[tuple[ViewOwner, AnyOrder]],
) -> None:
    ledger, model = Ledger(DisclosureState()), Model()
    for number, (whose, order) in enumerate(history, 1):
        before, shown = ledger.read_everything(), ledger.find_view(whose)
        try:
            delta = ledger.decide(ViewOrder(whose, order), float(number))
        except OrderImpossible:
            assert not model.carry_out(whose, order, float(number))
            continue
        assert ledger.read_everything() == before, "deciding changes nothing"
        assert ledger.find_view(whose) == shown
        assert model.carry_out(whose, order, float(number))
        changes = ledger.changes(delta)
        ledger.apply(delta)
        found = ledger.read_everything()
        assert (dict(found.views), list(found.toolsets)) == model.everything()
        assert changes == (as_values(found) != as_values(before))
        assert all(ledger.find_view(one) == now for one, now in delta.views)


def as_values(found: DisclosureState) -> tuple[dict[ViewOwner, ViewContent], tuple[ToolSet, ...]]:
    """Views have no order."""
    return dict(found.views), found.toolsets


@given(histories)
def test_a_ledger_goes_on_from_everything_that_another_one_had(
    history: list[tuple[ViewOwner, AnyOrder]],
) -> None:
    one = Ledger(DisclosureState())
    for whose, order in history:
        try:
            done(one, order, whose)
        except OrderImpossible:
            continue
    other = Ledger(one.read_everything())
    assert other.read_everything() == one.read_everything()
    assert other.characters == one.characters, "the bound counts what is there"


# What orders mean


@pytest.mark.promise("M31")
def test_an_equipped_tool_set_takes_the_place_of_everything_in_view() -> None:
    ledger = after(Build("dev", (STATUS, QUERY)), Load((LOG,)), Activate("db"), Equip("dev"))
    assert ledger.find_view(ME) == ViewContent((STATUS, QUERY), toolset="dev")
    assert ledger.find_view(ANN) == ViewContent()
    done(ledger, Activate("git"), SESSION)
    assert ledger.sessions(["8a01", "ffff", ""]) == [SESSION], "found by their words"


def test_views_follow_the_tool_set_that_is_equipped_in_them() -> None:
    ledger = after(Build("dev", (STATUS,), equip=True))
    done(ledger, Equip("dev"), ANN)
    done(ledger, Amend("dev", add=(LOG,), remove=(STATUS,)), BOB)
    assert ledger.find_view(ME) == ledger.find_view(ANN) == ViewContent((LOG,), toolset="dev")
    assert ledger.find_view(BOB) == ViewContent()
    done(ledger, Delete("dev"), BOB)
    assert ledger.read_everything() == DisclosureState()


def test_what_was_loaded_by_hand_is_no_tool_set_any_more() -> None:
    ledger = after(Build("dev", (STATUS,), equip=True), Load((LOG,)))
    assert ledger.find_view(ME) == ViewContent((STATUS, LOG))
    done(ledger, Amend("dev", add=(QUERY,)))
    assert ledger.find_view(ME) == ViewContent((STATUS, LOG)), "it does not follow the set any more"


def test_loading_what_is_there_and_unloading_what_is_not_leaves_the_tool_set_equipped() -> None:
    ledger = after(Build("dev", (STATUS,), equip=True), Load((STATUS,)), Unload((LOG,)))
    assert ledger.find_view(ME) == ViewContent((STATUS,), toolset="dev")


def test_a_tool_set_that_is_saved_again_keeps_its_description_and_its_beginning() -> None:
    ledger = after(Load((STATUS,)))
    done(ledger, Save("dev", "for work"), now=1.0)
    done(ledger, Load((LOG,)), now=2.0)
    done(ledger, Save("dev"), now=3.0)
    assert ledger.toolset("dev") == ToolSet("dev", (STATUS, LOG), "for work", 1.0, 3.0)


# Every refusal

BUILT = Build("dev", (STATUS,))


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (Equip("dex"), "there is no tool set 'dex'; there are: dev"),
        (Delete("dex"), "there is no tool set 'dex'; there are: dev"),
        (Amend("dex", add=(LOG,)), "there is no tool set 'dex'; there are: dev"),
        (
            BUILT,
            "there is a tool set 'dev' already; delete it first, or choose another name",
        ),
        (Save("new"), "nothing is loaded that could be saved"),
        (Build("new", ()), "a tool set has at least one tool"),
        (Amend("dev", remove=(STATUS,)), "a tool set has at least one tool"),
        (
            Amend("dev", remove=(LOG, QUERY)),
            "the tool set 'dev' has no tool git.log, db.query",
        ),
        *(
            (
                Build(name, (STATUS,)),
                f"the name of a tool set has 1 to {NAME_CHARACTERS_MAX} printable characters",
            )
            for name in ("", "  ", "a\nb", "a\x1b[2J", "\u202e", "n" * (NAME_CHARACTERS_MAX + 1))
        ),
        (
            Build("new", (STATUS,), "d" * (DESCRIPTION_CHARACTERS_MAX + 1)),
            f"the description of a tool set has at most {DESCRIPTION_CHARACTERS_MAX} characters",
        ),
        (
            Build("new", tuple(("git", f"t{n}") for n in range(TOOLS_MAX + 1))),
            f"a tool set has at most {TOOLS_MAX} tools",
        ),
        (
            Load(tuple(("git", f"t{n}") for n in range(TOOLS_MAX + 1))),
            f"more than {TOOLS_MAX} tools would be in view; take some out first",
        ),
        *(
            (
                order,
                (
                    f"{name!r} is not a tool: one is written server.tool, with at most"
                    f" {TOOL_CHARACTERS_MAX} characters"
                ),
            )
            for pair, name in (
                (("", "c"), ".c"),
                (("git", ""), "git."),
                (("git", "t" * TOOL_CHARACTERS_MAX), ("git." + "t" * 512)[:NAME_CHARACTERS_MAX]),
            )
            for order in (Build("new", (pair,)), Load((pair,)))
        ),
    ],
)
def test_every_refusal_is_a_sentence(order: AnyOrder, sentence: str) -> None:
    ledger = after(BUILT)
    before = ledger.read_everything()
    assert refusal(ledger, order) == sentence
    assert ledger.read_everything() == before


def test_a_tool_that_would_be_read_as_another_one_is_none() -> None:
    """`a.b` and `c` would be written like `a` and `b.c`."""
    assert "is not a tool" in refusal(Ledger(DisclosureState()), Build("new", (("a.b", "c"),)))


def test_without_any_tool_set_a_refusal_says_so() -> None:
    assert refusal(Ledger(DisclosureState()), Equip("dev")) == (
        "there is no tool set 'dev'; there are: none yet"
    )


def test_a_sentence_names_only_some_of_many() -> None:
    many = tuple(ToolSet(f"s{number:03}", (STATUS,)) for number in range(TOOLSETS_MAX))
    ledger = Ledger(DisclosureState((), many))
    more = TOOLSETS_MAX - NAMES_TOLD_MAX
    assert refusal(ledger, Equip("x" * 1000)).endswith(f", s011 and {more} more")
    assert len(refusal(ledger, Equip("x" * 1000))) < 200
    gone = tuple(("git", f"t{number}") for number in range(TOOLS_MAX))
    assert refusal(ledger, Amend("s000", remove=gone)).endswith(
        f"git.t11 and {TOOLS_MAX - NAMES_TOLD_MAX} more"
    )


# Bounds


def test_there_is_a_bound_for_tool_sets_and_one_can_still_be_changed() -> None:
    many = tuple(ToolSet(f"s{number:03}", (STATUS,)) for number in range(TOOLSETS_MAX))
    ledger = Ledger(DisclosureState((), many))
    assert refusal(ledger, Build("new", (STATUS,))) == (
        f"there are {TOOLSETS_MAX} tool sets, and no more can be kept; delete one first"
    )
    done(ledger, Build("s001", (LOG,), replace=True))
    done(ledger, Delete("s002"))
    done(ledger, Build("new", (STATUS,)))


@pytest.mark.parametrize(
    "order",
    [
        Activate("git"),
        Load((STATUS,)),
        Equip("dev"),
        Build("new", (STATUS,), equip=True, replace=True),
    ],
)
def test_there_is_a_bound_for_views_in_which_something_is_shown(order: AnyOrder) -> None:
    shown = ViewContent(servers=("git",))
    views = tuple((ViewOwner("desk", f"p{number}"), shown) for number in range(VIEWS_MAX))
    ledger = Ledger(DisclosureState(views, (ToolSet("dev", (STATUS,)),)))
    assert f"{VIEWS_MAX} views have something in them, and no more can; end" in refusal(
        ledger, order
    )
    done(ledger, order, ViewOwner("desk", "p7"))
    done(ledger, Unequip(), ViewOwner("desk", "p8"))
    done(ledger, order)


def test_there_is_a_bound_for_the_names_of_tools_in_all_of_it() -> None:
    """Else a few orders could make every front hold gigabytes."""
    tools = tuple(("git", f"{number:0{TOOL_CHARACTERS_MAX - 4}}") for number in range(TOOLS_MAX))
    one = ToolSet("s", tools)
    count = CHARACTERS_MAX // sum(len(server) + len(tool) for server, tool in tools)
    sets = tuple(structs.replace(one, name=f"s{number:02}") for number in range(count))
    ledger = Ledger(DisclosureState((), sets))
    sentence = (
        f"the tools of all views and tool sets together have more than {CHARACTERS_MAX}"
        " characters; delete some that nobody needs"
    )
    assert refusal(ledger, Build("new", tools)) == sentence
    assert refusal(ledger, Equip("s00")) == sentence
    done(ledger, Build("s01", tools, replace=True))
    done(ledger, Delete("s02"))
    done(ledger, Equip("s00"))
    assert refusal(ledger, Equip("s00"), ANN) == sentence
    done(ledger, Unequip())
    done(ledger, Build("new", tools))
