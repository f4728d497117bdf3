"""Process of the engine: it carries out orders of fronts and of the supervisor.

Owns: their connections, orders under way, news for the supervisor. Never: what an
order does (its handler), requests to fronts (`host`), the journal.

A connection that sends what is not a message is closed, and the others stay.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from metamcp_worker.engine.host import EngineLink, FrontLinks, OrderHost
from metamcp_worker.engine.model_orders import run_agent, suggest
from metamcp_worker.engine.models_io import Models
from metamcp_worker.engine.run_journal import JournalError
from metamcp_worker.engine.workflows_io import Workflows, catch_refusals
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.engine_runs import (
    AbandonOrder,
    EngineFigures,
    EngineOn,
    EngineOrder,
    EngineSettings,
    FrontHello,
    HostDone,
    OrderDone,
    OrderProgress,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Stop, Tune
from metamcp_worker.runtime import loop
from metamcp_worker.runtime.role_worker import RoleWorker

RETIRE_STEP_S = 0.05
"""Seconds between two checks whether orders and steps have ended."""
LINKS_MAX = 256
"""Maximum connections: of fronts, their heirs, and commands of users."""
ORDERS_MAX = 1024
"""Maximum orders of one connection under way."""

log = logging.getLogger("metamcp.engine")
_read = codec.reader(EngineSettings | Tune | Stop)
_settings = codec.reader(EngineOn)
_read_link = codec.reader(FrontHello | EngineOrder | AbandonOrder | HostDone)

Tell = Callable[[float, float, str], None]
Handler = Callable[[EngineOrder, OrderHost, Tell], Awaitable[OrderDone]]


def main(sock: socket.socket) -> int:
    """Run this process and return its exit code. `sock`: the control socket to the supervisor."""
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await EngineWorker(sock).run()


class EngineWorker(RoleWorker):
    what = "the engine"
    log = log
    links_max = LINKS_MAX

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _read)
        self._spec = EngineOn(journal="")
        self._fronts = FrontLinks()
        self._models = Models()
        self._links: dict[EngineLink, dict[int, asyncio.Task[None]]] = {}
        self._counts: Counter[str] = Counter()
        self._retires = False
        self._workflows = Workflows(self._fronts, self._models, self._chores, self.faulty)
        self._handlers: Mapping[str, Handler] = {
            "agent": lambda order, host, tell: run_agent(order, host, tell, self._models),
            "suggest": lambda order, host, tell: suggest(
                order, host, tell, self._models, self._spec.rules
            ),
            "workflows": catch_refusals(self._workflows.workflows),
            "workflow/run": catch_refusals(self._workflows.run),
            "workflow/runs": catch_refusals(self._workflows.runs),
            "workflow/status": catch_refusals(self._workflows.status),
            "workflow/cancel": catch_refusals(self._workflows.cancel),
            "workflow/decide": catch_refusals(self._workflows.decide),
            "workflow/answer": catch_refusals(self._workflows.answer),
            "workflow/graph": catch_refusals(self._workflows.graph),
        }

    async def end(self) -> None:
        await self._workflows.close()
        await super().end()
        for link in list(self._links):
            link.close()
        await self._models.close()

    def take(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, EngineSettings):
            self._begin(_settings(packets.read_value(fds)), fds)

    def _begin(self, spec: EngineOn, fds: list[int]) -> None:
        """Begin, or go on with other settings. Raises OSError."""
        if fds or not self.accepts:
            self.accept(socket.socket(fileno=packets.take_fd(fds)))
        self._spec = spec
        self._models.configure(spec.ai)
        self._workflows.configure(spec)

    def retire(self, within_s: float) -> None:
        """Take nothing new, and end when what is under way has ended, at most `within_s` later."""
        if not self._retires:
            self._retires = True
            self.deafen()
            self._workflows.halt()
            self._loop.call_later(within_s, self.finish, 0)
            self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if self._workflows.busy or any(self._links.values()):
            self._loop.call_later(RETIRE_STEP_S, self._finish_if_idle)
        else:
            self.finish(0)

    # Connections

    @property
    def links(self) -> int:
        return len(self._links)

    def on_connection(self, sock: socket.socket) -> None:
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
                link.on_answer(done)
            case EngineOrder() as order:
                self._order(link, order)
            case AbandonOrder(id=number):
                if (task := self._links[link].get(number)) is not None:
                    task.cancel()
            case _:
                pass

    def _order(self, link: EngineLink, order: EngineOrder) -> None:
        tasks = self._links[link]
        if order.id in tasks:
            raise codec.Malformed(f"the order {order.id} is under way already")
        if self._retires or len(tasks) >= ORDERS_MAX:
            text = "The engine is being replaced or has too much to do: try again."
            link.send(OrderDone(id=order.id, text=text, failed=True))
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
            link.send(
                OrderDone(id=order.id, text=f"The answer cannot be sent: {error}.", failed=True)
            )
        except Exception:
            outcome = "failed"
            log.exception("an order '%s' failed, the engine has a fault", order.method)
            text = "The engine has a fault; its log says more."
            link.send(OrderDone(id=order.id, text=text, failed=True))
        finally:
            self._counts[f"{order.method}:{outcome}"] += 1

    def figures(self) -> EngineFigures:
        work = self._workflows
        counts = dict(self._counts)
        return EngineFigures(
            counts=counts, runs=work.statuses, parked=work.parked_runs, trouble=work.trouble
        )

    def faulty(self, error: BaseException) -> None:
        if not isinstance(error, JournalError):
            super().faulty(error)
        elif not self._over.done():
            self.log.error("the engine ends, and the next one goes on: %s", error)
            self.finish(1)
