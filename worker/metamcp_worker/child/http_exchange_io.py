"""Sending one message to a server by HTTP POST and receiving until its answer is there.

Owns: reading an answer as JSON or as a stream of events, passing on the messages before it, taking
up a broken stream. Never: sessions, eras, the handling of a failure.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping

from msgspec import Struct

from metamcp_worker.child import http_exchange
from metamcp_worker.child.http_exchange import RefusalMeaning, ResumeState
from metamcp_worker.child.http_transport import Body, HttpTransport, RequestRefused
from metamcp_worker.http import mcp_headers
from metamcp_worker.http.fetch import ConnectionBroken, Response, Unreachable
from metamcp_worker.http.sse import FIELDS_BYTES_MAX, EventReader, SseEvent
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError, TooLarge

ANSWER_S_MAX = 24 * 3600.0
"""Maximum seconds for a request whose caller measures the time and ends it."""
OPEN_S_MAX = 30.0
"""Maximum seconds for requests that need no work of the server: opening a stream, taking a
notification."""
PIECE_S_MAX = 60.0
"""Maximum seconds to wait for the next piece of a body that has begun."""
LINGER_S_MAX = 1.0
"""Maximum seconds to wait for the end of a stream after the answer. Over TLS a new connection costs
more."""
REFUSAL_BYTES_MAX = 1024 * 1024
"""Maximum bytes that are read of the body of a refusal; pages for humans have some KiB."""

_ANSWERS = frozenset({200, 201, 203})
_GIVEN_UP = "the stream of its answer ended before the answer, and cannot be taken up again"


class Post(Struct, frozen=True):
    """Request to send. `stream`, `via`: where the messages before its answer belong, see
    `transport`. `resumable`: whether a broken stream can be taken up again. `own`: whether the
    request is the gateway's own, and so does not wait its turn behind calls."""

    key: bytes
    line: bytes
    headers: Mapping[str, str]
    stream: bytes
    via: int = 0
    resumable: bool = False
    own: bool = True
    answer_s: float = ANSWER_S_MAX

    @property
    def in_session(self) -> bool:
        return mcp_headers.SESSION in self.headers


class ServerAnswer(Struct):
    """Answer of the server. `message`: the whole message, with the id of the request. `session_id`:
    the id that the server gave, or empty. `status`: of HTTP."""

    message: bytes
    session_id: str
    status: int = 200


class _StreamGone(MetaMCPError):
    """Stream that the server does not have any more."""


class SessionOver(MetaMCPError):
    """Request that the server did not look at, because it has forgotten the session."""


@contextlib.asynccontextmanager
async def exchange(link: HttpTransport, post: Post) -> AsyncGenerator[ServerAnswer]:
    """Send a request and wait for the answer. Raises SessionOver, RequestRefused, Unreachable,
    Broken, TooLarge and codec.Malformed.

    The body of `async with` runs before the connection is cleaned up. So an answer does not wait
    for the end of its stream, which comes after it and frees the connection. The message is
    forgotten before that wait.
    """
    end = asyncio.get_running_loop().time() + post.answer_s
    response = await _send_post(link, post)
    link.on_answer_start(post.key)
    session_id = response.header(mcp_headers.SESSION)
    resume = ResumeState()
    async with Body(link.intake, response) as body:
        async with _in_time(link, post, end):
            if response.status not in _ANSWERS:
                message = await _refusal(link, post, response, body)
            elif response.media_type == mcp_headers.EVENTS:
                message = await _events(link, post, body, resume)
            else:
                length = response.header("content-length")
                message = _whole(await body.whole(wait_s=PIECE_S_MAX), post.key, length)
        if message and post.in_session and http_exchange.session_over(message):
            raise SessionOver
        if message:
            body.holds(0)
            answer = ServerAnswer(message, session_id, response.status)
            del message
            yield answer
            answer.message = b""  # It may be large, and the stream may stay open for a while.
            await link.linger(body.drain(wait_s=LINGER_S_MAX))
            return
    async with _in_time(link, post, end):
        message = await _resume_stream(link, post, resume, session_id)
    yield ServerAnswer(message, session_id)


@contextlib.asynccontextmanager
async def _in_time(link: HttpTransport, post: Post, end: float) -> AsyncGenerator[None]:
    """Limit the time, because a stream may go on for ever without an answer. Raises Broken at the
    end of the time, unless the caller measures the time."""
    try:
        async with asyncio.timeout_at(end if post.answer_s < ANSWER_S_MAX else None):
            yield
    except TimeoutError:
        raise ConnectionBroken(
            f"{link.origin} gave no whole answer in {post.answer_s:g} s"
        ) from None


async def _send_post(link: HttpTransport, post: Post) -> Response:
    """Send the request, at the pace at which a server takes connections. Return the head of the
    response."""
    starting = not post.own

    def on_written() -> None:
        nonlocal starting
        if starting:
            starting = False
            link.starts.release()

    if starting:
        await link.starts.acquire()
    try:
        return await link.origin.send(
            "POST", post.headers, post.line, answer_s=post.answer_s, written=on_written
        )
    finally:
        on_written()


