"""The table of all pages of the console, in the order of the rail.

Never: what a page shows (its own module), how the rail looks (`pages`).
"""

from metamcp_supervisor.console import servers_page
from metamcp_supervisor.console.pages import Page

#: Servers, Logs, Tools, Views, Calls, Scripts, Workflows, Keys, Approvals, Audit, Config.
PAGES: tuple[Page, ...] = (servers_page.PAGE,)


def page(name: str) -> Page | None:
    """Return the page with this name; the empty name stands for the first page."""
    return next((one for one in PAGES if one.name == (name or PAGES[0].name)), None)
