"""Errors for calls that their server does not answer, and the rule which calls are sent again.

Owns: the errors of the gateway, each with a sentence and data; reading the code of an error and the
reason of a `ServerGone`; the retry policies of servers and the hints of their tools (`Retries`).
Never: when an error is sent or a call is repeated (`call_router`), the errors of servers: they pass
as they came.

A caller cannot find out `may_have_run` for itself: false only for a call that reached no server,
neither at its first nor at its second try.
"""

from collections.abc import Mapping

from msgspec import Raw, Struct

from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call, ServerLink, Wire, error
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.server_catalog import ServerCatalogue

STARTING = frozenset({"idle", "warming"})
"""States of a server that is starting and was not down."""

#: Text for a caller, for each state that comes without a message.
_WHY = {
    "unknown": "it has not been started yet; try again later",
    "warming": "it is still starting; try again later",
    "ready": "the connection to it was lost and is not back yet; try again later",
    "idle": "it is being started; try again later",
    "draining": "it is being stopped",
    "stopped": "it was stopped; `metamcp ctl start` starts it",
    "error": "it failed; `metamcp ctl status` shows why",
    "quarantined": "it is in quarantine; `metamcp ctl clear` lets it out",
}  # fmt: skip


def went_down(
    link: ServerLink, wire: Wire, reason: str, message: str, *, twice: bool = False
) -> CallAnswer:
    """Return the error for a call whose server went down with the call; whether the server did
    anything is unknown. `twice`: the call was with a second server, too."""
    if twice:
        problem = "went down twice while this call was with it, which is not tried a third time"
    else:
        problem = "went down while this call was with it"
    text = f"server '{link.name}' {problem}: {message}"
    data = _build_down_data(link, wire.generation, reason, ran=True)
    return error(Code.SERVER_DOWN, text, {**data, "attempts": 2} if twice else data)


def not_there(link: ServerLink, call: Call, waited_s: float = 0.0) -> CallAnswer:
    """Return the error for a call that was not sent, or not sent again. `waited_s`: seconds that
    the call waited."""
    reason = link.message or _WHY[link.state]
    if link.message and link.state == "quarantined":
        reason = f"it is in quarantine: {link.message}"
    if link.reason == process_names.NO_PLACE:
        return build_overload_error(link, call, reason, process_names.SESSIONS_PROCESSES_MAX)
    if waited_s and link.state in STARTING:
        reason = f"it is still starting after {waited_s:g} s; try again later"
    if call.ends:
        text = (
            f"server '{link.name}' went down while this call was with it, and could not be asked"
            f" again: {reason}"
        )
    else:
        text = f"server '{link.name}' is not available: {reason}"
    data = _build_down_data(link, link.generation, link.reason or link.state, ran=bool(call.ends))
    return error(Code.SERVER_DOWN, text, data)


def timed_out(link: ServerLink, wire: Wire, call: Call) -> CallAnswer:
    limit_s = link.timeout_s
    data: dict[str, object] = {
        "server": link.name,
        "generation": wire.generation,
        "timeout_s": limit_s,
        "may_have_run": True,
    }
    text = f"server '{link.name}' and its worker did not answer within {limit_s:g} s"
    return error(Code.TIMED_OUT, text, {**data, "attempts": 2} if call.ends else data)


def build_front_lost_error() -> CallAnswer:
    """Return the error for a call of another front that no worker has (any more)."""
    text = "the process of the gateway that had this call is gone, and the answer with it"
    return error(Code.SERVER_DOWN, text, {"reason": "front", "may_have_run": True})


def build_overload_error(link: ServerLink, call: Call, reason: str, limit: int) -> CallAnswer:
    """Return the error for a call that found no place to wait. `limit`: how many calls may wait
    there."""
    wire = link.target
    return error(
        Code.OVERLOADED,
        f"server '{link.name}' has too much to do: {reason}; try again later",
        {
            "server": link.name,
            "may_have_run": bool(call.ends),
            "inflight": len(wire.waiting) if wire is not None else 0,
            "queued": len(link.held),
            "limit": limit,
            "retry_after_ms": _retry_after_ms(link),
        },
    )


