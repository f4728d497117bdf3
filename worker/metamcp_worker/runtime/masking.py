"""Lines of logs and recordings: secrets are masked, and repeated lines limited.

Owns: which names look as if their value were a secret, the patterns of credentials, and masking
both, and the known secrets, in a text; the limit for repeated lines, and when their count is
logged. Never: which secrets there are (the supervisor reads them out of the configuration), files,
clocks, writing.

A known secret is found anywhere in a text, also as JSON and URLs spell it. Other secrets are found
by their pattern, which is a guess: in doubt, the text is masked.
"""

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from msgspec import Struct

MASK = "***"
SECRET_CHARACTERS_MIN = 8
"""Minimum characters of a known secret; shorter ones may be ordinary words, and with these masked
lines would be unreadable."""

_WORDS = "token(?!s)|secret|passw|passphrase|credential|(?:api|access|private)[_-]?key"
_SECRET = re.compile(_WORDS, re.IGNORECASE)
_POINTS_ELSEWHERE = re.compile(r"[_-](?:file|path|dir|url|name|ttl|expiry)\Z", re.IGNORECASE)
_SCHEME = re.compile(r"(?:Bearer|Basic|Token) +", re.IGNORECASE)

_HEADER = re.compile(
    r"\b((?:set-)?cookie(?=.{0,6}?[\w.-]{1,64}=)|x-api-key|(?:proxy-)?authorization"
    # "authorization: it has to log in" is a sentence: a credential has a scheme or a digit, or is
    # long.
    r"(?=[^\r\n\w]{1,8}(?:(?:basic|bearer|digest|negotiate|token) "
    r"|(?:[a-z-]{2,16} +)?[^\s\"'\\]*?(?:[0-9]|[^\s\"'\\]{16}))))"
    r"(\\?[\"']?\s{0,2}[:=]\s{0,2}\\?[\"']?)[^\r\n\"'\\]+",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"\b(Bearer|Basic) {1,8}(?=[\w.~+/=-]*?[0-9]|[\w.~+/=-]{24})[\w.~+/=-]{8,}+", re.IGNORECASE
)
_USERINFO = re.compile(r"://[^/\s@\"'\\]{1,256}@")
_PARAMETER = re.compile(r"(?<=[?&])([\w.-]{1,64}+)=[^&\s\"'<>#\\]+")
_ASSIGNED = re.compile(
    rf"(?<![\w-])(?=[\w-]{{0,64}}?(?:{_WORDS}))([\w-]{{2,64}}+)"
    r"(\\?[\"']?\s{0,2}[=:]\s{0,2}\\?[\"']?)([^\s\"'&,;\\]{4,}+)",
    re.IGNORECASE,
)
_MEMBER = re.compile(
    r'"([\w-]{2,64}+)"(\s*:\s*)(?:"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|-?[0-9][0-9.eE+-]{3,}+(?=\s*[,}\]]))'
)
_ISSUED = re.compile(
    r"\b(?:sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16})"
)
"""Keys of well-known services, which are recognizable by their prefix."""
_WEB_TOKEN = re.compile(r"(?<![\w-])(?:[\w-]{0,32}?-)?eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]{4,}+")
"""JSON web tokens, which are recognizable too. A match starts once in each run of such characters
and not at every `-`: else the time would grow with the square of the length."""
_OURS = re.compile(r"\b(mmcp_[0-9A-Za-z]{8}_)[0-9A-Za-z]{12,}")
"""API keys of the gateway itself; the id in front stays, because it is public."""
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL)
_HTML = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&"})
_CAUTIOUS = str.maketrans({char: f"\\u{ord(char):04X}" for char in "<>&+'`\""})
"""Characters that .NET (`_CAUTIOUS`) and Go (`_HTML`) write as escapes in JSON."""
_SPELLED = re.compile(
    r"(\\+)(?:u([dD][89abAB][0-9a-fA-F]{2})\1u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|/)"
    r"|%([2-7][0-9a-fA-F])"
)
"""Character that JSON spells as an escape, also in JSON inside a JSON string, or a URL."""
_SPELLED_BYTES_MAX = 12
"""Maximum bytes of a character of ASCII, or of half a pair of others, that is spelled in one of
these ways; JSON inside JSON inside JSON is taken into account."""
_ESCAPES = ("\\u", "\\/", "%")
_LITERALS = frozenset({"null", "true", "false", "none", "undefined"})
_ASSIGNED_CHARACTERS_MIN = 4
#: A text without one of these words is not searched, which is a hundred times faster.
_HEADERS = ("authorization", "cookie", "x-api-key")
_SCHEMES = ("bearer", "basic")
_STEMS = (
    "token", "secret", "passw", "passphrase", "credential", "apikey", "api_key", "api-key",
    "accesskey", "access_key", "access-key", "privatekey", "private_key", "private-key",
)  # fmt: skip
_ISSUERS = ("sk-", "gh", "glpat-", "xox", "AKIA")
_KEYS_IN_URLS = frozenset({"key", "sig", "signature", "code", "auth", "password", "pwd"})


