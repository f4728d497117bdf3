"""Calls that are over, as lines for a file: which, how much of them, and what is hidden.

Owns: what is kept of a call while it is under way, what waits to be written and its bounds, cutting
and masking of bodies. Never: clocks, the loop, files (`call_log_io`), the words of a line
(`call_records`).

Bodies are cut before they wait, and masked when they are made a line, which is after their client
has its answer. A secret may begin before the cut and end behind it: so much more than the limit is
kept until it is masked, and thrown away then.
"""

from collections import deque
from collections.abc import Callable

from msgspec import UNSET, Raw, Struct, UnsetType

from metamcp_worker.front.server_links import Call, CallAnswer, CallOrigin
from metamcp_worker.ipc import call_records, codec, process_names
from metamcp_worker.ipc.call_records import ARGUMENTS, RESULT, FinishedCall, Gap
from metamcp_worker.ipc.spec import RecordingSpec
from metamcp_worker.runtime.masking import Masks

PENDING_MAX = 20_000
"""Calls that wait to be written: the fastest front ends fewer in a second."""
PENDING_BYTES_MAX = 16 * 1024 * 1024
"""Of their bodies."""
SLICE_BYTES_MAX = 32 * 1024
"""Of bodies that are made lines at once: masking them takes the loop some milliseconds."""
BEGUN_BYTES_MAX = 32 * 1024 * 1024
"""Of the arguments of calls under way; of a call that comes after, they are not recorded."""
FULL = "full"


class _Begun(Struct, gc=False):
    """`body`: as much of the arguments as is kept; None: they are not recorded."""

    subject: str
    size: int
    body: bytes | None


class _Over(Struct, gc=False):
    """Nothing of the call itself: it holds its answer, which may be large."""

    begun: _Begun
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
    """What is written at once. `data`: whole lines; `calls`: how many are in them; `lost`: of how
    many more they tell that are lost."""

    data: bytes
    calls: int
    lost: int


class CallLog:
    """`front`: its number. `stamp`: a time in seconds since the epoch as people read it. `overrun`:
    calls that came when too many waited; they are lost."""

    def __init__(self, spec: RecordingSpec, front: int, stamp: Callable[[float], str]) -> None:
        self._front = front
        self._stamp = stamp
        self._begun: dict[int, _Begun] = {}
        self._begun_bytes = 0
        self._over: deque[_Over] = deque()
        self._over_bytes = 0
        self._lost = 0
        self.overrun = 0
        self._secrets: tuple[str, ...] = ()
        self.adjust(spec)

    def adjust(self, spec: RecordingSpec) -> None:
        """Another configuration is in force, for calls that begin and for those that end. What was
        secret before it stays so for as long as there may be bodies that were kept before."""
        self._levels = spec.servers
        self._body_bytes = spec.body_bytes
        before = self._secrets if self._begun or self._over else ()
        self._secrets = tuple(dict.fromkeys((*spec.secrets, *before)))
        self._masks = Masks(self._secrets)
        self._margin = self._masks.reach

    def begun(self, call: Call, subject: str, arguments: Raw | None) -> None:
        """This call goes to its server."""
        level = self._levels.get(process_names.base(call.server))
        if level is None or call.label not in call_records.METHODS:
            return
        view = memoryview(arguments if arguments is not None else b"")
        body = None
        if level == FULL:
            room = self._begun_bytes < BEGUN_BYTES_MAX
            body = self._window(view) if room else b""
            self._begun_bytes += len(body)
        self._begun[call.id] = _Begun(subject, view.nbytes, body)

    def finished(
        self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str, now_ms: int
    ) -> bool:
        """It is over. `answer`: None if it was cancelled; `outcome`: empty, or what was wrong. Is
        there something to write now?"""
        begun = self._begun.pop(call.id, None)
        if begun is None:
            return False
        view = memoryview(answer.body if answer is not None else b"")
        body = None
        if begun.body is not None:
            self._begun_bytes -= len(begun.body)
            body = self._window(view) if answer is not None else None
        self._over_bytes += _kept(begun.body) + _kept(body)
        if len(self._over) >= PENDING_MAX or self._over_bytes > PENDING_BYTES_MAX:
            self._over_bytes -= _kept(begun.body) + _kept(body)
            self._lost += 1
            self.overrun += 1
            return True
        began_ms = now_ms - round(seconds * 1000)
        generation = call.wire.generation if call.wire is not None else 0
        over = _Over(
            begun, call.id, process_names.base(call.server), call.label, call.origin, generation,
            began_ms, seconds, outcome, view.nbytes, body,
        )  # fmt: skip
        self._over.append(over)
        return True

    def lose(self, calls: int) -> None:
        """So many are to be told as lost, with the next lines."""
        self._lost += calls

    def take(self, most: int) -> Slice:
        """The next lines to write, the oldest first; those that were lost before are told in front
        of them. `most`: lines, and with bodies of SLICE_BYTES_MAX fewer."""
        lost, self._lost = self._lost, 0
        found = [codec.dump(Gap(lost=lost)) + b"\n"] if lost else []
        calls = size = 0
        while self._over and most and size < SLICE_BYTES_MAX:
            over = self._over.popleft()
            kept = _kept(over.begun.body) + _kept(over.body)
            size += kept
            self._over_bytes -= kept
            found.append(codec.dump(self._said(over)) + b"\n")
            calls += 1
            most -= 1
        return Slice(b"".join(found), calls, lost)

    @property
    def waits(self) -> bool:
        """Is there more to write?"""
        return bool(self._over)

    def _said(self, over: _Over) -> FinishedCall:
        begun, origin = over.begun, over.origin
        cut: list[str] = []
        masked: list[str] = []
        arguments = self._shown(ARGUMENTS, begun.body, begun.size, cut, masked)
        result = self._shown(RESULT, over.body, over.size, cut, masked)
        return FinishedCall(
            id=call_records.word(over.began_ms, self._front, over.id),
            time=self._stamp(over.began_ms / 1000),
            server=over.server,
            method=over.method,
            outcome=over.outcome or call_records.OK,
            duration_ms=round(over.seconds * 1000, 3),
            name=self._masks.text(begun.subject),
            endpoint=origin.endpoint if origin is not None else "",
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
        whole = view.nbytes <= self._body_bytes
        return bytes(view if whole else view[: self._body_bytes + self._margin])

    def _shown(
        self, what: str, body: bytes | None, size: int, cut: list[str], masked: list[str]
    ) -> Raw | UnsetType:
        """A body as it is written down: JSON where it is whole, else a text."""
        if body is None or not size:
            return UNSET
        text = body.decode("utf-8", "replace")
        shown = self._masks.json(text)
        if shown != text:
            masked.append(what)
        if size > len(body) or size > self._body_bytes:
            cut.append(what)
            # What is behind the limit was only there for a secret that reaches across it.
            kept = shown.encode()
            kept = kept[: len(kept) - self._margin] if size > len(body) else kept
            return Raw(codec.dump(kept[: self._body_bytes].decode("utf-8", "ignore")))
        return _one_line(shown)


def _one_line(text: str) -> Raw:
    """JSON has line ends only where blanks may be; each call is one line of its file."""
    found = text.replace("\n", " ").replace("\r", " ").encode()
    try:
        codec.check(found)
    except codec.Malformed:  # a secret that was taken out reached over the end of a string
        return Raw(codec.dump(text))
    return Raw(found)


def _kept(body: bytes | None) -> int:
    return len(body) if body is not None else 0
