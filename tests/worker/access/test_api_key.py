"""An API key has a form that scanners recognize, and only its digest is needed to find it."""

import re

import pytest

from metamcp_worker.access import api_key

KEY = api_key.make(bytes(range(api_key.RANDOM_BYTES)))


def test_a_key_has_63_characters_that_a_double_click_selects() -> None:
    assert len(KEY) == api_key.KEY_CHARACTERS == 63
    assert re.fullmatch(r"mmcp_[0-9A-Za-z]{8}_[0-9A-Za-z]{49}", KEY)


def test_the_largest_and_the_smallest_random_bytes_make_keys_of_the_same_form() -> None:
    ends = [api_key.make(bytes([byte]) * api_key.RANDOM_BYTES) for byte in (0, 255)]
    assert [len(key) for key in ends] == [63, 63]
    assert all(api_key.id_of(key) for key in ends)


def test_the_id_of_a_key_is_its_public_part() -> None:
    assert api_key.id_of(KEY) == KEY[5:13]


@pytest.mark.parametrize("at", range(63))
def test_a_key_with_one_other_character_is_not_a_key(at: int) -> None:
    other = "b" if KEY[at] == "a" else "a"
    assert api_key.id_of(f"{KEY[:at]}{other}{KEY[at + 1 :]}") == ""


@pytest.mark.parametrize(
    "text", ["", "mmcp_", KEY[:-1], f"{KEY}0", f" {KEY}", f"{KEY}\n", "é" * 63]
)
def test_other_texts_are_not_keys(text: str) -> None:
    assert api_key.id_of(text) == ""


def test_the_digest_depends_on_every_character_and_on_the_pepper() -> None:
    pepper = bytes(api_key.PEPPER_BYTES)
    assert len(api_key.digest(pepper, KEY)) == 32
    assert api_key.digest(pepper, KEY) != api_key.digest(pepper, f"{KEY[:-1]}_")
    assert api_key.digest(pepper, KEY) != api_key.digest(b"\1" * 32, KEY)
