"""The index over all tools: what comes first, what stays, and that servers come and go in it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.search.index import (
    HITS_MAX,
    NAMED_MAX,
    Index,
    Ranking,
    SearchResult,
    ToolDocument,
)


def tool(server: str, name: str, description: str = "", **properties: str) -> ToolDocument:
    schema = {key: {"type": "string", "description": said} for key, said in properties.items()}
    definition: dict[str, Any] = {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": schema},
    }
    return ToolDocument((server, name), f"{server}__{name}", json.dumps(definition).encode())


GIT = [
    tool("git", "status", "Shows what has changed in the working tree."),
    tool("git", "commit", "Records changes in the repository.", message="What was done and why."),
    tool("git", "log", "Shows the commits of a branch.", branch="The branch to look at."),
]
GITHUB = [
    tool("github", "create_issue", "Opens a new issue in a repository.", title="Its title."),
    tool("github", "list_issues", "Lists the issues of a repository.", state="open or closed"),
    tool("github", "get_status", "The state of the checks of a commit."),
]
FILES = [
    tool("files", "read_file", "Reads the contents of a file.", path="Where it lies."),
    tool("files", "write_file", "Writes text to a file.", path="Where to write."),
    tool("files", "the", "Its name says nothing."),
]


def filled(*servers: Sequence[ToolDocument]) -> Index:
    index = Index()
    for documents in servers or (GIT, GITHUB, FILES):
        index.put(documents[0].pair[0], documents)
    return index


def named(found: SearchResult) -> list[str]:
    return [".".join(hit.document.pair) for hit in found.hits]


@pytest.mark.promise("M36")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("open a new ticket or issue", "github.create_issue"),
        ("what has changed in my working tree?", "git.status"),
        ("see the contents of a file", "files.read_file"),
        ("save changes in the repository", "git.commit"),
        ("branch", "git.log"),
        ("message", "git.commit"),
    ],
)
def test_a_tool_is_found_by_what_it_does(query: str, first: str) -> None:
    assert named(filled().search(query, 5))[0] == first


@pytest.mark.promise("M36")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("status", "git.status"),
        ("get_status", "github.get_status"),
        ("getStatus", "github.get_status"),
        ("GET STATUS", "github.get_status"),
        ("git status", "git.status"),
        ("git__status", "git.status"),
        ("github.list-issues", "github.list_issues"),
        ("the create_issue tool", "github.create_issue"),
        ("creat_isue", "github.create_issue"),
        ("read_fiel", "files.read_file"),
        ("the", "files.the"),
    ],
)
def test_a_query_that_is_nearly_a_name_finds_that_first(query: str, first: str) -> None:
    assert named(filled().search(query, 5))[0] == first


@pytest.mark.parametrize("query", ["git", "Git", "the git server", "git mcp server"])
def test_the_name_of_a_server_finds_its_tools_first(query: str) -> None:
    assert set(named(filled().search(query, 3))) == {"git.status", "git.commit", "git.log"}


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("crea", "github.create_issue"),
        ("writef", "files.write_file"),
        ("stat", "git.status"),
        ("createi", "github.create_issue"),
    ],
)
def test_the_beginning_of_a_name_is_enough(query: str, first: str) -> None:
    assert named(filled().search(query, 5))[0] == first


def test_the_beginning_of_a_servers_name_finds_its_tools() -> None:
    assert {"github.create_issue", "github.list_issues", "github.get_status"} <= set(
        named(filled().search("gith", 10))
    )


def test_a_name_that_many_have_is_found_at_all_of_them() -> None:
    servers = [f"s{at:03}" for at in range(NAMED_MAX + 50)]
    index = filled(*[[tool(server, "convert_all", "Converts.")] for server in servers], GIT)
    found = index.search("conv", 5)
    assert named(found) == [f"{server}.convert_all" for server in servers[:5]]
    assert len(found.hits) + found.more == len(servers)
    assert named(index.search("convert_all", 5)) == named(found)
    assert named(index.search("s007", 1)) == ["s007.convert_all"]


def test_a_server_and_a_name_mean_the_tool_of_that_server() -> None:
    index = filled(GIT, [tool("svn", "log", "Shows the commits of a branch.")])
    assert named(index.search("svn log", 2)) == ["svn.log", "git.log"]
    assert named(index.search("git log", 2))[0] == "git.log"


def test_an_exposed_name_of_its_own_is_found() -> None:
    renamed = ToolDocument(("x", "a1"), "weather_today", b"{}")
    index = filled(GIT, [renamed])
    assert named(index.search("weather today", 1)) == ["x.a1"]
    index.drop("x")
    assert named(index.search("weather today", 1)) == []


@pytest.mark.parametrize("query", ["", "   ", "what is that", "?!", "\ud800"])
def test_where_nothing_is_asked_tools_are_listed_by_name(query: str) -> None:
    found = filled().search(query, 4)
    assert named(found) == ["files.read_file", "files.the", "files.write_file", "git.commit"]
    assert (found.more, found.counted) == (5, True)
    assert {hit.score for hit in found.hits} == {0.0}


def test_what_matches_nothing_finds_nothing() -> None:
    assert filled().search("xylophone", 5).hits == ()
    assert Index().search("git", 5) == SearchResult((), 0)
    assert Index().search("", 5) == SearchResult((), 0)


@pytest.mark.promise("M36")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("picture of my cat", "media.get_image"),
        ("remove a folder", "media.delete_directory"),
        ("hear voice.mp3", "media.read_audio"),
        ("delete an image", "media.delete_directory"),
    ],
)
def test_everyday_words_find_the_words_of_the_trade(query: str, first: str) -> None:
    index = Index()
    names = ("get_image", "delete_directory", "read_audio", "list_users")
    index.put("media", [tool("media", name) for name in names])
    assert named(index.search(query, 1)) == [first]


def test_a_word_of_the_query_counts_more_than_one_that_stands_for_it() -> None:
    index = Index()
    index.put("a", [tool("a", "folder_open"), tool("a", "directory_open")])
    assert named(index.search("folder", 1)) == ["a.folder_open"]
    assert named(index.search("directory", 1)) == ["a.directory_open"]


def test_an_answer_without_hits_names_the_allowed_servers() -> None:
    found = filled().search("xylophone", 5, {"git", "github"})
    names = ("git__commit", "git__log", "git__status")
    assert found.servers[0] == ("git", 3, names)
    assert [server for server, _, _ in found.servers] == ["git", "github"]


def test_it_is_said_how_many_more_match() -> None:
    found = filled().search("repository", 1)
    assert (len(found.hits), found.more) == (1, 2)


def test_only_what_is_allowed_is_found() -> None:
    index = filled()
    assert {name.split(".")[0] for name in named(index.search("status", 9, {"github"}))} == {
        "github"
    }
    assert named(index.search("git status", 9, lambda pair: pair[1] == "get_status")) == [
        "github.get_status"
    ]
    assert named(index.search("", 9, frozenset({"git"}))) == [
        "git.commit", "git.log", "git.status",
    ]  # fmt: skip
    assert index.search("status", 9, set()) == SearchResult((), 0)


def test_equal_tools_come_by_name_whenever_their_servers_came() -> None:
    copies = [[tool(f"s{at}", "copy", "The same.")] for at in (3, 1, 2, 0)]
    for order in (copies, copies[::-1]):
        assert named(filled(*order).search("same", 3)) == ["s0.copy", "s1.copy", "s2.copy"]


def test_a_server_that_went_is_not_found() -> None:
    index = filled()
    index.drop("github")
    index.drop("github")
    assert len(index) == 6
    assert named(index.search("create_issue", 5)) == []
    assert "git.status" in named(index.search("status", 5))


def test_a_server_that_offers_other_tools_is_found_by_these() -> None:
    index = filled()
    index.put("git", [tool("git", "blame", "Who wrote a line.")])
    assert named(index.search("git", 9))[0] == "git.blame"
    assert "git.status" not in named(index.search("working tree", 9))


def test_a_tool_that_is_there_twice_counts_once() -> None:
    index = Index()
    assert index.put("git", [*GIT, GIT[0]]) == 1
    assert named(index.search("status", 9)) == ["git.status"]


def test_a_limit_is_kept() -> None:
    many = [tool("s", f"tool_{at:04}", "Does something.") for at in range(300)]
    index = filled(many)
    assert len(index.search("something", 10**9).hits) == HITS_MAX
    assert index.search("something", 0).hits == ()
    assert index.search("something", -1).hits == ()
    assert len(index.search("", 7).hits) == 7


def test_a_long_query_is_answered() -> None:
    assert named(filled().search("create an issue " * 50_000, 1)) == ["github.create_issue"]
    words = " ".join(f"word{at}" for at in range(500))
    assert filled().search(words, 5).hits == ()


def test_a_description_of_any_length_is_no_trouble() -> None:
    index = filled([tool("s", "long", "word " * 200_000 + "end"), tool("s", "short", "word")])
    assert set(named(index.search("word", 2))) == {"s.short", "s.long"}


def test_another_search_moves_what_it_finds_up() -> None:
    index = filled()
    alone = named(index.search("repository", 9))
    other = Ranking([("files", "read_file"), ("git", "log"), ("gone", "tool")])
    together = named(index.search("repository", 9, None, [other]))
    assert together[:3] == alone[:3]
    assert together[3:] == ["files.read_file", "git.log"]
    heavy = named(index.search("repository", 9, None, [Ranking(other.found, 5.0)]))
    assert heavy[0] == "files.read_file"


def test_another_search_finds_where_words_find_nothing() -> None:
    index = filled()
    other = Ranking([("git", "log"), ("github", "get_status")])
    assert named(index.search("xylophone", 9, None, [other])) == ["git.log", "github.get_status"]
    assert named(index.search("xylophone", 9, {"git"}, [other])) == ["git.log"]


def test_a_name_comes_first_whatever_others_find() -> None:
    other = Ranking([("files", "read_file")], 100.0)
    assert named(filled().search("git status", 2, None, [other])) == [
        "git.status", "files.read_file",
    ]  # fmt: skip


texts = st.sampled_from(["read a file", "list issues", "the", "status", "créer", "搜索", ""])
names = st.sampled_from(["read_file", "list", "getStatus", "the", "s3_get", "é", "x" * 200, "\x00"])
servers = st.sampled_from(["git", "github", "files", "s3"])
offers = st.lists(st.tuples(names, texts, texts), max_size=4)
moves = st.lists(st.tuples(servers, st.none() | offers), max_size=12)
queries = st.sampled_from(
    ["read", "read file", "git", "s3", "sta", "statsu", "", "the", "搜索", "list the issues of git"]
)


@given(moves, queries, st.integers(1, 8), st.none() | st.frozensets(servers))
def test_an_index_that_changed_is_as_one_built_at_once(
    moves: list[tuple[str, list[tuple[str, str, str]] | None]],
    query: str,
    limit: int,
    allowed: frozenset[str] | None,
) -> None:
    grown = Index()
    last: dict[str, list[ToolDocument]] = {}
    for server, offer in moves:
        if offer is None:
            grown.drop(server)
            last.pop(server, None)
        else:
            last[server] = [tool(server, name, said, path=more) for name, said, more in offer]
            grown.put(server, last[server])
        grown.search(query, limit)
    built = Index()
    for server, documents in sorted(last.items()):
        built.put(server, documents)
    assert grown.search(query, limit, allowed) == built.search(query, limit, allowed)
    assert len(grown) == len(built)


@given(st.lists(st.tuples(names, st.binary(max_size=50)), max_size=5), st.text(max_size=40))
def test_no_definition_and_no_query_is_too_broken(
    offer: list[tuple[str, bytes]], query: str
) -> None:
    index = Index()
    index.put("s", [ToolDocument(("s", name), name, raw) for name, raw in offer])
    found = index.search(query, 3)
    assert list(found.hits) == sorted(found.hits, key=lambda hit: -hit.score)
    assert len(found.hits) + found.more <= len(index)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["description", "inputSchema", "properties", "title"]), inner
        )
    ),
    max_leaves=12,
)


@given(json_values, st.text(max_size=20))
def test_any_json_can_be_a_definition(value: Any, query: str) -> None:
    index = filled([ToolDocument(("s", "t"), "s__t", json.dumps(value).encode())])
    assert named(index.search("t", 1)) == ["s.t"]
    index.search(query, 5)
