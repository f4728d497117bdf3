"""A collector of spans: what the gateway exports over HTTP, read with OpenTelemetry's own types."""

import gzip
import threading
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Raw
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.waiting import until

PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class Span:
    """Ids in hexadecimal, times in nanoseconds since the epoch."""

    kind: str
    name: str
    trace: str
    id: str
    parent: str
    state: str
    start: int
    end: int
    failed: bool
    status: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """Listens on loopback while the `with` block lasts. `status`: what it answers with, with
    `answer_headers`; `rejected`, `message`: what it says of spans that it does not take, or of
    those that it does. `headers`: of every request. `port`: 0 for any."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.answer_headers: dict[str, str] = {}
        self.rejected, self.message = 0, ""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.headers.append({key.lower(): text for key, text in self.headers.items()})
                if self.path.partition("?")[0] == PATH and collector.status == 200:
                    found = spans(ExportTraceServiceRequest.FromString(_plain(self.headers, body)))
                    collector.spans += found[collector.rejected :]
                said = ExportTraceServiceResponse()
                if collector.rejected or collector.message:
                    said.partial_success.rejected_spans = collector.rejected
                    said.partial_success.error_message = collector.message
                answer = said.SerializeToString()
                self.send_response(collector.status)
                for name, value in collector.answer_headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, trace: str, count: int = 2) -> list[Span]:
        """The spans of this trace, once so many are there."""

        def found() -> list[Span]:
            mine = [span for span in self.spans if span.trace == trace]
            return mine if len(mine) >= count else []

        return until(found, f"{count} spans of {trace}; there are {self.spans}")


def _plain(headers: Message, body: bytes) -> bytes:
    return gzip.decompress(body) if headers["Content-Encoding"] == "gzip" else body


def spans(said: ExportTraceServiceRequest) -> list[Span]:
    return [
        _read(span, _members(whole.resource.attributes))
        for whole in said.resource_spans
        for scope in whole.scope_spans
        for span in scope.spans
    ]


def _read(span: Raw, resource: dict[str, Any]) -> Span:
    return Span(
        kind=Raw.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        state=span.trace_state,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        status=span.status.message,
        attributes=_members(span.attributes),
        resource=resource,
    )


def _members(found: Any) -> dict[str, Any]:
    members: list[KeyValue] = list(found)
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in members}
