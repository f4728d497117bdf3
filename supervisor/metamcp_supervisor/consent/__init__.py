"""Consent to calls in the supervisor: open questions, grants on disk, answers of operators.

Never: which calls need consent, asking clients (fronts).
"""

from metamcp_supervisor.features import Feature

FEATURE = Feature(
    commands={
        "consent": (
            "metamcp_supervisor.consent.consent_commands:consent_",
            "Answer for calls that need the consent of a person.",
        )
    },
    verbs="metamcp_supervisor.consent.consents:VERBS",
    service="metamcp_supervisor.consent.consents:Consents",
)
