"""Pages of the console: what each page is, and the document and the frame around its content.

Owns: the static document, top bar and rail. Never: what a page shows (its own module), which pages
there are (`rail`), rights: each verb of the control socket checks the role of the session.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import htpy as h
from htpy import Element, Node
from msgspec import Struct

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import ANSWER_S


class PageRequest(Struct, frozen=True, kw_only=True):
    """Request for a page. `path`: parts behind the name of the page, decoded; `form`: fields of a
    change, the values of a name that stands several times joined by line ends."""

    role: Role
    path: tuple[str, ...] = ()
    query: Mapping[str, str] = {}
    form: Mapping[str, str] = {}


class Ask(Protocol):
    async def __call__(
        self, verb: str, params: object = None, *, timeout_s: float = ANSWER_S
    ) -> bytes:
        """Ask the gateway in the role of the session; return the raw JSON result of a verb. Raises
        control.client.Failed."""
        ...


Show = Callable[[Ask, PageRequest], Awaitable[Node]]


class Page(Struct, frozen=True, kw_only=True):
    """Page of the console. `name`: first part of its path; `title`: in the rail, empty for a page
    that is not there; `show`: returns the content of the page; `change`: carries out a change, and
    returns what takes the place of the content; `least`: lowest role to which the rail shows it;
    `live`: news of the gateway after which the browser gets the page again: servers, views,
    approvals, keys, runs, calls, config."""

    name: str
    title: str
    show: Show
    change: Show | None = None
    least: Role = Role.VIEWER
    live: tuple[str, ...] = ()


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
            h.script(src="/static/hx-sse.js", defer=True),
            h.script(src="/static/console.js", type="module"),
        ],
        h.body[
            h.a(class_="skip", href="#main")["Skip to the content"],
            h.div(id="frame"),
            h.main(id="main", tabindex="-1")[
                h.noscript[
                    h.p[
                        "The console needs JavaScript; ",
                        h.code["metamcp status"],
                        " shows the same without.",
                    ]
                ]
            ],
            h.p(id="said", role="status", aria_live="polite"),
        ],
    ]


def frame(pages: Iterable[Page], role: Role, version: str, gateway: str) -> Node:
    """Return the top bar, and the rail with those pages that are for a role. `gateway`: how the
    gateway is called."""
    listed = [one for one in pages if one.title and role >= one.least]
    return [
        h.header(class_="bar")[
            h.strong["MetaMCP"],
            h.span[ui.shown(gateway, 80)],
            h.span[version],
            h.span(title="Role of this session")[str(role)],
            h.span(id="pulse", class_="state off")["connecting"],
            h.button(type="button", id="keys", aria_haspopup="dialog")["Keys ?"],
        ],
        h.nav(id="rail", aria_label="Pages")[
            h.ul[[h.li[ui.link(ui.address(one.name), one.title)] for one in listed]]
        ],
    ]


def content(of: Page, node: Node) -> Element:
    """Return the content of a page with the news after which the browser gets it again."""
    return h.div(id="page", data_live=" ".join(of.live), data_title=of.title)[node]
