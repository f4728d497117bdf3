"""Text and its terms: what is to meet meets, and nothing breaks it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metamcp_worker.search import words

SURROGATES_TOO = st.text(st.characters(exclude_categories=[]), max_size=200)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("create_issue", ["creat", "issu"]),
        ("create-issue", ["creat", "issu"]),
        ("create/issue.now", ["creat", "issu", "now"]),
        ("createIssue", ["creat", "issu", "createissu"]),
        ("getHTTPResponse", ["get", "http", "respons", "gethttprespons"]),
        ("S3", ["s", "3", "s3"]),
        ("getUserByID2", ["get", "user", "id", "2", "getuserbyid2"]),
        ("the list of all files", ["list", "fil"]),
        ("Größe", ["gross"]),
        ("ＦＵＬＬ", ["full"]),  # noqa: RUF001 - full width is what is tested
        ("搜索结果", ["搜索", "索结", "结果"]),
        ("图", ["图"]),
        ("PDF转换", ["pdf", "转换"]),
        ("한국어", ["한국", "국어"]),
        ("Поиск файлов", ["поиск", "фаилов"]),
        ("", []),
        ("!?…", []),
        ("sO iS", ["s", "o", "s"]),
    ],
)
def test_text_falls_into_terms(text: str, terms: list[str]) -> None:
    assert words.terms(text) == terms


@pytest.mark.parametrize(
    "forms",
    [
        "search searches searched searching",
        "file files filed filing",
        "query queries queried querying",
        "stop stops stopped stopping",
        "process processes processed processing",
        "box boxes",
        "create creates created creating",
        "match matches matched matching",
    ],
)
def test_forms_of_a_word_meet(forms: str) -> None:
    assert len({words.stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize("pair", ["status state", "bus bu", "string str", "red re", "new news's"])
def test_other_words_stay_apart(pair: str) -> None:
    one, other = pair.split(maxsplit=1)
    assert words.stem(one) != words.stem(other)


def test_composed_and_decomposed_letters_meet() -> None:
    assert words.terms("café") == words.terms("café") == ["caf"]


def test_all_ways_to_write_a_name_have_one_key() -> None:
    ways = ["create_issue", "Create-Issues", "createIssue", "create issue", "CREATE.ISSUE"]
    assert {words.key(way) for way in ways} == {"creatissu"}


def test_a_key_can_leave_out_what_is_said_around_names() -> None:
    key = words.key("the Git server", without=words.AROUND_NAMES | {"the"})
    assert key == words.key("git")


def test_of_a_long_word_only_the_beginning_counts() -> None:
    (term,) = words.terms("x" * 10_000)
    assert len(term) == words.WORD_CHARACTERS_MAX
    assert len(words.pieces("aB" * 1000)) == words.PIECES_MAX


@given(SURROGATES_TOO)
def test_any_text_has_terms_of_bounded_length(text: str) -> None:
    for term in words.terms(text):
        assert term
        assert len(term) <= 4 * words.WORD_CHARACTERS_MAX


@given(SURROGATES_TOO)
def test_terms_do_not_depend_on_what_was_asked_before(text: str) -> None:
    first = (words.terms(text), words.key(text))
    for number in range(3):
        words.terms(f"word{number} {text}")
    assert (words.terms(text), words.key(text)) == first


@given(st.text(st.characters(max_codepoint=127), max_size=100))
def test_plain_text_has_the_words_that_it_has_beside_other_letters(text: str) -> None:
    assert words.words(f"{text} é") == [*words.words(text), "é"]


@given(SURROGATES_TOO)
@example("\u037a\ufdfa")  # even, each has blanks
def test_what_a_name_begins_with_has_no_signs(text: str) -> None:
    assert "_" not in words.plain(text)
    assert " " not in words.plain(text)


def test_more_words_than_are_remembered_are_no_trouble() -> None:
    many = " ".join(f"w{number}" for number in range(words.WORDS_KEPT + 10))
    assert len(words.terms(many)) == 3 * (words.WORDS_KEPT + 10)
    assert words.terms("create") == ["creat"]
