"""The verbs about consent: what waits for a person, an operator's answer, the end of grants.

Owns: their parameters, the form of the answers, the journal's words. Never: which calls need
consent (fronts decide), grants themselves (`consent.consents`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.services import ChangeParams, ControlStream, GatewayControl, Verb
from metamcp_supervisor.verbs import ConsentList, Exit
from metamcp_worker.ipc.consent_records import ConsentScope
from metamcp_worker.ipc.errors import MetaMCPError, ProtocolError

if TYPE_CHECKING:
    from metamcp_supervisor.consent.consents import Consents


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
    consents = _consents(gateway)
    return ConsentList(questions=consents.questions(), grants=consents.grants())


async def consent_change(
    gateway: GatewayControl, line: ControlStream, params: ConsentOrder
) -> object:
    """Carry out an order. Raises ProtocolError."""
    try:
        if params.what == "revoke":
            revoked = _consents(gateway).revoke(params.ids)
            _note(gateway, line, f"{len(revoked)} grants revoked")
            return ConsentList(grants=revoked)
        (name,) = params.ids or ("",)
        scope = params.scope if params.what == "approve" else None
        question = _consents(gateway).decide(name, scope, line.caller)
    except MetaMCPError as error:
        raise ProtocolError(Exit.of(error), str(error)) from None
    done = f"approved ({scope})" if scope else "denied"
    _note(gateway, line, f"{question.server}/{question.tool} {done}")
    return ConsentList(questions=(question,))


def _consents(gateway: GatewayControl) -> "Consents":
    from metamcp_supervisor.consent.consents import Consents  # not for the command line

    return gateway.service(Consents)


def _note(gateway: GatewayControl, line: ControlStream, text: str) -> None:
    gateway.journal.add("gateway", "consent", f"{text} by {line.caller}")


VERBS = {
    "consent": Verb(ConsentQuery, consent, Role.OPERATOR, reads=True),
    "consent-change": Verb(
        ConsentOrder,
        consent_change,
        Role.OPERATOR,
        about=about,
    ),
}
