"""Consent to calls: questions that are open in fronts, and grants that count until a time.

Owns: the rows of the grants in the database, sending them to all fronts, passing the answer of an
operator on to the front that asks; the verbs of the control socket about it, their parameters and
the journal's words. Never: asking clients, deciding which calls need consent (fronts do).

A grant is void as soon as the rules, the definition of its tool or its API key are not the same any
more: fronts compare the first two with each call, and the key has no calls. Here such grants are
only removed.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.services import ChangeParams, ControlStream, GatewayControl, Verb
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.roles.role_process import GatewayService, ServiceContext
from metamcp_supervisor.servers import specs
from metamcp_supervisor.store.database import Rows, StoreError
from metamcp_supervisor.telemetry.journal import WAITING
from metamcp_supervisor.verbs import ConsentList, Exit
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.consent_records import (
    CALLS_KEY,
    ConsentClosed,
    ConsentDecided,
    ConsentGiven,
    ConsentGrant,
    ConsentGrants,
    ConsentOpened,
    ConsentScope,
    OpenConsent,
    place,
    rules_mark,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import MetaMCPError, ProtocolError

GRANTS_MAX = 4096
"""Maximum stored grants; the oldest makes room for a new one."""
OPEN_MAX = 4096
"""Maximum open questions that are shown, of all fronts; more are not shown to operators."""
SHOWN_BYTES_MAX = 512 * 1024
"""Maximum bytes of arguments, as JSON, in all questions that are shown at a time; they are one
answer of the control socket."""
CLOSE_S_MAX = 10.0
"""Maximum seconds for the last write when the gateway ends."""


class ConsentUnknown(MetaMCPError, LookupError):
    """No question is open, or no grant is stored, with this id. The text is a sentence."""


class Consents(GatewayService):
    """Consent of a gateway. `clock`: seconds since the epoch; `rules`: returns the mark of the
    rules in a configuration."""

    def __init__(
        self,
        context: ServiceContext,
        clock: Callable[[], float] = time.time,
        rules: Callable[[Config], str] = lambda config: rules_mark(
            specs.consent_spec(config), config.policies
        ),
    ) -> None:
        self._database = context.database
        self._clock = clock
        self._fronts = context.fronts
        self._config = context.config
        self._rules_of = rules
        self._keys = context.keys
        self._journal = context.journal
        self._open: dict[str, OpenConsent] = {}
        self._grants: dict[str, ConsentGrant] = {}
        self._unread = True
        """There may be grants in the database that are not here."""
        self._changed = False
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, *, fresh: bool) -> None:
        """Read the grants. After an error, which is noted, there are none."""
        try:
            await self._read()
        except StoreError as error:
            self._note(f"consent that was given before now does not count: {error}")

    async def _read(self) -> None:
        """Read the grants, beside those that were given since. Raises StoreError."""
        none: tuple[ConsentGrant, ...] = ()
        grants = await self._database.read(_read_grants, none)
        self._grants = {grant.id: grant for grant in grants} | self._grants
        self._unread = False

    async def close(self) -> None:
        """Wait for the write that is under way, unless the disk hangs; call this before the
        database is closed."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=CLOSE_S_MAX)

    # Fronts

    def welcome(self, front: FrontProcess) -> None:
        if grants := self.grants():
            self._send(front, grants)

    def on_taken_over(self) -> None:
        """Send all grants to all fronts, which report their open questions again."""
        grants = self.grants()
        for front in self._fronts.list_serving():
            try:
                self._send(front, grants)
            except OSError as error:
                self._fronts.untold(front, error)

    def on_front_message(self, front: FrontProcess, message: Message, blob: bytes) -> None:
        match message:
            case ConsentOpened(question=question):
                if len(self._open) < OPEN_MAX and _front_of(question.id) == front.number:
                    if question.id not in self._open:  # else a front reports it again
                        self._journal.add("gateway", WAITING, _waits(question))
                    self._open[question.id] = question
            case ConsentClosed(id=name):
                if _front_of(name) == front.number:
                    self._open.pop(name, None)
            case ConsentGiven(grant=grant):
                self._grants[grant.id] = grant
                self._store()

    def on_front_gone(self, number: int) -> None:
        self._open = {
            name: question for name, question in self._open.items() if _front_of(name) != number
        }

    # Operators

    def count_waiting(self) -> dict[str, int]:
        return {"consent": len(self._open)}

    def figures(self) -> dict[str, object]:
        return {"approvals": (self.questions(), self.grants())}

    def questions(self) -> tuple[OpenConsent, ...]:
        """Return the open questions, the oldest first, as many as one answer can have."""
        oldest = sorted(self._open.values(), key=lambda question: question.since)
        sizes = accumulate(len(codec.dump(question.arguments)) for question in oldest)
        return tuple(
            question
            for question, size in zip(oldest, sizes, strict=True)
            if size <= SHOWN_BYTES_MAX
        )

    def grants(self) -> tuple[ConsentGrant, ...]:
        """Return the grants that count now, the oldest first; forget all others."""
        now, rules = self._clock(), self._rules_of(self._config())
        self._grants = {
            name: grant
            for name, grant in self._grants.items()
            if grant.until > now and grant.rules == rules and self._valid(grant.holder)
        }
        return tuple(sorted(self._grants.values(), key=lambda grant: grant.given))

    def decide(self, name: str, scope: ConsentScope | None, by: str) -> OpenConsent:
        """Answer a question with this scope, or with a no, and return it; a front that was
        answered before ignores that. Raises ConsentUnknown."""
        question, address = self._open.get(name), place(name)
        front = next(
            (
                front
                for front in self._fronts.list_serving()
                if address and front.number == address[0]
            ),
            None,
        )
        if question is None or address is None or front is None:
            raise ConsentUnknown(
                f"no question {name[:64]!r} is open; 'metamcp consent list' shows those that are"
            )
        front.send(ConsentDecided(call=address[1], scope=scope or "", by=by))
        del self._open[name]
        return question

    def revoke(self, names: Sequence[str]) -> tuple[ConsentGrant, ...]:
        """End these grants, or all of them without names, and return them. Raises
        ConsentUnknown; then no grant was ended."""
        grants = {grant.id: grant for grant in self.grants()}
        for name in names:
            if name not in grants:
                raise ConsentUnknown(
                    f"no grant is named {name[:64]!r}; 'metamcp consent list' shows all grants"
                )
        ended = tuple(grants[name] for name in names or grants)
        for grant in ended:
            del self._grants[grant.id]
        self._store()
        return ended

    def _note(self, sentence: str) -> None:
        self._journal.add("gateway", "error", sentence)

    def _valid(self, holder: str) -> bool:
        key = holder.removeprefix(CALLS_KEY)
        return key == holder or self._keys.has(key)

    def _send(self, front: FrontProcess, grants: Iterable[ConsentGrant]) -> None:
        front.send(ConsentGrants(), [packets.blob(codec.dump(list(grants)))])

    def _store(self) -> None:
        """Send all fronts the grants that count now, and write them, soon."""
        self._changed = True
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Send and write all changes, also those that come during the write."""
        try:
            while self._changed:
                self._changed = False
                if self._unread:
                    await self._read()
                grants = self.grants()
                for grant in grants[: max(0, len(grants) - GRANTS_MAX)]:
                    del self._grants[grant.id]
                self.on_taken_over()
                rows = [(grant.id, codec.dump(grant).decode()) for grant in self._grants.values()]
                await self._database.write(partial(_put, rows=rows), repeats=True)
        except StoreError as error:
            self._note(f"consent that was given ends with this gateway: {error}")
        finally:
            self._writing = None


def _waits(question: OpenConsent) -> str:
    tool = f"{question.server}/{question.tool}"
    return f"a call of {tool} needs consent: 'metamcp consent approve {question.id}'"


def _front_of(question: str) -> int:
    address = place(question)
    return -1 if address is None else address[0]


def _put(base: Rows, rows: Sequence[tuple[str, str]]) -> None:
    base.change("DELETE FROM consent", [()])
    base.change("INSERT INTO consent VALUES (?, ?)", rows)


def _read_grants(rows: Rows) -> tuple[ConsentGrant, ...]:
    records = rows.read("SELECT body FROM consent ORDER BY id")
    return tuple(codec.decode_as(ConsentGrant, body.encode()) for (body,) in records)


# The verbs about it


class ConsentQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `consent`."""


