"""The process of the sandboxes, played by the test."""

from typing import Any

from msgspec import Raw, json

from metamcp_worker.ipc.code_runs import ROLE, EndRun, HoldRun, HostCall, HostReply, StartRun
from tests.worker.front.played import PlayedProcess

_read = json.Decoder(StartRun | EndRun | HoldRun | HostReply).decode


class Sandboxes(PlayedProcess):
    """The sandboxes, in which no code runs: the test makes the calls of a run."""

    def __init__(self) -> None:
        super().__init__(ROLE, _read)

    async def started(self) -> int:
        return (await self.read(StartRun)).run

    async def asks(self, run: int, number: int, name: str, **members: Any) -> HostReply:
        """The code makes this call; what it gets."""
        self.asked(run, number, name, **members)
        reply = await self.read(HostReply)
        assert (reply.run, reply.call) == (run, number)
        return reply

    def asked(self, run: int, number: int, name: str, **members: Any) -> None:
        kind = members.pop("kind", "call")
        arguments = Raw(json.encode(members.pop("arguments", {})))
        self.write(
            HostCall(run=run, call=number, kind=kind, name=name, arguments=arguments, **members)
        )
