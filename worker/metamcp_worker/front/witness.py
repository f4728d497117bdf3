"""Who is told of every call of a client: the one that writes them down, and the one that traces.

Owns: that they are told, so that a call on its way asks once whether there is anybody. Never: what
they make of it (`recorder`, `tracer`).
"""

from collections.abc import Mapping

from msgspec import Raw

from metamcp_worker.front.links import Answer, Call
from metamcp_worker.front.methods import Request
from metamcp_worker.front.recorder import Recorder
from metamcp_worker.front.tracer import Tracer


class Witness:
    """`recorder`, `tracer`: None where that is not wanted."""

    __slots__ = ("_recorder", "_tracer")

    def __init__(self, recorder: Recorder | None, tracer: Tracer | None) -> None:
        self._recorder = recorder
        self._tracer = tracer

    def begun(self, call: Call, subject: str, request: Request, params: Mapping[str, Raw]) -> None:
        """This call is about to be sent; `params`: as the server will get them."""
        if self._tracer is not None:
            self._tracer.begun(call, subject, request, params)
        if self._recorder is not None:
            self._recorder.begun(call, subject, params.get("arguments"))

    def finished(self, call: Call, answer: Answer | None, seconds: float, outcome: str) -> None:
        """It is over. `answer`: None if it was cancelled; `outcome`: empty, or what was wrong."""
        if self._tracer is not None:
            self._tracer.finished(call, answer, outcome)
        if self._recorder is not None:
            self._recorder.finished(call, answer, seconds, outcome)


def witness(recorder: Recorder | None, tracer: Tracer | None) -> Witness | None:
    """None if nobody wants to be told."""
    return Witness(recorder, tracer) if recorder is not None or tracer is not None else None
