"""HTTP requests that the gateway sends: one client for one origin, and the answer piece by piece.

Owns: connections and their limits, where a redirect may lead, whether a failed request may have
been processed; the methods that every answer has: the media type, the whole body within a limit,
`async with`. Never: MCP, the meaning of a status, retries.

Requests go straight to the transport of httpx2, which is a third cheaper than through its client;
the client only runs flows of authorization. The client has no cookie jar: all callers would share
it.

The pool of a transport looks at each of its connections twice per request, so a pool is kept small
and a busy origin has several, here called lanes. A lane is closed when its last request ends; only
the first keeps idle connections.
"""

import abc
import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Self

import httpx2
from msgspec import Struct

from metamcp_worker.http import tcp
from metamcp_worker.ipc import frames
from metamcp_worker.ipc.errors import MetaMCPError, TooLarge


class Auth(httpx2.Auth):
    """Adds credentials to each request to an origin, and may send requests to get them."""

    def covers(self, url: str) -> bool:
        """Whether a redirect within the origin may take the credentials to this URL."""
        return True


LANE_REQUESTS_MAX = 32
LANE_CONNECTIONS_MAX = 2 * LANE_REQUESTS_MAX
"""Maximum connections of a lane: more than its requests, for those that an authorization sends."""
REDIRECTS_MAX = 3
AUTH_S = 30.0
"""Seconds to wait for an answer to a request of an authorization."""
SIDE_BODY_BYTES_MAX = 1024 * 1024
"""Maximum bytes of the body of a redirect, a refusal or an answer to an authorization; usually some
KiB."""
WRITE_S = 30.0
"""Seconds for the server to take a piece of the request."""

_REDIRECTS = frozenset({301, 302, 307, 308})
_SIDE = _REDIRECTS | {401, 403}
_OURS = "metamcp"

# At its normal level httpx2 logs each request, with the whole URL, which may hold a secret.
logging.getLogger("httpx2").setLevel(logging.WARNING)


class Unreachable(MetaMCPError):
    """Raised if the server did not get the request, or refused to process it."""


class TlsFailed(Unreachable):
    """Raised if TLS with the server fails, or its certificate is not accepted."""


class RedirectRefused(Unreachable):
    """Raised if the server redirects to a place to which requests do not follow."""


class ConnectionBroken(MetaMCPError):
    """Raised if the connection failed on the way: the server may have processed the request."""


class FetchLimits(Struct, frozen=True, kw_only=True):
    """Seconds and counts that a caller or a test may change.

    `idle_s` of a connection: below the 5 s after which common servers close theirs, because a
    request on a closing connection is lost.
    """

    connect_s: float = 10.0
    idle_s: float = 4.0
    idle_connections_max: int = 8
    requests_max: int = 1280


