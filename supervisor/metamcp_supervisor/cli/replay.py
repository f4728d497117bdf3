"""`metamcp replay`: make a recorded call once more, and compare the outcomes.

Owns: which calls can be replayed, the question before a tool that may change something, and a small
MCP client of both eras. Never: the recordings (`recordings`).
"""

import difflib
import http.client
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import click
from msgspec import UNSET, Raw, Struct

from metamcp_supervisor.cli import columns, recordings, show
from metamcp_supervisor.cli.connect import credential_options
from metamcp_supervisor.cli.ctl import Duration
from metamcp_supervisor.cli.errors import Command, told
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.cli.recordings import config_option, pretty, state_option
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_worker.http import mcp_headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.records import ARGUMENTS, RESULT, FinishedCall
from metamcp_worker.runtime.masking import MASK

if TYPE_CHECKING:
    from metamcp_worker.bridge.http_client import Trust

MODERN = "2026-07-28"
BODY_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of an answer; more than any answer that passes the gateway."""
PAGES_MAX = 1000
"""Maximum pages of a list."""
_PREFIX = "io.modelcontextprotocol/"
_ME = {"name": "metamcp replay", "version": "1"}


class Asker:
    """MCP client for a few requests. `protocol`: the revision to speak. Raises Failed, as all
    methods do."""

    def __init__(self, url: str, protocol: str, timeout_s: float, trust: "Trust") -> None:
        place = urlsplit(url)
        self._path = place.path
        self._url = url
        self._protocol = protocol
        self._key = trust.key
        self._http = _connection(url, timeout_s, trust.ca)
        self._session: str | None = None
        self._last = 0
        if protocol != MODERN:
            greeting = {"protocolVersion": protocol, "capabilities": {}, "clientInfo": _ME}
            if error := bytes(self.ask("initialize", greeting).error):
                raise Failed(Exit.FAILED, f"{self._url} lets nobody in: {_message(error)}")
            self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._session is not None and kind is None:
                self._http.request("DELETE", self._path, headers=self._headers({}))
                self._http.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # the session ends by itself when its client does not come back
        finally:
            self._http.close()

    def ask(
        self, method: str, params: Mapping[str, object], tool: Mapping[str, Any] | None = None
    ) -> codec.Envelope:
        """Send a request and return the answer, with a result or an error. `tool`: definition of
        the called tool, which may want arguments repeated in headers."""
        self._last += 1
        whole = dict(params)
        if self._protocol == MODERN:
            whole["_meta"] = {
                f"{_PREFIX}protocolVersion": MODERN,
                f"{_PREFIX}clientCapabilities": {},
                f"{_PREFIX}clientInfo": _ME,
            }
        message = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": whole}
        kind, body = self._post(message, repeated(method, params, tool or {}))
        why = ""
        for found in _messages(kind, body):
            why = _message(found.error) if bytes(found.error) else why
            if bytes(found.id) == b"%d" % self._last and (
                bytes(found.result) or bytes(found.error)
            ):
                return found
        what = f"refuses {method}: {why}" if why else f"gave no answer to {method}"
        raise Failed(Exit.FAILED, f"{self._url} {what}")

    def tool(self, name: str) -> Mapping[str, Any] | None:
        """Return the definition of a tool; None if the endpoint does not have the tool."""
        cursor: dict[str, object] = {}
        for _ in range(PAGES_MAX):
            answer = self.ask("tools/list", cursor)
            page: dict[str, Any] = codec.value(bytes(answer.result) or b"{}")
            for tool in page.get("tools", ()):
                if tool.get("name") == name:
                    found: Mapping[str, Any] = tool
                    return found
            if not page.get("nextCursor"):
                return None
            cursor = {"cursor": page["nextCursor"]}
        return None

    def _headers(self, routing: Mapping[str, str]) -> dict[str, str]:
        found = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **({"Authorization": f"Bearer {self._key}"} if self._key else {}),
        }
        if self._protocol == MODERN:
            found |= {"MCP-Protocol-Version": MODERN, **routing}
        elif self._session is not None:
            found |= {"MCP-Protocol-Version": self._protocol, "Mcp-Session-Id": self._session}
        return found

    def _post(self, message: object, routing: Mapping[str, str]) -> tuple[str, bytes]:
        try:
            self._http.request("POST", self._path, codec.dump(message), self._headers(routing))
            answer = self._http.getresponse()
            body = answer.read(BODY_BYTES_MAX)
        except TimeoutError:
            limit = f"{self._http.timeout:g} s"
            raise Failed(Exit.TIMEOUT, f"{self._url} gave no answer within {limit}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Failed(Exit.FAILED, f"{self._url} cannot be asked: {error}") from None
        self._session = answer.getheader("mcp-session-id") or self._session
        return answer.getheader("content-type") or "", body


def _connection(url: str, timeout_s: float, ca: str) -> http.client.HTTPConnection:
    """Return a connection that is not open yet. Raises Failed."""
    place = urlsplit(url)
    if place.scheme != "https":
        return http.client.HTTPConnection(place.netloc, timeout=timeout_s)
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca or None)
    except FileNotFoundError:
        raise Failed(Exit.USAGE, f"{ca} does not exist") from None
    except OSError:
        raise Failed(Exit.USAGE, f"{ca} has no certificates in PEM") from None
    return http.client.HTTPSConnection(place.netloc, timeout=timeout_s, context=context)


def _messages(kind: str, body: bytes) -> Iterator[codec.Envelope]:
    """Yield the messages of an answer, on a stream or alone."""
    streamed = kind.startswith("text/event-stream")
    for raw in _events(body) if streamed else [body]:
        try:
            yield codec.envelope(raw)
        except codec.Malformed:
            continue


def _events(body: bytes) -> Iterator[bytes]:
    for event in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if data:
            yield b"\n".join(data)


class _ErrorHead(Struct, frozen=True):
    code: int = int(Code.INTERNAL_ERROR)
    message: str = ""


def _message(error: bytes | Raw) -> str:
    try:
        return codec.typed(_ErrorHead, error).message
    except codec.Malformed:
        return "an error that cannot be read"


def repeated(method: str, params: Mapping[str, object], tool: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers in which revision 2026-07-28 wants parts of a request repeated."""
    raw = codec.level(codec.dump(params))
    found = mcp_headers.routing(method, raw)
    try:
        wishes = mcp_headers.wanted(codec.dump(tool.get("inputSchema", {})))
        return found | mcp_headers.repeated(wishes, raw.get("arguments", Raw(b"")))
    except (mcp_headers.HeaderRuleUnfit, codec.Malformed):  # the gateway wants none for such a tool
        return found


