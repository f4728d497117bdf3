"""Messages of a client that calls a tool: requests and their headers, answers, questions.

Owns: what a request of each era looks like, how a call ended, the questions in its answer, and the
parts of its result. Never: sending (`endpoint_client`), the values of fields (`tool_form`).
"""

import base64
import binascii
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Raw, Struct

from metamcp_supervisor.calls.tool_form import sequence, table
from metamcp_worker.http import mcp_headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code
from metamcp_worker.results.result_summary import META, SCHEME

MODERN = "2026-07-28"
CALL = "tools/call"
ELICIT = "elicitation/create"
_PREFIX = "io.modelcontextprotocol/"
_NONE = Raw()

Tool = Mapping[str, Any]
"""Definition of a tool."""


class RequestForm(Struct, frozen=True, kw_only=True):
    """How a client speaks. `protocol`: revision; `name`: what the client calls itself;
    `capabilities`: the questions that it answers."""

    protocol: str = MODERN
    name: str = "metamcp call"
    capabilities: Mapping[str, object] = {}

    @property
    def modern(self) -> bool:
        return self.protocol == MODERN

    @property
    def info(self) -> dict[str, str]:
        return {"name": self.name, "version": "1"}

    def message(
        self, number: int, method: str, params: Mapping[str, object], *, progress: bool = False
    ) -> dict[str, object]:
        """Return a request. `progress`: the client wants to hear of progress."""
        all_params = dict(params)
        meta: dict[str, object] = {}
        if self.modern:
            meta |= {
                f"{_PREFIX}protocolVersion": MODERN,
                f"{_PREFIX}clientCapabilities": self.capabilities,
                f"{_PREFIX}clientInfo": self.info,
            }
        if progress:
            meta["progressToken"] = number
        if meta:
            all_params["_meta"] = meta
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": all_params}

    def headers(
        self, method: str, params: Mapping[str, object], tool: Tool, session: str = ""
    ) -> dict[str, str]:
        """Return the headers of a request. `tool`: definition of the called tool, which may want
        arguments repeated in headers."""
        if not self.modern:
            opened = mcp_headers.build_session_headers(session, self.protocol)
            return opened if session else dict(mcp_headers.MESSAGE)
        try:
            wishes = mcp_headers.find_header_params(codec.dump(tool.get("inputSchema", {})))
        except mcp_headers.HeaderRuleUnfit:
            wishes = {}  # the gateway wants none for such a tool
        raw = codec.level(codec.dump(params))
        return mcp_headers.build_modern_headers(MODERN, method, raw, wishes)


class HttpExchange(Struct, frozen=True):
    """Request and its answer as they crossed the wire. `headers`: of the request, without the
    credential; `status`: 0 if no answer came; `received`: a body, or a stream of events."""

    headers: Mapping[str, str]
    sent: bytes
    status: int
    received: bytes


def reads_only(tool: Tool) -> bool:
    """Whether a tool says that it changes nothing."""
    return table(tool.get("annotations")).get("readOnlyHint") is True


def as_curl(url: str, headers: Mapping[str, str], body: bytes, *, keyed: bool) -> str:
    """Return a command for a shell that sends this request. `keyed`: it needs a key, which the
    command takes from METAMCP_KEY."""
    options = [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items()]
    if keyed:
        options.append('-H "Authorization: Bearer $METAMCP_KEY"')
    data = f"-d {shlex.quote(body.decode('utf-8', 'replace'))}"
    return " \\\n  ".join([f"curl -sS {shlex.quote(url)}", *options, data])


def as_command(tool: str, endpoint: str, arguments: bytes) -> str:
    """Return the `metamcp call` for a shell that makes this call."""
    words = ["metamcp", "call", tool, "--endpoint", endpoint]
    if arguments != b"{}":
        words += ["--args", arguments.decode("utf-8", "replace")]
    return shlex.join(words)


# Answers


def outcome_of(answer: Envelope) -> tuple[str, Raw]:
    """Return how a call ended, in the words of `call_records`, and its result or error."""
    if bytes(answer.error):
        code = bytes(codec.members(answer.error).get("code", b""))
        if not code.removeprefix(b"-").isdigit():
            code = b"%d" % Code.INTERNAL_ERROR
        return code.decode(), answer.error
    members = codec.level(answer.result)
    failed = bytes(members.get("isError", b"")) == b"true"
    return ("tool_error" if failed else "ok"), answer.result


def progress_text(params: Raw) -> str:
    """Return the words of a notification of progress; empty if it cannot be read."""
    try:
        members = table(codec.value(params))
    except codec.Malformed:
        return ""
    done: object = members.get("progress")
    if not isinstance(done, int | float):
        return ""
    total, message = members.get("total"), members.get("message")
    share = f"{done:g} of {total:g}" if isinstance(total, int | float) else f"{done:g}"
    return f"{share}: {message}" if isinstance(message, str) and message else share


# Questions


class InputQuestion(Struct, frozen=True, kw_only=True):
    """Question of a server in the middle of a call. `key`: its name in the answer; `method`: of
    the request; `message`: for the person; `url`: page to visit, empty for a form; `schema`: of the
    form."""

    key: str
    method: str
    message: str = ""
    url: str = ""
    schema: dict[str, Any] = {}