class IncomingResponse(abc.ABC):
    """Head of an answer, and its body as it comes. Close it, or use it in `async with`.

    Closing before the end closes the connection, so that the server learns of it.
    """

    @property
    @abc.abstractmethod
    def origin(self) -> str:
        """Name of the answering server, for sentences."""

    @abc.abstractmethod
    def header(self, name: str) -> str:
        """Return a header's value without blanks around it, or an empty string. `name` in lower
        case."""

    @abc.abstractmethod
    async def piece(self, *, wait_s: float | None) -> bytes:
        """Return the next piece of the body; empty at its end. Raises Broken.

        `wait_s` None is for streams that may be silent for days; the caller bounds the wait.
        """

    @abc.abstractmethod
    async def close(self) -> None: ...

    @property
    def media_type(self) -> str:
        """Media type of the content, in lower case, without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    async def read(self, *, wait_s: float, limit_bytes: int = frames.BODY_BYTES_MAX) -> bytes:
        """Read the whole body. `wait_s` is for each piece. Raises Broken and TooLarge."""
        length = self.header("content-length")
        if length.isdecimal() and len(length) < 20 and int(length) > limit_bytes:
            raise TooLarge(f"an answer of {self.origin}", int(length), limit_bytes)
        pieces: list[bytes] = []
        size = 0
        while data := await self.piece(wait_s=wait_s):
            size += len(data)
            if size > limit_bytes:
                raise TooLarge(f"an answer of {self.origin}", size, limit_bytes)
            pieces.append(data)
        return b"".join(pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Response(IncomingResponse):
    """Answer of an origin."""

    def __init__(
        self, response: httpx2.Response, lane: "_ConnectionPool", origin: "Origin"
    ) -> None:
        self.status = response.status_code
        self._response = response
        self._lane = lane
        self._from = origin
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        self._pieces: AsyncIterator[bytes] | None = None
        self._ended = False
        self._closed = False

    @property
    def origin(self) -> str:
        return str(self._from)

    def header(self, name: str) -> str:
        return str(self._response.headers.get(name, "")).strip()

    async def piece(self, *, wait_s: float | None) -> bytes:
        if self._ended:
            return b""
        if self._pieces is None:
            self._pieces = aiter(self._stream)
        try:
            async with asyncio.timeout(wait_s):
                while not (data := await anext(self._pieces, None)):
                    if data is None:
                        self._ended = True
                        return b""
                return data
        except TimeoutError:
            raise ConnectionBroken(f"{self._from} sent nothing for {wait_s:g} s") from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            problem = f"the connection to {self._from} broke in the middle of an answer"
            raise ConnectionBroken(f"{problem}: {_reason(error)}") from None

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._stream.aclose()
        finally:
            await self._from.leave(self._lane)


class Origin:
    """Client of one origin. Raises Unreachable for a URL that is not an http or https URL, and
    Untrusted for a `ca_file` without certificates.

    `headers` go with every request. `proxy`: URL of a proxy; none is taken from the environment.
    `ca_file`: certificates to trust instead of the system's.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        proxy: str | None = None,
        ca_file: str | None = None,
        limits: FetchLimits | None = None,
    ) -> None:
        self._url = _parse(url)
        self._name = _origin(self._url)
        self._headers = _encode_headers({"Accept-Encoding": "identity", **(headers or {})})
        self._auth = auth
        self._proxy = proxy
        self._limits = limits or FetchLimits()
        self._tls = _tls(self._url, ca_file, any_host=auth is not None or proxy is not None)
        self._lanes: list[_ConnectionPool] = []
        self._active = 0
        soon = self._limits.connect_s
        self._waits = {"connect": soon, "pool": soon, "write": WRITE_S, "read": None}

    def __str__(self) -> str:
        """Return the URL without its path, which may hold a secret."""
        return self._name

    def join(self, reference: str) -> str:
        """Return the absolute URL of a reference. Raises Misdirected for another origin."""
        try:
            url = self._url.join(reference)
        except httpx2.InvalidURL:
            raise RedirectRefused(f"{self} names a URL that is none") from None
        if _origin(url) != self._name:
            problem = (
                f"{self} sends requests on to {_origin(url)}, and another origin is not followed"
            )
            raise RedirectRefused(f"{problem}; if that is meant, configure it as the URL")
        return str(url)

    async def send(
        self,
        method: str,
        headers: Mapping[str, str | bytes],
        body: bytes = b"",
        *,
        answer_s: float,
        url: str = "",
        written: Callable[[], None] | None = None,
    ) -> Response:
        """Send a request; returns with the head of the answer, whatever its status is.

        `answer_s`: how long that may take. `url`: another URL of this origin, see `join`.
        `written`: called when the body is on its way. Redirects within the origin are followed,
        with the same body. Raises Unreachable and Broken.
        """
        target = httpx2.URL(self.join(url)) if url else self._url
        raw = [*self._headers, *_encode_headers(headers)]
        sent = _Body(body, written)
        try:
            async with asyncio.timeout(answer_s):
                for _ in range(REDIRECTS_MAX + 1):
                    response = await self._send_once(method, target, raw, sent)
                    location = response.header("location")
                    if response.status not in _REDIRECTS or not location:
                        sent.data = b""  # the layers below keep it as long as the answer
                        return response
                    await response.close()
                    sent.begun = False
                    target = httpx2.URL(self.join(str(target.join(location))))
                    if self._auth is not None and not self._auth.covers(str(target)):
                        raise RedirectRefused(
                            f"{self} redirects to {target.path}, which is not part of the resource"
                            " that its tokens are for; if that is meant, configure it as the URL"
                        )
        except TimeoutError:
            if sent.begun:
                raise ConnectionBroken(f"{self} gave no answer in {answer_s:g} s") from None
            raise Unreachable(f"{self} could not be reached in {answer_s:g} s") from None
        except httpx2.InvalidURL:
            raise RedirectRefused(f"{self} redirects to what is not a URL") from None
        except httpx2.HTTPError as error:
            if sent.begun:
                raise ConnectionBroken(
                    f"the connection to {self} broke: {_reason(error)}"
                ) from None
            if reason := tcp.distrust(error):
                raise TlsFailed(f"{self} is not trusted because {reason}") from None
            raise Unreachable(f"{self} cannot be reached: {_reason(error)}") from None
        raise RedirectRefused(f"{self} redirects in a circle")

    async def close(self) -> None:
        """Close all connections; answers that are still being read break."""
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            await lane.aclose()

    async def leave(self, lane: "_ConnectionPool") -> None:
        """Free the connection of an answer that is closed."""
        self._active -= 1
        lane.active -= 1
        if lane.active == 0 and lane in self._lanes[1:]:
            self._lanes.remove(lane)
            await lane.aclose()

    async def _send_once(
        self, method: str, url: httpx2.URL, headers: list[tuple[bytes, bytes]], body: "_Body"
    ) -> Response:
        if self._active >= self._limits.requests_max:
            raise Unreachable(f"{self} already has {self._active} requests to answer at once")
        lane = self._enter()
        length = [(b"Content-Length", b"%d" % len(body.data))] if method == "POST" else []
        request = httpx2.Request(
            method,
            url,
            headers=[(b"Host", url.netloc), *length, *headers],
            stream=body,
            extensions={"timeout": self._waits, _OURS: True},
        )
        response = None
        try:
            response = await lane.send(request, self._auth)
            return Response(response, lane, self)
        finally:
            if response is None:
                await self.leave(lane)

    def _enter(self) -> "_ConnectionPool":
        self._active += 1
        for lane in self._lanes:
            if lane.active < LANE_REQUESTS_MAX:
                break
        else:
            lane = _ConnectionPool(self._transport())
            self._lanes.append(lane)
        lane.active += 1
        return lane

    def _transport(self) -> httpx2.AsyncBaseTransport:
        return httpx2.AsyncHTTPTransport(
            verify=self._tls,
            trust_env=False,
            proxy=self._proxy,
            socket_options=tcp.OPTIONS,
            limits=httpx2.Limits(
                max_connections=LANE_CONNECTIONS_MAX,
                max_keepalive_connections=self._limits.idle_connections_max,
                keepalive_expiry=self._limits.idle_s,
            ),
        )