def _whole(body: bytes, key: bytes, length: str) -> bytes:
    """Return the answer that is the whole body. `length`: the header Content-Length. Raises
    codec.Malformed."""
    try:
        answer = http_exchange.answer(http_exchange.one_line(body), key)
    except codec.Malformed as error:
        if length and "truncated" in str(error):
            problem = f"it does not end within the {length} bytes that its Content-Length says"
            raise codec.Malformed(problem) from None
        raise
    if answer is None:
        raise codec.Malformed("it is not an answer")
    return answer


async def tell(
    link: HttpTransport,
    line: bytes,
    headers: Mapping[str, str],
    *,
    answer_s: float = OPEN_S_MAX,
    url: str = "",
) -> int:
    """Send a message that gets no answer, and return the HTTP status. Raises Unreachable and
    Broken."""
    response = await link.origin.send("POST", headers, line, answer_s=answer_s, url=url)
    async with Body(link.intake, response) as body:
        # Read to its end, the connection can be used again; but some servers open a stream here.
        await body.drain(wait_s=LINGER_S_MAX)
        return response.status


async def hand_in(link: HttpTransport, post: Post, url: str) -> bytes:
    """Send a request whose answer comes on another stream. Return the error that comes in its
    place, or nothing. Raises RequestRefused, Unreachable and Broken."""
    response = await link.origin.send(
        "POST", post.headers, post.line, answer_s=post.answer_s, url=url
    )
    async with Body(link.intake, response) as body:
        if response.status >= 300:
            return await _refusal(link, post, response, body)
        await body.drain(wait_s=LINGER_S_MAX)
        return b""


async def _refusal(link: HttpTransport, post: Post, response: Response, body: Body) -> bytes:
    try:
        content = await body.whole(wait_s=PIECE_S_MAX, limit_bytes=REFUSAL_BYTES_MAX)
    except (ConnectionBroken, TooLarge):
        content = b""  # The status says enough.
    meaning = http_exchange.refusal(response.status, content, post.key, in_session=post.in_session)
    if meaning is RefusalMeaning.SESSION_OVER:
        raise SessionOver
    if not post.in_session and not http_exchange.about(content, post.key):
        link.doubt()  # Any server of its era would look at this request.
    if meaning is RefusalMeaning.NO_ANSWER:
        challenge = response.header("www-authenticate")
        wait_s = http_exchange.retry_after_s(response.header("retry-after"), time.time())
        # A server may repeat the headers and the URL, and a client must not read their secrets.
        words = http_exchange.words(content, response.media_type) if post.own else ""
        error = http_exchange.trouble(link.faults, response.status, challenge, wait_s, words)
        raise RequestRefused(error, response.status, wait_s)
    return meaning


async def _events(link: HttpTransport, post: Post, body: Body, resume: ResumeState) -> bytes:
    """Pass on events until the answer, and return it. Return nothing if the stream ends before the
    answer and can be taken up again. Raises Broken and TooLarge."""
    reader = EventReader(link.intake.message_bytes + FIELDS_BYTES_MAX)
    reason = _GIVEN_UP
    try:
        while piece := await body.piece(wait_s=None):
            answer = _take(link, post, resume, reader.feed(piece))
            link.noise(reader)
            if answer:
                return answer
            body.holds(reader.held_bytes)
    except ConnectionBroken as error:
        reason = str(error)
    if not post.resumable or not resume.last_id:
        raise ConnectionBroken(reason)
    return b""


def _take(link: HttpTransport, post: Post, resume: ResumeState, events: list[SseEvent]) -> bytes:
    """Pass on the messages in these events. Return the answer if it is among them, else nothing."""
    for event in events:
        resume.saw(event)
        if event.event != "message" or not event.data:
            continue
        message = http_exchange.one_line(event.data)
        try:
            answer = http_exchange.answer(message, post.key, streamed=True)
        except codec.Malformed:
            link.stray(message)
            continue
        if answer is not None:
            return answer
        link.deliver(http_exchange.with_number_id(message), post.stream, post.via)
    return b""


async def _resume_stream(
    link: HttpTransport, post: Post, resume: ResumeState, session_id: str
) -> bytes:
    """Take up the stream as often as `resume` allows, and return the answer. Raises Broken."""
    headers = {**post.headers, "Accept": mcp_headers.EVENTS}
    if session_id:
        headers[mcp_headers.SESSION] = session_id
    while (delay_s := resume.plan_reconnect()) is not None:
        await asyncio.sleep(delay_s)
        try:
            answer = await _taken_up(link, post, resume, headers)
        except _StreamGone:
            break
        except (Unreachable, ConnectionBroken):
            continue
        if answer:
            return answer
    raise ConnectionBroken(_GIVEN_UP)


async def _taken_up(
    link: HttpTransport, post: Post, resume: ResumeState, headers: Mapping[str, str | bytes]
) -> bytes:
    """Connect to the stream once more; see `_events` for the result. Raises also _StreamGone and
    Unreachable."""
    headers = {**headers, mcp_headers.LAST_EVENT: resume.last_id}
    response = await link.origin.send("GET", headers, answer_s=OPEN_S_MAX)
    async with Body(link.intake, response) as body:
        if response.status >= 500:
            return b""
        if response.status != 200 or response.media_type != mcp_headers.EVENTS:
            raise _StreamGone
        return await _events(link, post, body, resume)
