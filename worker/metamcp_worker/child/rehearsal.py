"""Rehearsal: sessions with servers that do not exist, in the process that forks the workers.

Owns: the start of a session up to its lists. Never: I/O, real servers.

Python writes when code runs for the first time: the first instance of a class notes its attributes,
and the first lookup of a method is cached, each with a reference to a name. After a rehearsal the
workers share these pages: an idle worker has 140 KiB less of its own, of 6 MiB.
"""

from metamcp_worker.child.actions import ServerRequest
from metamcp_worker.child.server_session import ServerSession
from metamcp_worker.ipc.spec import ServerSpec

_TOOLS = b'"tools":[{"name":"a","inputSchema":{"type":"object"}}]'
_MODERN = {
    "server/discover": b'"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}',
    "tools/list": _TOOLS,
}
_LEGACY = {
    "initialize": b'"protocolVersion":"2025-11-25","capabilities":{"tools":{}}',
    "tools/list": _TOOLS,
}


def rehearse() -> list[ServerSession]:
    """Start a modern and a legacy session. Returns both, ready for calls."""
    return [_session(answers) for answers in (_MODERN, _LEGACY)]


def _session(answers: dict[str, bytes]) -> ServerSession:
    session = ServerSession(ServerSpec(name="a", command=("a",)), "", 0.0)
    actions = session.start()
    while actions:
        action = actions.pop(0)
        if isinstance(action, ServerRequest):
            actions += session.receive(_answer(action, answers), 0.0)
    session.tick(0.0)
    return session


def _answer(request: ServerRequest, answers: dict[str, bytes]) -> bytes:
    start = b'{"jsonrpc":"2.0","id":%b,' % request.key
    if request.method in answers:
        return start + b'"result":{%b}}' % answers[request.method]
    return start + b'"error":{"code":-32601,"message":"Method not found"}}'
