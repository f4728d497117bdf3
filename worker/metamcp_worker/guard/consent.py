"""Consent of a person to one call: the question, the answer, and the grants that are left of it.

Owns: the text and the form of the question, what an answer means, which grants cover a call and how
long, the requests that go on with a call that was agreed to. Never: asking, clocks, storing grants
(the supervisor).

A server makes up names and arguments of its tools, and a model makes up the arguments. So both are
data in the question: control characters and those that change the direction of a text are shown as
escapes. All of them are shown, but for the known secrets of the configuration.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Raw

from metamcp_worker.access.gate import Principal
from metamcp_worker.guard.guard_rules import CallFacts, CallGuard
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.consent_records import (
    SHOWN_CHARACTERS_MAX,
    ConsentGrant,
    ConsentScope,
)
from metamcp_worker.runtime.masking import SecretMasker

ARGUMENTS_BYTES_MAX = 16 * 1024
"""Maximum bytes of arguments as a question shows them: nobody can agree to what is not shown. With
more a question would not fit into a packet to the supervisor."""
SESSION_S = 3600.0
"""Seconds that consent for the session lasts for a client without a session."""
LASTING_S = 86_400.0
"""Seconds that consent of the scope `24h` lasts."""
SESSION_GRANTS_MAX = 4096
"""Maximum consents for sessions in one front; the oldest makes room for a new one."""
ROUNDS_MAX = 1024
"""Maximum calls of one front that their servers want again with more input."""
ROUND_S_MAX = 300.0
"""Seconds for a client to bring that input, as long as it may take to answer any question."""

ConsentAnswer = Literal["once", "session", "24h", "deny", "declined", "cancelled", "malformed"]
SCOPES: tuple[ConsentScope, ...] = ("once", "session", "24h")
KEY = "consent"
_CHOICES: Mapping[str, ConsentAnswer] = {**{one: one for one in SCOPES}, "deny": "deny"}
_ENDS: Mapping[str, ConsentAnswer] = {"decline": "declined", "cancel": "cancelled"}
_SOURCES = {
    "code": "code that the client runs", "agent": "an agent", "workflow": "a workflow",
}  # fmt: skip


def plain(text: str) -> str:
    """Return a text in which every character that is not shown as it is is an escape."""
    return "".join(
        character if character.isprintable() else f"\\u{ord(character):04x}" for character in text
    )


def shown_arguments(arguments: bytes, masks: SecretMasker) -> str:
    """Return arguments for people: escaped, with known secrets masked. Raises codec.Malformed for
    arguments that cannot be shown as they will run. The text says why."""
    codec.exact(arguments)
    text = plain(masks.mask_known_secrets(arguments.decode()))
    if (size := len(text.encode())) > ARGUMENTS_BYTES_MAX:
        raise codec.Malformed(f"they have {size:,} bytes, and {ARGUMENTS_BYTES_MAX:,} can be shown")
    return text


def question(guard: CallGuard, facts: CallFacts, arguments: str, reason: str = "") -> bytes:
    """Return the params of the question. `arguments`: as of `shown_arguments`; `reason`: words of
    the operator."""
    lines = [
        facts_why(facts),
        *([reason] if reason else []),
        f"Tool: {plain(guard.path)[:SHOWN_CHARACTERS_MAX]}",
        f"Workspace: {facts.workspace}",
        f"Arguments: {arguments}",
    ]
    choice: dict[str, object] = {
        "type": "string",
        "title": "Answer",
        "description": "once: this call alone; session: all calls of this tool in this session;"
        " 24h: all calls of this tool for a day; deny: not this call",
        "enum": list(_CHOICES),
        "default": SCOPES[0],
    }
    return codec.dump({
        "message": "\n".join(lines),
        "requestedSchema": {"type": "object", "properties": {KEY: choice}, "required": [KEY]},
    })  # fmt: skip


def facts_why(facts: CallFacts) -> str:
    """Return the first line of the question."""
    made_by = _SOURCES.get(facts.source)
    return f"May this call run? It is made by {made_by}." if made_by else "May this call run?"


def answer(body: bytes) -> ConsentAnswer:
    """Return what the raw answer of a client means. An answer without a choice agrees to this call
    alone; one that cannot be read agrees to nothing."""
    try:
        members = codec.level(body)
        action = codec.text(members.get("action", b"null"))
        content = codec.level(members.get("content") or b"{}") if action == "accept" else {}
    except codec.Malformed:
        return "malformed"
    if action != "accept":
        return _ENDS.get(action or "", "malformed")
    raw = content.get(KEY)
    chosen = SCOPES[0] if raw is None else codec.text(raw)
    return _CHOICES.get(chosen or "", "malformed")


def holder(principal: Principal) -> str:
    """Return the word for the credential of a principal, to which grants belong."""
    return f"{principal.auth}:{principal.key or principal.name}"


Covered = tuple[str, str, str, str]
"""Holder, server, and hashes of definition and rules: calls that one grant covers."""


def build_grant_key(guard: CallGuard, facts: CallFacts) -> Covered:
    return holder(facts.principal), guard.server, guard.definition, guard.rules.mark


class Grants:
    """Grants that count in one front. Times: seconds since the epoch."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[Covered, str], float] = {}
        self._lasting: dict[Covered, float] = {}

    def cover(self, calls: Covered, who: str, now: float) -> bool:
        """Whether a grant covers a call of this client or session."""
        until = max(self._sessions.get((calls, who), 0.0), self._lasting.get(calls, 0.0))
        return until > now

    def keep_session(self, calls: Covered, who: str, until: float) -> None:
        """Keep consent for a session."""
        self._sessions.pop((calls, who), None)
        if len(self._sessions) >= SESSION_GRANTS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[calls, who] = until

    def keep(self, grant: ConsentGrant) -> None:
        """Keep a grant that the supervisor has not stored yet."""
        self._lasting[_covered_by(grant)] = grant.until

    def replace(self, grants: Iterable[ConsentGrant]) -> None:
        """Take over all grants that the supervisor has stored."""
        self._lasting = {_covered_by(grant): grant.until for grant in grants}


def _covered_by(grant: ConsentGrant) -> Covered:
    return grant.holder, grant.server, grant.definition, grant.rules


class AgreedRounds:
    """Requests that bring the input which a server asked for in a call that was agreed to. Each is
    let through once, with the very state that the server gave, because it is the same call."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def expect(self, calls: Covered, facts: CallFacts, state: bytes, now: float) -> None:
        """Expect the request of this call with this state."""
        if len(self._until) >= ROUNDS_MAX:
            del self._until[next(iter(self._until))]
        self._until[_round(calls, facts, state)] = now + ROUND_S_MAX

    def take(self, calls: Covered, facts: CallFacts, now: float) -> bool:
        """Whether this request was expected; from now on it is not."""
        if facts.state is None:
            return False
        until = self._until.pop(_round(calls, facts, facts.state), 0.0)
        return until > now


def _round(calls: Covered, facts: CallFacts, state: bytes) -> bytes:
    sha256 = hashlib.sha256()
    for value in (*map(str.encode, (*calls, facts.endpoint, facts.who)), facts.arguments, state):
        sha256.update(b"%d:" % len(value))
        sha256.update(value)
    return sha256.digest()


def client_name(client: bytes) -> str:
    """Return the name that a client gives itself, for people. `client`: as `CallFacts.client`."""
    info = codec.members(codec.members(client).get("clientInfo", b""))
    name = codec.text(info.get("name", Raw(b'""'))) or ""
    return plain(name)[:SHOWN_CHARACTERS_MAX]
