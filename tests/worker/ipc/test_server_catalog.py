"""What a catalogue says of itself."""

import pytest
from msgspec import Raw

from metamcp_worker.ipc import server_catalog
from metamcp_worker.ipc.server_catalog import CachingHint, ServerCatalogue, hint, strictest


def test_a_catalogue_survives_its_way() -> None:
    definition = Raw(b'{"name":"t","x":1.0}')
    whole = ServerCatalogue(
        protocol="2026-07-28", tools=(definition,), hints={"tools": CachingHint(60000, "public")}
    )
    found = server_catalog.unpack(server_catalog.pack(whole))
    assert found.hints == whole.hints
    assert bytes(found.tools[0]) == bytes(definition)


def test_a_catalogue_that_says_nothing_of_keeping_it_is_not_kept() -> None:
    assert server_catalog.unpack(b'{"protocol":"2025-11-25"}').hints == {}
    assert strictest([]) == CachingHint(0, "private")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"ttlMs": b"60000", "cacheScope": b'"public"'}, CachingHint(60000, "public")),
        ({"ttlMs": b"60000"}, CachingHint(60000, "private")),
        ({"ttlMs": b"-1", "cacheScope": b'"private"'}, CachingHint(0, "private")),
        ({"ttlMs": b"1.5", "cacheScope": b'"shared"'}, CachingHint(0, "private")),
        ({"ttlMs": b'"9"', "cacheScope": b"null"}, CachingHint(0, "private")),
        ({"ttlMs": b"9" * 16}, CachingHint(0, "private")),
        ({}, CachingHint(0, "private")),
    ],
)
def test_a_hint_that_is_none_counts_as_not_to_be_kept(
    said: dict[str, bytes], expected: CachingHint
) -> None:
    assert hint({key: Raw(value) for key, value in said.items()}) == expected


def test_the_strictest_hint_counts() -> None:
    assert strictest([CachingHint(5, "public"), CachingHint(9, "public")]) == CachingHint(
        5, "public"
    )
    assert strictest([CachingHint(5, "public"), CachingHint(9, "private")]) == CachingHint(
        5, "private"
    )
    assert strictest([CachingHint(5, "public"), CachingHint()]) == CachingHint(0, "private")


@pytest.mark.parametrize(
    ("meta", "ids"),
    [
        (b'{"metamcp/gateways":["a","b"]}', ("a", "b")),
        (b'{"metamcp/gateways":["a",1,null]}', ("a",)),
        (b'{"metamcp/gateways":"a"}', ()),
        (b'{"x":"metamcp/gateways"}', ()),
        (b'"metamcp/gateways"', ()),
        (b"", ()),
    ],
)
def test_ids_of_gateways_are_read_from_a_result_and_anything_else_is_none(
    meta: bytes, ids: tuple[str, ...]
) -> None:
    assert server_catalog.gateways({"_meta": Raw(meta)} if meta else {}) == ids


def test_a_list_with_definitions_of_another_gateway_has_another_hash() -> None:
    one = ServerCatalogue(protocol="2026-07-28", gateways=("a",))
    assert server_catalog.list_hash(one) != server_catalog.list_hash(
        ServerCatalogue(protocol="2026-07-28", gateways=("a", "b"))
    )
