"""What a server offers beside what was approved: what drifted, and what is kept from clients.

Owns: the decision, as data, and its sentences. Never: the file (`lock`, `lock_io`), how bad a
difference is (`metamcp_supervisor.approval.comparison`), keeping anything from anybody (the fronts
do).

Two things decide: whether there is something to compare with, and whether differences have
consequences.

- What was approved is the entry of the server in `metamcp.lock`. Without one it is what the server
  offered when it was first seen, which the gateway keeps (`lock_io`).
- Differences have consequences with `pinning = "enforce"`, and without any word on it for a server
  that has an entry in `metamcp.lock`: who writes that file wants it to hold. `record` tells and
  does nothing; `off` does not even look.

Only the tool that drifted is kept back. What is compatible or additive and brings no new words
passes with a note. A tool that nobody has approved is kept back like one that drifted: it brings
words and power that nobody has looked at, and if new names passed, whoever cannot change a tool
would add one. A tool that is gone is told and nothing else.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import Raw, structs

from metamcp_supervisor import verbs
from metamcp_supervisor.approval import lock as locks
from metamcp_supervisor.approval.lock import (
    RAW_SCHEME,
    Lock,
    LockedServer,
    LockedTool,
    counted,
    fingerprint,
    read_definition,
)
from metamcp_supervisor.config import reload
from metamcp_supervisor.config.config import Pinning
from metamcp_supervisor.config.document import listed, shown
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.codec import Malformed

if TYPE_CHECKING:
    from metamcp_supervisor.approval.comparison import Comparison

Change = Literal["same", "changed", "added", "removed", "unreadable"]

_PLAIN = re.compile(r"[A-Za-z0-9_./-]{1,128}")


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A tool that clients neither see nor call. `reason`: a sentence for who calls it."""

    server: str
    tool: str
    reason: str


@dataclass(frozen=True, slots=True)
class ToolDrift:
    """One tool. `old`: as approved, None if it is new; `new`: as offered, None if it is gone or
    cannot be read; `comparison`: of the two, where there are two."""

    server: str
    tool: str
    change: Change
    old: LockedTool | None = None
    new: LockedTool | None = None
    comparison: "Comparison | None" = None

    @property
    def is_news(self) -> bool:
        """Is it anything else than as approved?"""
        return self.change != "same"

    @property
    def word(self) -> str:
        """One word for tables: what happened, and of changes how bad it is."""
        if self.comparison is None:
            return self.change
        return f"{self.comparison.verdict}{', words' if self.comparison.drift else ''}"

    @property
    def harmless(self) -> bool:
        """May clients have it as it is offered now?"""
        if self.change in ("same", "removed"):
            return True
        return self.comparison is not None and self.comparison.harmless

    @property
    def why(self) -> str:
        """A sentence about it, without its name."""
        if self.comparison is not None:
            if self.comparison.harmless:
                return f"it is defined otherwise than approved, in a way that is {self.word}"
            from metamcp_supervisor.approval.comparison import Verdict

            worst = self.comparison.verdict
            sorts = [
                *(["in what it says"] if self.comparison.drift else []),
                *(["so that callers break"] if worst is Verdict.BREAKING else []),
                *(["in a way that cannot be judged"] if worst is Verdict.UNKNOWN else []),
            ]
            return f"it is defined otherwise than approved, {' and '.join(sorts)}"
        return {
            "same": "it is as approved",
            "added": "nobody has approved it yet",
            "removed": "it is not offered any more",
            "unreadable": "its definition has no one reading",
        }.get(self.change, self.change)


def mode(pinning: Pinning | None, *, locked: bool) -> Pinning:
    """What is in force for a server. `locked`: has it an entry in `metamcp.lock`?"""
    return pinning or ("enforce" if locked else "record")


def drifts(
    server: str, approved: LockedServer, offered: Iterable[bytes | Raw]
) -> tuple[ToolDrift, ...]:
    """Every tool of the server, approved or offered, by name. Of a name that is offered twice the
    last counts, unless they differ: then it cannot be read."""
    now = _by_name(offered)
    found: list[ToolDrift] = []
    for name in sorted(approved.tools.keys() | now.keys()):
        old, new = approved.tools.get(name), now.get(name)
        if name not in now:
            found.append(ToolDrift(server, name, "removed", old))
        elif new is None:
            found.append(ToolDrift(server, name, "unreadable", old))
        elif old is None:
            found.append(ToolDrift(server, name, "added", None, new))
        elif old.fingerprint == new.fingerprint:
            found.append(ToolDrift(server, name, "same", old, new))
        else:
            named = {"name": name}
            found.append(
                ToolDrift(
                    server, name, "changed", old, new,
                    _compared(named | dict(old.definition), named | dict(new.definition)),
                )
            )  # fmt: skip
    return tuple(found)


