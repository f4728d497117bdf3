"""What a server wants when it refuses a request for the lack of authorization.

Owns: telling such a refusal from others, the scopes in it, the error when nothing satisfied it.
Never: satisfying it (`flow`), HTTP.
"""

import re
from collections.abc import Iterable
from typing import Self

from msgspec import Struct

from metamcp_worker.http.fetch import Unreachable

HEADER_CHARS_MAX = 8 * 1024
"""Of `WWW-Authenticate`; the longest seen have some hundred."""
SCOPES_MAX = 64
"""Of one challenge, and as many as a configuration may have."""

_SCOPE = re.compile(r"[!#-\[\]-~]+")


class NotAuthorized(Unreachable):
    """The server was not given what it wants. The text continues a sentence that begins with the
    server's name, and holds no secret. `link`: what a person can open to change that, or empty."""

    def __init__(self, why: str, link: str = "") -> None:
        super().__init__(why)
        self.link = link


class Challenge(Struct, frozen=True):
    """`header`: of `WWW-Authenticate`. `protocol`: the revision of the request, or empty."""

    status: int
    header: str = ""
    protocol: str = ""

    @classmethod
    def of(cls, status: int, header: str, protocol: str = "") -> Self | None:
        """What this refusal asks for; None if it is about something else."""
        made = cls(status, header[:HEADER_CHARS_MAX], protocol)
        if status == 401 or (status == 403 and made.value("error") == "insufficient_scope"):
            return made
        return None

    @property
    def scopes(self) -> tuple[str, ...]:
        return scopes(self.value("scope"))

    def value(self, name: str) -> str:
        """One parameter of the challenge, or nothing."""
        found = re.search(rf'\b{name}=(?:"([^"]*)"|([^\s,"]+))', self.header)
        return (found[1] or found[2] or "") if found else ""

    def asking(self, wanted: Iterable[str]) -> Self:
        """The same challenge as if it named these scopes, of which there may be none."""
        parts = [
            f'{name}="{value}"'
            for name, value in (
                ("error", self.value("error")),
                ("scope", " ".join(wanted)),
                ("resource_metadata", self.value("resource_metadata")),
            )
            if value
        ]
        return type(self)(self.status, f"Bearer {', '.join(parts)}".strip(), self.protocol)


def scopes(text: str) -> tuple[str, ...]:
    """The scopes in a list that blanks separate, each once. What is none is left out."""
    return tuple(dict.fromkeys(each for each in text.split() if _SCOPE.fullmatch(each)))[
        :SCOPES_MAX
    ]
