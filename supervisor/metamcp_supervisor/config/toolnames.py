"""Names that the configuration gives to tools: whether the tools of one endpoint can have them.

Owns: those rules, as far as they need no catalogue. Never: names by the rule of the endpoint (the
worker's `names`): where one of these is given to another tool, its own tool gets another one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metamcp_supervisor.config.config import Endpoint, Naming
from metamcp_supervisor.config.document import Findings, Site, shown
from metamcp_supervisor.config.draft import ToolDraft
from metamcp_supervisor.config.tools import Pair
from metamcp_worker.ipc import names, owntools
from metamcp_worker.ipc.spec import NamingSpec


@dataclass(frozen=True, slots=True)
class _Given:
    """A name, and where it stands."""

    name: str
    pair: Pair
    site: Site


class Check:
    """Of all endpoints, one after the other: what is wrong at two of them is said once."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._said: set[tuple[str, str]] = set()

    def endpoint(self, endpoint: Endpoint, layers: Sequence[Iterable[ToolDraft]]) -> None:
        """`layers`: what is said of its tools; what goes first comes last."""
        given, aliases = _given(layers)
        naming = spec_of(endpoint.naming)
        own = {tool.name for tool in owntools.of(endpoint.exposure)}
        known: dict[str, _Given] = {}
        for one in given:
            why = names.flaw(one.name, naming)
            if one.name in own:
                why = "is the name of a built-in tool"
            elif not why and (other := known.setdefault(one.name, one)) is not one:
                why = f"is the name of {_told(other)} too"
            self._judged(one, why, endpoint)
        further: dict[str, _Given] = {}
        for one in aliases:
            why = "is the name of a built-in tool" if one.name in own else ""
            named = known.get(one.name)
            if named is not None and named.pair != one.pair:
                why = f"is the name of {_told(named)}"
            elif (other := further.setdefault(one.name, one)).pair != one.pair:
                why = f"is an alias of {_told(other)} too"
            self._judged(one, why, endpoint)

    def _judged(self, one: _Given, why: str, endpoint: Endpoint) -> None:
        if why and (str(one.site), why) not in self._said:
            self._said.add((str(one.site), why))
            what = f"'{shown(one.name)}' {why}, at the endpoint '{endpoint.name}'"
            self._findings.error(one.site, what)


def spec_of(naming: Naming) -> NamingSpec:
    return NamingSpec(
        style=naming.style,
        separator=naming.separator,
        hyphens=naming.hyphens,
        length_max=naming.length_max,
    )


def _given(layers: Sequence[Iterable[ToolDraft]]) -> tuple[list[_Given], list[_Given]]:
    """The names and the aliases of all tools that are not switched off."""
    enabled: dict[Pair, bool] = {}
    name: dict[Pair, _Given] = {}
    aliases: dict[Pair, list[_Given]] = {}
    for draft in (draft for layer in layers for draft in layer):
        pair, said = (draft.server, draft.tool), draft.said
        if said.enabled is not None:
            enabled[pair] = said.enabled
        if said.name is not None:
            name[pair] = _Given(said.name, pair, draft.site.at("name"))
        if said.aliases is not None:
            sites = (draft.site.at("aliases", at) for at in range(len(said.aliases)))
            found = zip(said.aliases, sites, strict=True)
            aliases[pair] = [_Given(alias, pair, site) for alias, site in found]
    on = [pair for pair in {**name, **aliases} if enabled.get(pair, True)]
    return (
        [name[pair] for pair in on if pair in name],
        [one for pair in on for one in aliases.get(pair, ())],
    )


def _told(one: _Given) -> str:
    return f"{one.pair[0]}.{shown(one.pair[1])}"
