"""Engine as a front knows it: the connection, orders of its clients, and what the engine asks for.

Owns: the connection, opened at once or at the first order, and opened again after a loss; orders
and requests of the engine under way. Never: the form of orders and answers (`engine_calls`),
whether a call is allowed: each goes through `calls`, like a request of the owner of the run.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Raw

from metamcp_worker.access.gate import Principal
from metamcp_worker.builtin_tools.builtin import EngineWork, ToolReply
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import client_questions
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.mcp_request import ServerNotReady
from metamcp_worker.front_calls.request_facts import CallAnswer, HttpRefused, InnerRun, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_calls.server_processes import RootsUnknown
from metamcp_worker.front_steps import code_calls, engine_calls
from metamcp_worker.front_steps.builtin_calls import BuiltinCalls, Builtins, BuiltinWork
from metamcp_worker.front_steps.code_calls import ToolNames
from metamcp_worker.front_steps.engine_calls import RepeatableTools
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import (
    FRAME_BYTES_MAX,
    ROLE,
    AbandonOrder,
    FrontHello,
    HostAsk,
    HostDone,
    HostDrop,
    OrderDone,
    OrderProgress,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frame_link import FrameLink
from metamcp_worker.ipc.packets import Connectors

AGAIN_S = 0.5
"""Seconds from the loss of the connection to the next attempt, where workflows need it."""
ORDERS_MAX = 1024
"""Maximum orders under way; a further one is refused."""
ASKS_MAX = 4096
"""Maximum requests of the engine under way; a further one is refused."""
UNSENT_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Maximum bytes that wait for the engine to read them; a request beyond is refused."""

_FULL_ORDERS = "Too many orders of the engine are under way; try again later."
_FULL = "too many requests of the engine wait for this front"
_EXPIRED = "the credential of the owner of this run has expired or was revoked"
_UNSERVED = "the endpoint of this run is not served any more"
_UNASKED = "the folders of the client are not known to this server; call one of its tools directly"
_LATE = "the call got no answer in {:g} s"
_DROPPED = "the run that made this call does not wait for it"

log = logging.getLogger("metamcp.front")
_read = codec.reader(OrderProgress | OrderDone | HostAsk | HostDrop)


class OrderUnderWay:
    """Order of a client. `done`: takes the result of its tool; `allowed`: tools that its user has
    agreed to, for an agent."""

    def __init__(self, work: BuiltinWork) -> None:
        assert isinstance(work.decision, EngineWork)
        self.call = work.call
        self.view = work.view
        self.request = work.request
        self.work = work.decision
        self.done = work.done
        self.allowed: set[str] = set()

    # A caller of what runs do for this client: progress of single calls is not passed on.

    def on_progress(self, params: bytes) -> None:
        pass

    def on_notification(self, method: str, params: bytes) -> None:
        if self.call.caller is not None:
            self.call.caller.on_notification(method, params)

    def on_question(self, question: Question) -> None:
        if self.call.caller is None:
            question.decline("The client of this call cannot be asked.")
        else:
            self.call.caller.on_question(question)


class _HostWork:
    """Request of the engine under way. `end`: ends what was begun for it."""

    def __init__(self, ask: HostAsk) -> None:
        self.ask = ask
        self.end: Callable[[str], None] = lambda reason: None
        self.timer: asyncio.TimerHandle | None = None
        self.repeatable = False


