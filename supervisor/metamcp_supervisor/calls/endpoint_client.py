"""MCP client of one endpoint of a gateway, for a few requests.

Owns: one HTTP request after the other, the session of an earlier era, lists of tools, and the
rounds of a call that asks questions. Never: the form of messages (`tool_call`), connections
(`bridge.http_client`), which endpoint is meant, who answers questions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import Raw

from metamcp_supervisor.calls import tool_call
from metamcp_supervisor.calls.tool_call import (
    CALL,
    HttpExchange,
    InputQuestion,
    InputWanted,
    RequestForm,
    Tool,
)
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.http import sse
from metamcp_worker.http.fetch import Unreachable
from metamcp_worker.http.mcp_headers import EVENTS
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import is_named
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import MetaMCPError, TooLarge

if TYPE_CHECKING:
    from metamcp_supervisor.bridge.http_client import PlainHttpClient, Trust
    from metamcp_worker.http.fetch import IncomingResponse, Origin

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Maximum bytes of an answer; as large as the largest message of a server."""
PIECES_MAX = 10_000
"""Maximum pieces of a result that a gateway keeps in place of a short one."""
PAGES_MAX = 1000
"""Maximum pages of a list."""
ROUNDS_MAX = 50
"""Maximum times that one call may ask for input."""
KEY_WANTED = "the endpoint wants a valid key"
_DENIED = {401: KEY_WANTED, 403: "the endpoint refuses this"}


Answer = Callable[[InputQuestion], Awaitable[object]]
"""Function that returns the answer to a question: a result of its method."""
Told = Callable[[str, Raw], None]
"""Function that gets each notification before the answer: its method and parameters."""


