"""Changes of the lists of a server: a sentence for the journal, and how often clients hear of them.

Owns: the comparison of two catalogues; the rate limits for changes of lists and for a server that
floods the gateway, and their arithmetic. Never: clocks, slowing a server down (its worker does
that).

A server whose catalogue differs from the one before its restart may have been updated, or may be
malicious: a model acts on definitions. So the journal names what changed.

A client that is notified of a changed list fetches it again, and a model whose tools changed pays
for the whole conversation again. A server that crashes every few seconds would do that to all
clients each time. So its tools stay as they are for a while, listed or hidden: a client that calls
a listed tool of a server that is down gets an error that says so, and a client that knows the name
of a hidden tool may call it.

A worker that does not read on makes its server wait, so a server that sends without end takes
little from others. But such a server works badly: answers come late, and most of its output is
noise. A restart does not change the output of a program, so the server is not restarted
automatically.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec, server_catalog
from metamcp_worker.ipc.server_catalog import KINDS

CHANGES_TOLD_MAX = 6
"""Maximum number of changes of one server that the journal reports in a minute; further ones are
only counted."""
NAMES_MAX = 5
"""Maximum number of names in each list of additions, removals or changes; the rest is counted."""
NAME_CHARACTERS_MAX = 64

_KEYS: Mapping[str, str] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}


def changes(before: bytes, after: bytes) -> str:
    """Return a sentence such as `tools: new added, old removed, echo changed (12 in all)`; empty if
    the lists are the same. Raises codec.Malformed for bytes that are not a catalogue."""
    old, new = server_catalog.unpack(before), server_catalog.unpack(after)
    texts = (_of_kind(kind, old.of(kind), new.of(kind)) for kind in KINDS)
    return "; ".join(filter(None, texts))


def _of_kind(kind: str, before: Iterable[Raw], after: Iterable[Raw]) -> str:
    old, new = _index_by_name(kind, before), _index_by_name(kind, after)
    both = old.keys() & new.keys()
    parts = [
        _format_names([name for name in new if name not in old], "added"),
        _format_names([name for name in old if name not in new], "removed"),
        _format_names([name for name in new if name in both and new[name] != old[name]], "changed"),
    ]
    text = ", ".join(filter(None, parts))
    if not text and list(old) != list(new):
        text = "in another order"
    return f"{kind}: {text} ({len(new)} in all)" if text else ""


def _format_names(names: list[str], change: str) -> str:
    if not names:
        return ""
    shortened = [name[:NAME_CHARACTERS_MAX] for name in names[:NAMES_MAX]]
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return f"{', '.join(shortened)}{more} {change}"


def _index_by_name(kind: str, definitions: Iterable[Raw]) -> dict[str, bytes]:
    """Return definitions by name; a definition without a name has its place (`#0`) as key."""
    by_name: dict[str, bytes] = {}
    for index, definition in enumerate(definitions):
        name = codec.text(codec.members(definition).get(_KEYS[kind], Raw(b"null")))
        by_name[name if name is not None else f"#{index}"] = bytes(definition)
    return by_name


LIST_CHANGES_MAX = 2
"""Maximum number of list changes in LIST_CHANGES_S: hidden and listed again, once."""
LIST_CHANGES_S = 60.0
"""Seconds in which the lists may change LIST_CHANGES_MAX times."""


def wait_s(changes: Sequence[float], now: float) -> float:
    """Return the seconds until the lists may change once more. `changes`: times of earlier changes,
    oldest first."""
    if len(changes) < LIST_CHANGES_MAX:
        return 0.0
    return max(0.0, changes[-LIST_CHANGES_MAX] + LIST_CHANGES_S - now)


def add_change(changes: Sequence[float], now: float) -> tuple[float, ...]:
    """Add a change at this time; keep only the changes that still count."""
    return (*changes, now)[-LIST_CHANGES_MAX:]


GAP_S = 5.0
"""Seconds without being slowed down after which a flood has ended."""
TOLD_S = 10.0
"""Seconds of being slowed down after which a server is shown as throttled; a shorter time is a
burst."""
FLOOD_S = 60.0
"""Seconds of being slowed down after which a server is put into quarantine."""

THROTTLED = "throttled"
"""Reason in the status of a server that is slowed down and serves."""
HELD_BACK = (
    "it sends more notifications, requests or noise than its budget allows, so its worker reads it "
    "more slowly"
)


class Flood(Struct, frozen=True):
    """The time for which a server was slowed down, from `since` to `until` on the monotonic
    clock."""

    since: float = float("-inf")
    until: float = float("-inf")


def held_back(flood: Flood, now: float) -> Flood:
    """Note that the server is slowed down at this time."""
    return Flood(now if now - flood.until > GAP_S else flood.since, now)


def is_throttled(flood: Flood, now: float) -> bool:
    """Whether the flood goes on and is more than a burst."""
    return now - flood.until <= GAP_S and flood.until - flood.since >= TOLD_S


def too_long(flood: Flood) -> str:
    """Return why the server must be quarantined, as a sentence that begins with "it", else ""."""
    if flood.until - flood.since < FLOOD_S:
        return ""
    return (
        f"it was throttled for {FLOOD_S:.0f} s: it sends notifications, requests or noise without "
        "end; what it logs belongs on stderr"
    )