class ConsentOrder(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `consent-change`. `ids`: of one question, or of grants to revoke, none for all
    of them; `scope`: what is agreed to."""

    what: Literal["approve", "deny", "revoke"]
    ids: tuple[str, ...] = ()
    scope: ConsentScope = "once"


def about(params: ConsentOrder, result: object) -> Sequence[str]:
    """Return the words of the audit for an order."""
    return (params.what, *params.ids)


async def consent(gateway: GatewayControl, line: ControlStream, params: ConsentQuery) -> object:
    """Return the open questions and the grants."""
    consents = gateway.service(Consents)
    return ConsentList(questions=consents.questions(), grants=consents.grants())


async def consent_change(
    gateway: GatewayControl, line: ControlStream, params: ConsentOrder
) -> object:
    """Carry out an order. Raises ProtocolError."""
    try:
        if params.what == "revoke":
            revoked = gateway.service(Consents).revoke(params.ids)
            _note(gateway, line, f"{len(revoked)} grants revoked")
            return ConsentList(grants=revoked)
        (name,) = params.ids or ("",)
        scope = params.scope if params.what == "approve" else None
        question = gateway.service(Consents).decide(name, scope, line.caller)
    except MetaMCPError as error:
        raise ProtocolError(Exit.of(error), str(error)) from None
    done = f"approved ({scope})" if scope else "denied"
    _note(gateway, line, f"{question.server}/{question.tool} {done}")
    return ConsentList(questions=(question,))


def _note(gateway: GatewayControl, line: ControlStream, text: str) -> None:
    gateway.journal.add("gateway", "consent", f"{text} by {line.caller}")


VERBS = {
    "consent": Verb(ConsentQuery, consent, Role.OPERATOR, reads=True),
    "consent-change": Verb(ConsentOrder, consent_change, Role.OPERATOR, about=about),
}
