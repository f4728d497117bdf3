"""What tools mean: whose vector is asked for, once for each text, and which of them are nearest."""

import pytest

from metamcp_worker.builtin_tools import vector_search
from metamcp_worker.builtin_tools.vector_search import ToolVectors
from metamcp_worker.ipc import codec
from metamcp_worker.search.index import ToolDocument
from metamcp_worker.search.vectors import shrunk, vector

AXES = {"dog": [1.0, 0.1], "cat": [0.9, 0.3], "tax": [0.1, 1.0]}


def document(server: str, name: str, description: str = "") -> ToolDocument:
    definition = codec.dump({"name": name, "description": description})
    return ToolDocument((server, name), f"{server}__{name}", definition)


def learned(meanings: ToolVectors) -> list[str]:
    """Every text gets the vector of the word in it; what was asked for."""
    asked: list[str] = []
    while wanted := meanings.collect_texts(10):
        asked += wanted.values()
        meanings.learn({key: made(text) for key, text in wanted.items()})
    assert not meanings.unread
    return asked


def made(text: str) -> bytes:
    return next((shrunk(numbers) for word, numbers in AXES.items() if word in text), b"")


def near(meanings: ToolVectors, word: str, allowed: set[str] | None = None) -> list[str]:
    found = meanings.nearest("default", vector(shrunk(AXES[word])), allowed)
    return [name for _, name in found]


def test_a_text_says_server_name_words_and_parameters() -> None:
    raw = b"""{"name": "x", "title": "T", "description": "Opens.",
        "inputSchema": {"properties": {"path": {}, "mode": {}}}}"""
    assert vector_search.text(ToolDocument(("disk", "open_file"), "x", raw)) == (
        "disk. open file. Opens. path, mode"
    )
    assert vector_search.text(ToolDocument(("disk", "x"), "x", b"nonsense")) == "disk. x."
    long = document("a", "b", "é" * 5000)
    assert len(vector_search.text(long)) == vector_search.TEXT_CHARACTERS_MAX
    vector_search.text(ToolDocument(("a", "\ud800"), "x", b"{}")).encode()


def test_the_nearest_are_found_of_the_servers_that_may_be() -> None:
    meanings = ToolVectors()
    meanings.put("default", "a", [document("a", "dog"), document("a", "tax")])
    meanings.put("default", "b", [document("b", "cat")])
    assert len(learned(meanings)) == 3
    assert near(meanings, "dog") == ["dog", "cat", "tax"]
    assert near(meanings, "tax", {"a"}) == ["tax", "dog"]
    assert near(meanings, "tax", set()) == []
    found = meanings.nearest("default", vector(shrunk([1.0, 0.0])), lambda pair: pair[1] == "cat")
    assert found == [("b", "cat")]
    assert meanings.nearest("other", vector(shrunk([1.0, 0.0])), None) == []


def test_a_text_is_asked_for_once_however_many_tools_have_it() -> None:
    meanings = ToolVectors()
    meanings.put("default", "a", [document("a", "dog")])
    meanings.put("other", "a", [document("a", "dog")])
    assert len(learned(meanings)) == 1
    meanings.put("default", "a", [])
    assert near(meanings, "dog") == []
    meanings.put("default", "a", [document("a", "dog")])
    assert learned(meanings) == []
    assert near(meanings, "dog") == ["dog"]


def test_another_definition_is_another_text_and_the_old_one_is_not_found() -> None:
    meanings = ToolVectors()
    meanings.put("default", "a", [document("a", "x", "dog")])
    learned(meanings)
    meanings.put("default", "a", [document("a", "x", "tax"), document("a", "y", "nothing")])
    assert near(meanings, "tax") == []
    assert learned(meanings) == ["a. x. tax", "a. y. nothing"]
    assert near(meanings, "tax") == ["x"]  # and y has no vector, and is not asked for again
    assert learned(meanings) == []


def test_no_more_is_asked_for_or_read_at_once_than_is_allowed() -> None:
    meanings = ToolVectors()
    count = 3 * vector_search.READ_MAX
    meanings.put("default", "a", [document("a", f"dog{number}") for number in range(count)])
    assert len(meanings.collect_texts(10)) == 10
    assert len(meanings.collect_texts(count)) <= 10 + vector_search.READ_MAX
    assert meanings.unread
    assert len(learned(meanings)) == count


@pytest.mark.parametrize("spare", [vector_search.SPARE_MAX, vector_search.SPARE_MAX + 1])
def test_vectors_of_tools_that_are_gone_are_kept_up_to_a_limit(spare: int) -> None:
    meanings = ToolVectors()
    meanings.put("default", "a", [document("a", f"dog{number}") for number in range(spare)])
    learned(meanings)
    meanings.put("default", "a", [])
    meanings.collect_texts(1)
    meanings.put("default", "a", [document("a", "dog0")])
    assert len(learned(meanings)) == (0 if spare == vector_search.SPARE_MAX else 1)
