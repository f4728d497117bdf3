"""Which calls may be sent once more when their server dies with them.

Owns: the policy of each server, and what its tools say of being called twice. Never: sending,
keeping, whether there is time left, counting.

A call that died may have run, and only who asked for it can know whether it may run twice. The
operator says so for a server (`retry`), and then its tools are believed: `readOnlyHint` under
`read-only`, that or `idempotentHint` under `idempotent`. What reads by the nature of its method is
sent once more under both. A tool that no list has says nothing, so it is not called twice.
"""

from collections.abc import Mapping

from msgspec import Raw

from metamcp_worker.front.links import Answer
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.server_catalog import ServerCatalogue

READ_ONLY = "read-only"
IDEMPOTENT = "idempotent"
CALL = "tools/call"
READS = frozenset({
    "resources/read", "prompts/get", "completion/complete", "tools/list", "prompts/list",
    "resources/list", "resources/templates/list", "ping", "server/discover",
})  # fmt: skip
"""Methods that change nothing at a server, by what they are."""


class Retries:
    """The policies and hints of all servers. `any`: is there a server that may be asked again? If
    not, no call need be looked at."""

    def __init__(self) -> None:
        self.any = False
        self._policies: Mapping[str, str] = {}
        self._hints: dict[str, dict[bytes, str]] = {}

    def configure(self, policies: Mapping[str, str]) -> None:
        """By server; one that is not there, or has a policy that is not known, is never asked
        again."""
        known = {READ_ONLY, IDEMPOTENT}
        self._policies = {server: one for server, one in policies.items() if one in known}
        self.any = bool(self._policies)

    def learn(self, server: str, catalogue: ServerCatalogue) -> None:
        hints: dict[bytes, str] = {}
        for tool in catalogue.tools:
            members = _level(tool)
            hints.setdefault(bytes(members.get("name", b"")), _hint(members))
        self._hints[server] = {name: hint for name, hint in hints.items() if hint}

    def forget(self, server: str) -> None:
        self._hints.pop(server, None)

    def may(self, server: str, method: str, tool: bytes) -> bool:
        """`tool`: the server's own name of it, raw, where the method calls one."""
        policy = self._policies.get(server)
        if policy is None:
            return False
        if method != CALL:
            return method in READS
        hint = self._hints.get(server, {}).get(tool)
        return hint == READ_ONLY or (hint == IDEMPOTENT and policy == IDEMPOTENT)


def _hint(tool: Mapping[str, Raw]) -> str:
    """What a definition says of calling it twice; nothing if it says nothing."""
    annotations = _level(tool.get("annotations", Raw()))
    if bytes(annotations.get("readOnlyHint", b"")) == b"true":
        return READ_ONLY
    return IDEMPOTENT if bytes(annotations.get("idempotentHint", b"")) == b"true" else ""


def _level(raw: Raw) -> dict[str, Raw]:
    """The members of an object; of anything else, none."""
    try:
        return codec.level(raw)
    except codec.Malformed:
        return {}


_UNANSWERED = frozenset({Code.SERVER_DOWN, Code.TIMED_OUT, Code.OVERLOADED})


def outcome(answer: Answer | None) -> str:
    """Of a call that was to be sent once more."""
    if answer is None:
        return "cancelled"
    return "failed" if answer.code in _UNANSWERED else "answered"
