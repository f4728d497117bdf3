"""Which calls prove that a server works.

Owns: what counts as an answer of the server itself. Never: calls, figures (`metrics`).
"""

from collections.abc import Sequence

from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.messages import CallStats

#: Calls that ended so say nothing about the server: the gateway answered, or the client left.
_NOT_ANSWERED = frozenset({
    "cancelled",
    *(str(int(code)) for code in (
        Code.SERVER_DOWN, Code.OVERLOADED, Code.TIMED_OUT, Code.TOO_LARGE,
    )),
})  # fmt: skip


def answered(stats: Sequence[CallStats]) -> dict[str, int]:
    """How many calls each server answered, of the cumulative figures of a front."""
    found: dict[str, int] = {}
    for one in stats:
        answered = one.count if one.error_type not in _NOT_ANSWERED else 0
        found[one.server] = found.get(one.server, 0) + answered
    return found