def looks_secret(name: str) -> bool:
    """Whether the value of a setting with this name is to be hidden."""
    return bool(_SECRET.search(name)) and not _POINTS_ELSEWHERE.search(name)


class SecretMasker:
    """Masks secrets in texts. `secrets`: known secrets; those that are too short to be
    distinguished from a word are ignored."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._secrets = sorted(forms, key=lambda form: (-len(form), form))
        plain = max((len(secret.encode("utf-16-le")) // 2 for secret in secrets), default=0)
        longest = max((len(form.encode()) for form in forms), default=0)
        self.reach = max(longest, plain * _SPELLED_BYTES_MAX) if forms else 0
        """Bytes of the longest secret, however it is spelled: as many bytes at the end of a cut
        text may be a part of a secret."""

    def text(self, text: str) -> str:
        """Return the text with secrets masked."""
        text = self.mask_known_secrets(text)
        low = text.lower()
        if _any(_HEADERS, low):
            text = _HEADER.sub(rf"\1\2{MASK}", text)
        if _any(_SCHEMES, low):
            text = _BEARER.sub(rf"\1 {MASK}", text)
        if "://" in text and "@" in text:
            text = _USERINFO.sub(f"://{MASK}@", text)
        if "=" in text and _any("?&", text):
            text = _PARAMETER.sub(_parameter, text)
        if _any(_STEMS, low):
            text = _ASSIGNED.sub(_mask_assignment, text)
        if _any(_ISSUERS, text):
            text = _ISSUED.sub(MASK, text)
        if "eyJ" in text:
            text = _WEB_TOKEN.sub(MASK, text)
        if "mmcp_" in text:
            text = _OURS.sub(rf"\1{MASK}", text)
        if "PRIVATE KEY" in text:
            text = _PRIVATE.sub(MASK, text)
        return self.mask_known_secrets(text)

    def json(self, text: str) -> str:
        """Return JSON with secrets masked; values of members are masked whole. If more secrets show
        up after unescaping, the unescaped and masked text is returned."""
        masked = self._json(text)
        if "\\u" not in text and "\\/" not in text:
            return masked
        plain = _SPELLED.sub(_character, masked)
        again = self._json(plain)
        return masked if again == plain else again

    def mask_known_secrets(self, text: str) -> str:
        """Return a text with the known secrets masked, and all else as it is, but for escapes if a
        secret is spelled with them."""
        masked = self._without(text)
        if not self._secrets or not _any(_ESCAPES, masked):
            return masked
        plain = _SPELLED.sub(_character, masked)
        again = self._without(plain)
        return masked if again == plain else again

    def _json(self, text: str) -> str:
        text = self.mask_known_secrets(text)
        if _any(_STEMS, text.lower()):
            text = _MEMBER.sub(_member, text)
        return self.text(text)

    def _without(self, text: str) -> str:
        """Mask the known secrets. A replacement may join the text around it into another secret, so
        this repeats; each replacement makes the text shorter, so it ends."""
        replaced = True
        while replaced:
            replaced = False
            for secret in self._secrets:
                if secret in text:
                    text = text.replace(secret, MASK)
                    replaced = True
        return text


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms of a secret in texts: as it is, line by line, without its scheme ("Bearer"),
    and each of these as JSON and URLs spell it."""
    for form in {secret, *secret.splitlines(), _SCHEME.sub("", secret, count=1)}:
        plain = form.strip()
        if len(plain) < SECRET_CHARACTERS_MIN:
            continue
        yield plain
        yield json.dumps(plain)[1:-1]
        yield json.dumps(json.dumps(plain, ensure_ascii=False), ensure_ascii=False)[3:-3]
        yield json.dumps(plain).replace("/", "\\/")[1:-1]  # PHP
        as_it_is = json.dumps(plain, ensure_ascii=False)[1:-1]
        yield as_it_is
        yield as_it_is.translate(_HTML)
        yield plain.replace("\\", "\\\\").translate(_CAUTIOUS)
        yield ascii(plain)[1:-1]
        yield quote(plain, safe="")


