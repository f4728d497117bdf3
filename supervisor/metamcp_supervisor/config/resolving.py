"""References in the settings of one server, replaced; and what is wrong with what comes of it.

Owns: the list of references that lead to nothing: they are errors, unless the server is disabled.
Never: the grammar of references (`expand`), what the settings are for (`program`, `remote`).
"""

from metamcp_supervisor.config.document import Site
from metamcp_supervisor.config.expand import References, Unresolved, expand
from metamcp_supervisor.config.table import flaw

TEXT_BYTES_MAX = 128 * 1024 - 1
"""Linux starts no program with a longer argument or `NAME=value` (MAX_ARG_STRLEN)."""


class Resolving:
    """`unresolved`: the place of each value that cannot be had, and a sentence."""

    def __init__(self, references: References) -> None:
        self._references = references
        self.unresolved: list[tuple[Site, str]] = []

    def value(self, written: str, site: Site) -> str | None:
        """What `written` comes to; None when that cannot be had, which is noted."""
        try:
            found = expand(written, self._references)
        except Unresolved as error:
            self.unresolved.append((site, str(error)))
            return None
        if why := flaw(found):
            self.unresolved.append((site, f"after its references are resolved it {why}"))
            return None
        if len(found.encode()) > TEXT_BYTES_MAX:
            self.unresolved.append((site, f"is longer than {TEXT_BYTES_MAX} bytes"))
            return None
        return found

    def text(self, written: str, site: Site) -> str:
        """The same, for a place that needs some text: then the written one."""
        found = self.value(written, site)
        return written if found is None else found
