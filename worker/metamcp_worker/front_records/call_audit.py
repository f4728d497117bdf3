"""Audit of a front: a record of each call, read, prompt, list and refusal, before an answer leaves.

Owns: what goes into a record, holding an answer until its record is committed, the refusal of calls
while records cannot be written. Never: sending records (`ipc.audit_link`), writing them (`audit`).
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from time import time_ns
from typing import Self

from msgspec import Raw

from metamcp_worker.access import gate
from metamcp_worker.access.door import Denial
from metamcp_worker.access.gate import Principal
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import server_links
from metamcp_worker.front_calls.client_questions import Caller
from metamcp_worker.front_calls.mcp_request import METHODS, ServerNotReady, subject_of
from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.audit_link import AuditLink
from metamcp_worker.ipc.audit_records import CLIENT_CHARS_MAX, COMMITTED, EVENTS, AuditRecord
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.packets import Connectors
from metamcp_worker.ipc.spec import AuditSpec, FrontSpec
from metamcp_worker.runtime.masking import SecretMasker

REDACTED_CHARS_MAX = 1024
"""Maximum characters of arguments, and of a result, with the level `redacted`."""
FULL_CHARS_MAX = 64 * 1024
"""Maximum characters of arguments, and of a result, with the level `full`."""
NAME_CHARS_MAX = 256
"""Maximum characters of a name that a client made up."""
CLIENTS_MAX = 256
"""Maximum clients whose pseudonyms are kept for the next call."""
SAID_BYTES_MAX = 1024
"""Maximum bytes that a client says of itself with which the members of its records are kept."""
KINDS_MAX = 4096
"""Maximum kinds of calls, by tool and client, for which members of records are kept."""
TOGETHER_MAX = 256
"""Maximum records that are built and sent together; those with arguments and results are alone."""
FLOODED = 429
"""Status of a refused credential that gets no record: addresses with many failures would fill the
disk."""
CLOSE_S_MAX = 2.0
"""Seconds for the last records of a front that ends."""
WORKER = "front"


_UNKNOWN = "", b""
"""`Call.record` of a call that a front before this one began."""
_HELD = "", b"held"
"""`Call.record` while an answer waits for its record."""

_Link = AuditLink[tuple[Call, CallAnswer]]
_Over = tuple[Call, tuple[str, bytes], CallAnswer | None, int, float, str]


class CallAudit:
    """Audit of the front with this number. Call `adjust` before anything else."""

    def __init__(self, front: int, connectors: Connectors) -> None:
        self._worker = f"{WORKER}-{front}"
        self._spec = AuditSpec()
        self._connect = partial(connectors.connect, audit.ROLE)
        self._link: _Link | None = None
        self._over: list[_Over] = []
        """Calls whose records are still to be built: of one turn of the loop, or of one read."""
        self._turn: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._leaving: set[asyncio.Task[None]] = set()
        self._workspaces: dict[str, str] = {}
        self._sessions: dict[str, str] = {}
        self._common: dict[tuple[object, ...], tuple[Principal, bytes]] = {}
        """Members that the records of some calls have in common; a principal has its own."""
        self._masks = SecretMasker()
        self._shows = False
        """Whether records have arguments and results."""

    def adjust(self, spec: FrontSpec) -> Self | None:
        """Apply this configuration. Returns None if nothing is audited."""
        settings = spec.audit
        self._common.clear()
        self._workspaces = {endpoint.name: endpoint.workspace for endpoint in spec.endpoints}
        off = settings.level == audit.OFF
        before, self._spec = self._spec.spools, settings
        if self._link is not None and (off or before != settings.spools):
            self.send()
            self._leave(self._link)
            self._link = None
        if off:
            return None
        self._shows = settings.level != audit.METADATA
        self._masks = SecretMasker((*spec.log.secrets, *spec.recording.secrets))
        if self._link is None:
            keeps = settings.required or bool(settings.spools)
            self._link = AuditLink(
                self._connect, self._gap, self._release_answers, keeps=keeps, spools=settings.spools
            )
        return self

    def _leave(self, link: _Link) -> None:
        """Let the records of a connection be committed, which is not used any more."""
        leaving = asyncio.get_running_loop().create_task(link.close(CLOSE_S_MAX))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        self.send()
        if self._link is not None:
            self._leave(self._link)
        if self._leaving:
            await asyncio.wait(list(self._leaving))

    # Calls

    def check(self) -> None:
        """Raise ProtocolError if no call may begin, because its record could not be written."""
        link = self._link
        if self._spec.required and link is not None and (link.down or link.full):
            link.lost += 1
            raise ProtocolError(Code.INTERNAL_ERROR, _unavailable(link.down))

    def start(
        self,
        begin: Callable[[View, McpRequest, Caller | None], Call],
        view: View,
        request: McpRequest,
        caller: Caller | None,
    ) -> Call:
        """Begin a call, unless its record could not be written; record why it does not begin."""
        link = self._link
        try:
            if self._spec.required and link is not None and (link.down or link.full):
                self.check()
            return begin(view, request, caller)
        except ServerNotReady:  # it begins again, or is refused with another error
            raise
        except ProtocolError as error:
            rule = METHODS.get(request.method)
            subject = subject_of(rule, request) if rule is not None else ""
            parent = "" if request.run is None else request.run.id
            self.record_refusal(
                request.method, request.principal, view.whole, subject, error, parent
            )
            raise

    def authorize(self, view: View, principal: Principal, method: str) -> None:
        """Raise ProtocolError as `gate.authorize` does. Record that, and each list."""
        try:
            gate.authorize(principal, view.endpoint, method, "")
        except ProtocolError as error:
            self.record_refusal(method, principal, view.whole, "", error)
            raise
        if method in audit.LISTS:
            self.record_event("list", method, principal, view.whole)

    def on_denial(self, endpoint: str, denial: Denial) -> None:
        """Record a credential that the door has refused."""
        if denial.status != FLOODED:
            text = f"{denial.status}: {denial.message}"
            self.record_event(
                "auth", "", None, endpoint, code=denial.status, text=text, key=denial.key
            )

    def on_call_start(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw], run: str
    ) -> None:
        """Keep what is recorded of a call that goes to its server now. `run`: id of the run of code
        that the call is."""
        if call.label not in COMMITTED:
            return
        arguments = bytes(params.get("arguments", b""))
        members = b""
        if arguments:
            digest = audit.pseudonym(self._spec.salt, arguments)
            members = b',"args_bytes":%d,"args_hmac":"%b"' % (len(arguments), digest.encode())
        trace = request.meta.get("traceparent") if request.meta else None
        if run or self._shows or trace is not None or request.run is not None:
            members += audit.behind({
                "trace": (codec.text(trace) or "")[3:35] if trace is not None else "",
                "run": run,
                "parent": "" if request.run is None else request.run.id,
                "arguments": self._format_body(arguments) if self._shows else "",
            })  # fmt: skip
        call.record = subject, members

    def policies(self, call: Call, text: str) -> None:
        """Note in the record of a call what policies did."""
        if call.record is not None:
            subject, end = call.record
            call.record = subject, end + audit.behind({"text": text[:NAME_CHARS_MAX]})

    def record_consent(self, call: Call, consent: str) -> None:
        """Keep who agreed to a call, or why it is refused."""
        if call.record is not None:
            subject, members = call.record
            call.record = subject, members + audit.behind({"consent": consent[:NAME_CHARS_MAX]})

    def _members(self, call: Call, subject: str) -> bytes:
        """Return the members that do not change from one call of this kind to the next."""
        of = call.origin or _NOWHERE
        caller = of.said
        kind = (call.label, of.endpoint, of.tool, subject, of.who, of.version, call.server, caller)
        entry = self._common.get(kind)
        if entry is None or entry[0] is not of.principal:
            record = self._record(call, of, subject, _client(caller))
            entry = of.principal, audit.members(record)
            if len(subject) <= NAME_CHARS_MAX and len(caller) <= SAID_BYTES_MAX:
                if len(self._common) >= KINDS_MAX:
                    self._common.clear()
                self._common[kind] = entry
        return entry[1]

    def _record(self, call: Call, of: CallOrigin, subject: str, client: str) -> AuditRecord:
        assert self._link is not None
        read = call.label == "resources/read"
        has_origin = call.origin is not None
        return AuditRecord(
            ts=0, n=0, origin=self._link.origin, worker=self._worker, event=EVENTS[call.label],
            workspace=self._workspaces.get(of.endpoint, ""), endpoint=of.endpoint,
            key=of.principal.key,
            principal=self._format_principal(of.principal) if has_origin else "",
            auth=of.principal.auth if has_origin else "",
            session=self._session(of.who), client=client, protocol=of.version,
            server=process_names.base(call.server),
            tool=of.tool if isinstance(of.tool, str) else codec.text(of.tool) or "",
            exposed="" if read else subject[:NAME_CHARS_MAX],
            uri=self._pseudonym(subject) if read else "",
        )  # fmt: skip

    def on_call_end(
        self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str
    ) -> None:
        """Record a call that is over, and pass its answer on when that is committed. `answer`: None
        if it was cancelled; `outcome`: empty, or what was wrong."""
        begun = call.record
        # A call that a front before this one began has no origin, but somebody who waits for it.
        if begun is None and (call.caller is None or call.label not in COMMITTED):
            call.answer.end(answer)
            return
        if answer is not None:
            call.record = _HELD
        self._over.append((call, begun or _UNKNOWN, answer, time_ns(), seconds, outcome))
        if self._turn is None:
            self._turn = self._loop.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._turn = None
        self.send()

    def send(self) -> None:
        """Let the records of the calls that are over be written. The records of one read are built
        one after the other, which takes half the time."""
        link = self._link
        if link is None or not self._over:
            return
        over, self._over = self._over, []
        most = 1 if self._shows else TOGETHER_MAX
        for at in range(0, len(over), most):
            self._send(link, over[at : at + most])

    def _send(self, link: _Link, over: list[_Over]) -> None:
        waiting: list[tuple[Call, CallAnswer]] = []
        if self._drops(link):
            link.lost += len(over)
            self._release_answers(
                [(call, answer) for call, _, answer, *_ in over if answer is not None], 0
            )
            return
        bodies: list[bytes] = []
        for number, (call, begun, answer, ts, seconds, failed) in enumerate(over, link.number):
            outcome, (subject, end) = failed or "ok", begun
            if answer is not None:
                waiting.append((call, answer))
                end = b'%b,"result_bytes":%d' % (end, len(answer.body))
                if answer.code or self._shows:
                    end, outcome = self._build_end(end, answer, outcome)
            common = self._members(call, subject)
            bodies.append(audit.of_call(ts, number, common, end, outcome, seconds))
        link.send_all(bodies, waiting)

    def _build_end(self, end: bytes, answer: CallAnswer, outcome: str) -> tuple[bytes, str]:
        """Return the last members of a record, and the outcome."""
        if answer.code:
            end = b'%b,"code":%d' % (end, answer.code)
            outcome = outcome if outcome == "refused" else "error"
        if self._shows:
            end += audit.behind({"result": self._format_body(answer.body)})
        return end, outcome

    def _drops(self, link: _Link) -> bool:
        """Whether a record is dropped, and the next gap reports it."""
        return not self._spec.required and bool(link.full or link.down)

    def _release_answers(self, waiting: list[tuple[Call, CallAnswer]], error: int) -> None:
        """Pass on the answers whose records are safe, or could not be written."""
        refusal: CallAnswer | None = None
        if error and self._spec.required:
            data: dict[str, object] = {"may_have_run": True}
            refusal = server_links.error(Code.INTERNAL_ERROR, _unavailable(error), data)
        for call, answer in waiting:
            call.record = None
            call.answer.end(refusal or answer)

    # Everything else

    def record_event(
        self,
        event: str,
        method: str,
        principal: Principal | None,
        endpoint: str,
        *,
        subject: str = "",
        code: int = 0,
        text: str = "",
        parent: str = "",
        key: str = "",
    ) -> None:
        """Record an event whose answer does not wait: a list, a refused message, a refused
        credential. `code`: of the refusal; `parent`: as in `AuditRecord`; `key`: id of a key
        without a principal here."""
        link = self._link
        if link is None:
            return
        if link.full or self._drops(link):
            link.lost += 1
            return
        read = method == "resources/read"
        link.add(audit.encoded(AuditRecord(
            ts=time_ns(), n=link.number, origin=link.origin, worker=self._worker, event=event,
            workspace=self._workspaces.get(endpoint, ""), endpoint=endpoint, method=method,
            key=principal.key if principal is not None else key,
            principal=self._format_principal(principal) if principal is not None else "",
            auth=principal.auth if principal is not None else "",
            exposed="" if read else subject[:NAME_CHARS_MAX],
            uri=self._pseudonym(subject) if read else "",
            outcome="refused" if code else "ok", code=code, text=text[:NAME_CHARS_MAX],
            parent=parent,
        )))  # fmt: skip

    def record_refusal(
        self,
        method: str,
        principal: Principal,
        endpoint: str,
        subject: str,
        error: ProtocolError,
        parent: str = "",
    ) -> None:
        """Record a message that was refused before it reached a server. `parent`: as in
        `AuditRecord`."""
        self.record_event(
            EVENTS.get(method, "refused"), method[:NAME_CHARS_MAX], principal, endpoint,
            subject=subject, code=int(error.code), parent=parent,
        )  # fmt: skip

    def _gap(self, number: int, lost: int) -> bytes:
        assert self._link is not None
        return audit.encoded(
            AuditRecord(
                ts=time_ns(), n=number, origin=self._link.origin, worker=self._worker,
                event="gap", count=lost,
            )
        )  # fmt: skip

    def _format_principal(self, principal: Principal) -> str:
        """Return the name of a principal; of a person, as an authorization server names one, a
        pseudonym."""
        oauth = principal.auth == "oauth"
        return self._pseudonym(principal.name) if oauth else principal.name

    def _pseudonym(self, text: str) -> str:
        return audit.pseudonym(self._spec.salt, text) if text else ""

    def _session(self, who: str) -> str:
        """Return the pseudonym of a session or client, which calls often."""
        pseudonym = self._sessions.get(who) if who else ""
        if pseudonym is None:
            if len(self._sessions) >= CLIENTS_MAX:
                self._sessions.clear()
            pseudonym = self._sessions[who] = self._pseudonym(who)
        return pseudonym

    def _format_body(self, body: bytes) -> str:
        """Return as much of arguments or of a result as the level shows."""
        if self._spec.level == audit.FULL:
            return body[:FULL_CHARS_MAX].decode("utf-8", "replace")
        return self._masks.json(body.decode("utf-8", "replace"))[:REDACTED_CHARS_MAX]


def _client(caller: bytes) -> str:
    """Return the name that a client gives itself."""
    info = codec.members(codec.members(caller).get("clientInfo", b""))
    return (codec.text(info.get("name", Raw(b'""'))) or "")[:CLIENT_CHARS_MAX]


def _unavailable(error: int) -> str:
    reason = os.strerror(error) if error else "its records wait for the disk"
    return f"audit unavailable ({reason}), so no call is made; its operator sees why in the log"


_NOWHERE = CallOrigin("", "", b"", "", False)
"""Origin of a call that a front before this one began."""
