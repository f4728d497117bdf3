"""Spans in the form that collectors of OpenTelemetry take: OTLP over HTTP, as protobuf.

Owns: that form, what the gateway calls itself in it, one attempt to hand spans over. Never: when it
is made, and what becomes of spans that nobody takes (`traces`), what a span is about (the fronts).

Each span is made whole from what a front told, since it is over by then: there is no tracer and no
processor here, only the exporter.
"""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from metamcp_worker.messages import Span

TIMEOUT_S = 5.0
"""For one attempt with all its repetitions. Spans that come meanwhile wait."""
ANSWER_BYTES_MAX = 16 * 1024
"""Read of an answer; it says with its status whether the spans were taken."""
WHY_CHARACTERS_MAX = 256
"""Of what a log says of a failure; a collector may have put its own words into it."""

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_LIBRARY = "opentelemetry"
_REDIRECTS = 300
"""The first status that says that spans were not taken."""


class _Said(logging.Handler):
    """What the library first said of a failure, which is its cause: one line of ours tells of it,
    however often it says more."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


class _Session(requests.Session):
    """What the library sends with: to this collector alone, with the headers of the configuration
    alone. `status`: of the last answer, 0 if there was none; `why` there was none, without the URL,
    in which secrets may stand."""

    status = 0
    why = ""

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request  # or passwords of a `.netrc` replace `Authorization`

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: spans do not go along, but headers would."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        self.status = 0
        try:
            answer = super().send(request, **{**kwargs, "stream": True})
        except requests.RequestException as error:
            inner = error.args[0] if error.args else error
            self.why = str(getattr(inner, "reason", inner))[:WHY_CHARACTERS_MAX]
            raise
        self.status = answer.status_code
        head, parts = b"", answer.iter_content(ANSWER_BYTES_MAX)
        with contextlib.suppress(requests.RequestException):
            head = next(parts, b"")
            next(parts, b"")  # at its end the connection can be used again
        answer.close()
        read = requests.Response()
        read.status_code, read.reason, read.headers = (
            answer.status_code, answer.reason, answer.headers,
        )  # fmt: skip
        read.raw = BytesIO(head)
        return read


class Exporter:
    """`instance`: of this gateway, unique. To be used from one thread."""

    def __init__(
        self, endpoint: str, headers: Mapping[str, str], *, version: str, instance: str
    ) -> None:
        self._said = _Said(logging.WARNING)
        library = logging.getLogger(_LIBRARY)
        library.handlers, library.propagate = [self._said], False
        self._session = _Session()
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint, headers=dict(headers), timeout=TIMEOUT_S, session=self._session
        )
        self._scope = InstrumentationScope("metamcp", version)
        self._resource = Resource.create({
            "service.name": "metamcp",
            "service.version": version,
            "service.instance.id": instance,
        })  # fmt: skip

    def export(self, spans: Iterable[Span], since_ns: int) -> str:
        """Hand these over; why that failed, or nothing. `since_ns`: nanoseconds from the epoch to
        zero on the monotonic clock."""
        made = [self._made(span, since_ns) for span in spans]
        # What the library said until here is of the words of clients, which no log repeats.
        self._said.first, self._session.status, self._session.why = "", 0, ""
        try:
            done = self._exporter.export(made)
        except requests.RequestException:  # earlier versions of the library let it through
            done = SpanExportResult.FAILURE
        status = self._session.status
        if done is SpanExportResult.SUCCESS and status < _REDIRECTS:
            return ""
        if status >= _REDIRECTS:
            return f"it answers with status {status}"
        return self._session.why or self._said.first or "the collector did not take them"

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library does not say

    def _made(self, span: Span, since_ns: int) -> ReadableSpan:
        state = TraceState.from_header([span.state]) if span.state else TraceState()
        flags = TraceFlags(span.flags)
        trace_id = int(span.trace_id, 16)
        parent = None
        if span.parent_id:
            far = int(span.parent_id, 16)
            parent = SpanContext(trace_id, far, span.far, flags, state)
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace_id, int(span.span_id, 16), False, flags, state),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR) if span.error else Status(),
            start_time=since_ns + round(span.start * 1e9),
            end_time=since_ns + round(span.end * 1e9),
            instrumentation_scope=self._scope,
        )
