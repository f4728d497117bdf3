"""Calls of the gateway's built-in tools, which look at views, send orders, search, and answer.

Owns: the context that a tool may look at, orders on their way to the supervisor and their time
limit, and the steps of a search: build its index in turns of the loop (`IndexBuilder`), ask the
other searches, answer; the begin and the end of such a call.
Never: what a tool decides (`builtin` and the families), views, running code, the engine.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import Raw, Struct, structs

from metamcp_worker.access import gate
from metamcp_worker.builtin_tools import (
    builtin,
    code_tools,
    engine_tools,
    search_tools,
)
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    EngineWork,
    Forward,
    OrderAndThen,
    Rankings,
    ReadResult,
    Run,
    ToolContext,
    ToolReply,
    ToolSearch,
)
from metamcp_worker.builtin_tools.search_index import Indexes
from metamcp_worker.builtin_tools.search_tools import ToolName
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import server_links
from metamcp_worker.front_calls.calls import OWN, Calls
from metamcp_worker.front_calls.client_questions import Caller
from metamcp_worker.front_calls.front_views import Viewers, builtin_family
from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_calls.server_processes import RootsUnknown
from metamcp_worker.front_calls.task_ids import CALL
from metamcp_worker.ipc import codec, jsonrpc_bytes, packets, process_names
from metamcp_worker.ipc.disclosure import (
    DisclosureDelta,
    DisclosureState,
    OrderOutcome,
    ToolSet,
    ViewContent,
    ViewOrder,
    ViewOwner,
    with_full_name,
    with_label,
)
from metamcp_worker.ipc.embedding import Embed, Vectors
from metamcp_worker.ipc.engine_runs import CALLING
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.figures import ToolQuery
from metamcp_worker.ipc.frames import CallFrame
from metamcp_worker.ipc.messages import Message, ServerState
from metamcp_worker.ipc.saved_scripts import Script
from metamcp_worker.ipc.spec import SemanticSearchSpec
from metamcp_worker.results import result_summary
from metamcp_worker.results.result_summary import ResultOwner
from metamcp_worker.search.index import Allowed, SearchResult

if TYPE_CHECKING:
    from metamcp_worker.builtin_tools.vector_search_io import ToolVectorSearch
    from metamcp_worker.results.result_files import ResultReader

ORDER_S_MAX = 10.0
"""Seconds from an order to its outcome; it takes milliseconds, unless the disk hangs."""
ORDERS_MAX = 1024
"""Maximum number of orders that a front waits for at once; further orders are refused."""
RUN_ID_BYTES = 8
_LATE = "the supervisor did not answer in time; look again whether it was carried out"
_NAMED = f"the name of a tool set or script cannot have {process_names.WORKSPACE_MARK!r} in it"
_MODERN = "{} does not lead to runs of workflows, which are tasks of revision 2025-11-25 alone"
_FULL = f"{ORDERS_MAX} orders wait already; try again in a moment"


INDEX_TURN_S = 0.008
"""Seconds of one turn of the loop; calls of clients are handled between the turns."""
INDEX_WAIT_S_MAX = 10.0
"""Seconds that a search waits for a whole index; ten thousand new tools take one second. After that
time, for example if servers change tools faster than the front indexes them, the search does the
rest of the work at once."""


class IndexBuilder:
    """Builds search indexes while the front does other things (`search_index` does the work)."""

    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes
        self._turn: asyncio.Handle | None = None
        self._waiting: list[tuple[str, asyncio.TimerHandle, Callable[[], None]]] = []

    def begin(self) -> None:
        """Schedule the work, if there is any."""
        if self._turn is None and self._indexes.behind:
            self._turn = asyncio.get_running_loop().call_soon(self._work)

    def when_whole(self, endpoint: str, done: Callable[[], None]) -> None:
        """Call `done` when the index of this endpoint is whole, or when the time is over."""
        if not self._indexes.is_behind(endpoint):
            done()
            return
        timer = asyncio.get_running_loop().call_later(INDEX_WAIT_S_MAX, self._on_timeout, done)
        self._waiting.append((endpoint, timer, done))
        self.begin()

    def _work(self) -> None:
        self._turn = None
        loop = asyncio.get_running_loop()
        until = loop.time() + INDEX_TURN_S
        while self._indexes.behind and loop.time() < until:
            self._indexes.step()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            endpoint, timer, done = each
            if self._indexes.is_behind(endpoint):
                self._waiting.append(each)
            else:
                timer.cancel()
                done()
        self.begin()

    def _on_timeout(self, done: Callable[[], None]) -> None:
        self._waiting = [each for each in self._waiting if each[2] is not done]
        done()


class _WaitingOrder(Struct, frozen=True):
    whose: ViewOwner
    ask: OrderAndThen
    done: Callable[[ToolReply], None]
    timer: asyncio.TimerHandle


class Builtins:
    """Decides and carries out calls of built-in tools. `states`: of servers; `send(ticket, wish)`,
    `tell(message, fds)`: send to the supervisor."""

    def __init__(self, viewers: Viewers, states: Mapping[str, ServerState]) -> None:
        self.send: Callable[[int, ViewOrder], None] = lambda ticket, wish: None
        self.tell: Callable[[Message, tuple[int, ...]], None] = lambda message, fds: None
        self._viewers = viewers
        self._states = states
        self._building = IndexBuilder(viewers.indexes)
        self.on_views_built = self._building.begin
        self._seeking: ToolVectorSearch | None = None
        self._reader: ResultReader | None = None
        self._toolsets: Mapping[str, ToolSet] = {}
        self._scripts: Mapping[str, Script] = {}
        self._scripts_of: Mapping[str, Mapping[str, Script]] = {}
        """Scripts by workspace, and by name in it."""
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _WaitingOrder] = {}

    def disclose(self, everything: DisclosureState) -> None:
        """Take over all tool sets, scripts and views that the supervisor has stored."""
        self._toolsets = {toolset.name: toolset for toolset in everything.toolsets}
        self._keep({script.name: script for script in everything.scripts})
        self._viewers.show(dict(everything.views))

    def shift(self, news: DisclosureDelta) -> None:
        """Take over the tool sets, scripts and views that have changed at the supervisor."""
        if news.put or news.drop:
            toolsets = {**self._toolsets, **{toolset.name: toolset for toolset in news.put}}
            self._toolsets = {
                name: toolsets[name] for name in sorted(toolsets.keys() - set(news.drop))
            }
        if news.scripts or news.drop_scripts:
            scripts = {**self._scripts, **{script.name: script for script in news.scripts}}
            self._keep({name: scripts[name] for name in scripts.keys() - set(news.drop_scripts)})
        self._viewers.shift(news.views)

    def _keep(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts
        by_workspace: dict[str, dict[str, Script]] = {}
        for name, script in sorted(scripts.items()):
            of = by_workspace.setdefault(process_names.workspace_of(name), {})
            of[process_names.label(name)] = with_label(script)
        self._scripts_of = by_workspace
        self._viewers.keep(by_workspace)

    def decide(self, view: View, name: str, request: McpRequest) -> Decision:
        """Return the decision of this tool about the request, without carrying it out."""
        spec, arguments = view.spec, request.params.get("arguments", Raw())
        if request.method in engine_tools.TASKS:
            if request.modern:
                raise ProtocolError(Code.METHOD_NOT_FOUND, _MODERN.format(request.method))
            return engine_tools.task_order(request.method, request.params)
        if request.method != CALL:
            arguments = Raw(codec.dump(request.params))
        if request.method == jsonrpc_bytes.READ:
            uri = codec.text(request.params.get("uri", b"null")) or ""
            return builtin.read_result_uri(uri, self._context(view))
        tool = builtin_family(spec).tools.get(name)
        if tool is not None:
            decision = tool.decide(bytes(arguments), self._context(view))
            if isinstance(decision, EngineWork) and tool.own.task and not request.modern:
                return engine_tools.as_task(decision) if "task" in request.params else decision
            return decision
        script = codec.text(view.of(modern=request.modern).tools[name].original) or ""
        return code_tools.run_script(self._context(view), script, arguments)

    def carry_out(
        self,
        view: View,
        request: McpRequest,
        decision: ToolReply | OrderAndThen | ToolSearch | ReadResult,
        done: Callable[[ToolReply], None],
    ) -> None:
        """Carry out a decision; `done` is called with the result, at once or later."""
        own = view.spec.per_session and not request.modern
        whose = ViewOwner(view.endpoint, view.principal, request.who if own else "")
        if isinstance(decision, ToolReply):
            done(decision)
        elif isinstance(decision, ReadResult):
            self._read(view, decision, done)
        elif isinstance(decision, ToolSearch):
            self._building.when_whole(view.endpoint, partial(self._seek, whose, decision, done))
        elif refusal := self._refusal(decision):
            done(decision.then(OrderOutcome(error=refusal), self._context(view)))
        else:
            ticket = next(self._tickets)
            timer = asyncio.get_running_loop().call_later(
                ORDER_S_MAX, self.on_order_timeout, ticket
            )
            self._waiting[ticket] = _WaitingOrder(whose, decision, done, timer)
            self.send(ticket, ViewOrder(whose, with_full_name(decision.order, view.spec.workspace)))

    def tools(
        self, view: View, request: McpRequest, query: str, done: Callable[[ToolReply], None]
    ) -> None:
        """List tools for code that the sender of this request runs; `done` is called with the list,
        at once or later."""
        decision = code_tools.find_tools(
            query if view.spec.needs_index else "", self._context(view)
        )
        self.carry_out(view, request, decision, done)

    def list_view_tools(
        self, view: View, query: ToolQuery, done: Callable[[ToolReply], None]
    ) -> None:
        """List the tools of a view for people; `done` is called with the list, at once or later. An
        endpoint without a search is searched too; its index lasts until its tools change."""
        from metamcp_worker.builtin_tools import tool_list  # few gateways are asked

        decision = tool_list.list_tools(query, view, self._context(view))
        if isinstance(decision, ToolReply):
            done(decision)
            return
        self._viewers.index_for_now(view.endpoint)
        whose = ViewOwner(view.endpoint, view.principal)
        self._building.when_whole(view.endpoint, partial(self._seek, whose, decision, done))

    def catalogue(self, view: View) -> ToolReply:
        """Return what is behind the endpoint, as `get_catalog` does."""
        return engine_tools.catalogue(self._context(view))

    def describe_tool(self, view: View, name: str) -> ToolReply:
        """Return what `describe_tool` says about a tool, with its `annotations`."""
        reply = search_tools.describe(ToolName(name), self._context(view))
        if reply.failed or reply.structured is None:
            return reply
        definition = codec.level(codec.dump(reply.structured["definition"]))
        annotations = definition.get("annotations", Raw(b"{}"))
        return structs.replace(reply, structured={**reply.structured, "annotations": annotations})

    def decide_code(self, view: View, arguments: Raw) -> Decision:
        """Return the decision of `run_code` about these arguments, on any endpoint."""
        tool = code_tools.FAMILY.tools["run_code"]
        return tool.decide(bytes(arguments), self._context(view))

    def _read(self, view: View, query: ReadResult, done: Callable[[ToolReply], None]) -> None:
        if self._reader is None:
            from metamcp_worker.results.result_files import ResultReader  # few gateways have it

            self._reader = ResultReader()
        assert view.spec.results is not None
        folder = result_summary.folder(view.spec.results, _owner(view))
        self._reader.read(
            folder, query.part, lambda outcome: done(builtin.build_result_reply(query, outcome))
        )

    def _refusal(self, decision: OrderAndThen) -> str:
        """Return why an order is not sent, or an empty string."""
        order = decision.order
        if process_names.WORKSPACE_MARK in getattr(order, "toolset", getattr(order, "script", "")):
            return _NAMED
        return _FULL if len(self._waiting) >= ORDERS_MAX else ""

    def on_order_outcome(self, ticket: int, outcome: OrderOutcome) -> None:
        """Answer the call whose order has this outcome; the views show the change already."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:
            return
        waiting.timer.cancel()
        waiting.done(
            self._make_reply(waiting.whose, partial(waiting.ask.then, _label_outcome(outcome)))
        )

    def on_order_timeout(self, ticket: int) -> None:
        """Answer the call whose order took too long."""
        self.on_order_outcome(ticket, OrderOutcome(error=_LATE))

    def seek(self, spec: SemanticSearchSpec | None) -> None:
        """Search by meaning as well from now on; with None, by words alone."""
        if self._seeking is not None and (spec is None or not self._seeking.adjust(spec)):
            self._seeking.close()
            self._seeking = None
        if self._seeking is None and spec is not None:
            from metamcp_worker.builtin_tools.vector_search_io import (
                ToolVectorSearch,  # few gateways have it
            )

            self._seeking = ToolVectorSearch(self._embed, self._viewers.indexes, spec)

    def on_vectors(self, ticket: int, blob: bytes) -> None:
        """Take over the vectors of texts, or hear that there are none. Raises codec.Malformed."""
        if self._seeking is not None:
            self._seeking.on_vectors(ticket, codec.decode_as(Vectors, blob))

    def _embed(self, ticket: int, texts: Sequence[str], query: bool) -> None:
        """Ask the supervisor for the vectors of these texts. Raises OSError and TooLarge."""
        self.tell(Embed(ticket=ticket, query=query), (packets.blob(codec.dump(texts)),))

    def _seek(self, whose: ViewOwner, seek: ToolSearch, done: Callable[[ToolReply], None]) -> None:
        def on_rankings(others: Rankings) -> None:
            done(self._make_reply(whose, partial(seek.then, others)))

        if self._seeking is None:
            on_rankings(())
        else:
            self._seeking.rank(whose.endpoint, seek.query, seek.allowed, on_rankings)

    def _make_reply(self, whose: ViewOwner, then: Callable[[ToolContext], ToolReply]) -> ToolReply:
        """Make the reply after a wait, with the view as it is now."""
        view = self._viewers.get(whose.endpoint, whose.principal)
        if view is None:
            return ToolReply("This endpoint is not served any more.", failed=True)
        return then(self._context(self._viewers.own(view, whose.session)))

    def _search(
        self, endpoint: str, query: str, limit: int, allowed: Allowed | None, others: Rankings
    ) -> SearchResult:
        return self._viewers.index(endpoint).search(query, limit, allowed, others)

    def _toolsets_of(self, workspace: str) -> Mapping[str, ToolSet]:
        """Return the tool sets of a workspace, by their names in it."""
        toolsets = (
            toolset for name, toolset in self._toolsets.items()
            if process_names.workspace_of(name) == workspace
        )  # fmt: skip
        return {process_names.label(toolset.name): with_label(toolset) for toolset in toolsets}

    def _context(self, view: View) -> ToolContext:
        return ToolContext(
            view.spec,
            self._viewers.find_merged(view.endpoint),
            _label_content(view.shown),
            self._toolsets_of(view.spec.workspace),
            self._states,
            self._viewers.is_listed,
            partial(self._search, view.endpoint),
            _format_date,
            self._scripts_of.get(view.spec.workspace, {}),
            self._viewers.scripts_of(view.endpoint),
        )


