"""What an endpoint for embeddings may answer, and what is said of an answer that is none."""

import pytest

from metamcp_worker.embedder import embeddings_api
from metamcp_worker.embedder.embeddings_api import NoVectors
from metamcp_worker.ipc import codec
from metamcp_worker.search.vectors import DIMENSIONS_MAX


def test_a_request_is_that_of_the_api() -> None:
    assert codec.value(embeddings_api.request("small", ["a", "b"])) == {
        "model": "small", "input": ["a", "b"],
    }  # fmt: skip


def test_vectors_come_in_the_order_of_the_texts_whatever_theirs_is() -> None:
    body = b"""{"object": "list", "data": [
        {"index": 1, "embedding": [2, 3.5]}, {"index": 0, "embedding": [1, -1e-3], "object": "x"}
    ], "usage": {"prompt_tokens": 2}}"""
    assert embeddings_api.read(body, 2) == [[1, -0.001], [2, 3.5]]
    assert embeddings_api.read(b'{"data": [{"embedding": [1]}, {"embedding": [2]}]}', 2) == [
        [1],
        [2],
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "none of the API"),
        (b"<html>busy</html>", "none of the API"),
        (b'{"error": {"message": "no"}}', "none of the API"),
        (b'{"data": [{"embedding": [NaN]}]}', "none of the API"),
        (b'{"data": [{"embedding": ["1"]}]}', "none of the API"),
        (b'{"data": [{"embedding": "AAAA"}]}', "none of the API"),
        (b'{"data": []}', "asked for 1 vectors and sent 0"),
        (b'{"data": [{"embedding": [1]}, {"embedding": [1]}]}', "asked for 1 vectors and sent 2"),
        (b'{"data": [{"embedding": [1], "index": 3}]}', "which vector is of which text"),
    ],
)
def test_an_answer_that_is_none_is_one_sentence(body: bytes, why: str) -> None:
    with pytest.raises(NoVectors, match=why):
        embeddings_api.read(body, 1)


@pytest.mark.parametrize(
    ("vectors", "size", "why"),
    [
        ([list[float]()], 0, "has 0 numbers; 1 to"),
        ([[1.0] * (DIMENSIONS_MAX + 1)], 0, "numbers; 1 to"),
        ([[1.0], [1.0, 2.0]], 0, "has 2 numbers and others have 1"),
        ([[1.0]], 2, "has 1 numbers and others have 2"),
        ([[float("inf")]], 0, "has numbers that are none"),
        ([[float("nan")]], 0, "has numbers that are none"),
    ],
)
def test_a_vector_that_is_none_is_one_sentence(
    vectors: list[list[float]], size: int, why: str
) -> None:
    with pytest.raises(NoVectors, match=why):
        embeddings_api.pack_vectors(vectors, size)


def test_a_text_that_means_nothing_has_no_vector_and_is_no_error() -> None:
    assert embeddings_api.pack_vectors([[0.0, 0.0], [1.0, 0.0]], 2) == [b"", b"\x7f\x00"]


def test_the_largest_answer_fits_into_its_limit() -> None:
    one = {"object": "embedding", "index": 63, "embedding": [-0.012345678901234567] * 4096}
    body = codec.dump({"object": "list", "data": [one] * 64, "model": "m" * 256})
    assert len(body) < embeddings_api.bytes_max(64)