def _character(match: re.Match[str]) -> str:
    """Return the character of an escape as a JSON string has it: as it is where that is possible,
    else by the shortest escape, behind the backslashes that its depth needs."""
    slashes, high, low, code, percent = match.groups()
    if percent:
        character = chr(int(percent, 16))
        return character if character not in '"\\\x7f' else match[0]
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    character = chr(int(code, 16)) if code else "/"
    if character == "\\":
        return slashes * 2
    if character == '"':
        return f'{slashes * 2}"'[1:]
    if character < " ":
        return slashes + json.dumps(character)[2:-1]
    return match[0] if "\ud800" <= character <= "\udfff" else character


def _any(words: Iterable[str], text: str) -> bool:
    return any(word in text for word in words)


def _parameter(match: re.Match[str]) -> str:
    name = match[1]
    hidden = looks_secret(name) or name.lower() in _KEYS_IN_URLS
    return f"{name}={MASK}" if hidden else match[0]


def _mask_assignment(match: re.Match[str]) -> str:
    name, sign, value = match.groups()
    # "unexpected token: something" is a sentence; a value with a digit is not part of one.
    plain = ":" in sign and '"' not in sign and "'" not in sign
    if not looks_secret(name) or (plain and not any(map(str.isdigit, value))):
        return match[0]
    # After a name in quotes this is a value of JSON; closing brackets are not part of it.
    bare = value.rstrip("}]") if '"' in sign and sign[-1] not in "\"'" else value
    if bare.lower() in _LITERALS or len(bare) < _ASSIGNED_CHARACTERS_MIN:
        return match[0]
    return f"{name}{sign}{MASK}{value[len(bare) :]}"


def _member(match: re.Match[str]) -> str:
    return f'"{match[1]}"{match[2]}"{MASK}"' if looks_secret(match[1]) else match[0]


LINES_MAX = 10
"""Maximum equal lines within one period; a reader knows the problem by then, and the rest is
counted."""
PERIOD_S = 10.0
KINDS_MAX = 256
"""Maximum kinds of lines that are counted apart; the gateway's own code has fewer, but libraries
may make up any number."""

Kind = tuple[str, str]
"""Kind of a line: its logger, and its template before values are put in."""
OTHERS: Kind = ("", "")


class SuppressedLines(Struct, frozen=True):
    """Lines of one kind that were left out. `count`: how many; `seconds`: length of the period."""

    kind: Kind
    count: int
    seconds: float


class _Window(Struct):
    ends: float
    said: int = 0
    held: int = 0


class RepeatCounter:
    """Counter of equal lines. `now`: seconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._windows: dict[Kind, _Window] = {}
        self._next_end = float("inf")

    def says(self, kind: Kind, now: float) -> bool:
        """Whether to log a line of this kind now; if not, it is counted."""
        window = self._windows.get(kind)
        if window is None:
            kind = kind if len(self._windows) < KINDS_MAX else OTHERS
            window = self._windows.setdefault(kind, _Window(now + PERIOD_S))
            self._next_end = min(self._next_end, window.ends)
        if window.said < LINES_MAX:
            window.said += 1
            return True
        window.held += 1
        return False

    def due(self, now: float) -> list[SuppressedLines]:
        """Return and forget the counts of the periods that are over."""
        if now < self._next_end:
            return []
        over = [kind for kind, window in self._windows.items() if window.ends <= now]
        counts = [SuppressedLines(kind, self._windows.pop(kind).held, PERIOD_S) for kind in over]
        self._next_end = min((each.ends for each in self._windows.values()), default=float("inf"))
        return [left_out for left_out in counts if left_out.count]

    def rest(self) -> list[SuppressedLines]:
        """Return all counts that are left, at the end of the process."""
        return self.due(float("inf"))
