"""The audit of calls in the supervisor: its process, its verbs, commands and page.

Never: writing records (`metamcp_worker.audit`), records of calls (fronts).
"""

from metamcp_supervisor.features import Feature

FEATURE = Feature(
    commands={
        "audit": (
            "metamcp_supervisor.audit.audit_commands:audit",
            "Read and check the audit of calls.",
        )
    },
    verbs="metamcp_supervisor.audit.audit_orders:VERBS",
    page="metamcp_supervisor.audit.audit_page:PAGE",
    service="metamcp_supervisor.audit.audit_writer:AuditWriter",
    metrics="metamcp_supervisor.audit.audit_writer:METRICS",
)
