"""The table of all pages of the console, in the order of the rail.

Never: what a page shows (its own module), how the rail looks (`pages`).
"""

from metamcp_supervisor.console import (
    approvals_page,
    audit_page,
    config_page,
    keys_page,
    scripts_page,
    servers_page,
    workflows_page,
)
from metamcp_supervisor.console.pages import Page

#: Servers, Logs, Tools, Views, Calls, Scripts, Workflows, Keys, Approvals, Audit, Config.
PAGES: tuple[Page, ...] = (
    servers_page.PAGE,
    scripts_page.PAGE,
    workflows_page.PAGE,
    keys_page.PAGE,
    approvals_page.PAGE,
    audit_page.PAGE,
    config_page.PAGE,
)


def page(name: str) -> Page | None:
    """Return the page with this name; the empty name stands for the first page."""
    return next((one for one in PAGES if one.name == (name or PAGES[0].name)), None)
