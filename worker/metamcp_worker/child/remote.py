"""Transport to a server at a URL.

Owns: the choice of the protocol, the limits of connections, how the transport is stopped. Never:
the protocols themselves (`streamable_http`, `sse2024_transport`).

With `transport = "auto"` streamable HTTP is tried first, as its specification says: the older event
stream is used only if the server refuses `initialize` as unknown.
"""

import asyncio

from metamcp_worker.child import http_exchange, request_headers
from metamcp_worker.child.actions import Drop, ServerRequest
from metamcp_worker.child.http_sessions import SESSIONS_MAX
from metamcp_worker.child.http_transport import (
    LINGERING_MAX,
    TELLS_AT_ONCE_MAX,
    HttpTransport,
    RequestRefused,
)
from metamcp_worker.child.sse2024_transport import Sse2024
from metamcp_worker.child.streamable_http import Streamable
from metamcp_worker.child.transport import SpawnFailed, Transport, TransportListener
from metamcp_worker.http.fetch import Auth, FetchLimits, Origin, Unreachable
from metamcp_worker.ipc.spec import ServerSpec

OWN_REQUESTS_MAX = 64
"""Maximum number of the gateway's own requests at once: lists, subscriptions, checks whether the
server is there. Own requests never wait for calls."""


def remote(
    spec: ServerSpec, version: str, listener: TransportListener, auth: Auth | None = None
) -> Transport:
    """Return the transport to `spec.url`. `version`: of the gateway. `auth`: adds credentials to
    each request. Raises SpawnFailed if the URL cannot be used."""
    kept, refused = request_headers.configured(spec.headers)
    # Each session has a stream, may be opened and may be closed.
    beside = OWN_REQUESTS_MAX + TELLS_AT_ONCE_MAX + LINGERING_MAX + 3 * SESSIONS_MAX
    requests_max = spec.concurrency + beside
    try:
        origin = Origin(
            spec.url or "", headers=kept, auth=auth, limits=FetchLimits(requests_max=requests_max)
        )
    except (Unreachable, ValueError) as error:
        raise SpawnFailed(f"cannot connect to {spec.name}: {error}") from None
    made = RemoteTransport(spec, version, listener, origin)
    for name in refused:
        made.warn(f"the header {name!r} of its configuration is not sent: it is the gateway's own")
    return made


class RemoteTransport(HttpTransport):
    """`Transport` to a URL by one of the two protocols."""

    def __init__(
        self, spec: ServerSpec, version: str, listener: TransportListener, origin: Origin
    ) -> None:
        super().__init__(spec, listener, origin)
        self._way: Streamable | Sse2024
        if spec.transport == "sse":
            self._way = Sse2024(self)
        else:
            elsewhere = self._elsewhere if spec.transport == "auto" else None
            self._way = Streamable(self, version, elsewhere)

    def request(self, request: ServerRequest) -> bool:
        if self.lost:
            return False
        self._way.request(request)
        return True

    def write(self, line: bytes, via: int = 0) -> bool:
        return not self.lost and self._way.write(line, via)

    def drop(self, drop: Drop) -> bool:
        return not self.lost and self._way.drop(drop)

    def doubt(self) -> None:
        self._way.doubt()

    def tick(self) -> None:
        """Do the work that is due; called a few times per second."""
        self._way.tick(asyncio.get_running_loop().time())

    async def stop(self) -> None:
        """Cancel all tasks, and say goodbye to the server if it is there."""
        await self.kill()
        if not self.gone:
            await self._way.farewell()

    def _elsewhere(self, request: ServerRequest, refused: RequestRefused) -> None:
        """Switch to the older protocol for a server that does not know streamable HTTP."""
        self._way = Sse2024(self, http_exchange.sentence(refused.status))
        self._way.request(request)