def _compared(old: Mapping[str, object], new: Mapping[str, object]) -> "Comparison":
    """Most gateways never see a tool change, so what understands schemas is loaded here."""
    from metamcp_supervisor.approval.comparison import compare_read

    return compare_read(old, new)


def quarantined(
    found: Sequence[ToolDrift], pinning: Pinning, *, locked: bool = True
) -> frozenset[Quarantined]:
    """What clients are not to have. `pinning`: as `mode` says; `locked`: as for `mode`."""
    if pinning != "enforce":
        return frozenset()
    return frozenset(
        Quarantined(each.server, each.tool, reason(each, locked=locked))
        for each in found
        if not each.harmless
    )


def reason(drift: ToolDrift, *, locked: bool) -> str:
    """For who calls it. Of a tool alone it is only spoken where there is an entry to put it into;
    and a name that a shell would take for something else is not in a command."""
    server = process_names.base(drift.server)
    one = f"{server}.{drift.tool}" if _PLAIN.fullmatch(drift.tool) else server
    look, approve = f"lock diff {one}", f"lock approve {one}"
    if not locked:
        look, approve = f"tools --diff {one}", f"lock approve {server}"
    return (
        f"the tool '{shown(drift.tool)}' of '{server}' is in quarantine: {drift.why}; an operator"
        f" may look at it with 'metamcp {look}' and approve it with 'metamcp {approve}'"
    )


def waiting(server: str) -> str:
    """The same for all that is not judged yet."""
    return (
        f"this tool of '{process_names.base(server)}' is in quarantine until it is compared with"
        " what was approved; try again in a moment"
    )


def summary(found: Sequence[ToolDrift]) -> str:
    """One sentence for the journal; empty if everything is as approved."""
    sorts: dict[str, list[str]] = {}
    for each in found:
        if each.change != "same":
            sorts.setdefault(each.word, []).append(each.tool)
    return "; ".join(f"{word}: {listed(names)}" for word, names in sorted(sorts.items()))


def locked(definition: bytes | Raw) -> tuple[str, LockedTool]:
    """A tool as it is offered: its name, and what there is to approve. Raises codec.Malformed."""
    found = read_definition(definition)
    name = found.get("name")
    if not isinstance(name, str):
        raise Malformed("has no name")
    print_ = fingerprint(definition)
    if print_.startswith(RAW_SCHEME):
        raise Malformed("is nested too deeply")
    kept = counted(found)
    del kept["name"]
    return name, LockedTool(print_, kept)


def taken(
    approved: LockedServer,
    offered: Iterable[bytes | Raw],
    only: str | None,
    info: Mapping[str, str],
) -> LockedServer:
    """The entry after somebody has approved what is offered: all of it, or one tool. What cannot be
    read cannot be approved and stays as it was."""
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
    """None: it cannot be read, or there are two of it that differ. One without a name is nobody's
    tool: no client can call it."""
    found: dict[str, LockedTool | None] = {}
    for definition in offered:
        try:
            name, tool = locked(definition)
        except Malformed:
            named = name_of(definition)
            if named is not None:
                found[named] = None
            continue
        found[name] = None if name in found and found[name] != tool else tool
    return found


def name_of(definition: bytes | Raw) -> str | None:
    """As the fronts read it."""
    try:
        return codec.text(codec.level(definition).get("name", Raw(b"null")))
    except Malformed:
        return None


def planned(found: verbs.ReloadPlan, old: Lock | None, new: Lock | None) -> verbs.ReloadPlan:
    """The same plan, with another `metamcp.lock`: no server is called so, because of the dot."""
    action = "add" if old is None else "remove" if new is None else "in-place"
    change = verbs.Change(server="metamcp.lock", action=action, why=locks.difference(old, new))
    hashed = reload.digest([found.hash, locks.prints(new)])
    return structs.replace(found, changes=(*found.changes, change), hash=hashed)