class BuiltinWork(Struct, frozen=True):
    """Call of a built-in tool that has decided. `run`: id of the run of code, under which the audit
    finds its calls; empty for other decisions. `done`: takes the result."""

    call: Call
    view: View
    request: McpRequest
    decision: Decision
    run: str
    done: Callable[[ToolReply], None]


class WorkStep(Protocol):
    """Step that carries out one kind of decision; see `code_calls_io` and `engine_calls_io`."""

    def begin(self, work: BuiltinWork) -> None:
        """Carry out a decision. `work.done` is called with the result, at once or later."""

    def leave(self, number: int) -> None:
        """End this work, if there is any: its client does not wait any more."""


class BuiltinCalls:
    """Calls of built-in tools; a `calls.OwnTools`. `find_step(decision)`: returns the step that
    carries a decision out; None if `builtins` do."""

    def __init__(
        self,
        calls: Calls,
        builtins: Builtins,
        find_step: Callable[[Decision], WorkStep | None],
    ) -> None:
        self._calls = calls
        self._builtins = builtins
        self._find_step = find_step

    def find_result(self, method: str, uri: str) -> Owner | None:
        """Return the owner of a kept result that this request reads as a resource: the gateway."""
        reads = method == jsonrpc_bytes.READ and uri.startswith(result_summary.SCHEME)
        return _RESULT if reads else None

    def place_result(self, view: View, request: McpRequest) -> bytes:
        """Return the raw place where a large result of this request is kept, for a view whose
        endpoint keeps results. Empty for methods whose results pass whole, and for calls of code,
        workflows and agents, which can process large results."""
        if request.run is not None or request.method not in result_summary.METHODS:
            return b""
        assert view.spec.results is not None
        links = request.modern or request.version >= result_summary.LINKS_SINCE
        return result_summary.place(view.spec.results, _owner(view), request.principal.key, links)

    def start(self, view: View, name: str, request: McpRequest, caller: Caller | None) -> Call:
        """Begin the call of a built-in tool, or of the tool that it forwards to."""
        decision = self._builtins.decide(view, name, request)
        if request.method in engine_tools.TASKS:
            name = engine_tools.RUN
        if isinstance(decision, Forward):
            named = {"name": Raw(codec.dump(decision.name)), "arguments": decision.arguments}
            forwarded = structs.replace(request, params=request.params | named)
            if request.run is not None:
                from metamcp_worker.front_steps import code_calls  # few calls come from code

                code_calls.check_consent(view.of(modern=request.modern), decision.name, request)
            return self._calls.begin(view, forwarded, caller)
        return self._start(view, name, request, caller, decision)

    def run_code(
        self, view: View, request: McpRequest, caller: Caller | None, arguments: Raw
    ) -> Call:
        """Begin a run of code with these arguments of `run_code`, on any endpoint, for a run of the
        engine. Raises ProtocolError and Unasked."""
        if self._calls.audit is not None:
            self._calls.audit.check()
        decision = self._builtins.decide_code(view, arguments)
        return self._start(view, "run_code", request, caller, decision)

    def _start(
        self, view: View, name: str, request: McpRequest, caller: Caller | None, decision: Decision
    ) -> Call:
        """Begin the call of a built-in tool that has decided."""
        calls, began = self._calls, time.monotonic()
        assert not isinstance(decision, Forward)
        if isinstance(decision, OrderAndThen):
            gate.check_scope(request.principal, gate.META, name)
        run = secrets.token_hex(RUN_ID_BYTES) if isinstance(decision, Run) else ""
        calling = run or (isinstance(decision, EngineWork) and decision.method in CALLING)
        if calling and calls.processes.asks_first(view.spec.servers, request):
            raise RootsUnknown  # nobody can be asked for roots later
        step = self._find_step(decision)
        call = Call(
            OWN,
            CallFrame(calls.routing.new_id(), request.method, codec.dump(request.params)),
            partial(self._cancel, step),
            began,
            label=request.method,
            modern=request.modern,
            legacy=not request.modern,
        )
        call.origin = CallOrigin(
            view.whole, name, request.caller, request.who,
            request.wants_progress,
            request.version, name, request.principal,
        )  # fmt: skip
        if step is not None:
            call.caller = caller
        for observer in calls.observers:
            observer.on_call_start(call, name, request, request.params, run)
        if call.frame is not None and call.frame.traced:  # what it calls belongs to its span
            request = structs.replace(request, meta=codec.level(call.frame.meta))
        task = isinstance(decision, EngineWork) and decision.task
        done = partial(self._on_reply, call, task)
        if isinstance(decision, Run | EngineWork):
            assert step is not None, "code and orders have their steps"
            step.begin(BuiltinWork(call, view, request, decision, run, done))
        else:
            self._builtins.carry_out(view, request, decision, done)
        return call

    def _on_reply(self, call: Call, task: bool, reply: ToolReply) -> None:
        if call.frame is not None:
            call.frame = None
            answer = build_answer(call.label, reply, modern=call.modern, task=task)
            self._calls.finish_call(call, answer)

    def _cancel(self, step: WorkStep | None, call: Call, reason: str) -> None:
        """Cancel the call of a built-in tool; an order that it has sent is still carried out, code
        that it runs is ended, and the engine is notified."""
        if step is not None:
            step.leave(call.id)
        if call.frame is not None:
            call.frame = None
            self._calls.finish_call(call, None)


