"""The one path that every request to a server takes: allowed, owned, renamed, sent, answered.

Owns: which methods exist and how each finds its server, the rewriting of names, what an answer
needs to be right for the client's era, and the figures of each call. Never: HTTP, sessions, pipes.

Everything that is neither a name nor an era passes as the bytes it came in.
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Raw, Struct

from metamcp_worker import codec
from metamcp_worker.catalogue import ServerCatalogue
from metamcp_worker.errors import Code, Refused
from metamcp_worker.frames import Call as CallFrame
from metamcp_worker.front import policy
from metamcp_worker.front.catalog import URI_BYTES_MAX, Merged, Owner
from metamcp_worker.front.links import Answer, Call
from metamcp_worker.front.questions import Caller
from metamcp_worker.front.routing import Routing
from metamcp_worker.front.stats import OTHER, Stats
from metamcp_worker.front.views import CACHE_HINTS, View, Views
from metamcp_worker.messages import ServerState
from metamcp_worker.spec import FrontSpec

__all__ = ["METHODS", "Answer", "Call", "Calls", "Request"]

NAME_BYTES_MAX = 128
"""Of a tool or prompt, as the protocol recommends; no endpoint exposes a longer one."""
NOT_FOUND_LEGACY = -32002
"""A resource that is not there, in the revisions before 2026-07-28, and only in those."""

TASKS = "io.modelcontextprotocol/tasks"
"""The extension with which a call may be answered by a task."""


class Request(Struct):
    """What a client asks, whatever its era.

    `params`: without `_meta`, in the client's order. `meta`: what of `_meta` belongs to others than
    the gateway. `caller`: raw `{"clientInfo": …, "clientCapabilities": …, "logLevel": …}`, or
    empty. `wants_progress`: it came with a progress token. `peer`: as in `frames.Call`.
    """

    method: str
    params: dict[str, Raw]
    meta: dict[str, Raw]
    caller: bytes
    modern: bool
    wants_progress: bool = False
    peer: int = 0


class Rule(Struct, frozen=True):
    """How requests of one method find their server.

    `what`: in texts. `subject`: the name or URI in the parameters, None if there is none.
    `find`: its owner. `rename`: puts the server's own name into the parameters.
    """

    what: str
    subject: Callable[[Mapping[str, Raw]], str | None]
    find: Callable[[Merged, str], Owner | None]
    rename: Callable[[Mapping[str, Raw], bytes], Mapping[str, Raw]]
    bytes_max: int = NAME_BYTES_MAX


def _name(params: Mapping[str, Raw]) -> str | None:
    return codec.text(params.get("name", b"null"))


def _uri(params: Mapping[str, Raw]) -> str | None:
    return codec.text(params.get("uri", b"null"))


def _renamed(params: Mapping[str, Raw], original: bytes) -> Mapping[str, Raw]:
    return {**params, "name": Raw(original)}


def _as_is(params: Mapping[str, Raw], original: bytes) -> Mapping[str, Raw]:
    return params


def _ref(params: Mapping[str, Raw]) -> dict[str, Raw]:
    try:
        return codec.level(params.get("ref", b"{}"))
    except codec.Malformed:
        return {}


def _ref_renamed(params: Mapping[str, Raw], original: bytes) -> Mapping[str, Raw]:
    return {**params, "ref": Raw(codec.dump(_renamed(_ref(params), original)))}


_RESOURCE = Rule("resource", _uri, Merged.resource, _as_is, URI_BYTES_MAX)
METHODS: Mapping[str, Rule] = {
    "tools/call": Rule("tool", _name, Merged.tool, _renamed),
    "prompts/get": Rule("prompt", _name, Merged.prompt, _renamed),
    "resources/read": _RESOURCE,
    "resources/subscribe": _RESOURCE,
    "resources/unsubscribe": _RESOURCE,
}
COMPLETE = "completion/complete"
#: Of a completion: by the type of what it completes.
_REFERENCES: Mapping[str | None, Rule] = {
    "ref/prompt": Rule("prompt", lambda params: _name(_ref(params)), Merged.prompt, _ref_renamed),
    "ref/resource": Rule(
        "resource", lambda params: _uri(_ref(params)), Merged.resource_or_template, _as_is,
        URI_BYTES_MAX,
    ),
}  # fmt: skip


class Calls:
    """All views, all links, and the way from one to the other.

    `lists_changed(endpoint, kinds)`: told after the lists of an endpoint have become others.
    `on_wanted(server)`: told when a call asks for a server that does not run. `notified(server,
    method, params)`: told what a server says that belongs to no call.
    """

    def __init__(self, stats: Stats, on_wanted: Callable[[str], None]) -> None:
        self.lists_changed: Callable[[str, frozenset[str]], None] = lambda endpoint, kinds: None
        self.notified: Callable[[str, str, bytes], None] = lambda server, method, params: None
        self._stats = stats
        self._views = Views()
        self._routing = Routing(
            self._answered,
            stats.late,
            on_wanted,
            self._notified,
        )

    def view(self, endpoint: str) -> View | None:
        return self._views.get(endpoint)

    def start(self, view: View, request: Request, caller: Caller | None) -> Call:
        """Send the request to its server. `caller` takes what comes before the answer. Raises
        Refused for what no server should see."""
        method = request.method
        rule = METHODS.get(method) or _rule(request)
        if rule is None:
            policy.authorize(view.principal, view.endpoint, method, "")
            owner = view.merged.only
            params: Mapping[str, Raw] = request.params
            if owner is None:
                raise Refused(Code.METHOD_NOT_FOUND, f"Unknown method: {method[:NAME_BYTES_MAX]}")
        else:
            subject = _subject(rule, request)
            policy.authorize(view.principal, view.endpoint, method, subject)
            owner = rule.find(view.merged, subject)
            if owner is None:
                raise _unknown(rule, subject, request)
            params = rule.rename(request.params, owner.original)
        routing = self._routing
        frame = CallFrame(
            routing.new_id(),
            method,
            codec.dump(params),
            codec.dump(request.meta) if request.meta else b"",
            request.caller if view.merged.only is not None else _without_tasks(request.caller),
            wants_progress=request.wants_progress,
            peer=request.peer,
        )
        call = Call(
            owner.server,
            frame,
            routing.loop.create_future(),
            routing.cancel,
            routing.loop.time(),
            label=method if rule is not None else OTHER,
            modern=request.modern,
            legacy=owner.legacy,
            caller=caller,
        )
        routing.start(call)
        return call

    def tell(self, server: str, method: str, params: bytes = b"") -> None:
        """A notification of a client for this server; nobody waits for it."""
        self._routing.tell(server, method, params)

    # --- what the supervisor says -------------------------------------------------------------

    def configure(self, spec: FrontSpec) -> None:
        self._views.configure(spec)
        self._routing.configure(spec.timeouts_s, spec.call_hold_s)

    def catalogue(self, server: str, catalogue: ServerCatalogue) -> None:
        self._views.put(server, catalogue)

    def server_state(self, news: ServerState) -> None:
        self._views.set_listed(news.server, news.listed)
        self._routing.learn(news)

    async def attach(self, server: str, generation: int, fd: int) -> None:
        """Take over `fd`, the pipe to this generation of the server. Raises OSError."""
        await self._routing.attach(server, generation, fd)

    def forget(self, server: str) -> None:
        self._views.forget(server)
        self._routing.forget(server)

    def refresh(self) -> None:
        """Swap the views that are to be built anew, and tell whose lists are others now."""
        for endpoint, kinds in self._views.refresh().items():
            self.lists_changed(endpoint, kinds)

    async def close(self) -> None:
        """Answer everybody who still waits, and close the pipes."""
        await self._routing.close()

    def inflight(self) -> dict[str, int]:
        return self._routing.inflight()

    def held(self) -> int:
        return self._routing.held()

    # --- the way back -------------------------------------------------------------------------

    def _notified(self, server: str, method: str, params: bytes) -> None:
        self.notified(server, method, params)

    def _answered(self, call: Call, answer: Answer | None) -> None:
        if answer is None:
            error_type = "cancelled"
            call.answer.cancel()
        else:
            if answer.code:
                error_type = str(int(answer.code))
                if call.modern and answer.code == NOT_FOUND_LEGACY:
                    answer = _not_found_modern(answer)
            else:
                failed = call.label == "tools/call" and _is_error(answer.body)
                error_type = "tool_error" if failed else ""
                if call.modern and call.legacy:
                    answer = Answer(_complete(call.label, answer.body))
            if not call.answer.done():
                call.answer.set_result(answer)
        seconds = self._routing.loop.time() - call.started
        self._stats.observe(call.server, call.label, seconds, error_type)


def _rule(request: Request) -> Rule | None:
    """For the methods that are not in the table: completions, and what nobody knows."""
    if request.method != COMPLETE:
        return None
    rule = _REFERENCES.get(codec.text(_ref(request.params).get("type", b"null")))
    if rule is None:
        raise Refused(
            Code.INVALID_PARAMS,
            f"{COMPLETE} needs params.ref.type to be one of {', '.join(map(str, _REFERENCES))}",
        )
    return rule


def _subject(rule: Rule, request: Request) -> str:
    subject = rule.subject(request.params)
    if subject is None:
        raise Refused(
            Code.INVALID_PARAMS, f"{request.method} needs the {rule.what} it is about, as a string"
        )
    if len(subject.encode("utf-8", "replace")) > rule.bytes_max:
        raise Refused(
            Code.INVALID_PARAMS, f"No {rule.what} has a name of more than {rule.bytes_max} bytes"
        )
    return subject


def _unknown(rule: Rule, subject: str, request: Request) -> Refused:
    legacy_read = rule is _RESOURCE and not request.modern
    code = NOT_FOUND_LEGACY if legacy_read else Code.INVALID_PARAMS
    return Refused(code, f"Unknown {rule.what}: {subject}")


def _without_tasks(caller: bytes) -> bytes:
    """The caller as one that cannot take tasks: nothing in the id of a task tells which of several
    servers has it, so nobody could ask for its result."""
    if b"/tasks" not in caller:  # whether the slash is escaped or not
        return caller
    members = codec.level(caller)
    try:
        capabilities = codec.level(members["clientCapabilities"])
        extensions = codec.level(capabilities["extensions"])
    except (codec.Malformed, KeyError):
        return caller
    extensions.pop(TASKS, None)
    capabilities["extensions"] = Raw(codec.dump(extensions))
    return codec.dump({**members, "clientCapabilities": Raw(codec.dump(capabilities))})


_IS_ERROR = re.compile(rb'"isError"\s*:\s*true')


def _is_error(body: bytes) -> bool:
    """Is this result of a tool a failure? Opened only where the bytes make it likely."""
    at = body.find(b'"isError"')
    if at < 0 or _IS_ERROR.search(body, at) is None:
        return False
    try:
        return bytes(codec.level(body).get("isError", b"")) == b"true"
    except codec.Malformed:
        return False


def _complete(method: str, body: bytes) -> bytes:
    """The result of a legacy server with what a modern client needs in it."""
    wanted: dict[str, Raw | bytes] = {"resultType": b'"complete"'}
    if method == "resources/read":
        wanted |= {key: codec.dump(hint) for key, hint in CACHE_HINTS.items()}
    if any(b'"' + key.encode() + b'"' in body for key in wanted):
        try:
            members = codec.level(body)
        except codec.Malformed:
            return body
        wanted = {key: raw for key, raw in wanted.items() if key not in members}
    return codec.splice(body, wanted) if body[:1] == b"{" else body


def _not_found_modern(answer: Answer) -> Answer:
    """The same error under the code that it has since 2026-07-28."""
    try:
        members = codec.level(answer.body)
    except codec.Malformed:
        return answer
    members["code"] = Raw(b"%d" % Code.INVALID_PARAMS)
    return Answer(codec.dump(members), Code.INVALID_PARAMS)
