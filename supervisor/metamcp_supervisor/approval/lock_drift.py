"""Drift: how the tools that a server offers differ from the approved ones, and which to hold back.

Owns: the decision, as data, and its sentences. Never: the file (`lock`, `lock_io`), how bad a
difference is (`metamcp_supervisor.approval.comparison`), hiding tools from clients (the fronts do).

The decision depends on what there is to compare with, and on whether differences have consequences.

- The approved tools are in the entry of the server in `metamcp.lock`. Without an entry, tools are
  compared with those that the server offered when it was first seen (`lock_io`).
- Differences have consequences with `pinning = "enforce"`, and, if `pinning` is not set, for a
  server that has an entry in `metamcp.lock`: a user who writes that file wants it to be enforced.
  `record` reports differences and does nothing; `off` does not even compare.

Only the tool that drifted is kept back. A change that is compatible or additive and brings no new
words passes with a note. A tool that is not approved yet is kept back like a tool that drifted: its
words and abilities were not reviewed, and if new names passed, an attacker who cannot change a tool
would add one. A tool that is gone is reported and has no other effect.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Raw, Struct, structs

from metamcp_supervisor import verbs
from metamcp_supervisor.approval import lock as locks
from metamcp_supervisor.approval.lock import (
    RAW_SCHEME,
    Lock,
    LockedServer,
    LockedTool,
    fingerprint,
    read_definition,
    select_members,
)
from metamcp_supervisor.config import reload
from metamcp_supervisor.config.config import Pinning
from metamcp_supervisor.config.document import join_names, shorten
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.codec import Malformed

if TYPE_CHECKING:
    from metamcp_supervisor.approval.comparison import Comparison

Change = Literal["same", "changed", "added", "removed", "unreadable"]

_PLAIN = re.compile(r"[A-Za-z0-9_./-]{1,128}")


class QuarantinedTool(Struct, frozen=True):
    """Tool that clients neither see nor call. `reason`: a sentence for the caller."""

    server: str
    tool: str
    reason: str


class ToolDrift(Struct, frozen=True):
    """Difference of a tool. `old`: as approved, None if the tool is new; `new`: as offered, None if
    the tool is gone or cannot be read; `comparison`: of both, where there are both."""

    server: str
    tool: str
    change: Change
    old: LockedTool | None = None
    new: LockedTool | None = None
    comparison: "Comparison | None" = None

    @property
    def is_news(self) -> bool:
        """Whether the tool is not as approved."""
        return self.change != "same"

    @property
    def word(self) -> str:
        """Kind of difference for tables; for a changed tool, the verdict on the change."""
        if self.comparison is None:
            return self.change
        return f"{self.comparison.verdict}{', words' if self.comparison.drift else ''}"

    @property
    def harmless(self) -> bool:
        """Whether clients may have the tool as it is offered now."""
        if self.change in ("same", "removed"):
            return True
        return self.comparison is not None and self.comparison.harmless

    @property
    def difference_text(self) -> str:
        """Sentence about the difference, without the name of the tool."""
        if self.comparison is not None:
            if self.comparison.harmless:
                return f"it is defined otherwise than approved, in a way that is {self.word}"
            from metamcp_supervisor.approval.comparison import SchemaVerdict

            worst = self.comparison.verdict
            sorts = [
                *(["in what it says"] if self.comparison.drift else []),
                *(["so that callers break"] if worst is SchemaVerdict.BREAKING else []),
                *(["in a way that cannot be judged"] if worst is SchemaVerdict.UNKNOWN else []),
            ]
            return f"it is defined otherwise than approved, {' and '.join(sorts)}"
        return {
            "same": "it is as approved",
            "added": "nobody has approved it yet",
            "removed": "it is not offered any more",
            "unreadable": "its definition has no one reading",
        }.get(self.change, self.change)


def mode(pinning: Pinning | None, *, locked: bool) -> Pinning:
    """Return the pinning in force for a server. `locked`: whether `metamcp.lock` has an entry for
    the server."""
    return pinning or ("enforce" if locked else "record")


def drifts(
    server: str, approved: LockedServer, offered: Iterable[bytes | Raw]
) -> tuple[ToolDrift, ...]:
    """Compare every tool of the server, approved or offered, in the order of names. If a name is
    offered twice with definitions that differ, the tool cannot be read."""
    now = _by_name(offered)
    differences: list[ToolDrift] = []
    for name in sorted(approved.tools.keys() | now.keys()):
        old, new = approved.tools.get(name), now.get(name)
        if name not in now:
            differences.append(ToolDrift(server, name, "removed", old))
        elif new is None:
            differences.append(ToolDrift(server, name, "unreadable", old))
        elif old is None:
            differences.append(ToolDrift(server, name, "added", None, new))
        elif old.fingerprint == new.fingerprint:
            differences.append(ToolDrift(server, name, "same", old, new))
        else:
            named = {"name": name}
            differences.append(
                ToolDrift(
                    server, name, "changed", old, new,
                    _compare_definitions(
                        named | dict(old.definition), named | dict(new.definition)
                    ),
                )
            )  # fmt: skip
    return tuple(differences)


def _compare_definitions(old: Mapping[str, object], new: Mapping[str, object]) -> "Comparison":
    """Compare two definitions. The module that compares schemas is imported only here, because most
    gateways never see a tool change."""
    from metamcp_supervisor.approval.comparison import compare_read

    return compare_read(old, new)


def select_quarantined(
    differences: Sequence[ToolDrift], pinning: Pinning, *, locked: bool = True
) -> frozenset[QuarantinedTool]:
    """Return the tools to keep from clients. `pinning`: result of `mode`; `locked`: as there."""
    if pinning != "enforce":
        return frozenset()
    return frozenset(
        QuarantinedTool(each.server, each.tool, reason(each, locked=locked))
        for each in differences
        if not each.harmless
    )


def reason(drift: ToolDrift, *, locked: bool) -> str:
    """Return a sentence for the caller of a tool in quarantine. The command approves a single tool
    only if the server has an entry in the lock file; a name that a shell would interpret is not put
    into a command."""
    server = process_names.base(drift.server)
    target = f"{server}.{drift.tool}" if _PLAIN.fullmatch(drift.tool) else server
    look, approve = f"lock diff {target}", f"lock approve {target}"
    if not locked:
        look, approve = f"tools --diff {target}", f"lock approve {server}"
    return (
        f"the tool '{shorten(drift.tool)}' of '{server}' is in quarantine: "
        f"{drift.difference_text}; an operator may look at it with 'metamcp {look}'"
        f" and approve it with 'metamcp {approve}'"
    )


def explain_pending(server: str) -> str:
    """Return the same sentence for a tool that is not judged yet."""
    return (
        f"this tool of '{process_names.base(server)}' is in quarantine until it is compared with"
        " what was approved; try again in a moment"
    )


def summary(differences: Sequence[ToolDrift]) -> str:
    """Return a sentence for the journal; empty if every tool is as approved."""
    sorts: dict[str, list[str]] = {}
    for each in differences:
        if each.change != "same":
            sorts.setdefault(each.word, []).append(each.tool)
    return "; ".join(f"{word}: {join_names(names)}" for word, names in sorted(sorts.items()))


def build_locked_tool(definition: bytes | Raw) -> tuple[str, LockedTool]:
    """Return the name of an offered tool, and the entry that approves it. Raises
    codec.Malformed."""
    values = read_definition(definition)
    name = values.get("name")
    if not isinstance(name, str):
        raise Malformed("has no name")
    print_ = fingerprint(definition)
    if print_.startswith(RAW_SCHEME):
        raise Malformed("is nested too deeply")
    members = select_members(values)
    del members["name"]
    return name, LockedTool(print_, members)


class ServerInfo(Struct, frozen=True):
    """Name and version that a server gives itself; other members are ignored."""

    name: str = ""
    version: str = ""


def server_info(raw: bytes | Raw) -> Mapping[str, str]:
    """Return the name and version that a server gives itself."""
    try:
        info = codec.decode_as(ServerInfo, raw)
    except Malformed:
        info = ServerInfo()
    return {"name": info.name, "version": info.version}


def approve_tools(
    approved: LockedServer,
    offered: Iterable[bytes | Raw],
    only: str | None,
    info: Mapping[str, str],
) -> LockedServer:
    """Return the entry of a server after the approval of all offered tools, or of the tool `only`.
    Tools that cannot be read cannot be approved, and their entries stay as they were."""
    now = _by_name(offered)
    if only is None:
        tools = {
            name: tool if tool is not None else approved.tools[name]
            for name, tool in now.items()
            if tool is not None or name in approved.tools
        }
        return LockedServer(info.get("name", ""), info.get("version", ""), tools)
    tools = dict(approved.tools)
    if only not in now:
        tools.pop(only, None)
    elif (tool := now[only]) is not None:
        tools[only] = tool
    return LockedServer(approved.name, approved.version, tools)


def _by_name(offered: Iterable[bytes | Raw]) -> dict[str, LockedTool | None]:
    """Return offered tools by name; None: the tool cannot be read, or is offered twice with
    definitions that differ. A tool without a name is left out: no client can call it."""
    tools: dict[str, LockedTool | None] = {}
    for definition in offered:
        try:
            name, tool = build_locked_tool(definition)
        except Malformed:
            named = name_of(definition)
            if named is not None:
                tools[named] = None
            continue
        tools[name] = None if name in tools and tools[name] != tool else tool
    return tools


def name_of(definition: bytes | Raw) -> str | None:
    """Return the name of a tool, read in the same way as the fronts do; None without one."""
    return codec.text(codec.members(definition).get("name", Raw(b"null")))


def with_lock_change(
    plan: verbs.ReloadPlan, old: Lock | None, new: Lock | None
) -> verbs.ReloadPlan:
    """Add the change of `metamcp.lock` to the plan of a reload, under that name: no server can have
    a name with a dot."""
    action = "add" if old is None else "remove" if new is None else "in-place"
    change = verbs.PlannedChange(
        server="metamcp.lock", action=action, why=locks.difference(old, new)
    )
    hashed = reload.digest([plan.hash, locks.prints(new)])
    return structs.replace(plan, changes=(*plan.changes, change), hash=hashed)