def outcome_of(answer: codec.Envelope) -> tuple[str, Raw]:
    """Return how a call ended, in the words of `call_records`, and its result or error."""
    if bytes(answer.error):
        try:
            code = codec.typed(_ErrorHead, answer.error).code
        except codec.Malformed:
            code = int(Code.INTERNAL_ERROR)
        return str(code), answer.error
    members = codec.level(answer.result)
    failed = bytes(members.get("isError", b"")) == b"true"
    return ("tool_error" if failed else "ok"), answer.result


DIFF_LINES_MAX = 40
"""Maximum lines of a difference to print; beyond them the result is simply another one."""


@click.command(cls=Command)
@click.argument("word", metavar="ID")
@click.option("--endpoint", metavar="NAME", help="Another one than that of the recorded call.")
@click.option("--yes", is_flag=True, help="Also a tool that may change something, unasked.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="5m", show_default=True, metavar="DURATION",
    help="How long the answer may take.",
)  # fmt: skip
@click.option("--runtime-dir", metavar="PATH", help="Where the gateway keeps its control socket.")
@credential_options
@state_option
@config_option
@told
def replay(
    word: str,
    endpoint: str | None,
    yes: bool,
    timeout_s: float,
    runtime_dir: str | None,
    key_env: str | None,
    key_file: str | None,
    ca: str | None,
    state_dir: str | None,
    path: Path | None,
) -> None:
    """Make a recorded call once more, with the same arguments, and compare the results.

    Exit code 1 if the result differs. 'metamcp calls' shows what is recorded.
    """

    from metamcp_supervisor.cli.connect import trust_of

    def work() -> int:
        call = recordings.find(recordings.place(state_dir, path), word)
        asked = params(call)
        url = url_of(endpoint or call.endpoint, runtime_dir)
        trust = trust_of(key_env, key_file, ca, runtime_dir or client.meant())
        with Asker(url, call.protocol or MODERN, timeout_s, trust) as asker:
            called = call.method == "tools/call"
            tool = _ask_first(asker, call.name, yes=yes) if called else None
            with progress(f"calls {call.name}"):
                ended, result = outcome_of(asker.ask(call.method, asked, tool))
        return _told(call, ended, result)

    recordings.ending(work)


