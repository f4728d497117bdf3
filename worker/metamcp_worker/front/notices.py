"""What servers say that belongs to no call: which sessions are told.

Owns: that choice. Never: changed lists and updated resources (`http`, `subscriptions`), streams,
the clients of the other era, who subscribe to what they want to hear.
"""

from collections.abc import Iterable, Mapping, Sequence

from metamcp_worker.front import answers, levels
from metamcp_worker.front.calls import Calls
from metamcp_worker.front.session import Session, Sessions
from metamcp_worker.ipc import codec, process_names

ELICITED = "notifications/elicitation/complete"


class Notices:
    """Takes the notifications of all servers that nobody else takes."""

    def __init__(self, calls: Calls, sessions: Sessions) -> None:
        self._sessions = sessions
        self._servers: Mapping[str, Sequence[str]] = {}
        calls.on_notice(levels.MESSAGE, self._logged)
        calls.on_notice(ELICITED, self._elicited)
        calls.notified = self._other

    def configure(self, servers: Mapping[str, Sequence[str]]) -> None:
        """Which servers each endpoint exposes."""
        self._servers = servers

    def _logged(self, server: str, params: bytes) -> None:
        """A log message: for whoever has asked for such, by setting a level."""
        message = answers.notification(levels.MESSAGE, params)
        for session in self._heard(server):
            wanted = session.level and process_names.base(server) in self._exposed(session)
            if wanted and levels.passes(session.level, params):
                session.tell(message)

    def _elicited(self, server: str, params: bytes) -> None:
        """A visit to a URL is over: for the client that was asked for it."""
        try:
            elicitation = codec.text(codec.level(params).get("elicitationId", b"null"))
        except codec.Malformed:
            return
        for session in self._heard(server):
            if elicitation is not None and (server, elicitation) in session.elicitations:
                session.tell(answers.notification(ELICITED, params))

    def _other(self, server: str, method: str, params: bytes) -> None:
        """What the gateway does not know: for the clients that have this server alone."""
        message = answers.notification(method, params)
        for session in self._heard(server):
            if tuple(self._exposed(session)) == (process_names.base(server),):
                session.tell(message)

    def _heard(self, server: str) -> Iterable[Session]:
        """The sessions that may hear it: what a process for one client says is for that one."""
        who = process_names.whose(server)
        every = who in ("", process_names.LEGACY)
        return (one for one in self._sessions if every or one.who == who)

    def _exposed(self, session: Session) -> Sequence[str]:
        return self._servers.get(session.endpoint, ())
