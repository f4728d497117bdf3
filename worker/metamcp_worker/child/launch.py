"""Which way leads to a server: pipes to a process or a thread, HTTP, or a user's own code.

Owns: the choice, by what is set in the specification. Never: the ways themselves.

What a server does not need is not imported for it: a worker is forked in milliseconds.
"""

from metamcp_worker.child import inprocess, process
from metamcp_worker.child.connection import Connection
from metamcp_worker.child.transport import Listener, Transport
from metamcp_worker.ipc.spec import ServerSpec

_BUILT_IN = frozenset({"auto", "http", "sse"})


def launch(spec: ServerSpec, version: str, listener: Listener) -> Transport:
    """Start the server, or the way to it. Raises SpawnFailed."""
    if spec.url is not None and spec.oauth is not None:
        from metamcp_worker.child.oauth import authorized

        return authorized(spec, version, listener)
    if spec.url is not None:
        from metamcp_worker.child.remote import remote

        return remote(spec, version, listener)
    if spec.module is not None:
        return Connection(spec, lambda told: inprocess.host(spec, told), listener)
    if not spec.command and spec.transport not in _BUILT_IN:
        from metamcp_worker.child.custom import custom

        return custom(spec, listener)
    return Connection(spec, lambda told: process.spawn(spec, told), listener)
