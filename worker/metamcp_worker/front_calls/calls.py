"""Path of every request to a server: find the owner, rename, send, answer.

Owns: the order of these steps, the changes to an answer on its way back, the figures of each call,
what a step of a call looks like that settings switch on (`HoldingStep` and the other protocols).
Never: these steps (`compose`), how a method finds its server (`mcp_request`), the form of an era
(`jsonrpc_bytes`), HTTP, sessions, pipes. Bytes that are not names, ids or a matter of eras pass as
they came.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from time import monotonic, time
from typing import Protocol

from msgspec import Raw, structs

from metamcp_worker.access import gate
from metamcp_worker.access.door import Denial
from metamcp_worker.access.gate import Principal
from metamcp_worker.access.use_limits import Meters
from metamcp_worker.catalog import offers, uris
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import mcp_request, task_ids
from metamcp_worker.front_calls.call_faults import Retries, outcome
from metamcp_worker.front_calls.call_router import QuarantinedCalls, Routing
from metamcp_worker.front_calls.client_questions import Caller
from metamcp_worker.front_calls.front_recovery import CallRecovery, CallRecoveryData
from metamcp_worker.front_calls.front_views import Changed, Viewers
from metamcp_worker.front_calls.mcp_request import LIST_CHANGED, METHODS
from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin, McpRequest
from metamcp_worker.front_calls.server_links import Call, ServerStates
from metamcp_worker.front_calls.server_processes import ProcessClient, ServerProcesses
from metamcp_worker.front_calls.stats import OTHER, Overhead, Stats
from metamcp_worker.front_calls.task_ids import TaskOwner
from metamcp_worker.guard import guard_rules
from metamcp_worker.ipc import codec, figures, jsonrpc_bytes, process_names, roots
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, payer
from metamcp_worker.ipc.messages import RootsChanged, ServerState, ServerWanted, Span
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import FrontSpec

log = logging.getLogger("metamcp.front")

__all__ = ["METHODS", "Call", "CallAnswer", "Calls", "McpRequest"]


class RecoveryCaller(Caller, Protocol):
    """Caller that goes on with a call which another front began."""

    def apply_note(self, note: CallRecoveryData) -> None:
        """Take over the note of the call, which a worker has."""
        ...


class HoldingStep(Protocol):
    """Step that has calls before their server gets them, or in place of a server."""

    def under_way(self) -> Iterable[tuple[Call, str]]:
        """Return these calls, with their state as in `figures.CallUnderWay`."""
        ...

    def close(self) -> None:
        """Answer all of them, because the front ends."""
        ...


class RuleStep(HoldingStep, Protocol):
    """Step of calls that a rule may concern: its owner has a guard."""

    def start(
        self,
        call: Call,
        owner: offers.Owner,
        view: View,
        request: McpRequest,
        params: Mapping[str, Raw],
    ) -> Call:
        """Send this call now or later, or refuse it. `params`: as the server gets them."""
        ...

    def cancel(self, call: Call, reason: str) -> None:
        """End any call, held or with its server."""
        ...

    def holds(self, number: int) -> bool: ...


class OwnTools(Protocol):
    """Step of calls that the gateway answers itself, and of large results, which it keeps."""

    def start(self, view: View, name: str, request: McpRequest, caller: Caller | None) -> Call: ...

    def find_result(self, method: str, uri: str) -> offers.Owner | None:
        """Return the owner of a kept result that this request reads; None for other requests."""
        ...

    def place_result(self, view: View, request: McpRequest) -> bytes:
        """Return the raw place where a large result of this request is kept, or nothing."""
        ...


class ListStep(Protocol):
    """Step that changes lists of servers before clients see them."""

    def on_catalogue(self, server: str) -> None:
        """Look at the lists that a server has reported."""
        ...

    def on_news(self, server: str) -> None:
        """Note that the lists of a server may have changed."""
        ...


class CallObserver(Protocol):
    """Step that notes calls on their way, and changes at most their frames."""

    def on_call_start(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw], run: str
    ) -> None:
        """Note a call that is about to be sent. `params`: as the server will get them; `run`: id of
        the run of code that the call is."""
        ...

    def on_call_end(
        self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str
    ) -> None:
        """Note a finished call. `answer`: None if it was cancelled; `outcome`: empty, or what was
        wrong."""
        ...


class CallTraces(CallObserver, Protocol):
    """Observer of all calls that may be traced, and of requests that no server gets."""

    def on_list(self, endpoint: str, request: McpRequest, began: float) -> None:
        """Note a list that was answered. `began`: monotonic time at which it was asked for."""
        ...

    def on_server_missing(
        self, early: mcp_request.ServerNotReady, endpoint: str, first: Call | None = None
    ) -> None:
        """Note a request whose server has not been up. `first`: the call that waits for it; if that
        fails, the request does. None: the request is refused at once."""
        ...

    def on_span(self, span: Span) -> None:
        """Note a span that the engine has built."""
        ...


class Auditor(CallObserver, Protocol):
    """Observer of all calls and refusals. An answer leaves when its `on_call_end` has ended it."""

    def check(self) -> None:
        """Raise ProtocolError if no call may begin now."""
        ...

    def start(
        self,
        begin: Callable[[View, McpRequest, Caller | None], Call],
        view: View,
        request: McpRequest,
        caller: Caller | None,
    ) -> Call:
        """Return what `begin` returns; record what it raises."""
        ...

    def authorize(self, view: View, principal: Principal, method: str) -> None:
        """Do what `Calls.authorize` does, and record it."""
        ...

    def on_denial(self, endpoint: str, denial: Denial) -> None:
        """Record a credential that the door has refused."""
        ...

    def send(self) -> None:
        """Let the records of the calls that are over be written."""
        ...


class Calls:
    """Views of all endpoints, links to all servers, and the calls between them. `viewers`: hears
    from the supervisor what is in view; `view(endpoint)`: the view of the user of this machine,
    None if the endpoint is unknown or not built yet.

    `lists_changed(changed)`: called after lists of views have changed. `tell(message)`: sends to
    the supervisor, when a call needs a server that does not run, and about clients of processes
    that are not for all. `notified(server, method, params)`: called with notifications of servers
    that belong to no call. `on_views_built`: called when stale views were
    built again. `steps`: all that have calls now, with those that follow: `guard`,
    `own`, `lists`. `observers`: of all calls, the auditor last; `audit`: the auditor, `traces`: the
    observer of traces. Each is None while it is switched off.
    """

    def __init__(self, stats: Stats, tell: Callable[[ServerWanted | RootsChanged], None]) -> None:
        self.lists_changed: Callable[[Changed], None] = lambda changed: None
        self.notified: Callable[[str, str, bytes], None] = lambda server, method, params: None
        self.steps: list[HoldingStep] = []
        self.guard: RuleStep | None = None
        self.own: OwnTools | None = None
        self.lists: ListStep | None = None
        self.observers: tuple[CallObserver, ...] = ()
        self.audit: Auditor | None = None
        self.traces: CallTraces | None = None
        self._stats = stats
        self.viewers = Viewers()
        self.view: Callable[[str], View | None] = self.viewers.local.get
        self.view_of = self.viewers.get
        self.viewers.build = self.refresh
        self.viewers.fails = stats.policy
        self.states = ServerStates()
        self.on_views_built: Callable[[], None] = lambda: None
        self._retries = Retries()
        self.processes = ServerProcesses(tell)
        self._tell = tell
        self._timeouts_ms: Mapping[str, int] = {}
        self.handle_key = b""
        """Key of texts that are of use to their owner alone; see `task_ids.seal`."""
        self._divided: frozenset[str] = frozenset()
        """Servers that clients with credentials use, each with tasks of its own."""
        self._on_notice: dict[str, Callable[[str, bytes], None]] = {}
        self._on_attached: list[Callable[[str], None]] = []
        self.routing = Routing(
            self.finish_call,
            stats.count_late_reply,
            self.processes.request_process,
            self._on_notification,
            self._read,
        )
        self._claims = CallRecovery(self.routing)
        self._cancel: Callable[[Call, str], None] = self.routing.cancel
        self.quarantine = QuarantinedCalls(self.routing)
        self.meters = Meters()
        self.overhead = Overhead(monotonic, self.routing.loop.call_soon)
        self.on_notice(figures.NOTICE, self.overhead.on_worker_notice)
        for kind, method in LIST_CHANGED.items():
            self.on_notice(method, partial(self._said_changed, kind))

    def refresh_view(self, before: View) -> View | None:
        """Return the view of the same principal as it is now; None if the endpoint is gone."""
        return self.viewers.get(before.endpoint, before.principal)

    def find_sender_view(self, view: View, request: McpRequest) -> View | None:
        """Return the sender's view as it is now; None if there is none. `view`: an earlier one."""
        current = self.refresh_view(view)
        own = current is not None and view.spec.per_session and not request.modern
        return self.viewers.own(current, request.who) if current is not None and own else current

    def hold_by(self, guard: RuleStep) -> None:
        """Let all calls that rules concern go through this step."""
        self.guard, self._cancel = guard, guard.cancel
        self.steps.append(guard)

    def is_held(self, call: Call) -> bool:
        """Whether a rule holds this call back."""
        return self.guard is not None and self.guard.holds(call.id)

    def authorize(self, view: View, principal: Principal, method: str) -> None:
        """Raise ProtocolError unless this principal may send this method to the endpoint of the
        view (`gate.authorize`)."""
        if self.audit is None:
            gate.authorize(principal, view.endpoint, method, "")
        else:
            self.audit.authorize(view, principal, method)

    def start(self, view: View, request: McpRequest, caller: Caller | None) -> Call:
        """Send the request to its server. `caller`: takes what comes before the answer. Raises
        ProtocolError for a request that no server should see, and Unasked if the client has to be
        asked for its roots first."""
        if self.audit is None:
            return self.begin(view, request, caller)
        return self.audit.start(self.begin, view, request, caller)

    def begin(self, view: View, request: McpRequest, caller: Caller | None) -> Call:
        """Do what `start` does, within a start that is audited."""
        # Compiled, a struct finds a member by its name, so most are read once.
        method, spec, modern, client = request.method, view.spec, request.modern, request.caller
        principal, wants_progress, results = request.principal, request.wants_progress, spec.results
        own = self.own
        merged = view.merged if modern else view.legacy
        rule = METHODS.get(method) or mcp_request.completion(request)
        params: Mapping[str, Raw] = request.params
        subject = ""
        if rule is not None:
            subject = mcp_request.subject_of(rule, request)
            owner = None if results is None or own is None else own.find_result(method, subject)
            if owner is None:
                task = rule is mcp_request.TASK
                owner = (self.task_owner(view).find_server if task else rule.find)(merged, subject)
            if owner is not None and not owner.server:
                assert own is not None, "a front that serves has its own tools"
                return own.start(view, subject, request, caller)
            if owner is None or rule.one_era or owner.kept or owner.invalid:
                owner = mcp_request.check_owner(merged, owner, rule, subject, request)
            params = rule.rename(params, owner.original)
            if owner.mend is not None:
                params = offers.fill_arguments(params, owner.mend)
        else:
            owner = mcp_request.only(merged, method)
        server = base = owner.server
        # Tasks of the other era are left out, whether the slash is escaped or not.
        sent = client if modern or client.find(b"/tasks") < 0 else mcp_request.without_tasks(client)
        if base in self.processes.apart:
            server = self.processes.find(server, request, calls=True)
        if self.quarantine.apart and method == task_ids.CALL:
            self.quarantine.check(server, owner.original or subject)
        frame = CallFrame(
            self.routing.new_id(), method, codec.dump(params),
            codec.dump(request.meta) if request.meta else b"", sent,
            wants_progress=wants_progress, peer=request.peer,
            deadline_ms=self._timeouts_ms.get(base, 0), payer=payer(spec.workspace, principal.name),
            results=b"" if results is None or own is None else own.place_result(view, request),
        )  # fmt: skip
        call = Call(
            server, frame, self._cancel, monotonic(), label=method if rule is not None else OTHER,
            modern=modern, legacy=owner.legacy, caller=caller,
        )  # fmt: skip
        call.origin = CallOrigin(
            view.whole, subject if rule is not None and rule.named else "",
            client, request.who, wants_progress, request.version,
            owner.original or subject if method == task_ids.CALL else "", principal,
        )  # fmt: skip
        if self._retries.any:
            call.repeatable = self._retries.may(base, method, owner.original)
        if base in merged.tasked:
            self._expose_tasks(call, view)
        if owner.original and method == jsonrpc_bytes.READ:
            call.mend = partial(
                uris.in_contents, requested=subject, owner=owner, find=merged.resource
            )
        if self.meters.any:
            call.meters = self.meters.admit(principal.key, view.whole, base, monotonic(), time())
        return self._send(call, owner, view, subject, request, params)

    def _send(
        self, call: Call, owner: offers.Owner, view: View, subject: str, request: McpRequest,
        params: Mapping[str, Raw],
    ) -> Call:  # fmt: skip
        """Send a call that counts at its limits, or hold it, and return it."""
        try:
            for observer in self.observers:
                observer.on_call_start(call, subject, request, params, "")
            if owner.guard is not None and request.method in guard_rules.KINDS:
                assert self.guard is not None, "rules came with their step"
                return self.guard.start(call, owner, view, request, params)
            self.routing.start(call)
        except Exception:
            call.leave_meters()  # no answer comes, which would do that
            raise
        if call.id & figures.MASK >= figures.NEXT:
            self.overhead.time_call(call)
        return call

    async def claim(
        self,
        view: View,
        servers: Collection[str],
        session_id: str,
        stream: bytes,
        peer: int,
        caller: RecoveryCaller,
    ) -> Call | None:
        """Go on with a call that a front which is gone began for this session, to be answered on
        this stream; None if none of these servers has the call. `caller` gets its note first."""
        routing, merged = self.routing, view.legacy

        def build_call(server: str, number: int, note: CallRecoveryData) -> Call:
            caller.apply_note(note)
            name = process_names.base(server)
            call = Call(
                server, CallFrame(number, note.label, b""), routing.cancel, routing.loop.time(),
                label=note.label, legacy=merged.eras.get(name, True), caller=caller,
            )  # fmt: skip
            if name in merged.tasked:
                self._expose_tasks(call, view)
            return call

        return await self._claims.find(servers, session_id, stream, peer, build_call)

    def release(self, servers: Collection[str], session_id: str) -> None:
        """Drop the calls that fronts which are gone have left of a session that is over."""
        self._claims.release(servers, session_id)

    def process(self, server: str, client: ProcessClient) -> str:
        """Return the name of the process of this server that serves this client
        (`server_processes`)."""
        return self.processes.find(server, client)

    def heir(self, process: str) -> str:
        """Return the process that serves the clients of `process`: the server itself, if `process`
        is for an era that the server turned out not to speak."""
        return self.processes.heir(process)

    def send_roots(self, client: ProcessClient) -> None:
        """Send the roots of this client, which may be new, to its processes and the supervisor."""
        names = self.processes.update_roots(client)
        for name in names:
            self.routing.tell(name, roots.TOLD, client.roots or roots.NONE)
        if names:
            self._tell(RootsChanged(who=client.who, roots=client.roots.decode()))

    def tell(self, server: str, method: str, params: bytes = b"") -> None:
        """Send a notification of a client to this server."""
        self.routing.tell(self.heir(server), method, params)

    def ask(self, server: str, method: str, params: bytes) -> Call:
        """Send a request of the gateway itself to this server, and return the call."""
        call = self._build_own(server, method, params)
        self.routing.start(call)
        return call

    def first_list(self, early: mcp_request.ServerNotReady, endpoint: str) -> Call:
        """Ask a server for its tools that has not reported yet what it offers. The call waits like
        any other, until the server is there or is not likely to come."""
        call = self._build_own(early.server, "tools/list", b"{}")
        if self.traces is not None:
            self.traces.on_server_missing(early, endpoint, call)
        self.routing.start(call)
        return call

    def _build_own(self, server: str, method: str, params: bytes) -> Call:
        routing = self.routing
        frame = CallFrame(routing.new_id(), method, params)
        return Call(self.heir(server), frame, routing.cancel, routing.loop.time(), label=method)

    def reachable(self, server: str) -> bool:
        """Whether the server takes calls now."""
        return self.routing.reachable(self.heir(server))

    def on_notice(self, method: str, tell: Callable[[str, bytes], None]) -> None:
        """Call `tell(server, params)` for notifications of this method that belong to no call,
        instead of `notified`."""
        self._on_notice[method] = tell

    def on_attached(self, tell: Callable[[str], None]) -> None:
        """Call `tell(server)` when there is a pipe to another generation of a server, or when there
        will be no process for an era, so that the server itself takes its place."""
        self._on_attached.append(tell)

    def task_owner(self, view: View) -> TaskOwner:
        """Return whose tasks the clients of this view see."""
        return TaskOwner(self.handle_key, view.whole, view.principal)

    def _expose_tasks(self, call: Call, view: View) -> None:
        """Let the answers of this call name the tasks of its server as their owner knows them, and
        tell the worker whose the call is, if it makes a task or lists some."""
        if call.modern is call.legacy:  # tasks do not cross from one era into the other
            return
        whose, server, frame = self.task_owner(view), process_names.base(call.server), call.frame
        expose = partial(whose.expose_id, server)
        if call.legacy and server in self._divided and call.label in _OF_TASKS and frame:
            caller = task_ids.with_word(frame.caller, whose.word)
            call.frame = structs.replace(frame, caller=caller)
        if call.label == task_ids.CALL or call.label in task_ids.METHODS:
            call.mend = partial(task_ids.in_result, call.label, expose=expose)
        elif call.label == task_ids.LIST:
            word = whose.word if server in self._divided else ""
            call.mend = partial(task_ids.in_list, expose=expose, word=word)
        if call.legacy and call.caller is not None:
            call.caller = task_ids.TaskIdCaller(call.caller, expose)

    async def await_first_starts(self, view: View) -> View:
        """Wait until the servers of this view that start for the first time are ready, have failed,
        or had their time. Return the view as it is then."""
        await self.states.wait(view.spec.servers)
        self.refresh()  # the news that ended the wait may not be in the views yet
        return self.refresh_view(view) or view

    # --- what the supervisor says -------------------------------------------------------------

    def configure(self, spec: FrontSpec) -> None:
        self._stats.per_tool = spec.tool_times
        self.meters.configure(spec)
        self.viewers.configure(spec)
        self._retries.configure(spec.retries)
        self._timeouts_ms = {name: round(s * 1000) for name, s in spec.timeouts_s.items()}
        self.handle_key = spec.handle_key
        self._divided = frozenset(
            server for endpoint in spec.endpoints if endpoint.auth for server in endpoint.servers
        )
        self.routing.configure(spec.timeouts_s, spec.call_hold_s)
        self.quarantine.configure(spec.quarantined)

    def catalogue(self, server: str, catalogue: ServerCatalogue) -> None:
        self.viewers.put(server, catalogue)
        if self.lists is not None:
            self.lists.on_catalogue(server)
        if not process_names.parse_client(server):
            self._retries.learn(server, catalogue)

    def server_state(self, news: ServerState) -> None:
        if not process_names.parse_client(news.server):
            self.viewers.set_listed(news.server, news.listed)
            self.states.learn(news)
            legacy = process_names.own(news.server, process_names.LEGACY)
            meant = self.heir(legacy)
            self.processes.learn(news)
            if self.heir(legacy) == news.server != meant:
                for tell in self._on_attached:
                    tell(legacy)
        self.routing.learn(news)

    async def attach(self, server: str, generation: int, fd: int, *, legacy: bool = False) -> None:
        """Take over `fd`, the pipe to this generation of the server. `legacy`: the process speaks a
        revision with sessions. Raises OSError."""
        await self.routing.attach(server, generation, fd, legacy=legacy)
        if self.lists is not None:
            self.lists.on_news(server)
        for tell in self._on_attached:
            tell(server)

    def forget(self, server: str) -> None:
        if process_names.parse_client(server) in ("", process_names.LEGACY):
            self.viewers.forget(server)
        if not process_names.parse_client(server):
            self.states.forget(server)
            self._retries.forget(server)
        self.routing.forget(server, self.heir(server))
        self.processes.forget(server)

    def refresh(self) -> None:
        """Build stale views again, and announce whose lists have changed."""
        if changed := self.viewers.refresh():
            self.lists_changed(changed)
        self.on_views_built()
        for sentence in self.viewers.take_omissions():
            log.info("%s", sentence)

    async def close(self) -> None:
        """Answer every call that still waits, and close the pipes."""
        self._claims.leave()
        for step in self.steps:
            step.close()
        await self.routing.close()

    def inflight(self) -> dict[str, int]:
        return self.routing.inflight()

    def under_way(self) -> Iterator[tuple[Call, str]]:
        """Yield every call that is not answered yet, with its state as in
        `figures.CallUnderWay`."""
        yield from self.routing.under_way()
        for step in self.steps:
            yield from step.under_way()

    def count_held_calls(self) -> int:
        return self.routing.count_held_calls()

    def held_by_server(self) -> dict[str, int]:
        """Return the number of calls, by server, that wait for the server to be there."""
        if not self.count_held_calls():
            return {}
        waiting = (call for call, state in self.under_way() if state == "held")
        return Counter(process_names.base(call.server) for call in waiting)

    # --- the way back -------------------------------------------------------------------------

    def _said_changed(self, kind: str, server: str, params: bytes) -> None:
        """Pass on that a list has changed, as a server says, although the list is the same. Only
        clients that see all of this server and no other server hear it, as without a gateway."""
        whose = process_names.parse_client(server)
        if self.lists is not None:
            self.lists.on_news(server)
        changed = self.viewers.alone(process_names.base(server), (kind,))
        if changed and whose in ("", process_names.LEGACY):
            self.lists_changed(changed)

    def _on_notification(self, server: str, method: str, params: bytes) -> None:
        tell = self._on_notice.get(method)
        if tell is not None:
            tell(server, params)
        else:
            self.notified(server, method, params)

    def _read(self) -> None:
        if self.audit is not None:
            self.audit.send()

    def finish_call(self, call: Call, answer: CallAnswer | None, refused: str = "") -> None:
        """Answer a call that is over; None: it was cancelled. `refused`: outcome of a call that no
        server gets, and that the figures of its server do not count."""
        if call.hooks is not None:
            call.hooks(answer)
            return
        if call.meters:
            call.leave_meters()
        if answer is None:
            error_type = "cancelled"
        else:
            code = answer.code
            if code:
                error_type = refused or str(int(code))
                if code == Code.TIMED_OUT:
                    about = {"server": process_names.base(call.server), "call": call.id}
                    log.warning("%s got no answer in time", call.label, extra=about)
            else:
                failed = call.label == "tools/call" and jsonrpc_bytes.is_error(answer.body)
                error_type = (refused or "tool_error") if failed else ""
            if code == Code.METHOD_NOT_FOUND and call.label == mcp_request.COMPLETE:
                answer, code = CallAnswer(mcp_request.NO_COMPLETIONS), 0
            if call.mend is not None and not code:
                answer = CallAnswer(call.mend(answer.body))
            if call.modern is call.legacy:  # two eras
                body, code = jsonrpc_bytes.convert_answer(
                    call.label, answer.body, code, modern=call.modern
                )
                answer = CallAnswer(body, code)
        server = process_names.base(call.server)
        if call.ends:
            self._stats.count_retry(server, outcome(answer))
        seconds, of = monotonic() - call.started, call.origin or _NOWHERE
        if not refused:
            self._stats.observe(server, call.label, seconds, error_type, of.version, of.tool)
        for observer in self.observers:
            observer.on_call_end(call, answer, seconds, error_type)
        if answer is None or self.audit is None:
            call.answer.end(answer)


OWN = "_gateway"
"""Name that stands for the server in calls of built-in tools, for operators; no server has it."""
_OF_TASKS = frozenset({task_ids.CALL, task_ids.LIST, *task_ids.METHODS})
_NOWHERE = CallOrigin("", "", b"", "", progress=False)
