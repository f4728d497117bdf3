"""Tools in quarantine, where the lists cannot help: calls that wait, and processes for one client.

Owns: refusing a call that waits for its server while its tool is put into quarantine, and one that
goes to a process of its client's own which offers something else than its server. Never: which
tools are kept back (the supervisor decides), lists and names (`catalog`), words.
"""

from collections.abc import Mapping

from metamcp_worker.front import links, methods
from metamcp_worker.front.links import Call
from metamcp_worker.front.routing import Routing
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import Code

Pair = tuple[str, str]


class Quarantine:
    """`apart`: what only processes for one client have to themselves; usually nothing."""

    def __init__(self, routing: Routing) -> None:
        self.apart: Mapping[Pair, str] = {}
        self._routing = routing

    def configure(self, quarantined: tuple[tuple[str, str, str], ...]) -> None:
        """From now on. A call that was let through and still waits for its server would meet
        another tool than its caller meant."""
        kept = {(server, tool): why for server, tool, why in quarantined}
        self.apart = {pair: why for pair, why in kept.items() if process_names.whose(pair[0])}
        for call, state in list(self._routing.under_way()) if kept else ():
            if state == "held" and (why := _why(call, kept)):
                data: dict[str, object] = {"reason": "quarantine", "may_have_run": call.ends > 0}
                answer = links.error(Code.INVALID_PARAMS, why, data)
                self._routing.cancel(call, why, answer)

    def check(self, server: str, tool: bytes | str) -> None:
        """Raises Refused. `server`: the process that would be called; `tool`: its own name there,
        raw JSON if it is bytes."""
        if why := self.apart.get((server, _text(tool))):
            raise methods.quarantined(why)


def _why(call: Call, kept: Mapping[Pair, str]) -> str:
    tool = "" if call.origin is None else _text(call.origin.tool)
    return kept.get((call.server, tool)) or kept.get((process_names.base(call.server), tool), "")


def _text(tool: bytes | str) -> str:
    return tool if isinstance(tool, str) else codec.text(tool) or ""