class EngineCalls:
    """Orders of a front's clients, and requests of the engine; a `builtin_calls.WorkStep`. `front`:
    name of this front;
    `still(principal, endpoint, now)`, `part(endpoint, principal)`: of the door, which may refuse an
    owner, and the name of the part of an endpoint that an owner sees."""

    def __init__(
        self, calls: Calls, builtins: Builtins, own: BuiltinCalls, connectors: Connectors
    ) -> None:
        self.front = ""
        self.still: Callable[[Principal, str, float], bool] = lambda who, endpoint, now: True
        self.part: Callable[[str, Principal], str] = lambda endpoint, who: endpoint
        self._calls = calls
        self._builtins = builtins
        self._own = own
        self._at_once = False
        self._orders: dict[int, OrderUnderWay] = {}
        self._works: dict[int, _HostWork] = {}
        self._names: dict[str, tuple[ToolNames, RepeatableTools]] = {}
        self._connectors = connectors
        connect = partial(connectors.connect, ROLE)
        self._link = FrameLink("the engine", self._frame, self._on_lost, connect)
        self._again: asyncio.TimerHandle | None = None

    def configure(self, *, at_once: bool) -> None:
        """Adapt to another configuration. `at_once`: connect without waiting for an order, and
        again after a loss, if there is an engine."""
        self._names.clear()
        self._at_once = at_once and self._connectors.has(ROLE)
        if self._at_once:
            self._open()

    def close(self) -> None:
        """End all orders for this front, and close the connection."""
        self._at_once = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._link.close()
        self._on_lost()

    def under_way(self) -> Iterable[tuple[Call, str]]:
        """Return the calls that are orders, with their state."""
        return [(order.call, "running") for order in self._orders.values()]

    def begin(self, work: BuiltinWork) -> None:
        """Give an order for a client. `work.done` is called with the result, at once or later."""
        order = OrderUnderWay(work)
        refusal = engine_calls.refusal(order.work, order.request, there=self._connectors.has(ROLE))
        if not refusal and len(self._orders) >= ORDERS_MAX:
            refusal = _FULL_ORDERS
        if refusal:
            order.done(ToolReply(refusal, failed=True))
            return
        number, here = order.call.id, order.call.caller is not None
        traced = order.call.frame is not None and order.call.frame.traced
        self._orders[number] = order
        self._send(
            engine_calls.order(
                number, order.work, order.view, order.request, here=here, traced=traced
            )
        )

    def leave(self, number: int) -> None:
        """Tell the engine that the client does not wait for this order any more, if it is one."""
        if self._orders.pop(number, None) is not None and self._link.is_open:
            self._send(AbandonOrder(id=number))

    # --- the connection -----------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        self._open()
        self._link.send(message)

    def _open(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not self._link.is_open:
            self._link.open(FrontHello(front=self.front))

    def _on_lost(self) -> None:
        """End everything that needs the connection; connect again if that is wanted."""
        works, self._works = self._works, {}
        for work in works.values():
            _end_work(work, _DROPPED)
        orders, self._orders = self._orders, {}
        for order in orders.values():
            order.done(ToolReply(engine_calls.describe_loss(order.work.method), failed=True))
        if self._at_once and self._again is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._open)

    def _frame(self, body: bytes) -> None:
        """Take a message. Raises codec.Malformed."""
        message = _read(body)
        if isinstance(message, HostAsk):
            self._on_ask(message)
        elif isinstance(message, OrderProgress) and message.span is not None:
            if self._calls.traces is not None:
                self._calls.traces.on_span(message.span)
        elif isinstance(message, HostDrop):
            work = self._works.pop(message.call, None)
            if work is not None:
                _end_work(work, _DROPPED)
        elif isinstance(message, OrderDone):
            order = self._orders.pop(message.id, None)
            if order is not None:
                structured = codec.level(message.structured) or None
                order.done(ToolReply(message.text, structured, failed=message.failed))
        elif (order := self._orders.get(message.id)) is not None:
            _tell_progress(order, message)

    # --- what the engine asks for -------------------------------------------------------------

    def _on_ask(self, ask: HostAsk) -> None:
        if len(self._works) >= ASKS_MAX or ask.call in self._works:
            self._send(engine_calls.build_failure(ask.call, _FULL, "unavailable", repeatable=True))
            return
        work = self._works[ask.call] = _HostWork(ask)
        if ask.timeout_ms > 0:
            loop = asyncio.get_running_loop()
            work.timer = loop.call_later(ask.timeout_ms / 1000, self._on_timeout, work)
        self._carry_out(work)

    def _carry_out(self, work: _HostWork) -> None:
        ask = work.ask
        order = self._orders.get(ask.order) if ask.order else None
        try:
            who = engine_calls.principal(ask.owner)
            view = self._view(ask, who)
            outer_request = None if order is None else order.request
            agent = order is not None and order.work.method == "agent"
            request = engine_calls.base(ask, who, outer_request, agent=agent)
            if ask.kind in ("call", "server"):
                self._call(work, view, request, order)
            elif ask.kind == "code":
                self._code(work, view, request, order)
            elif ask.kind in ("sample", "elicit"):
                self._question(work, order)
            else:
                self._calls.authorize(view, who, "tools/list")
                self._look_up(work, view, request)
        except ServerNotReady as error:
            self._wait(work, error)
        except ProtocolError as error:
            self._reply(work, engine_calls.build_refusal(ask.call, error))
        except HttpRefused as error:
            self._reply(work, engine_calls.build_failure(ask.call, str(error), repeatable=True))
        except RootsUnknown:
            self._reply(work, engine_calls.build_failure(ask.call, _UNASKED, repeatable=True))
        except codec.Malformed as error:
            self._reply(
                work, engine_calls.build_failure(ask.call, f"the request is wrong: {error}")
            )

    def _view(self, ask: HostAsk, who: Principal) -> View:
        """Return the view of the owner of a run as it is now. Raises ProtocolError and Declined."""
        endpoint = ask.owner.endpoint
        if who.auth != "none" and not self.still(who, endpoint, time.time_ns() / 1e9):
            raise ProtocolError(Code.INVALID_REQUEST, _EXPIRED)
        endpoint = self.part(endpoint, who)
        view = self._calls.view_of(endpoint, who.name)
        if view is None:
            raise ProtocolError(Code.INVALID_REQUEST, _UNSERVED)
        if self._link.unsent > UNSENT_BYTES_MAX:
            raise ProtocolError(Code.OVERLOADED, _FULL)
        return view

    def _get_tool_names(self, view: View, request: McpRequest) -> tuple[ToolNames, RepeatableTools]:
        merged, key = view.of(modern=request.modern), f"{view.endpoint}\n{request.modern}"
        entry = self._names.get(key)
        if entry is None or entry[0].merged is not merged:
            entry = self._names[key] = ToolNames(merged), RepeatableTools(merged)
        return entry

    def _name(self, ask: HostAsk, view: View, request: McpRequest) -> str:
        """Return the exposed name of the tool. Raises ProtocolError."""
        if not ask.server:
            return ask.name
        return self._get_tool_names(view, request)[0].find(ask.server, ask.name)

    def _call(
        self, work: _HostWork, view: View, request: McpRequest, order: OrderUnderWay | None
    ) -> None:
        ask = work.ask
        self._calls.authorize(view, request.principal, "tools/call")
        name = self._name(ask, view, request)
        work.repeatable = self._get_tool_names(view, request)[1].has(name)
        made = code_calls.call(request, name, ask.arguments)
        call = self._calls.start(view, made, order)
        self._follow(work, call, lambda answer: answer)

    def _code(
        self, work: _HostWork, view: View, request: McpRequest, order: OrderUnderWay | None
    ) -> None:
        self._calls.authorize(view, request.principal, "tools/call")
        made = code_calls.call(request, "run_code", work.ask.arguments)
        if work.ask.consent:
            allowed = set[str]() if order is None else order.allowed
            made.run = InnerRun(work.ask.run, 0, allowed, "agent")
        call = self._own.run_code(view, made, order, work.ask.arguments)
        self._follow(work, call, engine_calls.with_structured_content)

    def _follow(self, work: _HostWork, call: Call, made: Callable[[HostDone], HostDone]) -> None:
        work.end = call.cancel

        def on_answer(answer: CallAnswer | None) -> None:
            number, repeatable = work.ask.call, work.repeatable
            self._reply(
                work, made(engine_calls.to_host_done(number, answer, repeatable=repeatable))
            )

        call.answer.add_callback(on_answer)

    def _wait(self, work: _HostWork, early: ServerNotReady) -> None:
        """Make the call when its server has reported what it offers; then it is there, or not."""
        first = self._calls.first_list(early, work.ask.owner.endpoint)
        work.end = first.cancel

        def on_first_list(answer: CallAnswer | None) -> None:
            if self._works.get(work.ask.call) is not work or answer is None:
                return
            owner = work.ask.owner
            view = self._calls.view_of(owner.endpoint, owner.name)
            if view is None or early.server in view.merged.unknown:
                self._reply(work, engine_calls.build_refusal(work.ask.call, early))
            else:
                self._carry_out(work)

        first.answer.add_callback(on_first_list)

    def _look_up(self, work: _HostWork, view: View, request: McpRequest) -> None:
        ask = work.ask

        def on_reply(reply: ToolReply, member: str = "") -> None:
            if reply.failed or reply.structured is None:
                self._reply(work, engine_calls.build_failure(ask.call, reply.text, repeatable=True))
                return
            content = reply.structured[member] if member else reply.structured
            self._reply(work, HostDone(call=ask.call, result=Raw(codec.dump(content))))

        if ask.kind == "tools":
            self._builtins.tools(view, request, ask.name, partial(on_reply, member="tools"))
        elif ask.kind == "catalog":
            on_reply(self._builtins.catalogue(view))
        else:
            on_reply(self._builtins.describe_tool(view, self._name(ask, view, request)))

    def _question(self, work: _HostWork, order: OrderUnderWay | None) -> None:
        ask = work.ask
        method = engine_calls.SAMPLE if ask.kind == "sample" else engine_calls.ELICIT
        params = bytes(ask.arguments)
        caller = None if order is None else order.call.caller
        if (
            order is None
            or caller is None
            or not client_questions.may_be_asked(order.request.caller, method, params)
        ):
            reason = engine_calls.UNASKABLE
            self._reply(
                work, engine_calls.build_failure(ask.call, reason, "unavailable", repeatable=True)
            )
            return

        def on_answer(question: Question, body: bytes, failed: bool) -> None:
            self._reply(work, engine_calls.pack_answer(ask.call, body, error=failed))

        question = Question("", order.call.id, 0, method, params, on_answer)
        work.end = lambda reason: question.withdraw()
        caller.on_question(question)

    def _on_timeout(self, work: _HostWork) -> None:
        reason = _LATE.format(work.ask.timeout_ms / 1000)
        late = engine_calls.build_failure(
            work.ask.call, reason, "timeout", repeatable=work.repeatable
        )
        end = work.end
        self._reply(work, late)
        end(reason)

    def _reply(self, work: _HostWork, done: HostDone) -> None:
        if self._works.get(work.ask.call) is not work:
            return
        del self._works[work.ask.call]
        if work.timer is not None:
            work.timer.cancel()
        self._send(done)


def _end_work(work: _HostWork, reason: str) -> None:
    """End what was begun for a request that nobody waits for."""
    if work.timer is not None:
        work.timer.cancel()
    work.end(reason)


def _tell_progress(order: OrderUnderWay, progress: OrderProgress) -> None:
    if order.call.caller is None or not order.request.wants_progress:
        return
    members: dict[str, object] = {"progress": progress.progress}
    members |= {"total": progress.total} if progress.total else {}
    members |= {"message": progress.message} if progress.message else {}
    order.call.caller.on_progress(codec.dump(members))
