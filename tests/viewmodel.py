"""What clients are to see, in the plainest way: a model written from docs/views.md.

It knows no gateway: names and dictionaries, and what an order makes of them. The tests of the
engine and of the true gateway compare with it after each step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

T = TypeVar("T")

Exposure = Literal["all", "toolset", "servers", "search"]
Tool = tuple[str, str]
"""Server and the server's own name of it."""
Who = tuple[str, str, str]
"""Endpoint, principal, and the session where each has a view of its own; else empty."""

BUILTINS: Mapping[Exposure, tuple[str, ...]] = {
    "all": (),
    "toolset": (
        "discover-all-tools", "build-toolset", "equip-toolset", "unequip-toolset",
        "get-active-toolset", "list-saved-toolsets", "delete-toolset",
    ),
    "servers": ("gateway_activate", "gateway_deactivate", "gateway_status"),
    "search": (
        "search_tools", "load_tool", "unload_tool", "load_tool_set", "save_tool_set",
        "list_loaded_tools", "describe_tool", "call_tool",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """An endpoint. `servers`: behind it; `off`: tools that are switched off there."""

    exposure: Exposure
    servers: tuple[str, ...]
    per_session: bool = False
    call_hidden: bool = True
    off: frozenset[Tool] = frozenset()


@dataclass(frozen=True)
class Seen:
    """What is in view beside the built-in tools, be it there or away. `toolset`: equipped."""

    tools: tuple[Tool, ...] = ()
    servers: tuple[str, ...] = ()
    toolset: str = ""


@dataclass
class Model:
    """`offers`: what each server offered last; `there`: those that are."""

    places: dict[str, Place]
    offers: dict[str, tuple[str, ...]]
    there: set[str]
    sets: dict[str, tuple[Tool, ...]] = field(default_factory=dict[str, tuple[Tool, ...]])
    views: dict[Who, Seen] = field(default_factory=dict[Who, Seen])

    # --- what there is to see -----------------------------------------------------------------

    def seen(self, who: Who) -> Seen:
        """A session that has ordered nothing for its view yet sees what its principal sees."""
        found = self.views.get(who)
        if found is None and who[2]:
            found = self.views.get((who[0], who[1], ""))
        return found or Seen()

    def visible(self, who: Who) -> Seen:
        """What of this the built-in tools that are there now can change."""
        seen, exposure = self.seen(who), self.places[who[0]].exposure
        if exposure == "servers":
            return Seen(servers=seen.servers)
        return Seen() if exposure == "all" else replace(seen, servers=())

    def possible(self, endpoint: str) -> list[Tool]:
        """All tools behind an endpoint, in the order of its list."""
        place = self.places[endpoint]
        return [
            (server, tool)
            for server in place.servers
            for tool in self.offers.get(server, ())
            if (server, tool) not in place.off
        ]

    def shown(self, who: Who) -> list[Tool]:
        """The tools of servers in the list of this client."""
        seen, everything = self.visible(who), self.places[who[0]].exposure == "all"
        return [
            tool
            for tool in self.possible(who[0])
            if tool[0] in self.there
            and (everything or tool in seen.tools or tool[0] in seen.servers)
        ]

    def names(self, who: Who) -> list[str]:
        """The whole list."""
        return [*BUILTINS[self.places[who[0]].exposure], *map(exposed, self.shown(who))]

    def callable(self, who: Who) -> set[Tool]:
        """What may be called by its name, whether it is listed or not."""
        if self.places[who[0]].call_hidden:
            return {tool for tool in self.possible(who[0]) if tool[0] in self.there}
        return set(self.shown(who))

    def hopeful(self, endpoint: str, tools: Iterable[Tool]) -> list[Tool]:
        """Those that are in view here, or come by themselves when their server is back."""
        return [tool for tool in tools if tool in self.possible(endpoint)]

    # --- orders: was it possible? -------------------------------------------------------------

    def build(self, name: str, tools: Sequence[Tool], *, replacing: bool = False) -> bool:
        if not tools or (name in self.sets and not replacing):
            return False
        self._put(name, tools)
        return True

    def amend(self, name: str, add: Sequence[Tool], remove: Sequence[Tool]) -> bool:
        if name not in self.sets or not set(remove) <= set(self.sets[name]):
            return False
        left = [tool for tool in self.sets[name] if tool not in remove]
        if not left and not add:
            return False
        self._put(name, [*left, *add])
        return True

    def delete(self, name: str) -> bool:
        if name not in self.sets:
            return False
        del self.sets[name]
        for who, seen in list(self.views.items()):
            if seen.toolset == name:
                self._see(who, replace(seen, tools=(), toolset=""))
        return True

    def equip(self, who: Who, name: str) -> bool:
        if name not in self.sets:
            return False
        return self._see(who, Seen(self.sets[name], toolset=name))

    def unequip(self, who: Who) -> bool:
        return self._see(who, Seen())

    def activate(self, who: Who, server: str) -> bool:
        seen = self.seen(who)
        return self._see(who, replace(seen, servers=unique([*seen.servers, server])))

    def deactivate(self, who: Who, server: str) -> bool:
        seen = self.seen(who)
        left = tuple(one for one in seen.servers if one != server)
        return self._see(who, replace(seen, servers=left))

    def load(self, who: Who, tools: Iterable[Tool]) -> bool:
        return self._choose(who, [*self.seen(who).tools, *tools])

    def unload(self, who: Who, tools: Iterable[Tool]) -> bool:
        less = set(tools)
        return self._choose(who, [one for one in self.seen(who).tools if one not in less])

    def save(self, who: Who, name: str) -> bool:
        return self.build(name, self.seen(who).tools, replacing=True)

    def over(self, session: str) -> None:
        """A session has ended."""
        self.views = {who: seen for who, seen in self.views.items() if who[2] != session}

    def _choose(self, who: Who, tools: Iterable[Tool]) -> bool:
        """By hand: it is no tool set any more, unless nothing changes."""
        seen, chosen = self.seen(who), unique(tools)
        toolset = seen.toolset if chosen == seen.tools else ""
        return self._see(who, replace(seen, tools=chosen, toolset=toolset))

    def _put(self, name: str, tools: Iterable[Tool]) -> None:
        self.sets[name] = unique(tools)
        for who, seen in list(self.views.items()):
            if seen.toolset == name:
                self._see(who, replace(seen, tools=self.sets[name]))

    def _see(self, who: Who, seen: Seen) -> bool:
        self.views[who] = seen
        return True


def exposed(tool: Tool) -> str:
    return "__".join(tool)


def unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
