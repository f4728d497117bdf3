"""The table of all pages of the console, and the document and the frame around them.

Owns: the order of the rail, the static document, the top bar. Never: what a page shows (its own
module).
"""

from functools import cache

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import (
    approvals_page,
    calls_page,
    config_page,
    keys_page,
    logs_page,
    servers_page,
    tools_page,
    views_page,
)
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Page, feature_pages
from metamcp_supervisor.control.access import Role


@cache
def all_pages() -> tuple[Page, ...]:
    """Return the pages in the order of the rail, with those of the features."""
    pages = [
        servers_page.PAGE,
        logs_page.PAGE,
        tools_page.PAGE,
        views_page.PAGE,
        calls_page.PAGE,
        keys_page.PAGE,
        approvals_page.PAGE,
        config_page.PAGE,
    ]
    for page in feature_pages():
        names = [other.name for other in pages]
        pages.insert(names.index(page.after) + 1 if page.after in names else len(pages), page)
    return tuple(pages)


def page(name: str) -> Page | None:
    """Return the page with this name; the empty name stands for the first page."""
    pages = all_pages()
    return next((page for page in pages if page.name == (name or pages[0].name)), None)


def shell() -> Element:
    """Return the document that a browser gets for every path. The script in it asks for
    the content, in the name of a session."""
    return h.html(lang="en")[
        h.head[
            h.meta(charset="utf-8"),
            h.meta(name="viewport", content="width=device-width"),
            h.meta(name="color-scheme", content="dark light"),
            h.meta({"name": "htmx-config"}, content="history:false includeIndicatorCSS:false"),
            h.title["MetaMCP"],
            h.link(rel="icon", href="/static/icon.svg", type="image/svg+xml"),
            h.link(rel="stylesheet", href="/static/console.css"),
            h.script(src="/static/htmx.js", defer=True),
            h.script(src="/static/console.js", type="module"),
        ],
        h.body[
            h.a(class_="skip", href="#main")["Skip to the content"],
            h.div(id="frame"),
            h.main({"hx-sync": "replace"}, id="main", tabindex="-1")[
                h.noscript[
                    h.p[
                        "The console needs JavaScript; ",
                        h.code["metamcp status"],
                        " shows the same without.",
                    ]
                ]
            ],
            h.p(id="said", role="status", aria_live="polite"),
            h.template(id="login")[_login()],
        ],
    ]


def _login() -> Element:
    """Return what a browser without a session shows. The script sends the form; the browser itself
    may send none."""
    return h.section(aria_labelledby="login-title")[
        h.h1(id="login-title")["MetaMCP console"],
        h.p(role="alert"),
        h.form(class_="fields", method="post")[
            ui.field(
                "API key",
                h.input(
                    type="password", name="key", required=True, maxlength=200,
                    autocomplete="current-password", spellcheck="false",
                ),
                "One with a scope such as console:operator. On the machine of the gateway,"
                " 'metamcp console' opens this page by a link instead.",
            ),
            h.div[h.button["Log in"]],
        ],
    ]  # fmt: skip


def frame(role: Role, version: str, gateway: str, key: str = "") -> Node:
    """Return the top bar, and the rail with those pages that are for a role. `gateway`: how the
    gateway is called; `key`: id of the API key whose holder can log out."""
    listed = [page for page in all_pages() if page.title and role >= page.least]
    return [
        h.header(class_="bar")[
            h.strong["MetaMCP"],
            h.span[ui.shorten(gateway, 80)],
            h.span[version],
            h.span(title="Role of this session")[str(role)],
            h.span(id="pulse", class_="state off")["connecting"],
            h.button(type="button", id="keys", aria_haspopup="dialog")["Keys ?"],
            key and h.button(type="button", id="logout", title=f"API key {key}")["Log out"],
        ],
        h.nav(id="rail", aria_label="Pages")[
            h.ul[[h.li[ui.link(ui.address(page.name), _entry(page))] for page in listed]]
        ],
    ]


def _entry(of: Page) -> Node:
    """Return the text of a page in the rail. The script counts there what waits for a person."""
    if of is not approvals_page.PAGE:
        return of.title
    return [of.title, " ", h.span(id="waits", title="Waiting for a person")]
