"""Process of the engine: it carries out orders of fronts and of the supervisor.

Owns: the socket that they connect to, orders under way, news for the supervisor. Never: what an
order does (its handler), requests to fronts (`host`), the journal.

A connection that sends what is not a message is closed, and the others stay.
"""

import asyncio
import itertools
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from metamcp_worker.engine.agent_io import run_agent
from metamcp_worker.engine.host import EngineLink, FrontLinks, OrderHost
from metamcp_worker.engine.models_io import Models
from metamcp_worker.engine.suggestion_io import suggest
from metamcp_worker.engine.workflows_io import Workflows, guarded
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.engine_runs import (
    Done,
    EngineFigures,
    EngineOn,
    EngineOrder,
    EngineSettings,
    FrontHello,
    HostDone,
    Leave,
    OrderProgress,
)
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Beat, Stop, Tune
from metamcp_worker.ipc.packets import Channel
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import logs, loop
from metamcp_worker.runtime.loop import Chores

BEAT_S = 1.0
END_S = 1.0
"""Seconds for cancelled tasks to end."""
RETIRE_S_MAX = 30.0
"""Seconds that orders and steps have to end when the supervisor wants this process no longer."""
RETIRE_STEP_S = 0.05
"""Seconds between two checks whether they have ended."""
LINKS_MAX = 256
"""Maximum connections: of fronts, their heirs, and commands of users."""
ORDERS_MAX = 1024
"""Maximum orders of one connection under way."""

log = logging.getLogger("metamcp.engine")
_read = codec.reader(EngineSettings | Tune | Stop)
_settings = codec.reader(EngineOn)
_read_link = codec.reader(FrontHello | EngineOrder | Leave | HostDone)

Tell = Callable[[float, float, str], None]
Handler = Callable[[EngineOrder, OrderHost, Tell], Awaitable[Done]]


def main(sock: socket.socket) -> int:
    """Run this process and return its exit code. `sock`: the control socket to the supervisor."""
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await EngineWorker(sock).run()


