"""Errors that a caller gets when its server does not answer.

Owns: the error objects that name the server, one sentence each. Never: when they are sent, errors
of servers.
"""

from msgspec import Raw, Struct

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import ReplyToFront
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Error

FIT = b'{"content":['
"""Bytes with which nearly all results begin. Only other results are looked at, in less than a
microsecond."""
NULL_WITHIN_BYTES = 64
"""Number of bytes at the start of a result in which `null` is looked for: servers that send no
content say so there."""

#: Member that a result must have, by method.
_CONTENT = {"tools/call": "content", "prompts/get": "messages", "resources/read": "contents"}


class Faults:
    """Errors about one server. `why` continues the sentence that the server's name begins."""

    def __init__(self, server: str) -> None:
        self._server = server

    def body(self, code: Code, why: str, data: dict[str, object] | None = None) -> bytes:
        """Return the raw error object."""
        about = {"server": self._server, **(data or {})}
        return jsonrpc_lines.error(code, f"server '{self._server}' {why}", about)

    def answer(self, front: int, call: int, code: Code, why: str) -> ReplyToFront:
        return ReplyToFront(front, Error(call, self.body(code, why)))

    def overloaded(
        self, front: int, call: int, load: dict[str, object], why: str = ""
    ) -> ReplyToFront:
        """Return the error of a call that found no place. `load`: as `ServerCalls.load` returns
        it."""
        return ReplyToFront(front, Error(call, self.overload(load, why)))

    def overload(self, load: dict[str, object], why: str = "") -> bytes:
        """Return the raw error object of a call that was not sent."""
        why = why or f"has {load['inflight']} calls in flight and {load['queued']} waiting"
        data = {"may_have_run": False, **load}
        return self.body(Code.OVERLOADED, f"{why}; try again later", data)

    def unfit(self, method: str, result: bytes) -> bytes:
        """Return the raw error object in place of a result that clients cannot read; empty if they
        can read this result."""
        place = ""
        if result[:1] == b"{":
            if b"null" not in result[:NULL_WITHIN_BYTES]:
                return b""
            member = _CONTENT.get(method, "")
            if codec.level(result).get(member, Raw()) != Raw(b"null"):
                return b""
            place, result = f" with '{member}'", b"null"
        kinds = {b"[": "an array", b'"': "a text", b"n": "null", b"t": "true", b"f": "false"}
        what = kinds.get(result[:1], "a number")
        why = (
            f"answered {method}{place} as {what}, which clients cannot read; its author can mend it"
        )
        return self.body(Code.INTERNAL_ERROR, why, {"reason": "invalid_result"})

    def timed_out(self, front: int, call: int, method: str, timeout_s: float) -> ReplyToFront:
        why = f"did not answer {method} within {timeout_s:g} s"
        return ReplyToFront(
            front, Error(call, self.body(Code.TIMED_OUT, why, {"timeout_s": timeout_s}))
        )

    def not_sent(self, front: int, call: int, method: str, timeout_s: float) -> ReplyToFront:
        why = f"was busy with other calls for {timeout_s:g} s, so it was not asked for {method}"
        data: dict[str, object] = {"timeout_s": timeout_s, "may_have_run": False}
        return ReplyToFront(front, Error(call, self.body(Code.TIMED_OUT, why, data)))


def unauthorized(error: bytes, server: str) -> str:
    """Return the words of an error object of the gateway about missing authorization, as they
    continue "it"; empty for any other error. The link in the error is left out, because it becomes
    invalid when the worker ends."""
    try:
        failure = _read_failure(error)
        if failure.code != Code.AUTHORIZATION_NEEDED:
            return ""
        if "authorization_url" in codec.level(failure.data):
            return f"needs authorization: run 'metamcp login {server}'"
    except codec.Malformed:
        return ""
    return failure.message.removeprefix(f"server '{server}' ")


class _Failure(Struct):
    code: int = 0
    message: str = ""
    data: Raw = Raw(b"{}")


_read_failure = codec.reader(_Failure)
