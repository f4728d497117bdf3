"""The verbs about kept results: list, show and purge them.

Owns: their parameters, the form of the answers, the journal's words. Never: files, and which
results nobody can read any more (`results.result_keeper`).
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.services import ChangeParams, ControlStream, GatewayControl, Verb
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.results.result_summary import KeptResult

if TYPE_CHECKING:
    from metamcp_supervisor.results.result_keeper import ResultKeeper

LISTED_MAX = 2000
"""Maximum results in one answer, which is one line of the control socket; the newest are listed."""


TEXT_BYTES_MAX = 1024 * 1024 - 16 * 1024
"""Maximum bytes of a text in an answer, as JSON: the answer is one line of the control socket."""


class ResultsParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `results`."""


class ResultWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `results-show`."""

    handle: str


class ResultsPurge(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `results-purge`. `handles`: of the results to remove; none: all results."""

    handles: tuple[str, ...] = ()


class ResultShown(Struct, frozen=True, kw_only=True):
    """Kept result. `tool`: its server's name of the tool, or the method; `bytes`: of its text;
    `saved_tokens`: estimate of the tokens that its client did not get; `kept`, `until`: ISO 8601,
    UTC."""

    handle: str
    endpoint: str
    workspace: str
    principal: str
    server: str
    tool: str
    bytes: int
    saved_tokens: int
    shape: str
    kept: str
    until: str


class ResultList(Struct, frozen=True, kw_only=True):
    """Kept results, the oldest first. `more`: how many older ones are left out; `bytes`,
    `saved_tokens`: of all; `text`: beginning of the text, where one result is shown."""

    v: int = VERSION
    results: tuple[ResultShown, ...]
    more: int = 0
    bytes: int = 0
    saved_tokens: int = 0
    text: str = ""


class ResultsPurged(Struct, frozen=True, kw_only=True):
    """Result of an order to remove results. `purged`: how many there were."""

    v: int = VERSION
    purged: int


def about(params: ResultsPurge, result: object) -> Sequence[str]:
    """Return the words of the audit for an order."""
    return ("purged", *(params.handles or ("all",)))


async def results(gateway: GatewayControl, line: ControlStream, params: ResultsParams) -> object:
    all_results = await _keeper(gateway).list_results()
    listed = tuple(map(_describe_result, all_results[-LISTED_MAX:]))
    return ResultList(
        results=listed,
        more=len(all_results) - len(listed),
        bytes=sum(result.size_bytes for result in all_results),
        saved_tokens=sum(result.saved_tokens for result in all_results),
    )


async def show(gateway: GatewayControl, line: ControlStream, params: ResultWanted) -> object:
    try:
        stored = await _keeper(gateway).read_beginning(params.handle)
    except OSError as error:
        raise ProtocolError(Exit.FAILED, f"the result cannot be read: {error.strerror}") from None
    if stored is None:
        raise _unknown(params.handle)
    result, piece = stored
    gateway.journal.add("gateway", "results", f"{result.handle} shown to {line.caller}")
    return ResultList(
        results=(_describe_result(result),), bytes=result.size_bytes, text=truncate_text(piece.text)
    )


async def purge(gateway: GatewayControl, line: ControlStream, params: ResultsPurge) -> object:
    count = await _keeper(gateway).purge(params.handles)
    if not count and params.handles:
        raise _unknown(params.handles[0])
    gateway.journal.add("gateway", "results", f"{count} purged by {line.caller}")
    return ResultsPurged(purged=count)


def _keeper(gateway: GatewayControl) -> "ResultKeeper":
    from metamcp_supervisor.results.result_keeper import ResultKeeper  # not for the command line

    return gateway.service(ResultKeeper)


def truncate_text(text: str) -> str:
    """Return the beginning of a text, so long that an answer can hold it: some characters take six
    bytes in JSON."""
    while (size := len(codec.dump(text))) > TEXT_BYTES_MAX:
        text = text[: len(text) * TEXT_BYTES_MAX // size]
    return text


def _unknown(handle: str) -> ProtocolError:
    message = (
        f"there is not a result {handle[:64]!r}; 'metamcp results list' shows those that are kept"
    )
    return ProtocolError(Exit.UNKNOWN_NAME, message)


def _describe_result(result: KeptResult) -> ResultShown:
    return ResultShown(
        handle=result.handle,
        endpoint=result.endpoint,
        workspace=result.workspace,
        principal=result.principal,
        server=result.server,
        tool=result.tool,
        bytes=result.size_bytes,
        saved_tokens=result.saved_tokens,
        shape=result.shape,
        kept=_iso(result.kept),
        until=_iso(result.until),
    )


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


VERBS = {
    "results": Verb(ResultsParams, results, Role.OPERATOR, reads=True),
    "results-show": Verb(ResultWanted, show, reads=True),
    "results-purge": Verb(ResultsPurge, purge, about=about),
}
