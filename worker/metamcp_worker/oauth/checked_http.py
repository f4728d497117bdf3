"""HTTP requests to addresses that a server named, with checks and limits.

Owns: which URLs are requested, connecting only to the address that was checked, limits. Never: the
content of requests, the meaning of answers.

Every URL here comes from a server that may be hostile. A URL must be https; plain http is for this
machine alone. A name is resolved once, all its addresses are checked (`addresses`), and the
connection goes to one of them, so that a second resolution cannot lead elsewhere. Redirects of GET
requests, which carry no credentials, are followed within their origin; others are not followed.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2

from metamcp_worker.http.fetch import Unreachable
from metamcp_worker.oauth.addresses import Reach, farthest, is_loopback_name, may_lead
from metamcp_worker.oauth.challenge import NotAuthorized

URL_CHARS_MAX = 8 * 1024
"""Maximum characters of a URL; common servers refuse longer ones."""
RESOLVE_S_MAX = 5.0
CONNECT_S_MAX = 5.0
ANSWER_S_MAX = 20.0
"""Seconds for one whole answer; some authorization servers ask others before they give a token."""
BODY_BYTES_MAX = 1024 * 1024
"""Maximum bytes of an answer; metadata and tokens have some KiB."""
ADDRESSES_MAX = 4
"""Maximum addresses of one name, which are tried one after the other."""
REDIRECTS_MAX = 3

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class CheckedHttpClient:
    """HTTP client for the addresses that a server names. `server_url`: URL of the server, chosen by
    the operator; no address that the server names may be nearer to this machine. `ca_file`:
    certificates to trust instead of the system's; `reach`: of the server, if its addresses do not
    say that."""

    def __init__(
        self, server_url: str, *, ca_file: str | None = None, reach: Reach | None = None
    ) -> None:
        self._server_url = server_url
        self._ca_file = ca_file
        self._reach = reach
        self._tls: ssl.SSLContext | None = None

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Return the whole answer. Raises NotAuthorized for a forbidden URL, and Unreachable."""
        target = request.url
        answer = await self._send_once(request, target)
        for _ in range(REDIRECTS_MAX):
            led = _find_redirect(answer, target) if request.method == "GET" else None
            if led is None:
                break
            target = led
            answer = await self._send_once(request, target)
        return answer

    async def _send_once(self, request: httpx2.Request, target: httpx2.URL) -> httpx2.Response:
        page(str(target))
        addresses = await self._find_allowed_addresses(target)
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await self._try_addresses(request, target, addresses)
        except TimeoutError:
            raise Unreachable(f"{origin(target)} gave no answer in {ANSWER_S_MAX:g} s") from None
        except httpx2.HTTPError as error:
            reason = _reason(error)
            raise Unreachable(f"{origin(target)} cannot be reached: {reason}") from None

    async def _try_addresses(
        self, request: httpx2.Request, target: httpx2.URL, addresses: list[str]
    ) -> httpx2.Response:
        """Return the answer from the first address that accepts a connection."""
        timeout = {"connect": CONNECT_S_MAX, "pool": CONNECT_S_MAX, "read": None, "write": None}
        # The certificate is checked against the name, not against the address.
        named = {"sni_hostname": target.host} if target.scheme == "https" else {}
        forwarded = {
            name: value for name, value in request.headers.items() if name not in _REPLACED
        }  # fmt: skip
        headers = {**forwarded, "host": target.netloc.decode(), "accept-encoding": "identity"}
        transport = httpx2.AsyncHTTPTransport(verify=self._context(target), trust_env=False)
        async with transport:
            for address in addresses:
                sent = httpx2.Request(
                    request.method,
                    target.copy_with(host=address),
                    headers=headers,
                    content=request.content,
                    extensions={"timeout": timeout, **named},
                )
                try:
                    answer = await transport.handle_async_request(sent)
                except (httpx2.ConnectError, httpx2.ConnectTimeout):
                    if address == addresses[-1]:
                        raise
                    continue
                return await _whole(answer, request)
        raise AssertionError("there is an address")

    async def _find_allowed_addresses(self, target: httpx2.URL) -> list[str]:
        """Return the addresses of the host. Raises NotAuthorized if any of them is forbidden, and
        Unreachable."""
        if self._reach is None:
            self._reach = farthest(await _resolve_host(httpx2.URL(self._server_url)))
        addresses = await _resolve_host(target)
        if not all(may_lead(self._reach, address) for address in addresses):
            raise NotAuthorized(
                f"leads to {origin(target)}, which is not asked: its address is nearer to this"
                " machine than that of the server"
            )
        return addresses[:ADDRESSES_MAX]

    def _context(self, target: httpx2.URL) -> ssl.SSLContext:
        """Return the TLS context; certificates, which load slowly, are loaded only for https."""
        if target.scheme != "https":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._tls is None:
            trusted = self._ca_file
            self._tls = (
                ssl.create_default_context(cafile=trusted)
                if trusted is not None
                else httpx2.create_ssl_context()
            )
        return self._tls


