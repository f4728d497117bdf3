"""Challenge of a server that refuses a request for lack of authorization.

Owns: distinguishing such a refusal from others, its scopes, the error when authorization fails.
Never: getting authorized (`flow`), HTTP.
"""

import re
from collections.abc import Iterable
from typing import Self

from msgspec import Struct

from metamcp_worker.http.fetch import Unreachable

HEADER_CHARS_MAX = 8 * 1024
"""Maximum characters of `WWW-Authenticate`; the longest seen have some hundred."""
SCOPES_MAX = 64
"""Maximum scopes of one challenge; a configuration may have as many."""

_SCOPE = re.compile(r"[!#-\[\]-~]+")


class NotAuthorized(Unreachable):
    """Failure to get authorized for a server. The text continues a sentence that begins with the
    server's name, and holds no secret. `link`: URL that a person can open to agree, or empty."""

    def __init__(self, reason: str, link: str = "") -> None:
        super().__init__(reason)
        self.link = link


class Challenge(Struct, frozen=True):
    """Refusal of a request. `header`: the value of `WWW-Authenticate`. `protocol`: the revision of
    the request, or empty."""

    status: int
    header: str = ""
    protocol: str = ""

    @classmethod
    def of(cls, status: int, header: str, protocol: str = "") -> Self | None:
        """Return the challenge of this refusal; None if the refusal has another reason."""
        made = cls(status, header[:HEADER_CHARS_MAX], protocol)
        if status == 401 or (status == 403 and made.value("error") == "insufficient_scope"):
            return made
        return None

    @property
    def scopes(self) -> tuple[str, ...]:
        return scopes(self.value("scope"))

    def value(self, name: str) -> str:
        """Return a parameter of the challenge, or an empty text."""
        match = re.search(rf'\b{name}=(?:"([^"]*)"|([^\s,"]+))', self.header)
        return (match[1] or match[2] or "") if match else ""

    def with_scopes(self, scope_names: Iterable[str]) -> Self:
        """Return the same challenge with these scopes, which may be empty."""
        parts = [
            f'{name}="{value}"'
            for name, value in (
                ("error", self.value("error")),
                ("scope", " ".join(scope_names)),
                ("resource_metadata", self.value("resource_metadata")),
            )
            if value
        ]
        return type(self)(self.status, f"Bearer {', '.join(parts)}".strip(), self.protocol)


def scopes(text: str) -> tuple[str, ...]:
    """Return the scopes in a text separated by blanks, each once, without malformed ones."""
    return tuple(dict.fromkeys(each for each in text.split() if _SCOPE.fullmatch(each)))[
        :SCOPES_MAX
    ]