def build_answer(method: str, reply: ToolReply, *, modern: bool, task: bool = False) -> CallAnswer:
    """Return the answer of a built-in tool to `tools/call`, or to a method of its own, whose result
    is the structured content. `task`: the client takes a run as a task."""
    if task:
        if reply.failed or reply.structured is None:
            return server_links.error(Code.INVALID_PARAMS, reply.text, {})
        return CallAnswer(engine_tools.task_result(method, reply, _format_date))
    if method == CALL:
        return CallAnswer(builtin.result(reply, modern=modern))
    if reply.failed or reply.structured is None:
        code = int(Code.INVALID_REQUEST)
        if method == jsonrpc_bytes.READ:
            code = builtin.unknown_result_code(modern=modern)
        return server_links.error(code, reply.text, {})
    members: dict[str, object] = {"resultType": "complete"} if modern else {}
    if modern and method == jsonrpc_bytes.READ:
        members |= builtin.RESULT_MEMBERS
    return CallAnswer(codec.dump({**members, **reply.structured}))


_RESULT = Owner("")
"""Owner of kept results, which the gateway itself reads."""


def _owner(view: View) -> ResultOwner:
    return ResultOwner(view.spec.workspace, view.whole, view.principal)


def _label_content(content: ViewContent) -> ViewContent:
    """Return what is in view, with the name that the tool set has within its workspace."""
    if process_names.WORKSPACE_MARK not in content.toolset:
        return content
    return structs.replace(content, toolset=process_names.label(content.toolset))


def _label_outcome(outcome: OrderOutcome) -> OrderOutcome:
    toolset = outcome.toolset
    return structs.replace(
        outcome,
        before=_label_content(outcome.before),
        after=_label_content(outcome.after),
        toolset=None if toolset is None else with_label(toolset),
        script=None if outcome.script is None else with_label(outcome.script),
    )


def _format_date(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")