class EngineWorker:
    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[int] = self._loop.create_future()
        self._spec = EngineOn(journal="")
        self._listener: socket.socket | None = None
        self._fronts = FrontLinks()
        self._models = Models()
        self._links: dict[EngineLink, dict[int, asyncio.Task[None]]] = {}
        self._counts: Counter[str] = Counter()
        self._chores = Chores(self._faulty)
        self._retires = False
        self._workflows = Workflows(self._fronts, self._models, self._chores, self._faulty)
        self._handlers: Mapping[str, Handler] = {
            "agent": lambda order, host, tell: run_agent(order, host, tell, self._models),
            "suggest": lambda order, host, tell: suggest(
                order, host, tell, self._models, self._spec.rules
            ),
            "workflows": guarded(self._workflows.workflows),
            "workflow/run": guarded(self._workflows.run),
            "workflow/runs": guarded(self._workflows.runs),
            "workflow/status": guarded(self._workflows.status),
            "workflow/cancel": guarded(self._workflows.cancel),
            "workflow/decide": guarded(self._workflows.decide),
        }
        self._channel = Channel(sock, self._packet, lambda: self._retire(RETIRE_S_MAX))

    async def run(self) -> int:
        self._chores.begin(self._beat())
        self._chores.begin(logs.counting())
        try:
            return await self._over
        finally:
            self._deafen()
            await self._workflows.close()
            await self._chores.close(END_S)
            for link in list(self._links):
                link.close()
            await self._models.close()
            self._channel.close()

    def _packet(self, data: bytes, fds: list[int]) -> None:
        try:
            match _read(data):
                case EngineSettings():
                    self._begin(_settings(packets.value(fds)), fds)
                case Tune(format=form, level=level, levels=levels):
                    logs.tune(LogSpec(format=form, level=level, levels=levels))
                case Stop(grace_s=grace_s):
                    self._retire(grace_s)
                case _:
                    pass
        except (codec.Malformed, OSError) as error:
            log.error("the engine cannot begin: %s", error)
            self._finish(1)
        finally:
            packets.close_all(fds)

    def _begin(self, spec: EngineOn, fds: list[int]) -> None:
        """Begin, or go on with other settings. Raises OSError."""
        if fds or self._listener is None:
            listener = socket.socket(fileno=packets.taken(fds))
            self._deafen()
            listener.setblocking(False)
            self._listener = listener
            self._loop.add_reader(listener, self._accept)
        self._spec = spec
        self._models.configure(spec.ai)
        self._workflows.configure(spec)

    def _retire(self, within_s: float) -> None:
        """Take nothing new, and end when what is under way has ended, at most `within_s` later."""
        if not self._retires:
            self._retires = True
            self._deafen()
            self._workflows.halt()
            self._loop.call_later(within_s, self._finish, 0)
            self._ended()

    def _ended(self) -> None:
        if self._workflows.busy or any(self._links.values()):
            self._loop.call_later(RETIRE_STEP_S, self._ended)
        else:
            self._finish(0)

    def _deafen(self) -> None:
        """Close the listening socket, of which the supervisor has another descriptor."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    # Connections

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._links) >= LINKS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        link = EngineLink(sock)
        self._links[link] = {}
        self._chores.begin(self._serve(link))

    async def _serve(self, link: EngineLink) -> None:
        try:
            await link.read(lambda body: self._message(link, body))
        except (codec.Malformed, TooLarge, OSError) as error:
            log.error("a connection that sent what is not a message is closed: %s", error)
        finally:
            self._fronts.remove(link)
            for task in self._links.pop(link).values():
                task.cancel()
            link.close()

    def _message(self, link: EngineLink, body: bytes) -> None:
        """Carry out a message. Raises codec.Malformed."""
        match _read_link(body):
            case FrontHello(front=front):
                self._fronts.add(link, front)
            case HostDone() as done:
                link.answered(done)
            case EngineOrder() as order:
                self._order(link, order)
            case Leave(id=number):
                if (task := self._links[link].get(number)) is not None:
                    task.cancel()
            case _:
                pass

    def _order(self, link: EngineLink, order: EngineOrder) -> None:
        tasks = self._links[link]
        if order.id in tasks:
            raise codec.Malformed(f"the order {order.id} is under way already")
        if self._retires or len(tasks) >= ORDERS_MAX:
            why = "The engine is being replaced or has too much to do: try again."
            link.send(Done(id=order.id, text=why, failed=True))
            return
        task = self._loop.create_task(self._carry_out(link, order))
        tasks[order.id] = task
        task.add_done_callback(lambda _: tasks.pop(order.id, None))

    async def _carry_out(self, link: EngineLink, order: EngineOrder) -> None:
        def tell(progress: float, total: float, message: str) -> None:
            if order.progress:
                link.send(
                    OrderProgress(id=order.id, progress=progress, total=total, message=message)
                )

        outcome = "cancelled"
        try:
            done = await self._handlers[order.method](order, OrderHost(self._fronts, link), tell)
            link.send(done)
            outcome = "failed" if done.failed else "ok"
        except TooLarge as error:
            outcome = "failed"
            link.send(Done(id=order.id, text=f"The answer cannot be sent: {error}.", failed=True))
        except Exception:
            outcome = "failed"
            log.exception("an order '%s' failed, the engine has a fault", order.method)
            why = "The engine has a fault; its log says more."
            link.send(Done(id=order.id, text=why, failed=True))
        finally:
            self._counts[f"{order.method}:{outcome}"] += 1

    # News

    async def _beat(self) -> None:
        told: EngineFigures | None = None
        for number in itertools.count(1):
            due = self._loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._tell(Beat(seq=number, lag_ms=(self._loop.time() - due) * 1000))
            figures = EngineFigures(counts=dict(self._counts), runs=self._workflows.statuses)
            if figures != told:
                told = figures
                self._tell(figures)

    def _tell(self, message: codec.Message) -> None:
        self._channel.send(messages.pack(message))

    def _finish(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)

    def _faulty(self, error: BaseException) -> None:
        log.error("the engine ends, it has a fault", exc_info=error)
        self._finish(1)
