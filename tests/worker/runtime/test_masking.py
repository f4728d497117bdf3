"""Secrets in texts: those that are known, and those that look like one."""

import json
import string
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.runtime.masking import MASK, SECRET_CHARACTERS_MIN, SecretMasker

pytestmark = pytest.mark.promise("M89")

SECRETS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=SECRET_CHARACTERS_MIN, max_size=40)
    .filter(lambda text: len(text.strip()) >= SECRET_CHARACTERS_MIN)
    .filter(lambda text: len(text.splitlines()) == 1),
    min_size=1,
    max_size=4,
)
PLAIN = st.text(string.ascii_letters + string.digits + ' {}[]:",=/?&-*\n', max_size=40)


@given(SECRETS, st.lists(PLAIN, min_size=2, max_size=6))
def test_no_secret_survives_in_any_text(secrets: list[str], between: list[str]) -> None:
    text = secrets[0].join(between) + "".join(secrets)
    masks = SecretMasker(secrets)
    for shown in (masks.text(text), masks.json(text)):
        for secret in secrets:
            assert secret.strip() not in shown


@given(SECRETS, PLAIN)
def test_no_secret_survives_in_json_whatever_its_spelling(secrets: list[str], plain: str) -> None:
    whole = {"a": plain + secrets[0], "b": [*secrets, plain], secrets[-1]: plain}
    for text in (json.dumps(whole), json.dumps(whole, ensure_ascii=False)):
        shown = SecretMasker(secrets).json(text)
        for secret in secrets:
            assert secret.strip() not in shown
            assert json.dumps(secret.strip())[1:-1] not in shown


@pytest.mark.parametrize(
    "text",
    [
        r'{"a":"\u0068unt\u0065rhunter"}',
        r'{"passw\u006frd":"x\u0079z\u0031"}',
        r'{"a":"{\"b\":\"hunt\\u0065rhunter\"}"}',
        r'{"a":"b\/hunt\u0065r\/b"}',
    ],
)
def test_a_secret_is_found_however_json_spells_it(text: str) -> None:
    shown = SecretMasker(["hunterhunter", "b/hunter/b"]).json(text)
    assert MASK in shown
    assert json.loads(shown) != json.loads(text)


def test_what_json_spells_otherwise_stays_as_it_is_without_a_secret_in_it() -> None:
    text = r'{"text":"\u0068\u00e9\/"}'
    assert SecretMasker(["hunterhunter"]).json(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def", f"Authorization: {MASK}"),
        ("{'authorization': 'Basic dXNlcjpwYXNz'}", f"{{'authorization': '{MASK}'}}"),
        ("x-api-key: hunterhunter", f"x-api-key: {MASK}"),
        ("Proxy-Authorization: Negotiate YIIabcdef", f"Proxy-Authorization: {MASK}"),
        ("Set-Cookie: sid=abc; Path=/", f"Set-Cookie: {MASK}"),
        ("sent Bearer a1b2c3d4e5f6 to it", f"sent Bearer {MASK} to it"),
        ("GET /v1?key=abc&page=2&api_key=x1", f"GET /v1?key={MASK}&page=2&api_key={MASK}"),
        ("postgres://me:pw@db/x", f"postgres://{MASK}@db/x"),
        ("API_TOKEN=abcdefgh", f"API_TOKEN={MASK}"),
        ("password: hunter2", f"password: {MASK}"),
        ("key ghp_0123456789abcdefghijABCDEFGHIJ leaked", f"key {MASK} leaked"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.sig_abc", MASK),
        (f"key mmcp_k3Jq9ZxA_{'a1' * 24}b leaked", f"key mmcp_k3Jq9ZxA_{MASK} leaked"),
        (
            "got -----BEGIN EC PRIVATE KEY-----\\nMHcCAQ\\n-----END EC PRIVATE KEY----- here",
            f"got {MASK} EC PRIVATE KEY----- here",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIGHAgEAM", MASK),
        ("x-eyJhbGciOiJI.eyJzdWIiOiIx.sig_abc y", f"{MASK} y"),
    ],
)
def test_what_looks_like_a_credential_is_masked(text: str, shown: str) -> None:
    assert SecretMasker().text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "unexpected token: something",
        "authorization: it needs authorization: run 'metamcp login far'",
        "no cookie: the server wants none",
        "Basic usage of the tool",
        "2048 tokens: 12 ms",
        "password_file=/etc/metamcp/pw",
        "it ended with status 1; on stderr: no repository; 'metamcp logs git' has all of it",
        "https://example.com/a/b?page=2#top",
    ],
)
def test_sentences_stay_as_they_are(text: str) -> None:
    assert SecretMasker().text(text) == text


def test_a_secret_of_several_lines_is_masked_line_by_line() -> None:
    masks = SecretMasker(["-----BEGIN KEY-----\nabcdefghijkl\n-----END KEY-----"])
    assert "abcdefghijkl" not in masks.text("read: abcdefghijkl")


def test_a_secret_is_masked_without_the_word_before_it() -> None:
    assert SecretMasker(["Bearer abcdefghij"]).text("got abcdefghij") == f"got {MASK}"


