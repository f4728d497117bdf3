"""Verbs about the web console: links for it, logins, sessions, and news for its open pages.

Owns: which kinds of news there are, and how often a page hears of them. Never: links and sessions
themselves (`console_sessions`), pages.
"""

import time
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.console_sessions import LINK_S
from metamcp_supervisor.control.services import (
    ChangeParams,
    ControlStream,
    GatewayControl,
    NoParams,
    Verb,
)
from metamcp_supervisor.telemetry.journal import WAITING
from metamcp_supervisor.verbs import VERSION, Exit, JournalEvent
from metamcp_worker.ipc.errors import ProtocolError

NEWS_S = 0.25
"""Seconds between two news to one page at least."""
LOOK_S = 1.0
"""Seconds between two looks for news without an event, as calls and lines of a log."""
RoleName = Literal["viewer", "operator", "developer", "admin"]


class ConsoleParams(ChangeParams, frozen=True):
    """Parameters of `console`: the role of the session."""

    role: RoleName = "admin"


class ConsoleLogin(ChangeParams, frozen=True):
    """Parameters of `console-login`: the secret of a link, or the text of an API key. `address`: of
    the browser."""

    link: str = ""
    key: str = ""
    address: str = ""


class ConsoleRevoke(ChangeParams, frozen=True):
    """Parameters of `console-revoke`: ids of sessions, or none for all."""

    names: tuple[str, ...] = ()


class ConsoleLink(Struct, frozen=True, kw_only=True):
    """Result of `console`. `url`: with the secret; `expires_s`: seconds for which it can be
    used."""

    v: int = VERSION
    url: str
    role: str
    expires_s: float = LINK_S


class ConsoleLoginResult(Struct, frozen=True, kw_only=True):
    """Result of `console-login`. `token`: of the session, shown this once; `key`: id of the API
    key, empty for a link."""

    v: int = VERSION
    token: str
    id: str
    role: str
    key: str = ""


class SessionShown(Struct, frozen=True, kw_only=True):
    """Session of the console. `age_s`, `idle_s`: seconds since its login and its last page; `key`:
    id of the API key, empty for the session of a link."""

    id: str
    role: str
    age_s: float
    idle_s: float
    key: str = ""


class SessionList(Struct, frozen=True, kw_only=True):
    v: int = VERSION
    sessions: tuple[SessionShown, ...]


async def console(gateway: GatewayControl, line: ControlStream, params: ConsoleParams) -> object:
    role = Role.parse_role(params.role) or Role.VIEWER
    from metamcp_supervisor.console.console_process import ConsoleProcess  # not for the prompt

    return ConsoleLink(url=gateway.service(ConsoleProcess).open(role), role=str(role))


def about_link(params: ConsoleParams, result: ConsoleLink) -> Sequence[str]:
    return (result.role,)


async def login(gateway: GatewayControl, line: ControlStream, params: ConsoleLogin) -> object:
    console_sessions = gateway.sessions
    if params.key:
        key = gateway.keys.find_valid_key(params.key)
        token, session = console_sessions.login_by_key(key, params.address)
    else:
        token, session = console_sessions.login(params.link, params.address)
    gateway.journal.add(
        "console", "login", f"{session.description} from {params.address or 'here'}"
    )
    return ConsoleLoginResult(token=token, id=session.id, role=str(session.role), key=session.key)


def about_login(params: ConsoleLogin, result: ConsoleLoginResult) -> Sequence[str]:
    return tuple(filter(None, (result.id, result.role, result.key)))