class EndpointClient:
    """Client for a few requests; use it in `async with`. `timeout_s`: for each answer, without the
    time that people need for questions; `watch`: gets each exchange. Raises Failed, as all methods
    do."""

    def __init__(
        self, url: str, trust: "Trust", form: RequestForm | None = None, timeout_s: float = 300.0
    ) -> None:
        self.url = url
        self.form = form or RequestForm()
        self.watch: Callable[[HttpExchange], None] | None = None
        self._trust = trust
        self._timeout_s = timeout_s
        self._http: PlainHttpClient | Origin | None = None
        self._session = ""
        self._last = 0

    async def __aenter__(self) -> Self:
        from metamcp_supervisor.bridge.http_client import build_client

        try:
            self._http = build_client(self.url, trust=self._trust)
        except MetaMCPError as unfit:
            raise Failed(Exit.USAGE, str(unfit)) from None
        if not self.form.modern:
            greeting = {
                "protocolVersion": self.form.protocol,
                "capabilities": self.form.capabilities,
                "clientInfo": self.form.info,
            }
            if error := bytes((await self.ask("initialize", greeting)).error):
                message = codec.error_object(error).message
                raise Failed(Exit.FAILED, f"{self.url} opens no session: {message}")
            notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            headers = self.form.headers("", {}, {}, self._session)
            await self._post(codec.dump(notice), headers, lambda _: None)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._http is None:
            return
        try:
            if self._session and kind is None:
                headers = self.form.headers("", {}, {}, self._session)
                async with await self._http.send("DELETE", headers, answer_s=self._timeout_s):
                    pass
        except MetaMCPError:
            pass  # the session ends by itself when its client does not come back
        finally:
            await self._http.close()

    async def ask(
        self,
        method: str,
        params: Mapping[str, object],
        tool: Tool | None = None,
        on_notification: Told | None = None,
    ) -> Envelope:
        """Send a request and return the answer, with a result or an error."""
        self._last += 1
        number = b"%d" % self._last
        message = self.form.message(
            self._last, method, params, progress=on_notification is not None
        )
        headers = self.form.headers(method, params, tool or {}, self._session)
        answers: list[Envelope] = []
        refusals: list[str] = []

        def on_message(envelope: Envelope) -> None:
            if envelope.method is not None:
                if on_notification is not None and not envelope.id:
                    on_notification(envelope.method, envelope.params)
            elif bytes(envelope.id) == number:
                answers.append(envelope)
            elif bytes(envelope.error):
                refusals.append(codec.error_object(envelope.error).message)

        await self._post(codec.dump(message), headers, on_message)
        if answers:
            return answers[-1]
        problem = f"refuses {method}: {refusals[-1]}" if refusals else f"gave no answer to {method}"
        raise Failed(Exit.FAILED, f"{self.url} {problem}")

    async def tools(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the definitions of all tools that the endpoint lists."""
        cursor: dict[str, object] = {}
        for _ in range(PAGES_MAX):
            answer = await self.ask("tools/list", cursor)
            if bytes(answer.error):
                message = codec.error_object(answer.error).message
                raise Failed(Exit.FAILED, f"{self.url} does not list its tools: {message}")
            page: dict[str, Any] = codec.value(answer.result)
            for tool in page.get("tools", ()):
                yield tool
            if not page.get("nextCursor"):
                return
            cursor = {"cursor": page["nextCursor"]}
        raise Failed(Exit.FAILED, f"{self.url} lists more than {PAGES_MAX:,} pages of tools")

    async def tool(self, name: str) -> dict[str, Any] | None:
        """Return the definition of a tool; None if the endpoint does not list the tool."""
        async for tool in self.tools():
            if tool.get("name") == name:
                return tool
        return None

    async def find_tool(self, name: str) -> dict[str, Any]:
        """Return the definition of a tool. Raises Failed with the name that may be meant."""
        tools = {str(tool.get("name")): tool async for tool in self.tools()}
        if name in tools:
            return tools[name]
        for exposed, tool in tools.items():
            if is_named(name, "", "", exposed):
                return tool
        raise Failed(Exit.UNKNOWN_NAME, f"the endpoint lists no tool {name!r}; {hint(name, tools)}")

    async def call(
        self,
        name: str,
        arguments: object,
        tool: Tool,
        answer: Answer,
        on_notification: Told | None = None,
    ) -> Envelope:
        """Call a tool, and answer its questions until it has ended."""
        params: dict[str, object] = {"name": name, "arguments": arguments}
        now = params
        for _ in range(ROUNDS_MAX):
            reply = await self.ask(CALL, now, tool, on_notification)
            input_wanted = tool_call.questions(reply.result)
            if input_wanted is None:
                return reply
            now = await _answer_questions(params, input_wanted, answer)
        raise Failed(Exit.FAILED, f"{name} asked {ROUNDS_MAX} times for input and has not ended")

    async def whole(self, answer: Envelope) -> Envelope:
        """Return the answer to a call with the result that the gateway keeps in place of the short
        one; any other answer is returned as it is."""
        link = tool_call.find_kept_link(answer.result)
        if link is None:
            return answer
        pieces, uri = list[str](), link.uri
        while uri:
            if len(pieces) >= PIECES_MAX:
                raise Failed(Exit.FAILED, f"its result has more than {PIECES_MAX:,} pieces")
            reply = await self.ask("resources/read", {"uri": uri})
            if bytes(reply.error):
                message = codec.error_object(reply.error).message
                raise Failed(
                    Exit.FAILED, f"the call is done, and its result cannot be read: {message}"
                )
            text, uri = tool_call.piece(reply.result)
            pieces.append(text)
        result = tool_call.restore_result(answer.result, link, "".join(pieces))
        return codec.envelope(codec.dump({"jsonrpc": "2.0", "id": answer.id, "result": result}))

    async def _post(
        self, body: bytes, headers: Mapping[str, str], heard: Callable[[Envelope], None]
    ) -> None:
        """Send a message, and call `heard` for each message that comes back."""
        assert self._http is not None, "the client is used in `async with`"
        received = bytearray()
        status = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                sent = self._http.send("POST", headers, body, answer_s=self._timeout_s + 1.0)
                async with await sent as response:
                    status = response.status
                    self._session = response.header("mcp-session-id") or self._session
                    if denial := _DENIED.get(status):
                        raise Failed(Exit.DENIED, f"{self.url}: {denial}")
                    await self._read(response, received, heard)
        except TimeoutError:
            limit = f"{self._timeout_s:g} s"
            raise Failed(Exit.TIMEOUT, f"{self.url} gave no answer within {limit}") from None
        except Unreachable as error:
            raise Failed(Exit.NOT_RUNNING, str(error)) from None
        except MetaMCPError as error:
            raise error if isinstance(error, Failed) else Failed(Exit.FAILED, str(error)) from None
        finally:
            if self.watch is not None:
                self.watch(HttpExchange(headers, body, status, bytes(received)))

    async def _read(
        self,
        response: "IncomingResponse",
        received: bytearray,
        heard: Callable[[Envelope], None],
    ) -> None:
        """Read an answer to its end. Raises MetaMCPError."""
        streamed = response.media_type == EVENTS
        reader = sse.EventReader()
        size = 0
        while piece := await response.piece(wait_s=None):
            size += len(piece)
            if size > ANSWER_BYTES_MAX:
                raise TooLarge(f"an answer of {self.url}", size, ANSWER_BYTES_MAX)
            if not streamed or self.watch is not None:
                received += piece
            if streamed:
                for event in reader.feed(piece):
                    _tell(event.data, heard)
        if not streamed:
            _tell(bytes(received), heard)


def _tell(data: bytes, heard: Callable[[Envelope], None]) -> None:
    try:
        heard(codec.envelope(data))
    except codec.Malformed:
        return  # an event without a message, or the text of an HTTP error


async def _answer_questions(
    params: Mapping[str, object], input_wanted: InputWanted, answer: Answer
) -> dict[str, object]:
    answers = {question.key: await answer(question) for question in input_wanted.questions}
    return tool_call.with_answers(params, input_wanted, answers)
