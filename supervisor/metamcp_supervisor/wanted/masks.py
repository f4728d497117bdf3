"""Which settings are secrets by the look of their name, and what is shown instead of them.

Owns: the look and the mask. Never: the values (`config` keeps them), logs.
"""

import re
from collections.abc import Sequence

MASK = "***"

_SECRET = re.compile(
    r"token(?!s)|secret|passw|passphrase|credential|api[_-]?key|access[_-]?key|private[_-]?key",
    re.IGNORECASE,
)
_POINTS_ELSEWHERE = re.compile(r"[_-](?:file|path|dir|url|name|ttl|expiry)\Z", re.IGNORECASE)
_ASSIGNED = re.compile(r"(-{0,2}[\w-]{1,64})=(.+)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z][\w-]{0,63}")
_BEARER = re.compile(r"\b(Bearer|Basic) +(?!\$\{)\S+", re.IGNORECASE)
_USERINFO = re.compile(r"://[^/\s@]{1,256}@")
_PARAMETER = re.compile(r"([^&=]*)(=?)([^&]*)")
_OPAQUE = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9_.~=-]{20,}")
"""A part of a path that nobody made up to be read: some services hand out a key as a URL."""


def looks_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) and not _POINTS_ELSEWHERE.search(name)


def masked(arguments: Sequence[str]) -> tuple[str, ...]:
    """A command as it may be shown: `--api-key x`, `TOKEN=x`, `Bearer x` and `://user:x@` lose
    their x. References stay: they are no secret, they say where it is."""
    shown: list[str] = []
    named = False
    for argument in arguments:
        hidden = named and not _is_reference(argument)
        shown.append(MASK if hidden else _masked_inside(argument))
        named = bool(_FLAG.fullmatch(argument)) and looks_secret(argument)
    return tuple(shown)


def masked_url(url: str) -> str:
    """A URL as it may be shown: values of its query lose what they are, and so do credentials and
    parts of the path that look like keys. References stay."""
    place, mark, query = _USERINFO.sub(f"://{MASK}@", url).partition("?")
    scheme, slashes, rest = place.rpartition("://")
    parts = rest.split("/")
    path = [MASK if _OPAQUE.fullmatch(part) else part for part in parts[1:]]
    return scheme + slashes + "/".join([parts[0], *path]) + mark + _masked_query(query)


def _masked_query(query: str) -> str:
    def hide(found: re.Match[str]) -> str:
        name, equals, value = found.groups()
        if not equals:
            return name if not name or _is_reference(name) else MASK
        return f"{name}={value if not value or _is_reference(value) else MASK}"

    return "&".join(_PARAMETER.sub(hide, each, count=1) for each in query.split("&"))


def _masked_inside(argument: str) -> str:
    assigned = _ASSIGNED.fullmatch(argument)
    if assigned and looks_secret(assigned[1]) and not _is_reference(assigned[2]):
        return f"{assigned[1]}={MASK}"
    return _USERINFO.sub(f"://{MASK}@", _BEARER.sub(rf"\1 {MASK}", argument))


def _is_reference(text: str) -> bool:
    """A default is a value, so a reference with one is not only a reference."""
    return text.startswith("${") and text.endswith("}") and ":-" not in text
