"""Exposed names: the table of promises, and what must hold for every set of pairs."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.ipc import exposed_names
from metamcp_worker.ipc.spec import NamingSpec

FLAT = NamingSpec(style="flat")

servers = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,12}", fullmatch=True)
originals = st.one_of(st.from_regex(r"[a-c_.-]{1,6}", fullmatch=True), st.text(max_size=150))
pairs_lists = st.lists(st.tuples(servers, originals), unique=True, max_size=30)
namings = st.builds(
    NamingSpec,
    style=st.sampled_from(list(exposed_names.SEPARATORS)),
    separator=st.sampled_from(["", "", "-", "::", "."]),
    hyphens=st.sampled_from(["keep", "underscore"]),
    length_max=st.sampled_from([16, 24, 64, 128]),
)


def exposed(server: str, original: str, naming: NamingSpec) -> str:
    return exposed_names.expose([(server, original)], naming)[0]


@pytest.mark.promise("M26")
@pytest.mark.parametrize(
    ("server", "original", "name"),
    [
        ("git", "status", "git_status"),
        ("docker", "ps", "docker_ps"),
        ("linear", "create_issue", "linear_create_issue"),
        ("context7", "resolve-library-id", "context7_resolve-library-id"),
        ("git", "search-repositories", "git_search-repositories"),
        ("docker", "build_image", "docker_build_image"),
        ("server", "tool.with.multiple.dots", "server_tool_with_multiple_dots"),
        ("s3", "get/Object 2", "s3_get_Object_2"),
        ("wetter", "größe", "wetter_grosse"),
        ("ru", "Поиск файлов", "ru_Poisk_faylov"),
        ("gr", "αναζήτηση", "gr_anazitisi"),
        ("jp", "ファイル-けんさく", "jp_huairu-kensaku"),
        ("kr", "검색", "kr_geomsaeg"),
        ("cn", "搜索files", "cn_files"),
        ("cn", "搜索", "cn_tool-557"),
        ("cn", "搜  索/🔍", "cn_tool-4840"),
        ("s", " !a -- b__c! ", "s_a_--_b_c"),
        ("s", "__a__", "s___a__"),
    ],
)
def test_flat_style_follows_the_flattening_table(server: str, original: str, name: str) -> None:
    assert exposed(server, original, FLAT) == name


@pytest.mark.promise("M26")
@pytest.mark.parametrize(
    ("server", "original", "name"),
    [
        ("context7", "resolve-library-id", "context7_resolve_library_id"),
        ("task-master", "get_tasks", "task_master_get_tasks"),
        ("git", "search-repositories", "git_search_repositories"),
    ],
)
def test_hyphens_become_underscores_where_the_endpoint_says_so(
    server: str, original: str, name: str
) -> None:
    assert exposed(server, original, NamingSpec(style="flat", hyphens="underscore")) == name


@pytest.mark.promise("M25")
@pytest.mark.parametrize(
    ("naming", "name"),
    [
        (NamingSpec(), "git__log_all"),
        (FLAT, "git_log_all"),
        (NamingSpec(style="dotted"), "git.log.all"),
        (NamingSpec(style="bare"), "log_all"),
        (NamingSpec(separator="-"), "git-log_all"),
        (NamingSpec(style="bare", separator="-"), "log_all"),
    ],
)
def test_every_style_joins_in_its_own_way(naming: NamingSpec, name: str) -> None:
    assert exposed("git", "log.all", naming) == name


@pytest.mark.promise("M26")
def test_a_route_names_server_original_and_both_together() -> None:
    assert exposed("git", "search_repositories", FLAT) == "git_search_repositories"
    assert tool_text.route(("git", "search_repositories")) == {
        "serverName": "git",
        "originalName": "search_repositories",
        "namespacedName": "git.search_repositories",
    }


@pytest.mark.promise("M25")
def test_both_sides_of_a_collision_get_the_same_tail_every_time() -> None:
    one, other = ("a", "b_c"), ("a_b", "c")
    forth = exposed_names.expose([one, other], FLAT)
    assert forth == exposed_names.expose([other, one], FLAT)[::-1]
    assert all(re.fullmatch(r"a_b_c_[a-z2-7]{6}", name) for name in forth)
    assert exposed_names.expose([one, ("z", "y"), other], FLAT) == [forth[0], "z_y", forth[1]]


def test_a_tool_that_is_called_like_the_tail_of_another_parts_from_it() -> None:
    colliding = [("a", "b_c"), ("a_b", "c")]
    taken = exposed_names.expose(colliding, FLAT)[0]
    three = exposed_names.expose([*colliding, ("a", taken.removeprefix("a_"))], FLAT)
    assert len(set(three)) == 3


def test_a_long_name_keeps_its_head_and_ends_in_a_tail_of_its_own() -> None:
    long = "x" * 100
    first, second = exposed_names.expose([("git", long + "1"), ("git", long + "2")], NamingSpec())
    assert first != second
    assert len(first) == len(second) == 64
    assert first[:57] == second[:57] == "git__" + "x" * 52
    assert exposed("git", long + "1", NamingSpec()) == first


def test_a_length_below_the_smallest_counts_as_the_smallest() -> None:
    naming = NamingSpec(length_max=1)
    assert len(exposed("server", "a" * 40, naming)) == exposed_names.LENGTH_MIN


@pytest.mark.promise("M25")
@given(pairs_lists, namings)
def test_names_are_unique_short_and_of_the_allowed_characters(
    pairs: list[exposed_names.Pair], naming: NamingSpec
) -> None:
    found = exposed_names.expose(pairs, naming)
    assert len(set(found)) == len(pairs)
    dots = naming.style == "dotted" or naming.separator == "."
    allowed = re.compile(r"[A-Za-z0-9_.-]+" if dots else r"[A-Za-z0-9_-]+")
    for name in found:
        assert len(name) <= naming.length_max
        assert allowed.fullmatch(name)
    if naming.hyphens == "underscore":
        assert not any("-" in name for name in found)
    assert not any(exposed_names.flaw(name, naming) for name in found), (
        "what the rule gives may be given"
    )


@pytest.mark.promise("M25")
@given(pairs_lists, namings, st.randoms())
def test_names_do_not_depend_on_order(
    pairs: list[exposed_names.Pair], naming: NamingSpec, dice: random.Random
) -> None:
    table = dict(zip(pairs, exposed_names.expose(pairs, naming), strict=True))
    shuffled = list(pairs)
    dice.shuffle(shuffled)
    assert dict(zip(shuffled, exposed_names.expose(shuffled, naming), strict=True)) == table


@given(pairs_lists, st.lists(originals, unique=True, max_size=5), namings)
def test_another_server_renames_nothing_that_it_does_not_collide_with(
    pairs: list[exposed_names.Pair], more: list[str], naming: NamingSpec
) -> None:
    before = dict(zip(pairs, exposed_names.expose(pairs, naming), strict=True))
    added = [("zz-new", original) for original in more if ("zz-new", original) not in before]
    every = [*pairs, *added]
    after = dict(zip(every, exposed_names.expose(every, naming), strict=True))
    alone = {name for pair in added for name in exposed_names.expose([pair], naming)}
    plain = {pair: exposed_names.expose([pair], naming)[0] for pair in pairs}
    if alone.isdisjoint(before.values()) and alone.isdisjoint(plain.values()):
        assert {pair: after[pair] for pair in pairs} == before


@pytest.mark.promise("M27")
@given(pairs_lists, st.dictionaries(st.tuples(servers, originals), originals, max_size=4), namings)
def test_a_given_name_is_kept_and_nobody_else_gets_it(
    pairs: list[exposed_names.Pair], wanted: dict[exposed_names.Pair, str], naming: NamingSpec
) -> None:
    given_names = {pair: name for name, pair in {name: p for p, name in wanted.items()}.items()}
    every = list(dict.fromkeys([*pairs, *given_names]))
    plain = exposed_names.expose(pairs, naming)
    some = {pair: plain[at] for at, pair in enumerate(reversed(pairs)) if at % 3 == 0}
    for wished in (given_names, some):
        found = dict(zip(every, exposed_names.expose(every, naming, (), wished), strict=True))
        assert len(set(found.values())) == len(found)
        assert {pair: found[pair] for pair in wished} == wished
        absent = [pair for pair in every if pair not in wished]
        assert exposed_names.expose(absent, naming, (), wished) == [found[pair] for pair in absent]


@pytest.mark.promise("M25")
@pytest.mark.parametrize(
    ("name", "naming", "why"),
    [
        ("git_status-2", FLAT, ""),
        ("git.status", NamingSpec(style="dotted"), ""),
        ("git.status", NamingSpec(separator="."), ""),
        ("git.status", FLAT, "may have only letters, digits, '_' and '-' here"),
        ("größe", NamingSpec(style="dotted"), "may have only letters, digits, '_', '-' and '.'"),
        ("", FLAT, "is empty"),
        ("x" * 65, FLAT, "has 65 characters, and here a name has at most 64"),
        ("a-b", NamingSpec(hyphens="underscore"), "has a '-' in it, and names here have none"),
    ],
)  # fmt: skip
def test_a_name_that_an_operator_gives_is_one_that_clients_take(
    name: str, naming: NamingSpec, why: str
) -> None:
    assert exposed_names.flaw(name, naming).startswith(why)
    assert bool(exposed_names.flaw(name, naming)) == bool(why)


@pytest.mark.promise("M25")
def test_an_alias_binds_no_client() -> None:
    assert exposed_names.alias_flaw("a-b.c_" + "x" * 122) == ""
    assert (
        exposed_names.alias_flaw("x" * 129) == "has 129 characters, and here a name has at most 128"
    )
    assert exposed_names.alias_flaw("a/b").startswith("may have only")


def test_equal_pairs_get_the_same_name() -> None:
    assert exposed_names.expose([("a", "b"), ("a", "b")], FLAT) == ["a_b", "a_b"]
