"""HTTP of the console: who may ask, which page answers, and the headers of every answer; the
document and the frame around the pages; verbs for programs.

Owns: the check of `Host`, of the origin and of the session, the paths, the order of the pages, the
top bar, the path of verbs. Never: what a page shows (its own module), rights and sessions (the
gateway), sockets (the server).

No cookie exists, so a request that another page makes a browser send has no session. Still each
request for data must come from the console's own page, as the browser says itself.

A program posts a verb of the control socket to `/control`, with an API key and without a session,
and gets the lines of the answer. No request of a browser is answered there.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from functools import cache
from importlib import resources
from urllib.parse import parse_qsl, unquote
from weakref import WeakValueDictionary

import htpy as h
from htpy import Element, Node
from msgspec import Struct

from metamcp_supervisor.console import (
    approvals_page,
    calls_page,
    config_page,
    keys_page,
    logs_page,
    pages,
    servers_page,
    tools_page,
    views_page,
)
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.gateway_client import (
    GatewayClient,
    KeyRefused,
    SessionEnded,
    VerbRequest,
    connect_gateway,
)
from metamcp_supervisor.console.pages import Ask, Page, PageRequest, feature_pages
from metamcp_supervisor.control import client
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import LINES, PROGRAMS, Failed
from metamcp_supervisor.control.console_sessions import NOT_A_KEY, ConsoleOn
from metamcp_supervisor.verbs import Exit, LogLine
from metamcp_worker.http import request_head
from metamcp_worker.http.request_head import Head, Hosts, place_of
from metamcp_worker.http.requests import HttpRequest, Pending
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import TooLarge

log = logging.getLogger("metamcp.console")

BODY_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a form, or of a verb with its parameters."""
LOGIN_BYTES_MAX = 4 * 1024
"""Maximum bytes of a login, which anybody may send."""
FIELDS_MAX = 2000
"""Maximum fields of a form or a query."""
ASKS_MAX = 16
"""Maximum requests that ask the gateway at once; more of them wait."""
STREAMS_MAX = 16
"""Maximum streams of news at once, one for each browser, and of programs that follow or wait. Both
together leave connections of the control socket to operators (`ControlLimits.connections_max`)."""
OWN_ASKS_MAX = 8
OWN_STREAMS_MAX = 4
"""How many of both one session may have, and one API key: a browser has one stream, and for a
moment two, when another tab takes over."""
SEND_S = 30.0
"""Seconds for a client to read on, while it has a connection of the control socket."""
STATIC = {
    "htmx.js": "text/javascript; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src"
        " 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
_TLS = {"strict-transport-security": "max-age=31536000"}
_STATUS = {
    Exit.DENIED: 403, Exit.UNKNOWN_NAME: 404, Exit.TIMEOUT: 504, Exit.NOT_RUNNING: 503,
    Exit.USAGE: 400, Exit.CONFIG: 422,
}  # fmt: skip
ENDED = "This session has ended."
REFUSED = Failed(Exit.DENIED, NOT_A_KEY)


class NotServed(Exception):
    """The request is not carried out. `status`: of the answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _Login(Struct, frozen=True):
    """Body of a login: the secret of a link, or an API key."""

    link: str = ""
    key: str = ""


class ConsoleSite:
    """The application. `on`: settings from the supervisor; `send_s`: see SEND_S; `requests`: number
    of requests until now."""

    def __init__(self, on: ConsoleOn, *, send_s: float = SEND_S) -> None:
        self._on = on
        self._send_s = send_s
        self._hosts = Hosts(on.hosts)
        folder = resources.files("metamcp_supervisor.console") / "static"
        self._files = {name: (folder / name).read_bytes() for name in STATIC}
        self._marks = {
            name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in self._files.items()
        }
        self._shell = str(shell()).encode()
        self._secure = {**HEADERS, **(_TLS if on.tls is not None else {})}
        self._asks = asyncio.Semaphore(ASKS_MAX)
        self._own_asks: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By session, as long as it asks something."""
        self._sessions, self._keys = Counter[str](), Counter[str]()
        """Streams by session, and by API key."""
        self.requests = 0

    @property
    def streams(self) -> int:
        """Number of open streams of news."""
        return sum(self._sessions.values())

    def __call__(self, request: HttpRequest) -> Pending:
        self.requests += 1
        raw_path, query = request_head.path_and_query(request.head.target)
        path = raw_path.decode("utf-8", "replace")
        try:
            self._check_host(request.head)
            if path.startswith("/static/"):
                self._static(request, path.removeprefix("/static/"))
                return None
            if path == PROGRAMS:
                self._check_program(request.head)
                return self._carry_out(request, self._session(request.head))
            kind = path.partition("/")[2].partition("/")[0]
            if kind not in ("f", "login", "logout", "frame", "events", "download"):
                self._check_method(request.head, "GET", "HEAD")
                self._send(request, 200, HTML, self._shell)
                return None
            self._check_origin(request.head)
            return self._private(request, kind, path, query.decode("utf-8", "replace"))
        except NotServed as error:
            if path == PROGRAMS:
                refusal = REFUSED if error.status == 401 else Failed(Exit.FAILED, str(error))
                self._refuse_verb(request, error.status, refusal)
            else:
                self._send(request, error.status, TEXT, f"{error}\n".encode())
            return None

    # Checks

    def _check_host(self, head: Head) -> None:
        """Raise NotServed for a foreign name in `Host`, as after DNS rebinding."""
        hosts = [value for name, value in head.headers if name == b"host"]
        address = place_of(hosts[0]) if len(hosts) == 1 else None
        if address is None or not self._hosts.allow(address):
            raise NotServed(
                421, "Ask by the address of the console, or allow the name: allowed_hosts in"
                " [gateway].",
            )  # fmt: skip

    def _check_origin(self, head: Head) -> None:
        """Raise NotServed unless the browser says that a page of the console asks."""
        headers = dict(head.headers)
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        scheme = b"http" if self._on.tls is None else b"https"
        own = b"%b://%b" % (scheme, headers.get(b"host", b"").lower())
        if (origin is not None and origin.lower() != own) or (
            site != b"same-origin" and (site is not None or origin is None)
        ):
            raise NotServed(403, "Only pages of the console itself may ask for this.")

    def _check_program(self, head: Head) -> None:
        """Raise NotServed for another method, and for each request that a browser sends for a
        page."""
        self._check_method(head, "POST")
        if {b"origin", b"sec-fetch-site"} & {name for name, _ in head.headers}:
            raise NotServed(403, "Only programs may ask for this, and no pages.")

    def _check_method(self, head: Head, *methods: str) -> None:
        if head.method not in methods:
            raise NotServed(405, f"Use {' or '.join(methods)} here.")

    def _session(self, head: Head) -> str:
        """Return the token of the session. Raises NotServed."""
        for name, value in head.headers:
            scheme, _, token = value.decode("latin-1").partition(" ")
            if name == b"authorization" and scheme.lower() == "bearer" and token:
                return token
        raise NotServed(401, ENDED)

    # Answers

    @contextlib.asynccontextmanager
    async def _connect(
        self, session: str = "", key: str = "", address: str = ""
    ) -> AsyncGenerator[GatewayClient]:
        """Connect to the gateway, when it is this request's turn, as `connect_gateway` does. Raises
        Failed."""
        own = self._own_asks.setdefault(session or key, asyncio.Semaphore(OWN_ASKS_MAX))
        connected = connect_gateway(self._on.runtime_dir, session, key=key, address=address)
        async with own, self._asks, connected as ask:
            yield ask

    @contextlib.asynccontextmanager
    async def _connect_stream(
        self, session: str = "", key: str = "", address: str = ""
    ) -> AsyncGenerator[GatewayClient]:
        """Connect to the gateway for a stream. Raises Failed, and NotServed if it is one too
        many."""
        who = "browsers and commands" if key else "browsers"
        if self.streams >= STREAMS_MAX:
            reason = f"{STREAMS_MAX} {who} follow the gateway already; close one of them."
            raise NotServed(503, reason)
        connected = connect_gateway(self._on.runtime_dir, session, key=key, address=address)
        noun = "pages and commands" if key else "pages"
        with _count_stream(self._sessions, session or key, noun):
            async with connected as ask:
                with (
                    _count_stream(self._keys, ask.key, noun)
                    if ask.key
                    else contextlib.nullcontext()
                ):
                    yield ask

    def _static(self, request: HttpRequest, name: str) -> None:
        self._check_method(request.head, "GET", "HEAD")
        data = self._files.get(name)
        if data is None:
            raise NotServed(404, "No file has this name.")
        # The same bytes after each look: a browser asks, and mostly gets them from its own disk.
        marks = {"cache-control": "no-cache", "etag": self._marks[name]}
        if dict(request.head.headers).get(b"if-none-match", b"").decode() == self._marks[name]:
            self._send(request, 304, STATIC[name], b"", marks)
        else:
            self._send(request, 200, STATIC[name], data, marks)

    def _private(self, request: HttpRequest, kind: str, path: str, query: str) -> Pending:
        if kind == "login":
            self._check_method(request.head, "POST")
            return self._login(request)
        session = self._session(request.head)
        if kind == "logout":
            self._check_method(request.head, "POST")
            return self._send_fragment(request, session, self._logout)
        if kind == "events":
            self._check_method(request.head, "GET")
            return self._events(request, session)
        if kind == "frame":
            self._check_method(request.head, "GET")
            return self._send_fragment(request, session, self._frame)
        if kind == "download":
            self._check_method(request.head, "GET")
            page = find_page(path.removeprefix("/download/"))
            if page is not None and page.export is not None:
                return self._export(request, session, page.export)
            name = unquote(path.removeprefix("/download/logs/"))
            return self._download(request, session, name)
        self._check_method(request.head, "GET", "POST")
        name, *parts = [
            unquote(segment) for segment in path.removeprefix("/f").lstrip("/").split("/")
        ]
        page = find_page(name)
        if page is None:
            raise NotServed(404, f"No page is named '{ui.shorten(name, 40)}'.")
        return self._page(request, session, page, (tuple(parts), _fields(query)))

    async def _login(self, request: HttpRequest) -> None:
        """Pass a login on to the gateway, and its answer to the browser; nothing of it is kept."""
        try:
            body = await request.body(LOGIN_BYTES_MAX)
        except TooLarge as error:
            request.last(self._head(413, TEXT), f"{error}\n".encode())
            return
        if body is None:
            return
        try:
            login = codec.decode_as(_Login, body)
            params = {"link": login.link, "key": login.key, "address": request.address}
            async with self._connect("") as ask:
                begun = await ask("console-login", params)
        except codec.Malformed:
            self._send(request, 400, TEXT, b"A login is a JSON object with a link or a key.\n")
        except Failed as error:
            self._send(request, _STATUS.get(error.exit, 502), TEXT, f"{error}\n".encode())
        else:
            self._send(request, 200, JSON, begun)

    async def _frame(self, ask: GatewayClient) -> Node:
        return frame(ask.role, self._on.version, self._on.runtime_dir, ask.key)

    async def _logout(self, ask: GatewayClient) -> Node:
        await ask("console-logout")
        return ui.notice("Logged out.")

    async def _page(
        self,
        request: HttpRequest,
        session: str,
        page: Page,
        target: tuple[tuple[str, ...], Mapping[str, str]],
    ) -> None:
        posted = request.head.method == "POST"
        form: Mapping[str, str] = {}
        if posted:
            try:
                body = await request.body(BODY_BYTES_MAX)
            except TooLarge as error:
                request.last(self._head(413, TEXT), f"{error}\n".encode())
                return
            if body is None:
                return
            form = _fields(body.decode("utf-8", "replace"))

        async def content(ask: GatewayClient) -> Node:
            page_request = PageRequest(role=ask.role, path=target[0], query=target[1], form=form)
            if not posted:
                return pages.content(page, await page.show(ask, page_request))
            if page.change is None:
                raise Failed(Exit.USAGE, "nothing on this page can be changed")
            try:
                return pages.content(page, await page.change(ask, page_request))
            except SessionEnded:
                raise
            except Failed as error:  # the page stays, with the reason above it
                notice = ui.notice(str(error), "bad", error.details)
                with contextlib.suppress(Failed):
                    return pages.content(page, [notice, await page.show(ask, page_request)])
                return pages.content(page, notice)

        await self._send_fragment(request, session, content)

    async def _send_fragment(
        self,
        request: HttpRequest,
        session: str,
        content: Callable[[GatewayClient], Awaitable[Node]],
    ) -> None:
        """Answer with a fragment, or with the reason why there is none."""
        try:
            async with self._connect(session) as ask:
                body = str(h.fragment[await content(ask)])
                status = 200
        except SessionEnded:
            status, body = 401, str(ui.notice(ENDED, "warn"))
        except Failed as error:
            status = _STATUS.get(error.exit, 502)
            body = str(h.div(id="page")[ui.notice(str(error), "bad", error.details)])
        except Exception:
            log.exception("a page failed by a fault of the console: %r", request.head.target[:200])
            status = 500
            notice = ui.notice("The console has a fault; the log of the gateway says more.", "bad")
            body = str(h.div(id="page")[notice])
        self._send(request, status, HTML, body.encode("utf-8", "replace"))

    async def _download(self, request: HttpRequest, session: str, name: str) -> None:
        """Answer with all lines of a server that are kept."""
        try:
            async with self._connect(session) as ask:
                items = await ask.items("logs", {"name": name, "n": None})
        except Failed as error:
            status = 401 if isinstance(error, SessionEnded) else _STATUS.get(error.exit, 502)
            self._send(request, status, TEXT, f"{error}\n".encode())
            return
        lines = (codec.decode_as(LogLine, item) for item in items)
        text = "".join(f"{ui.instant(line.time)}  {line.stream}  {line.text}\n" for line in lines)
        self._send(request, 200, TEXT, text.encode("utf-8", "replace"))

    async def _export(
        self, request: HttpRequest, session: str, export: Callable[[Ask], AsyncIterator[bytes]]
    ) -> None:
        """Answer with the file of a page, piece by piece; an answer that ends early is cut off, so
        that the browser does not take it for all of it."""
        try:
            async with self._connect(session) as ask:
                async for piece in export(ask):
                    if not request.begun:
                        request.begin(self._head(200, "application/x-ndjson"))
                    if not await self._send_piece(request, piece):
                        return
        except Failed as error:
            if request.begun:
                request.abort()
                return
            status = 401 if isinstance(error, SessionEnded) else _STATUS.get(error.exit, 502)
            self._send(request, status, TEXT, f"{error}\n".encode())
            return
        request.end()

    async def _events(self, request: HttpRequest, session: str) -> None:
        """Pass on the kinds of news, as long as the page is open and the session lasts."""
        try:
            async with self._connect_stream(session) as ask:
                if not _hold(request, ask):
                    return
                request.begin(self._head(200, "text/event-stream"))
                async for kind, raw in ask.stream("news"):
                    piece = b"event: %b\ndata: %b\n\n" % (kind.encode(), raw)
                    if not await self._send_piece(request, piece):
                        return
        except NotServed as error:
            self._send(request, error.status, TEXT, f"{error}\n".encode())
            return
        except Failed as error:
            if not request.begun:
                status = 401 if isinstance(error, SessionEnded) else 503
                self._send(request, status, TEXT, f"{error}\n".encode())
                return
        request.end()

    async def _send_piece(self, request: HttpRequest, piece: bytes) -> bool:
        """Send a piece of an answer. Return whether the client is still there; one that does not
        read is cut off."""
        try:
            async with asyncio.timeout(self._send_s):
                await request.send(piece)
        except TimeoutError:
            request.abort()
            return False
        return not request.lost

    async def _carry_out(self, request: HttpRequest, key: str) -> None:
        """Pass a verb of a program on to the gateway, and the lines of its answer to the
        program."""
        try:
            body = await request.body(BODY_BYTES_MAX)
            if body is None:
                return
            verb = codec.decode_as(VerbRequest, body)
            connect = self._connect_stream if verb.stays else self._connect
            async with connect(key=key, address=request.address) as ask:
                if not _hold(request, ask):
                    return
                async for line, message in ask.pass_on(verb):
                    if not request.begun:
                        request.begin(self._head(_status_of(message), LINES))
                    if not await self._send_piece(request, line):
                        return
        except TooLarge as error:
            failed = Failed(Exit.FAILED, str(error))
            request.last(self._head(413, LINES), _error_line(failed))
            return
        except codec.Malformed as error:
            self._refuse_verb(request, 400, Failed(Exit.USAGE, f"not a request: {error}"))
            return
        except NotServed as error:
            self._refuse_verb(request, error.status, Failed(Exit.FAILED, str(error)))
            return
        except Failed as error:
            if not request.begun:
                status = 401 if isinstance(error, KeyRefused) else 503
                self._refuse_verb(request, status, error)
                return
        request.end()

    def _refuse_verb(self, request: HttpRequest, status: int, failed: Failed) -> None:
        more = {"www-authenticate": "Bearer"} if status == 401 else {}
        self._send(request, status, LINES, _error_line(failed), more)

    def _head(self, status: int, kind: str, more: Mapping[str, str] = {}) -> bytes:
        headers = {"content-type": kind, **self._secure, **more}
        return request_head.head(
            status, [(name.encode(), value.encode()) for name, value in headers.items()]
        )

    def _send(
        self,
        request: HttpRequest,
        status: int,
        kind: str,
        body: bytes,
        more: Mapping[str, str] = {},
    ) -> None:
        if not request.lost:
            request.answer(self._head(status, kind, more), body)


def _hold(request: HttpRequest, ask: GatewayClient) -> bool:
    """End a connection to the gateway when the client goes. Return False if it is gone already."""
    request.on_lost = ask.close
    return not request.lost


@contextlib.contextmanager
def _count_stream(streams: Counter[str], who: str, noun: str) -> Generator[None]:
    """Count a stream of a session or an API key. Raises NotServed if it is one too many."""
    if streams[who] >= OWN_STREAMS_MAX:
        reason = f"{OWN_STREAMS_MAX} {noun} follow the gateway for you already; close one of them."
        raise NotServed(503, reason)
    streams[who] += 1
    try:
        yield
    finally:
        streams[who] -= 1
        if not streams[who]:
            del streams[who]


def _error_line(failed: Failed) -> bytes:
    error = {"code": int(failed.exit), "message": str(failed)}
    return codec.dump({"jsonrpc": "2.0", "id": None, "error": error}) + b"\n"


def _status_of(message: Envelope) -> int:
    """Return the status of an answer that begins with this message: 200 for a verb that failed,
    too, unless its caller may not use it."""
    try:
        if bytes(message.error):
            client.result(message)
    except Failed as failed:
        return 403 if failed.exit == Exit.DENIED else 200
    return 200


def _fields(text: str) -> dict[str, str]:
    """Return the fields of a form or query; values of a name that stands several times are joined
    by line ends. Raises NotServed."""
    fields: dict[str, str] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise NotServed(400, f"A form has at most {FIELDS_MAX} fields.") from None
    for name, value in pairs:
        fields[name] = f"{fields[name]}\n{value}" if name in fields else value
    return fields


@cache
def all_pages() -> tuple[Page, ...]:
    """Return the pages in the order of the rail, with those of the features."""
    pages = [
        servers_page.PAGE,
        logs_page.PAGE,
        tools_page.PAGE,
        views_page.PAGE,
        calls_page.PAGE,
        keys_page.PAGE,
        approvals_page.PAGE,
        config_page.PAGE,
    ]
    for page in feature_pages():
        names = [other.name for other in pages]
        pages.insert(names.index(page.after) + 1 if page.after in names else len(pages), page)
    return tuple(pages)


def find_page(name: str) -> Page | None:
    """Return the page with this name; the empty name stands for the first page."""
    pages = all_pages()
    return next((page for page in pages if page.name == (name or pages[0].name)), None)


def shell() -> Element:
    """Return the document that a browser gets for every path. The script in it asks for
    the content, in the name of a session."""
    return h.html(lang="en")[
        h.head[
            h.meta(charset="utf-8"),
            h.meta(name="viewport", content="width=device-width"),
            h.meta(name="color-scheme", content="dark light"),
            h.meta({"name": "htmx-config"}, content="history:false includeIndicatorCSS:false"),
            h.title["MetaMCP"],
            h.link(rel="icon", href="/static/icon.svg", type="image/svg+xml"),
            h.link(rel="stylesheet", href="/static/console.css"),
            h.script(src="/static/htmx.js", defer=True),
            h.script(src="/static/console.js", type="module"),
        ],
        h.body[
            h.a(class_="skip", href="#main")["Skip to the content"],
            h.div(id="frame"),
            h.main({"hx-sync": "replace"}, id="main", tabindex="-1")[
                h.noscript[
                    h.p[
                        "The console needs JavaScript; ",
                        h.code["metamcp status"],
                        " shows the same without.",
                    ]
                ]
            ],
            h.p(id="said", role="status", aria_live="polite"),
            h.template(id="login")[_login()],
        ],
    ]


def _login() -> Element:
    """Return what a browser without a session shows. The script sends the form; the browser itself
    may send none."""
    return h.section(aria_labelledby="login-title")[
        h.h1(id="login-title")["MetaMCP console"],
        h.p(role="alert"),
        h.form(class_="fields", method="post")[
            ui.field(
                "API key",
                h.input(
                    type="password", name="key", required=True, maxlength=200,
                    autocomplete="current-password", spellcheck="false",
                ),
                "One with a scope such as console:operator. On the machine of the gateway,"
                " 'metamcp console' opens this page by a link instead.",
            ),
            h.div[h.button["Log in"]],
        ],
    ]  # fmt: skip


def frame(role: Role, version: str, gateway: str, key: str = "") -> Node:
    """Return the top bar, and the rail with those pages that are for a role. `gateway`: how the
    gateway is called; `key`: id of the API key whose holder can log out."""
    listed = [page for page in all_pages() if page.title and role >= page.least]
    return [
        h.header(class_="bar")[
            h.strong["MetaMCP"],
            h.span[ui.shorten(gateway, 80)],
            h.span[version],
            h.span(title="Role of this session")[str(role)],
            h.span(id="pulse", class_="state off")["connecting"],
            h.button(type="button", id="keys", aria_haspopup="dialog")["Keys ?"],
            key and h.button(type="button", id="logout", title=f"API key {key}")["Log out"],
        ],
        h.nav(id="rail", aria_label="Pages")[
            h.ul[[h.li[ui.link(ui.address(page.name), _entry(page))] for page in listed]]
        ],
    ]


def _entry(of: Page) -> Node:
    """Return the text of a page in the rail. The script counts there what waits for a person."""
    if of is not approvals_page.PAGE:
        return of.title
    return [of.title, " ", h.span(id="waits", title="Waiting for a person")]
