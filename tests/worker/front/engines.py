"""The process of the engine, played by the test."""

from typing import Any

from msgspec import Raw, json

from metamcp_worker.ipc.engine_runs import (
    ROLE,
    AbandonOrder,
    EngineOrder,
    FrontHello,
    HostAsk,
    HostDone,
    Kind,
    RunOwner,
)
from tests.worker.front.played import PlayedProcess

_read = json.Decoder(FrontHello | EngineOrder | AbandonOrder | HostDone).decode
OWNER = RunOwner("default", "local", "default")


class Engine(PlayedProcess):
    """The engine, whose requests have numbers from 1 on."""

    def __init__(self) -> None:
        super().__init__(ROLE, _read)
        self._calls = 0

    async def meet(self) -> None:
        """Take a connection of the front, which begins with its name."""
        await super().meet()
        await self.read(FrontHello)

    def asked(self, kind: Kind, name: str = "", **members: Any) -> int:
        """A run asks for this; the number of the request."""
        self._calls += 1
        for raw in ("arguments", "meta"):
            members[raw] = Raw(json.encode(members.get(raw, {})))
        owner = members.pop("owner", OWNER)
        self.write(HostAsk(call=self._calls, owner=owner, kind=kind, name=name, **members))
        return self._calls

    async def asks(self, kind: Kind, name: str = "", **members: Any) -> HostDone:
        """A run asks for this; what it gets."""
        number = self.asked(kind, name, **members)
        reply = await self.read(HostDone)
        assert reply.call == number
        return reply
