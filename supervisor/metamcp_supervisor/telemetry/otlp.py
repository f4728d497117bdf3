"""Export of spans to collectors of OpenTelemetry: OTLP over HTTP, as protobuf.

Owns: the format, the name of the gateway in it, one attempt to send spans. Never: when an attempt
is made and what happens to spans that are not accepted (`traces`), the content of a span (the
fronts).

Spans have ended when they come here: each is built as a whole from the report of a front. So only
the exporter of the library is used, without its tracer and processor.
"""

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any, NamedTuple

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode
from requests.adapters import HTTPAdapter

from metamcp_worker.ipc.messages import SPAN_KIND, SPAN_STATUS, Span

TIMEOUT_S = 5.0
"""Maximum seconds of one attempt with all its repetitions, as the library counts them: for the
library, a collector that sends a little again and again is never late. Spans that come during an
attempt wait."""
EXPORT_S_MAX = 6.0
"""Maximum seconds of one attempt as a whole; then its connection is cut. A little longer than
TIMEOUT_S, so that the library can report a cause. Steps before a connection cannot be cut: looking
up a name, and trying its addresses one by one."""
CUT_S = 0.1
"""Seconds between two cuts until the attempt is over: connections that it opens later are cut,
too."""
ANSWER_BYTES_MAX = 16 * 1024
"""Maximum bytes of an answer; an answer says in a few words whether the spans were accepted."""
WHY_CHARACTERS_MAX = 256
"""Maximum characters of a cause of failure in the log; a collector may have written a part of
it."""
PAUSE_S_MAX = 60.0
"""Maximum seconds of a pause that a collector asks for."""

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_LIBRARY = "opentelemetry"
_REDIRECTS = 300
"""Lowest HTTP status that means that spans were not accepted."""
_BUSY = frozenset({429, 502, 503, 504})
"""HTTP statuses with which a collector may ask for a pause."""


class ExportOutcome(NamedTuple):
    """Outcome of an attempt. `lost`: number of spans that were not accepted; `why`: the reason in
    one line, for the log, or a message of the collector if all spans were accepted. `pause_s`:
    seconds of the pause that the collector asked for."""

    lost: int = 0
    why: str = ""
    pause_s: float = 0.0


class _FirstErrorHandler(logging.Handler):
    """Handler that keeps the first log record of the library about a failure, which is its cause.
    The gateway logs one line for a failure, and the library often several."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


class _Watch:
    """Watchdog of one export at a time, which cuts the connection when the export takes too long.
    `late`: whether that has happened."""

    def __init__(self, s_max: float) -> None:
        self._s_max = s_max
        self._line: Any = None
        self.late = False

    @property
    def sentence(self) -> str:
        return f"it takes longer than {self._s_max:g} s"

    @contextlib.contextmanager
    def watch_export(self) -> Generator[None]:
        """Watch the export in this block."""
        self.late, done = False, threading.Event()
        watch = threading.Thread(target=self._cut, args=(done,), name="traces-watch", daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()

    def build_watched_class(self, kind: Any) -> Any:
        """Return a subclass of this class of connections that notes each opened socket for the
        watchdog."""

        def connect(connection: Any) -> None:
            self._line = connection  # its socket, as long as it talks to a proxy
            kind.connect(connection)
            self._line = connection.sock

        return type(kind.__name__, (kind,), {"connect": connect, "watched": True})

    def _cut(self, done: threading.Event) -> None:
        if done.wait(self._s_max):
            return
        self.late = True
        while True:
            line = self._line
            if not isinstance(line, socket.socket):
                line = getattr(line, "sock", None) or getattr(line, "socket", None)
            if isinstance(line, socket.socket):
                with contextlib.suppress(OSError):  # the socket is closed already
                    socket.socket.shutdown(line, socket.SHUT_RDWR)  # TLS would say goodbye first
            if done.wait(CUT_S):
                return


class _Adapter(HTTPAdapter):
    """Adapter whose connections the watchdog can cut."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch
        super().__init__()

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        if not hasattr(pool.ConnectionCls, "watched"):
            pool.ConnectionCls = self._watch.build_watched_class(pool.ConnectionCls)
        return pool


