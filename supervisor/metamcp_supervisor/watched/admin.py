"""The ops port: `/metrics` and the health pages, for machines that watch.

Owns: these paths, who may ask by which name, and the cache in front of the metrics. Never: client
traffic, what is healthy (`health`), what is measured (`metrics`), sockets and HTTP (the server).

There is nothing to change here, and no secret. A web page that a browser on this machine shows must
not read it nevertheless, so a request must name the gateway by its address, which a foreign DNS
name that points here does not (DNS rebinding).
"""

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from metamcp_supervisor.verbs import GatewayStatus
from metamcp_supervisor.watched import health
from metamcp_supervisor.watched.metrics import CONTENT_TYPE, Metrics

Scope = dict[str, Any]
Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Checks = Callable[[GatewayStatus], list[health.Check]]

CACHE_S = 0.25
"""How old the metrics may be: scrapers cannot load the supervisor by asking often."""
HOST_BYTES_MAX = 300
"""More than a DNS name, brackets and a port have."""
PLAIN = "text/plain; charset=utf-8"

PAGES: dict[str, Checks] = {
    "/livez": health.live,
    "/readyz": health.ready,
    "/healthz": health.ready,
    "/startupz": health.started,
}


class Admin:
    """The ASGI application. `listen_host`: what `ops_listen` names; `clock`: monotonic seconds."""

    def __init__(
        self,
        status: Callable[[], GatewayStatus],
        metrics: Metrics,
        listen_host: str,
        clock: Callable[[], float],
    ) -> None:
        self._status = status
        self._metrics = metrics
        self._listen_host = listen_host.lower()
        self._clock = clock
        self._page = b""
        self._page_until = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        code, kind, body = self._answer(scope)
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        if code == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({
            "type": "http.response.body",
            "body": b"" if scope["method"] == "HEAD" else body,
        })  # fmt: skip

    def _answer(self, scope: Scope) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        if not self._host_ok(scope["headers"]):
            return 403, PLAIN, b"Ask for this page by the address of the gateway.\n"
        if scope["method"] not in {"GET", "HEAD"}:
            return 405, PLAIN, b"There is nothing to change here: use GET.\n"
        path: str = scope["path"]
        if path == "/metrics":
            return 200, CONTENT_TYPE, self._metrics_page()
        if path in PAGES:
            query = scope.get("query_string", b"").split(b"&")
            verbose = any(part.partition(b"=")[0] == b"verbose" for part in query)
            return _health(PAGES[path](self._status()), verbose)
        there = ", ".join(["/metrics", *PAGES])
        return 404, PLAIN, f"There is no such page; there are: {there}\n".encode()

    def _metrics_page(self) -> bytes:
        now = self._clock()
        if now >= self._page_until:
            self._page = self._metrics.render(self._status())
            self._page_until = now + CACHE_S
        return self._page

    def _host_ok(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or len(hosts[0]) > HOST_BYTES_MAX:
            return False
        host = _without_port(hosts[0].decode("latin-1")).lower()
        return host in {"localhost", self._listen_host} or _is_address(host)


def _health(checks: Sequence[health.Check], verbose: bool) -> tuple[int, str, bytes]:
    fine = health.passes(checks)
    if fine and not verbose:
        return 200, PLAIN, b"ok\n"
    lines = [*map(str, checks), "ok" if fine else "failed"]
    return 200 if fine else 503, PLAIN, "\n".join([*lines, ""]).encode()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