_REPLACED = frozenset({"host", "accept-encoding", "content-length", "transfer-encoding"})


def page(url: str) -> None:
    """Check that this URL may be requested, or opened in a browser. Raises NotAuthorized."""
    if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise NotAuthorized("names an address that is not a URL or is too long")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "") if parts.port != 0 else ""
    except ValueError:
        raise NotAuthorized("names an address that is not a web address") from None
    if not host or parts.scheme not in {"http", "https"} or "@" in parts.netloc:
        raise NotAuthorized("names an address that is not a web address")
    if parts.scheme == "http" and not is_loopback_name(host):
        raise NotAuthorized(
            f"leads to http://{parts.netloc}, where credentials would cross the network"
            " unencrypted; its authorization server must be reached by https"
        )


def origin(url: httpx2.URL) -> str:
    """Return the part of a URL that may be shown anywhere."""
    return f"{url.scheme}://{url.netloc.decode()}"


def _find_redirect(answer: httpx2.Response, url: httpx2.URL) -> httpx2.URL | None:
    """Return the target of a redirect, if it is to be followed."""
    location = answer.headers.get("location", "")
    if answer.status_code not in _REDIRECTS or not location:
        return None
    try:
        led = url.join(location)
    except httpx2.InvalidURL:
        return None
    return led if origin(led) == origin(url) else None


async def _resolve_host(url: httpx2.URL) -> list[str]:
    """Return the addresses of the host of a URL. Raises Unreachable."""
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    try:
        async with asyncio.timeout(RESOLVE_S_MAX):
            address_infos = await asyncio.get_running_loop().getaddrinfo(
                url.host, port, type=socket.SOCK_STREAM
            )
    except (OSError, UnicodeError, TimeoutError):
        raise Unreachable(f"{origin(url)} cannot be reached: its name is unknown") from None
    return list(dict.fromkeys(str(socket_address[0]) for *_, socket_address in address_infos))


async def _whole(answer: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """Read the whole answer, within the limit. Raises httpx2.HTTPError."""
    if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
        await answer.aclose()
        raise httpx2.DecodingError("it compresses its answer, which it was not asked to")
    assert isinstance(answer.stream, httpx2.AsyncByteStream)
    data = b""
    try:
        async for piece in answer.stream:
            data += piece
            if len(data) > BODY_BYTES_MAX:
                raise httpx2.DecodingError(f"a body of more than {BODY_BYTES_MAX} bytes")
    finally:
        await answer.aclose()
    headers: Mapping[str, str] = {
        name: value for name, value in answer.headers.items() if name != "content-length"
    }
    return httpx2.Response(answer.status_code, headers=headers, content=data, request=request)


def _reason(error: httpx2.HTTPError) -> str:
    """Return the reason in the words of the operating system if an inner error has them."""
    if isinstance(error, httpx2.LocalProtocolError):
        return "a header that is to be sent does not fit into HTTP"  # its value may be a secret
    text = str(error) or type(error).__name__
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            text = inner.strerror
        inner = inner.__cause__ or inner.__context__
    return text
