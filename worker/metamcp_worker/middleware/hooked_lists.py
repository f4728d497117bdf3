"""Lists of tools that middleware changes, once for each list of a server.

Owns: which lists go through hooks, what stands in for a list until its hooks have answered. Never:
the merge of lists (`catalog`), the way through the hooks (`front_side`).

A hook gets all tools of a server, if it matches one of them. The hook may leave tools out and
change definitions. Until the first answer tools are hidden, if one of the hooks is enforced, and
also if it fails. A list that comes again, as after a restart of its server, has its answer.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.middleware_calls import Hook, StartHook
from metamcp_worker.ipc.server_catalog import iter_definitions
from metamcp_worker.middleware.chain import HookAnswer
from metamcp_worker.middleware.front_side import (
    HookedRequest,
    MiddlewareClient,
    MiddlewareClients,
)

_WAITS = "The middleware {!r} has not seen this tool yet; try again."
HOOK: Hook = "on_list_tools"

log = logging.getLogger("metamcp.front")


class ToolLists(Protocol):
    """Lists of tools of all servers; see `catalog.Catalog`."""

    def tools(self, server: str) -> Sequence[bytes]:
        """Return the raw definitions of a server's tools, as the server made them."""
        ...

    def servers(self) -> Sequence[str]:
        """Return the names of all servers."""
        ...

    def retool(self, server: str, tools: Sequence[bytes] | None, why_none: str = "") -> None:
        """Show these tools of a server in place of its own; None: its own. `why_none`: a sentence
        why none is shown; empty if they are."""
        ...


class _HookedList(Struct):
    """List of one server. `plain`: raw definitions of the server; `lines`: the middleware that it
    went through; `shown`: those that hooks have built from it, None if they have not; `why_none`: a
    sentence why no tool is shown."""

    plain: tuple[bytes, ...]
    lines: tuple[MiddlewareClient, ...]
    shown: tuple[bytes, ...] | None = None
    why_none: str = ""


class HookedLists:
    """Lists of a front. `changed`: called when a list has changed, but not by a call of this
    object."""

    def __init__(
        self, lines: MiddlewareClients, lists: ToolLists, changed: Callable[[], None]
    ) -> None:
        self._lines = lines
        self._lists = lists
        self._changed = changed
        self._known: dict[str, _HookedList] = {}
        lines.changed = self._hooks_changed

    def on_catalogue(self, server: str) -> None:
        """Look at the tools of a server, which may be new, and notify its middleware."""
        self._lines.tell(process_names.base(server))
        self._look(server)

    def on_news(self, server: str) -> None:
        """Notify the middleware of a server whose tools may have changed."""
        self._lines.tell(process_names.base(server))

    def _look(self, server: str) -> None:
        lines = tuple(line for line in self._lines.all() if line.has(HOOK))
        plain = tuple(self._lists.tools(server)) if lines else ()
        lines = _through(lines, process_names.base(server), plain)
        before = self._known.get(server)
        if not lines:
            if self._known.pop(server, None) is not None:
                self._lists.retool(server, None)
            return
        if before is not None and (before.plain, before.lines) == (plain, lines):
            self._show(server, before)
            return
        enforced = [line.spec.name for line in lines if line.spec.enforce]
        reason = _WAITS.format(enforced[0]) if enforced else ""
        hooked_list = self._known[server] = _HookedList(plain, lines, why_none=reason)
        self._show(server, hooked_list)
        self._ask(server, hooked_list)

    def recheck_servers(self) -> None:
        """Look at the tools of all servers again, because there is other middleware."""
        for server in self._lists.servers():
            self._look(server)

    def _show(self, server: str, hooked_list: _HookedList) -> None:
        self._lists.retool(server, hooked_list.shown, hooked_list.why_none)

    def _ask(self, server: str, hooked_list: _HookedList) -> None:
        facts = StartHook(hook=HOOK, server=process_names.base(server))
        request: HookedRequest

        def call(_: bytes) -> None:
            request.chain.on_answer(
                HookAnswer(codec.dump(list(map(Raw, hooked_list.plain)))), final=True
            )

        def on_answer(answer: HookAnswer) -> None:
            hooked_list.why_none = _message(answer.body) if answer.code else ""
            hooked_list.shown = (
                None if answer.code else _read_definitions(server, hooked_list.plain, answer.body)
            )
            if self._known.get(server) is hooked_list and server in self._lists.servers():
                self._show(server, hooked_list)
                self._changed()

        request = HookedRequest(hooked_list.lines, facts, call, lambda reason: None, on_answer)
        request.chain.begin(b"null")

    def _hooks_changed(self) -> None:
        """Processes have reported their hooks."""
        self.recheck_servers()
        self._changed()


def _through(
    lines: Sequence[MiddlewareClient], server: str, plain: Sequence[bytes]
) -> tuple[MiddlewareClient, ...]:
    """Return the middleware that matches one of these tools."""
    names = [tool.key for tool in iter_definitions("tools", map(Raw, plain))]
    return tuple(line for line in lines if any(line.matches(server, name) for name in names))


def _message(error: bytes) -> str:
    return codec.text(codec.level(error).get("message", b"null")) or "Its middleware failed."


def _read_definitions(server: str, plain: Sequence[bytes], body: bytes) -> tuple[bytes, ...]:
    """Return the raw definitions that hooks have built, without tools that the server has not."""
    own = {tool.key for tool in iter_definitions("tools", map(Raw, plain))}
    try:
        made = list(iter_definitions("tools", codec.items(body)))
    except codec.Malformed as error:
        log.error("middleware made something that is not a list of tools: %s", error)
        return ()
    if unknown := [tool.key for tool in made if tool.key not in own]:
        log.warning("middleware lists tools that %s has not: %s", server, ", ".join(unknown[:5]))
    return tuple(tool.raw for tool in made if tool.key in own)
