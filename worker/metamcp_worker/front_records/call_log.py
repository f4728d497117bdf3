"""Records of finished calls as lines for a file: which calls, how much of them, what is hidden.

Owns: what is kept of a call until it has finished, the lines that wait to be written and their
limits, cutting and masking of bodies. Never: clocks, the loop, files (`call_log_io`), the members
of a line (`records`).

A body is cut before it waits, and masked when its line is built, after the client has its answer. A
secret may begin before the cut and end behind it: so the length of the longest secret is kept
beyond the limit until the body is masked, and then thrown away.
"""

from collections import deque
from collections.abc import Callable

from msgspec import UNSET, Raw, Struct, UnsetType

from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin, client_name
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.ipc import codec, process_names, records
from metamcp_worker.ipc.records import ARGUMENTS, RESULT, FinishedCall, Gap
from metamcp_worker.ipc.spec import RecordingSpec
from metamcp_worker.runtime.masking import SecretMasker

PENDING_MAX = 20_000
"""Maximum number of calls that wait to be written; the fastest front finishes fewer in a second."""
PENDING_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of the bodies of all calls that wait to be written."""
SLICE_BYTES_MAX = 32 * 1024
"""Bytes of bodies after which a slice gets no further line: masking these takes the loop some
milliseconds."""
BEGUN_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of the arguments of all calls under way; beyond this limit, arguments of further calls are
not recorded."""
FULL = "full"


class _OpenCall(Struct, gc=False):
    """Call under way. `body`: the part of the arguments that is kept; None if arguments are not
    recorded."""

    subject: str
    size: int
    body: bytes | None


class _FinishedCall(Struct, gc=False):
    """Finished call that waits to be written. Holds no reference to the `Call`, whose answer may be
    large."""

    begun: _OpenCall
    id: int
    server: str
    method: str
    origin: CallOrigin | None
    generation: int
    began_ms: int
    seconds: float
    outcome: str
    size: int
    body: bytes | None


class Slice(Struct, frozen=True):
    """Lines that are written together. `data`: whole lines; `calls`: number of calls in them;
    `lost`: number of lost calls that they report."""

    data: bytes
    calls: int
    lost: int