def test_words_that_are_too_short_for_a_secret_are_left_alone() -> None:
    assert SecretMasker(["on", "info"]).text("info: it goes on") == "info: it goes on"


@pytest.mark.parametrize(
    "piece", ["a", "a-", "Bearer ", "://x", "sk-", "eyJ", "eyJ-", "a=b&", '"a":"', "?"]
)
def test_no_text_takes_long(piece: str) -> None:
    """Every pattern is bounded: the time grows as the text does. The longest line that is kept of
    a server takes milliseconds, so a minute's limit of the whole test would be far away."""
    text = piece * (256 * 1024 // len(piece))
    SecretMasker(["hunter2hunter2"]).json(text)


@pytest.mark.parametrize(
    "spelled",
    [
        r"q\/w<e>&r+t1'2",  # as PHP writes JSON
        r"q/w\u003ce\u003e\u0026r+t1'2",  # Go
        r"q/w\u003Ce\u003E\u0026r\u002Bt1\u00272",  # .NET
    ],
)
def test_a_secret_is_masked_as_any_language_spells_it_in_json(spelled: str) -> None:
    assert json.loads(f'"{spelled}"') == "q/w<e>&r+t1'2"
    text = '{"a":"' + spelled + '"}'
    assert SecretMasker(["q/w<e>&r+t1'2"]).json(text) == f'{{"a":"{MASK}"}}'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"pageToken":null}', None),
        ('{"a":[{"token":true}]}', None),
        ("{'token': None, 'n': 1}", None),
        ('{"a":[{"token_pin":123}]}', None),
        ('{"a":{"token_pin":12345678},"b":[1]}', '{"a":{"token_pin":"***"},"b":[1]}'),
    ],
)
def test_json_stays_json_where_a_member_is_no_text(text: str, shown: str | None) -> None:
    assert SecretMasker().json(text) == (shown or text)


def test_a_secret_is_masked_as_a_url_spells_it() -> None:
    assert SecretMasker(["pass word/1?"]).text("GET /x/pass%20word%2F1%3F") == f"GET /x/{MASK}"


def test_a_secret_that_appears_when_another_is_taken_out_is_taken_out_too() -> None:
    masks = SecretMasker(["abcdefghij", f"1234{MASK}5678"])
    assert masks.text("x 1234abcdefghij5678 y") == f"x {MASK} y"
    assert SecretMasker([f"password={MASK}"]).text("password=hunter22") == MASK


ODD = 'a"b\\c/d\té-\U0001f600-secret'
"""A secret with every kind of character that JSON and URLs spell otherwise."""


LOWER, UPPER = "\\u%04x", "\\u%04X"


def escaped(text: str, pattern: str = LOWER) -> str:
    """The text with each character as an escape of JSON."""
    units = text.encode("utf-16-be")
    return "".join(pattern % int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))


SPELLINGS: list[Callable[[str], str]] = [
    json.dumps,
    lambda secret: json.dumps(secret, ensure_ascii=False),
    lambda secret: f'"{escaped(secret)}"',
    lambda secret: f'"{escaped(secret, UPPER)}"',
    lambda secret: json.dumps(f'"{escaped(secret)}"'),
    lambda secret: json.dumps(json.dumps(secret)),
    lambda secret: json.dumps(secret[:-4])[:-1] + escaped(secret[-4:]) + '"',
    lambda secret: f'"{escaped(secret[:4])}' + json.dumps(secret[4:], ensure_ascii=False)[1:],
]


@pytest.mark.parametrize("secret", ["CANARY-env-1234", ODD], ids=["plain", "odd"])
@pytest.mark.parametrize("spell", SPELLINGS)
def test_a_known_secret_is_found_however_json_spells_it(
    secret: str, spell: Callable[[str], str]
) -> None:
    masks = SecretMasker([secret])
    text = f'{{"a":{spell(secret)},"b":"\\u0041 50%"}}'
    for masked in (masks.json(text), masks.mask_known_secrets(text), masks.text(text)):
        found: dict[str, str] = json.loads(masked)
        assert found["b"] == "A 50%"
        assert found["a"].strip('"') == MASK


@pytest.mark.parametrize("text", ["CANARY%2denv%2D1234", "%43%41%4e%41%52%59-env-1234"])
def test_a_known_secret_is_found_however_a_url_spells_it(text: str) -> None:
    assert (
        SecretMasker(["CANARY-env-1234"]).text(f"GET /?a={text}&b=50%25") == f"GET /?a={MASK}&b=50%"
    )


def test_without_a_secret_escapes_stay_as_they_are() -> None:
    text = '{"a":"\\u0041\\/\\u0022 50%25 \\ud83d"}'
    for masked in (SecretMasker(["CANARY-env-1234"]).json(text), SecretMasker([]).json(text)):
        assert masked == text


@given(SECRETS)
def test_the_reach_is_as_long_as_any_spelling(secrets: list[str]) -> None:
    reach = SecretMasker(secrets).reach
    for secret in secrets:
        for spelled in (escaped(secret), json.dumps(escaped(secret)), quote(secret, safe="")):
            assert len(spelled.encode()) <= reach
