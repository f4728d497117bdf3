"""What a caller is told when its server does not answer it.

Owns: the error objects that name the server, one sentence each. Never: when they are sent, errors
of servers.
"""

from msgspec import Raw, Struct

from metamcp_worker import codec
from metamcp_worker.child import wire
from metamcp_worker.child.actions import Reply
from metamcp_worker.errors import Code
from metamcp_worker.frames import Error


class Faults:
    """`why` continues the sentence that the server's name begins."""

    def __init__(self, server: str) -> None:
        self._server = server

    def body(self, code: Code, why: str, data: dict[str, object] | None = None) -> bytes:
        """The raw error object."""
        about = {"server": self._server, **(data or {})}
        return wire.error(code, f"server '{self._server}' {why}", about)

    def answer(self, front: int, call: int, code: Code, why: str) -> Reply:
        return Reply(front, Error(call, self.body(code, why)))

    def overloaded(self, front: int, call: int, load: dict[str, object], why: str = "") -> Reply:
        """`load`: what there is to do already, as `calls` tells it."""
        return Reply(front, Error(call, self.overload(load, why)))

    def overload(self, load: dict[str, object], why: str = "") -> bytes:
        """The raw error object of a call that was not sent."""
        why = why or f"has {load['inflight']} calls in flight and {load['queued']} waiting"
        data = {"may_have_run": False, **load}
        return self.body(Code.OVERLOADED, f"{why}; try again later", data)

    def timed_out(self, front: int, call: int, method: str, timeout_s: float) -> Reply:
        why = f"did not answer {method} within {timeout_s:g} s"
        return Reply(front, Error(call, self.body(Code.TIMED_OUT, why, {"timeout_s": timeout_s})))


def unauthorized(error: bytes, server: str) -> str:
    """What an error object of ours says of the lack of authorization, after "it"; nothing if it is
    about something else. For one who is not to open its link, because that ends with the worker.
    """
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
