"""`depends_on`: that each server named there exists, and that no server waits for itself.

Owns: the errors about dependencies, and the order that they make. Never: starting anything.
"""

from collections.abc import Mapping

from metamcp_supervisor.config.document import Findings, shown
from metamcp_supervisor.config.draft import ServerDraft
from metamcp_supervisor.config.nearest import hint


def check(drafts: Mapping[str, ServerDraft], findings: Findings) -> None:
    """Report every dependency that cannot be met."""
    wants = {
        name: draft.server.depends_on
        for name, draft in drafts.items()
        if draft.server and not findings.mistake(draft.site)
    }
    for name, needed in wants.items():
        for at, other in enumerate(needed):
            place = drafts[name].site
            site = place.at("depends_on", at)
            if other not in drafts:
                what = f"no server is named '{shown(other)}'; {hint(other, drafts)}"
                findings.error(site, what, servers=[place])
            elif not ((server := drafts[other].server) and server.enabled):
                what = f"the server '{other}' is not enabled, so it is never ready"
                findings.error(site, what, servers=[place])
    for circle in circles(wants):
        places = [drafts[name].site for name in circle]
        what = f"these servers wait for each other: {' → '.join((*circle, circle[0]))}"
        findings.error(places[0].at("depends_on"), what, servers=places)


def circles(wants: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Each group of servers that wait for each other, once, beginning with its first in order."""
    found: list[tuple[str, ...]] = []
    done: set[str] = set()
    for start in wants:
        path: list[str] = []
        # A walk along the dependencies that keeps its way: whoever is on it already is in a circle.
        todo = [(start, iter(wants[start]))] if start not in done else []
        while todo:
            name, rest = todo[-1]
            if name not in path:
                path.append(name)
            step = next(rest, None)
            if step is None:
                todo.pop()
                path.remove(name)
                done.add(name)
            elif step in path:
                found.append(tuple(path[path.index(step) :]))
            elif step in wants and step not in done:
                todo.append((step, iter(wants[step])))
    return found