class _Session(requests.Session):
    """HTTP session for the library. Requests go to this collector only, with the headers of the
    configuration and of OpenTelemetry's variables only. `status`, `body`, `pause_s`: of the last
    answer; status 0 without an answer. `why`: why an answer is missing or cannot be read, without
    the URL, which may contain secrets."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.auth = lambda request: request  # or passwords of a `.netrc` replace `Authorization`
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(watch))
        self._watch = watch
        self.begin()

    def begin(self) -> None:
        """Begin another export: forget the last answer."""
        self.status, self.body, self.pause_s, self.why = 0, b"", 0.0, ""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None, so that redirects are not followed: headers would be sent there, but not
        spans."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        self.begin()
        try:
            if self._watch.late:
                raise requests.RequestException(self._watch.sentence)  # is not repeated
            answer = super().send(request, **{**kwargs, "stream": True})
        except requests.RequestException as error:
            inner = error.args[0] if error.args else error
            self.why = _line(self._watch.sentence if self._watch.late else _reason(inner))
            raise
        self.status = answer.status_code
        if self.status in _BUSY:
            self.pause_s = _pause_s(answer.headers.get("Retry-After", ""))
        with answer:
            self._read(answer)
        read = requests.Response()
        read.status_code, read.reason, read.headers = (
            answer.status_code, answer.reason, answer.headers,
        )  # fmt: skip
        read.raw = BytesIO(self.body)
        return read

    def _read(self, answer: requests.Response) -> None:
        """Read the whole answer, so that the connection can be used again; ignore an answer that is
        too long."""
        body = bytearray()
        try:
            for chunk in answer.iter_content(ANSWER_BYTES_MAX):
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    self.why = f"its answer is longer than {ANSWER_BYTES_MAX // 1024} KiB"
                    return
        except requests.RequestException:
            self.why = "its answer breaks off"
        if self._watch.late:
            self.why = self._watch.sentence
        if not self.why and "protobuf" in answer.headers.get("Content-Type", "protobuf"):
            self.body = bytes(body)


class Exporter:
    """Exporter for one collector, to be used from one thread. `instance`: unique id of this
    gateway; `s_max`: maximum seconds of an export."""

    def __init__(
        self, endpoint: str, headers: Mapping[str, str], *, version: str, instance: str,
        s_max: float = EXPORT_S_MAX,
    ) -> None:  # fmt: skip
        self._said = _FirstErrorHandler(logging.WARNING)
        library = logging.getLogger(_LIBRARY)
        library.handlers, library.propagate = [self._said], False
        self._watch = _Watch(s_max)
        self._session = _Session(self._watch)
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint, headers=dict(headers), timeout=TIMEOUT_S, session=self._session
        )
        self._scope = InstrumentationScope("metamcp", version)
        self._resource = Resource.create({
            "service.name": "metamcp",
            "service.version": version,
            "service.instance.id": instance,
        })  # fmt: skip

    def export(self, spans: Iterable[Span], since_ns: int) -> ExportOutcome:
        """Send these spans. `since_ns`: nanoseconds from the epoch to zero on the monotonic
        clock."""
        made = [self._make_span(span, since_ns) for span in spans]
        # What the library said until here is of the words of clients, which no log repeats.
        self._said.first = ""
        session = self._session
        session.begin()
        try:
            with self._watch.watch_export():
                done = self._exporter.export(made)
        except requests.RequestException:  # earlier versions of the library let it through
            done = SpanExportResult.FAILURE
        if session.status >= _REDIRECTS:
            reason = f"it answers with status {session.status}"
            return ExportOutcome(len(made), reason, session.pause_s)
        if done is SpanExportResult.SUCCESS and not session.why:
            return _parse_outcome(session.body, len(made))
        reason = session.why or self._said.first or "the collector did not take them"
        return ExportOutcome(len(made), reason)

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library does not say

    def _make_span(self, span: Span, since_ns: int) -> ReadableSpan:
        state = TraceState.from_header([span.state]) if span.state else TraceState()
        flags = TraceFlags(span.flags)
        trace_id = int(span.trace_id, 16)
        parent = None
        if span.parent_id:
            far = int(span.parent_id, 16)
            parent = SpanContext(trace_id, far, span.far, flags, state)
        attributes = dict(span.attributes)
        kind = _KINDS.get(str(attributes.pop(SPAN_KIND, span.kind)), SpanKind.INTERNAL)
        status = str(attributes.pop(SPAN_STATUS, "")) or None
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace_id, int(span.span_id, 16), False, flags, state),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=kind,
            status=Status(StatusCode.ERROR, status) if span.error else Status(),
            start_time=since_ns + round(span.start * 1e9),
            end_time=since_ns + round(span.end * 1e9),
            instrumentation_scope=self._scope,
        )


def _parse_outcome(body: bytes, count: int) -> ExportOutcome:
    """Return the outcome that a collector states for `count` spans, some of which it may have
    rejected."""
    try:
        partial_success = ExportTraceServiceResponse.FromString(body).partial_success
    except Exception:  # noqa: BLE001 - the status has said it, in whatever words the body repeats it
        return ExportOutcome()
    return ExportOutcome(
        max(0, min(partial_success.rejected_spans, count)), _line(partial_success.error_message)
    )


def _reason(error: object) -> str:
    return str(getattr(error, "reason", error))


def _line(text: str) -> str:
    """Return a foreign text in one line, cut to the limit for the log."""
    printable = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(printable.split())[:WHY_CHARACTERS_MAX]


def _pause_s(text: str) -> float:
    """Return the seconds of a `Retry-After`, which is a number or a date; 0 for other texts."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time_ns() / 1e9
        except (ValueError, OverflowError):
            return 0.0
    return min(max(0.0, seconds), PAUSE_S_MAX) if math.isfinite(seconds) else 0.0