class InputWanted(Struct, frozen=True):
    """Result that asks for input. `state`: raw, goes back with the answers."""

    questions: tuple[InputQuestion, ...]
    state: Raw = _NONE


class _QuestionParams(Struct, frozen=True, rename="camel"):
    message: str = ""
    url: str = ""
    requested_schema: dict[str, Any] = {}


class _QuestionRequest(Struct, frozen=True):
    method: str
    params: Raw = Raw(b"{}")


class _AskingResult(Struct, frozen=True, rename="camel"):
    result_type: str = ""
    input_requests: dict[str, _QuestionRequest] = {}
    request_state: Raw = _NONE


def questions(result: bytes | Raw) -> InputWanted | None:
    """Return the questions of a result; None for a result that asks nothing."""
    if b"input_required" not in bytes(result):
        return None
    try:
        asking = codec.decode_as(_AskingResult, result)
        if asking.result_type != "input_required":
            return None
        input_questions = [
            _question(key, request) for key, request in asking.input_requests.items()
        ]
    except codec.Malformed:
        return None
    return InputWanted(tuple(input_questions), asking.request_state)


def _question(key: str, request: _QuestionRequest) -> InputQuestion:
    if request.method != ELICIT:
        return InputQuestion(key=key, method=request.method)
    params = codec.decode_as(_QuestionParams, request.params)
    return InputQuestion(
        key=key,
        method=request.method,
        message=params.message,
        url=params.url,
        schema=params.requested_schema,
    )


def with_answers(
    params: Mapping[str, object], input_wanted: InputWanted, answers: Mapping[str, object]
) -> dict[str, object]:
    """Return the parameters of the request that is sent again with these answers."""
    again = {**params, "inputResponses": dict(answers)}
    if bytes(input_wanted.state):
        again["requestState"] = input_wanted.state
    return again


# Results


class KeptLink(Struct, frozen=True, rename="camel"):
    """Link in a short result to the result that the gateway keeps."""

    uri: str = ""
    mime_type: str = ""


def find_kept_link(result: bytes | Raw) -> KeptLink | None:
    """Return the link of a short result; None for any other one."""
    if META.encode() not in bytes(result):
        return None
    content = sequence(table(codec.value(result)).get("content"))
    links = (codec.decode_as(KeptLink, codec.dump(block)) for block in content)
    return next((link for link in links if link.uri.startswith(SCHEME)), None)


def piece(result: bytes | Raw) -> tuple[str, str]:
    """Return a piece of a kept result, and the URI of the next one, empty after the last."""
    members = table(codec.value(result))
    text = "".join(
        str(table(content).get("text", "")) for content in sequence(members.get("contents"))
    )
    return text, str(table(table(members.get("_meta")).get(META)).get("next", ""))


def restore_result(short: bytes | Raw, link: KeptLink, text: str) -> Raw:
    """Return the result in place of which a short one came. `text`: what was kept of it."""
    if link.mime_type == "application/json":
        return Raw(text.encode())
    members = table(codec.value(short))
    return Raw(codec.dump({**members, "content": [{"type": "text", "text": text}]}))


class ResultPart(Struct, frozen=True):
    """Part of the content of a result. `kind`: as in the protocol; `text`: what can be read;
    `data`: the bytes of a file, `media_type`: their type."""

    kind: str
    text: str = ""
    data: bytes = b""
    media_type: str = ""


def parts(result: bytes | Raw) -> Iterator[ResultPart]:
    """Yield the parts of a result of `tools/call`; its structured content if it has no others."""
    members = table(codec.value(result))
    several = sequence(members.get("content"))
    for block in several:
        yield _part(table(block))
    if not several and (structured := members.get("structuredContent")) is not None:
        yield ResultPart("structured", codec.dump(structured).decode())


def _part(block: Mapping[str, Any]) -> ResultPart:
    kind = str(block.get("type", ""))
    match kind:
        case "text":
            return ResultPart(kind, str(block.get("text", "")))
        case "image" | "audio":
            return _file(kind, block.get("data"), block)
        case "resource":
            resource = table(block.get("resource"))
            if "blob" in resource:
                return _file(kind, resource["blob"], resource)
            return ResultPart(kind, str(resource.get("text", "")), b"", _type(resource))
        case "resource_link":
            return ResultPart(kind, f"{block.get('name', '')} {block.get('uri', '')}".strip())
        case _:
            return ResultPart(kind or "unknown", codec.dump(block).decode())


def _file(kind: str, data: object, about: Mapping[str, Any]) -> ResultPart:
    try:
        decoded = base64.b64decode(data if isinstance(data, str) else "", validate=True)
    except (binascii.Error, ValueError):
        return ResultPart(kind, "its data is not Base64", b"", _type(about))
    return ResultPart(kind, "", decoded, _type(about))


def _type(about: Mapping[str, Any]) -> str:
    media_type = about.get("mimeType")
    return media_type if isinstance(media_type, str) else ""
