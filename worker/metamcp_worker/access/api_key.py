"""Form of an API key, and the digest by which a key is found.

Owns: making a key from random bytes, recognizing one, its digest. Never: randomness, tables of keys
(the front's `front.door`), storing keys (the supervisor).

    mmcp_k3Jq9ZxA_<43 characters of secret><6 characters of checksum>

The eight characters behind `mmcp_` are the id, which is public: logs, metrics and the audit show
it. The checksum is the CRC-32 of all characters before it, so a scanner can tell a key from noise,
and the gateway refuses noise without looking into a table. Only the digest is stored, keyed with a
pepper that is not in the database.
"""

import hashlib
import hmac
import re
import zlib

PREFIX = "mmcp_"
ID_CHARACTERS = 8
SECRET_CHARACTERS = 43
"""Characters of the secret, in base 62: 256 bits."""
CHECKSUM_CHARACTERS = 6
RANDOM_BYTES = 40
"""Random bytes of a key: 8 for its id, 32 for its secret."""
PEPPER_BYTES = 32
MARK_CHARACTERS = 8
KEY_CHARACTERS = len(PREFIX) + ID_CHARACTERS + 1 + SECRET_CHARACTERS + CHECKSUM_CHARACTERS

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORM = re.compile(
    rf"{PREFIX}(?P<id>[0-9A-Za-z]{{{ID_CHARACTERS}}})_"
    rf"[0-9A-Za-z]{{{SECRET_CHARACTERS + CHECKSUM_CHARACTERS}}}"
)


def make(random: bytes) -> str:
    """Return the key of these `RANDOM_BYTES` random bytes."""
    name = _base62(int.from_bytes(random[:8]), ID_CHARACTERS)
    body = f"{PREFIX}{name}_{_base62(int.from_bytes(random[8:RANDOM_BYTES]), SECRET_CHARACTERS)}"
    return body + _checksum(body)


def id_of(key: str) -> str:
    """Return the id of a key; empty if the text is not a key, as its checksum shows."""
    match = _FORM.fullmatch(key)
    if match is None or _checksum(key[:-CHECKSUM_CHARACTERS]) != key[-CHECKSUM_CHARACTERS:]:
        return ""
    return match["id"]


def digest(pepper: bytes, key: str) -> bytes:
    """Return the HMAC-SHA256 of a key under this pepper, 32 bytes. A key has 256 random bits, so a
    slow hash would add nothing."""
    return hmac.digest(pepper, key.encode(), hashlib.sha256)


def mark(pepper: bytes) -> str:
    """Return what tells a pepper from another one, and says nothing else about it."""
    return hmac.digest(pepper, b"metamcp", hashlib.sha256).hex()[:MARK_CHARACTERS]


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), CHECKSUM_CHARACTERS)


def _base62(number: int, characters: int) -> str:
    """Return the last `characters` digits of a number in base 62."""
    digits: list[str] = []
    for _ in range(characters):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