class _Body(httpx2.AsyncByteStream):
    """Body of a request, for as many sends as redirects need. httpx2 asks for the bytes after it
    has sent the head of the request."""

    def __init__(self, data: bytes, written: Callable[[], None] | None) -> None:
        self.data = data
        self.begun = False
        self._written = written

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.begun = True
        if self.data:
            yield self.data
        if self._written is not None:
            self._written()


class _BoundedBody(httpx2.AsyncByteStream):
    """Body of an answer that is read whole, and not by the caller of `Origin.send`; bounded for
    that."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > SIDE_BODY_BYTES_MAX:
                raise httpx2.DecodingError(f"a body of more than {SIDE_BODY_BYTES_MAX} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _ConnectionPool(httpx2.AsyncBaseTransport):
    """Pool of connections. `active`: requests of callers that use it, from first to last byte."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.active = 0
        self._transport = transport

    async def send(self, request: httpx2.Request, auth: Auth | None) -> httpx2.Response:
        if auth is None:
            return await self.handle_async_request(request)
        none = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        client = httpx2.AsyncClient(transport=self, trust_env=False, timeout=AUTH_S, cookies=none)
        return await client.send(request, stream=True, auth=auth)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._transport.handle_async_request(request)
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
            await answer.stream.aclose()
            raise httpx2.DecodingError("it compresses its answer, which it was not asked to")
        if _OURS not in request.extensions or answer.status_code in _SIDE:
            answer.stream = _BoundedBody(answer.stream)
        return answer

    async def aclose(self) -> None:
        await self._transport.aclose()


def _parse(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise Unreachable(f"this is not a URL: {error}") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise Unreachable("only URLs that begin with http:// or https:// and a host can be reached")
    if parsed.userinfo:
        raise Unreachable(f"the URL of {_origin(parsed)} holds a user; send it as a header instead")
    return parsed


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _tls(url: httpx2.URL, ca_file: str | None, *, any_host: bool) -> ssl.SSLContext:
    """Return the TLS settings. Loads the system's certificates only if they are needed, which takes
    longer than the rest of the start."""
    if ca_file is not None:
        try:
            return ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            absent = isinstance(error, FileNotFoundError)
            problem = "does not exist" if absent else "has no certificates in PEM"
            raise TlsFailed(f"{_origin(url)} cannot be trusted: {ca_file} {problem}") from None
    if url.scheme == "https" or any_host:
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _encode_headers(headers: Mapping[str, str | bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode("ascii"), value.encode() if isinstance(value, str) else value)
        for name, value in headers.items()
    ]


def _reason(error: Exception) -> str:
    if isinstance(error, httpx2.LocalProtocolError):
        return "a header that is to be sent does not fit into HTTP"  # its value may be a secret
    return tcp.words(error)