class CallLog:
    """Makes the records of one front. `front`: its number. `stamp`: formats a time in seconds since
    the epoch for people. `overrun`: number of calls that are lost because too many waited."""

    def __init__(self, spec: RecordingSpec, front: int, stamp: Callable[[float], str]) -> None:
        self._front = front
        self._stamp = stamp
        self._begun: dict[int, _OpenCall] = {}
        self._begun_bytes = 0
        self._over: deque[_FinishedCall] = deque()
        self._over_bytes = 0
        self._lost = 0
        self.overrun = 0
        self._secrets: tuple[str, ...] = ()
        self.adjust(spec)

    def adjust(self, spec: RecordingSpec) -> None:
        """Apply another configuration, to calls that begin and to calls that finish. Secrets of the
        configuration before are masked as long as bodies of that time may be kept."""
        self._levels = spec.servers
        self._body_bytes = spec.body_bytes
        before = self._secrets if self._begun or self._over else ()
        self._secrets = tuple(dict.fromkeys((*spec.secrets, *before)))
        self._masks = SecretMasker(self._secrets)
        self._margin = self._masks.reach

    def on_call_start(self, call: Call, subject: str, arguments: Raw | None) -> None:
        """Keep what is recorded of a call that goes to its server now."""
        level = self._levels.get(process_names.base(call.server))
        if level is None or call.label not in records.METHODS:
            return
        view = memoryview(arguments if arguments is not None else b"")
        body = None
        if level == FULL:
            room = self._begun_bytes < BEGUN_BYTES_MAX
            body = self._window(view) if room else b""
            self._begun_bytes += len(body)
        self._begun[call.id] = _OpenCall(subject, view.nbytes, body)

    def on_call_end(
        self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str, now_ms: int
    ) -> bool:
        """Record a finished call, and return whether there is something to write now. `answer`:
        None if the call was cancelled; `outcome`: empty, or what was wrong."""
        begun = self._begun.pop(call.id, None)
        if begun is None:
            return False
        view = memoryview(answer.body if answer is not None else b"")
        body = None
        if begun.body is not None:
            self._begun_bytes -= len(begun.body)
            body = self._window(view) if answer is not None else None
        self._over_bytes += _count_bytes(begun.body) + _count_bytes(body)
        if len(self._over) >= PENDING_MAX or self._over_bytes > PENDING_BYTES_MAX:
            self._over_bytes -= _count_bytes(begun.body) + _count_bytes(body)
            self._lost += 1
            self.overrun += 1
            return True
        began_ms = now_ms - round(seconds * 1000)
        generation = call.wire.generation if call.wire is not None else 0
        over = _FinishedCall(
            begun, call.id, process_names.base(call.server), call.label, call.origin, generation,
            began_ms, seconds, outcome, view.nbytes, body,
        )  # fmt: skip
        self._over.append(over)
        return True

    def lose(self, calls: int) -> None:
        """Report this number of calls as lost, with the next lines."""
        self._lost += calls

    def take(self, most: int) -> Slice:
        """Return the next lines to write, the oldest first; the number of lost calls comes before
        them. `most`: maximum number of calls; large bodies make it fewer (SLICE_BYTES_MAX)."""
        lost, self._lost = self._lost, 0
        lines = [codec.dump(Gap(lost=lost)) + b"\n"] if lost else []
        calls = size = 0
        while self._over and most and size < SLICE_BYTES_MAX:
            over = self._over.popleft()
            entry_bytes = _count_bytes(over.begun.body) + _count_bytes(over.body)
            size += entry_bytes
            self._over_bytes -= entry_bytes
            lines.append(codec.dump(self._build_record(over)) + b"\n")
            calls += 1
            most -= 1
        return Slice(b"".join(lines), calls, lost)

    @property
    def waits(self) -> bool:
        """Whether there is more to write."""
        return bool(self._over)

    def _build_record(self, over: _FinishedCall) -> FinishedCall:
        begun, origin = over.begun, over.origin
        cut: list[str] = []
        masked: list[str] = []
        arguments = self._format_body(ARGUMENTS, begun.body, begun.size, cut, masked)
        result = self._format_body(RESULT, over.body, over.size, cut, masked)
        return FinishedCall(
            id=records.word(over.began_ms, self._front, over.id),
            time=self._stamp(over.began_ms / 1000),
            server=over.server,
            method=over.method,
            outcome=over.outcome or records.OK,
            duration_ms=round(over.seconds * 1000, 3),
            name=self._masks.text(begun.subject),
            endpoint=origin.endpoint if origin is not None else "",
            key=origin.principal.key if origin is not None else "",
            client=client_name(origin.said) if origin is not None else "",
            protocol=origin.version if origin is not None else "",
            front=self._front,
            call=over.id,
            generation=over.generation,
            arguments_bytes=begun.size,
            result_bytes=over.size,
            arguments=arguments,
            result=result,
            cut=tuple(cut),
            masked=tuple(masked),
        )

    def _window(self, view: memoryview) -> bytes:
        fits = view.nbytes <= self._body_bytes
        return bytes(view if fits else view[: self._body_bytes + self._margin])

    def _format_body(
        self, member: str, body: bytes | None, size: int, cut: list[str], masked: list[str]
    ) -> Raw | UnsetType:
        """Return a body as the file has it: JSON if it is whole, else a JSON string."""
        if body is None or not size:
            return UNSET
        text = body.decode("utf-8", "replace")
        masked_text = self._masks.json(text)
        if masked_text != text:
            masked.append(member)
        if size > len(body) or size > self._body_bytes:
            cut.append(member)
            # Bytes behind the limit were kept only for a secret that reaches across it.
            encoded = masked_text.encode()
            encoded = encoded[: len(encoded) - self._margin] if size > len(body) else encoded
            return Raw(codec.dump(encoded[: self._body_bytes].decode("utf-8", "ignore")))
        return _one_line(masked_text)


def _one_line(text: str) -> Raw:
    """Return JSON without line ends, because each call is one line of its file. Blanks can replace
    line ends: JSON has both in the same places only. Broken JSON becomes a JSON string."""
    line = text.replace("\n", " ").replace("\r", " ").encode()
    try:
        codec.check(line)
    except codec.Malformed:  # a masked secret reached over the end of a string
        return Raw(codec.dump(text))
    return Raw(line)


def _count_bytes(body: bytes | None) -> int:
    return len(body) if body is not None else 0