def params(call: FinishedCall) -> dict[str, object]:
    """Return the parameters of the request. Raises Failed for a call whose arguments are not fully
    known."""
    why = ""
    if call.arguments is UNSET and call.arguments_bytes:
        why = 'its arguments were not recorded; [recording] calls = "full" records them'
    elif ARGUMENTS in call.masked or MASK in call.name:
        why = "a secret was taken out of its arguments"
    elif ARGUMENTS in call.cut:
        why = "its arguments were cut; a larger 'body_max' in [recording] keeps them"
    if why:
        raise Failed(Exit.FAILED, f"{call.id} cannot be replayed: {why}")
    if call.method == "resources/read":
        return {"uri": call.name}
    arguments = Raw(b"{}") if call.arguments is UNSET else call.arguments
    return {"name": call.name, "arguments": arguments}


def url_of(endpoint: str, runtime_dir: str | None) -> str:
    """Return the URL of the endpoint. Raises Failed."""
    with client.connect(runtime_dir) as gateway:
        status = codec.typed(GatewayStatus, gateway.call("status"))
    if endpoint not in status.endpoints:
        known = ", ".join(status.endpoints) or "none"
        text = f"no endpoint is named {endpoint!r}; say --endpoint with one of: {known}"
        raise Failed(Exit.UNKNOWN_NAME, text)
    return status.endpoints[endpoint]


def _ask_first(asker: Asker, name: str, *, yes: bool) -> Mapping[str, Any]:
    """Return the definition of the tool. Ask first if the tool may change something, unless `yes`.
    Raises Failed if the user does not agree."""
    tool = asker.tool(name)
    if tool is None:
        raise Failed(Exit.UNKNOWN_NAME, f"the endpoint has no tool {name!r} now")
    hints: Mapping[str, object] = tool.get("annotations") or {}
    if yes or hints.get("readOnlyHint") is True:
        return tool
    what = f"{name} does not say that it only reads: calling it again may change something"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failed(Exit.USAGE, f"{what}; say --yes to call it")
    try:
        agreed = click.confirm(show.printable(f"{what}. Call it?"), default=False, err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        raise Failed(Exit.FAILED, "nothing was called")
    return tool


def _told(call: FinishedCall, ended: str, result: Raw) -> int:
    """Print the result, and how it differs from the recorded one. Return the exit code."""
    for line in pretty(result):
        click.echo(show.printable(line))
    if ended != call.outcome:
        click.echo(f"\ndiffers: it ended with {ended}, the recorded call with {call.outcome}")
        return Exit.FAILED
    why = "not recorded" if call.result is UNSET else ""
    why = why or ("cut" if RESULT in call.cut else "masked" if RESULT in call.masked else "")
    if why:
        click.echo(
            f"\nit ended as before ({ended}); the recorded result is {why}, so no more is said"
        )
        return Exit.OK
    assert call.result is not UNSET
    lines = list(_differences(call.result, result))
    if not lines:
        click.echo("\nthe same as before")
        return Exit.OK
    click.echo("\ndiffers from what was recorded:")
    for line in lines[:DIFF_LINES_MAX]:
        click.echo(f"  {show.printable(line)}")
    if len(lines) > DIFF_LINES_MAX:
        click.echo(f"  … {len(lines) - DIFF_LINES_MAX} more lines")
    return Exit.FAILED


def _differences(before: Raw, now: Raw) -> Iterator[str]:
    found = difflib.unified_diff(pretty(before), pretty(now), n=1, lineterm="")
    for number, line in enumerate(found):
        if number > 1:  # the first two lines name files, but these are not files
            yield columns.cut(line, 200)