def code_of(body: bytes) -> int:
    """Return the code of a server's error; an error without a usable code counts as internal."""
    try:
        return codec.decode_as(_ErrorHead, body).code or Code.INTERNAL_ERROR
    except codec.Malformed:
        return Code.INTERNAL_ERROR


def why_down(body: bytes) -> tuple[str, str]:
    """Return the reason and the message in the body of a `frames.ServerGone`."""
    members = codec.members(body)
    reason = codec.text(members["reason"]) if "reason" in members else None
    message = codec.text(members["message"]) if "message" in members else None
    return reason or "exit", message or "it ended"


class _ErrorHead(Struct, gc=False):
    code: int


def _build_down_data(
    link: ServerLink, generation: int, reason: str, *, ran: bool
) -> dict[str, object]:
    return {
        "reason": reason,
        "server": link.name,
        "generation": generation,
        "retry_after_ms": _retry_after_ms(link),
        "may_have_run": ran,
    }


def _retry_after_ms(link: ServerLink) -> int | None:
    return link.retry_after_ms if link.retry_after_ms >= 0 else None


READ_ONLY = "read-only"
IDEMPOTENT = "idempotent"
CALL = "tools/call"
READS = frozenset({
    "resources/read", "prompts/get", "completion/complete", "tools/list", "prompts/list",
    "resources/list", "resources/templates/list", "ping", "server/discover",
})  # fmt: skip
"""Methods that by their nature change nothing at a server."""


class Retries:
    """Policies and hints of all servers. `any`: whether some server may be asked again; if not, no
    call has to be checked."""

    def __init__(self) -> None:
        self.any = False
        self._policies: Mapping[str, str] = {}
        self._hints: dict[str, dict[bytes, str]] = {}

    def configure(self, policies: Mapping[str, str]) -> None:
        """Set the policies, by server. A server without a policy, or with an unknown policy, is
        never asked again."""
        policy_names = {READ_ONLY, IDEMPOTENT}
        self._policies = {
            server: policy for server, policy in policies.items() if policy in policy_names
        }
        self.any = bool(self._policies)

    def learn(self, server: str, catalogue: ServerCatalogue) -> None:
        hints: dict[bytes, str] = {}
        for tool in catalogue.tools:
            members = codec.members(tool)
            hints.setdefault(bytes(members.get("name", b"")), hint(members))
        self._hints[server] = {name: hint for name, hint in hints.items() if hint}

    def forget(self, server: str) -> None:
        self._hints.pop(server, None)

    def may(self, server: str, method: str, tool: bytes) -> bool:
        """Whether a call may be sent again. `tool`: raw name that the server gives to the tool, if
        the method calls a tool."""
        policy = self._policies.get(server)
        if policy is None:
            return False
        if method != CALL:
            return method in READS
        hint = self._hints.get(server, {}).get(tool)
        return hint == READ_ONLY or (hint == IDEMPOTENT and policy == IDEMPOTENT)


def hint(tool: Mapping[str, Raw]) -> str:
    """Return the hint in a definition about calling the tool twice; empty without a hint."""
    annotations = codec.members(tool.get("annotations", Raw()))
    if bytes(annotations.get("readOnlyHint", b"")) == b"true":
        return READ_ONLY
    return IDEMPOTENT if bytes(annotations.get("idempotentHint", b"")) == b"true" else ""


_UNANSWERED = frozenset({Code.SERVER_DOWN, Code.TIMED_OUT, Code.OVERLOADED})


def outcome(answer: CallAnswer | None) -> str:
    """Return the outcome, as a word for the figures, of a call that was to be sent again."""
    if answer is None:
        return "cancelled"
    return "failed" if answer.code in _UNANSWERED else "answered"