async def logout(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    """End the session that asks."""
    if line.session is None:
        raise ProtocolError(Exit.USAGE, "only a session of the console can log out")
    gateway.sessions.end([line.session.id])
    gateway.journal.add("console", "logout", line.session.description)
    return {"v": VERSION}


async def sessions(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    open_sessions, now = gateway.sessions.all(), gateway.sessions.read_clock()
    return SessionList(
        sessions=tuple(
            SessionShown(
                id=session.id, role=str(session.role), age_s=now - session.began,
                idle_s=now - session.used, key=session.key,
            )
            for session in open_sessions
        )
    )  # fmt: skip


async def revoke(gateway: GatewayControl, line: ControlStream, params: ConsoleRevoke) -> object:
    ids = {session.id for session in gateway.sessions.all()}
    if unknown := [name for name in params.names if name not in ids]:
        raise ProtocolError(
            Exit.UNKNOWN_NAME,
            f"no session has the id '{unknown[0][:16]}'; 'metamcp console sessions' lists them",
        )
    ended = gateway.sessions.end(params.names)
    for session in ended:
        gateway.journal.add("console", "revoke", f"{session.description} asked by {line.caller}")
    return {"v": VERSION, "ended": [session.id for session in ended]}


#: Kinds of news for events of the journal, by who or what they are about; any other event is about
#: a server or a front.
_KINDS = {
    "reload": "config", "edit": "config", "toolsets": "views", "keys": "keys",
    "consent": "approvals", "scripts": "runs", "workflow": "runs", "engine": "runs",
    "quarantine": "approvals", WAITING: "approvals",
}  # fmt: skip


def kind_of(event: JournalEvent) -> str:
    """Return the kind of news that an event is."""
    for word in (event.what, event.who):
        if kind := _KINDS.get(word):
            return kind
    return "servers"


async def news(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    """Push the kinds of what has happened, and how much waits for a person, not more often than
    every NEWS_S, until the client leaves or its session ends. `logs:NAME` reports new lines of a
    server."""

    def push(kinds: list[str]) -> None:
        line.push("news", {"kinds": kinds, "waiting": sum(gateway.count_waiting().values())})

    follower = gateway.journal.follow(line.wake)
    seen = _FigureChanges(gateway)
    try:
        await line.answer({"v": VERSION})
        push([])
        while gateway.sessions.goes_on(line.session):
            begun = time.monotonic()
            await line.wait_for_wake(LOOK_S)
            kinds = {kind_of(event) for event in follower.take()} | seen.new()
            if follower.lagged:
                gateway.journal.unfollow(follower)
                follower = gateway.journal.follow(line.wake)
            push(sorted(kinds))
            remaining_s = NEWS_S - (time.monotonic() - begun)
            while remaining_s > 0:
                await line.wait_for_wake(remaining_s)
                remaining_s = NEWS_S - (time.monotonic() - begun)
    finally:
        gateway.journal.unfollow(follower)
    line.push("ended", {})
    return None


class _FigureChanges:
    """Figures that one page knows and no event reports: calls, lines, consent, views."""

    def __init__(self, gateway: GatewayControl) -> None:
        self._gateway = gateway
        self._figures: dict[str, object] = {}
        self._again: set[str] = set()
        """Kinds that are new once more at the next look: fronts write recorded calls a moment
        after they count them."""
        self.new()

    def new(self) -> set[str]:
        """Return the kinds with news since the last time."""
        gateway = self._gateway
        figures: dict[str, object] = {
            "calls": gateway.latencies(),
            **gateway.figures(),
            "views": gateway.views(),
            **{f"logs:{name}": last for name, last in gateway.logs.lasts().items()},
        }
        kinds = {name for name, value in figures.items() if self._figures.get(name) != value}
        again, self._again = self._again, kinds & {"calls"}
        self._figures = figures
        return kinds | again


VERBS = {
    "console": Verb(ConsoleParams, console, about=about_link, of_machine=True),
    "console-login": Verb(ConsoleLogin, login, about=about_login),
    "console-logout": Verb(NoParams, logout, Role.VIEWER),
    "console-sessions": Verb(NoParams, sessions, reads=True),
    "console-revoke": Verb(ConsoleRevoke, revoke),
    "news": Verb(NoParams, news, Role.VIEWER),
}
