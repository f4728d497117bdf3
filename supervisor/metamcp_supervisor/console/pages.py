"""Contract of the console's pages: what a page is, what it is asked, and how it asks the gateway.

Never: what a page shows (its own module), which pages there are and the frame around them (`site`),
rights: each verb of the control socket checks the role of the session.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pkgutil import resolve_name
from typing import Protocol

import htpy as h
from htpy import Element, Node
from msgspec import Struct

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import ANSWER_S
from metamcp_supervisor.features import all_features


class PageRequest(Struct, frozen=True, kw_only=True):
    """Request for a page. `path`: parts behind the name of the page, decoded; `form`: fields of a
    change, the values of a name that stands several times joined by line ends."""

    role: Role
    path: tuple[str, ...] = ()
    query: Mapping[str, str] = {}
    form: Mapping[str, str] = {}


class AskGateway(Protocol):
    async def __call__(
        self, verb: str, params: object = None, *, timeout_s: float = ANSWER_S
    ) -> bytes:
        """Ask the gateway in the role of the session; return the raw JSON result of a verb. Raises
        control.client.Failed."""
        ...

    async def items(
        self, verb: str, params: object = None, *, timeout_s: float = ANSWER_S
    ) -> list[bytes]:
        """Return the raw items that a verb sends before its result, such as `logs`. Raises
        control.client.Failed."""
        ...


Ask = AskGateway
Show = Callable[[Ask, PageRequest], Awaitable[Node]]


class Page(Struct, frozen=True, kw_only=True):
    """Page of the console. `name`: first part of its path; `title`: in the rail, empty for a page
    that is not there; `show`: returns the content of the page; `change`: carries out a change, and
    returns what takes the place of the content; `least`: lowest role to which the rail shows it;
    `live`: news of the gateway after which the browser gets the page again: servers, views,
    approvals, keys, runs, calls, config. `after`: name of the page that it follows in the rail;
    `waiting`: returns what waits there for a person, for the page of the approvals; `answers`: word
    of an answer to that -> what carries it out and returns a sentence about it; `export`: yields
    the file that a browser can download."""

    name: str
    title: str
    show: Show
    change: Show | None = None
    least: Role = Role.VIEWER
    live: tuple[str, ...] = ()
    after: str = ""
    waiting: Show | None = None
    answers: Mapping[str, Callable[[Ask, Mapping[str, str]], Awaitable[str]]] = {}
    export: Callable[[Ask], AsyncIterator[bytes]] | None = None


def feature_pages() -> list[Page]:
    """Return the pages of the features, in their order."""
    return [resolve_name(feature.page) for feature in all_features() if feature.page]


def content(of: Page, node: Node) -> Element:
    """Return the content of a page with the news after which the browser gets it again."""
    return h.div(id="page", data_live=" ".join(of.live), data_title=of.title)[node]
