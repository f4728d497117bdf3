"""The verbs about workflows: an order to the engine for the local user, and what comes of it.

Owns: their parameters, a connection to the engine, the relay of progress. Never: carrying an order
out (`metamcp_worker.engine`), the engine's process (`workflows.engine_process`).

The order acts for the local user at an endpoint, who sees all runs. If the client goes away, the
connection ends: a workflow goes on, an agent ends.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal

from msgspec import Raw, Struct

from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.services import ChangeParams, ControlStream, GatewayControl, Verb
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import (
    FRAME,
    FRAME_BYTES_MAX,
    EngineOrder,
    OrderDone,
    OrderProgress,
    RunOwner,
)
from metamcp_worker.ipc.errors import ProtocolError

LOCAL = "local"
"""Name of the local user as the owner of a run."""
NONE = 'nothing is configured for the engine: write workflows = ["FOLDER"] or the table [ai]'

_read = codec.reader(OrderProgress | OrderDone)


class WorkflowQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of `workflow`. `params`: raw, as of the order `method` (`ipc.engine_runs`);
    `endpoint`: for which it acts, empty for the default one."""

    method: Literal["workflows", "workflow/runs", "workflow/status", "workflow/graph"]
    params: Raw = Raw(b"{}")
    endpoint: str = ""


class WorkflowOrder(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `workflow-change`, as of `workflow`. `suggest` may cost money of a model."""

    method: Literal[
        "workflow/run", "workflow/cancel", "workflow/decide", "workflow/answer", "suggest"
    ]
    params: Raw = Raw(b"{}")
    endpoint: str = ""


class OrderResult(Struct, frozen=True):
    """Result of both verbs, as `engine_runs.OrderDone`."""

    text: str
    structured: Raw
    failed: bool
    v: int = VERSION


def about(params: WorkflowOrder, result: object) -> Sequence[str]:
    """Return the words of the audit for an order."""
    return (params.method, params.endpoint) if params.endpoint else (params.method,)


async def workflow(
    gateway: GatewayControl, line: ControlStream, params: WorkflowQuery | WorkflowOrder
) -> object:
    """Give an order to the engine, and report its progress. Raises ProtocolError."""
    places = {
        endpoint: space.name
        for space in gateway.tree().workspaces
        for namespace in space.namespaces
        for endpoint in namespace.endpoints
    }
    name = params.endpoint or next(iter(gateway.shelf.endpoints()), "")
    if name not in places:
        message = f"no endpoint is named {name[:64]!r}; {hint(name, places)}"
        raise ProtocolError(Exit.UNKNOWN_NAME, message)
    owner = RunOwner(endpoint=name, name=LOCAL, workspace=places[name])
    order = EngineOrder(
        id=1, method=params.method, owner=owner, params=params.params, progress=True
    )
    body = codec.dump(order)
    from metamcp_supervisor.workflows.engine_process import EngineProcess  # not for the prompt

    try:
        if (sock := gateway.service(EngineProcess).connect()) is None:
            raise ProtocolError(Exit.FAILED, NONE)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        try:
            writer.write(FRAME.pack(len(body)) + body)
            await writer.drain()
            return await _while_here(reader, line)
        finally:
            writer.close()
    except (OSError, EOFError, codec.Malformed) as error:
        message = "the engine ended before it answered; 'metamcp workflow runs' shows what goes on"
        raise ProtocolError(Exit.FAILED, message) from error


async def _while_here(reader: asyncio.StreamReader, line: ControlStream) -> OrderResult:
    """Relay until the order is over. A run takes days, so an upgrade does not wait for it. Raises
    as `_relay_progress`, and PeerGone when the client leaves."""
    relay = asyncio.create_task(_relay_progress(reader, line))
    relay.add_done_callback(lambda _: line.wake())
    try:
        while not relay.done():
            await line.wait_for_wake(None)
        return relay.result()
    finally:
        relay.cancel()


async def _relay_progress(reader: asyncio.StreamReader, line: ControlStream) -> OrderResult:
    """Relay progress until the order is over. Raises OSError, EOFError and codec.Malformed."""
    while True:
        (size,) = FRAME.unpack(await reader.readexactly(FRAME.size))
        if size > FRAME_BYTES_MAX:
            raise codec.Malformed("a frame of the engine is too large")
        message = _read(await reader.readexactly(size))
        if isinstance(message, OrderDone):
            return OrderResult(message.text, message.structured, message.failed)
        await line.tell("progress", message)


VERBS = {
    "workflow": Verb(WorkflowQuery, workflow, Role.OPERATOR, reads=True),
    "workflow-change": Verb(
        WorkflowOrder,
        workflow,
        Role.DEVELOPER,
        about=about,
    ),
}
