"""Consent to calls, as fronts and the supervisor report it to each other.

Owns: a question that is open, a grant that lasts, the messages about both, the mark of a set of
rules. Never: which calls need consent (`guard_rules`), storing grants (the supervisor).
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.spec import ConsentSpec, PolicySpec

ConsentScope = Literal["once", "session", "24h"]
"""Calls that a person agrees to: this one, or those of the tool in this session, or in a day."""
CALLS_KEY = "keys:"
"""Beginning of the holder of a grant that is an API key, before the id of the key."""
SHOWN_CHARACTERS_MAX = 256
"""Maximum characters of a name, which servers and clients make up, in a question."""


class OpenConsent(Struct, frozen=True, kw_only=True):
    """Question that nobody has answered yet. `id`: of the front and of its call; `client`: name
    that the client gives itself; `arguments`: all of them, as text, with known secrets masked;
    `source`: `client`, `code`, `agent` or `workflow`; `asked`: the client is asked too, not only an
    operator; `since`, `until`: seconds since the epoch."""

    id: str
    server: str
    tool: str
    workspace: str
    endpoint: str
    principal: str
    client: str
    arguments: str
    source: str
    asked: bool
    since: float
    until: float


class ConsentGrant(Struct, frozen=True, kw_only=True):
    """Consent to all calls of one tool by one credential until a time. `holder`: the credential;
    `principal`: its owner, for people; `definition`, `rules`: hashes of the tool with its
    definition and of the rules, in hexadecimal; any other definition, or other rules, make the
    grant void; `given`, `until`: seconds since the epoch; `by`: who agreed."""

    id: str
    holder: str
    principal: str
    server: str
    tool: str
    definition: str
    rules: str
    given: float
    until: float
    by: str


class ConsentOpened(Message, frozen=True, kw_only=True):
    """A question is open. From a front to the supervisor, again when it gets `ConsentGrants`."""

    question: OpenConsent


class ConsentClosed(Message, frozen=True, kw_only=True):
    """A question with this id is not open any more. From a front to the supervisor."""

    id: str


class ConsentGiven(Message, frozen=True, kw_only=True):
    """A client has agreed until a time. From a front to the supervisor, which stores it and
    notifies all fronts."""

    grant: ConsentGrant


class ConsentGrants(Message, frozen=True, kw_only=True):
    """All grants that count now. From the supervisor to a front. Descriptor: blob with a JSON list
    of `ConsentGrant`."""


class ConsentDecided(Message, frozen=True, kw_only=True):
    """An operator has answered the question about this call. From the supervisor to a front.
    `scope`: what the operator agrees to, empty for nothing; `by`: the operator."""

    call: int
    scope: ConsentScope | Literal[""]
    by: str


def question_id(front: int, call: int) -> str:
    """Return the id of a question."""
    return f"{front}-{call}"


def place(question: str) -> tuple[int, int] | None:
    """Return the numbers of front and call in the id of a question; None for any other text."""
    front, _, call = question.partition("-")
    if not (front.isascii() and front.isdecimal() and call.isascii() and call.isdecimal()):
        return None
    return (int(front), int(call)) if len(question) <= 2 * 20 else None


def rules_mark(consent: ConsentSpec, policies: Sequence[PolicySpec] = ()) -> str:
    """Return the hash of these rules, in hexadecimal."""
    return hashlib.sha256(codec.dump([consent, policies])).hexdigest()
