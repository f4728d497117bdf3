"""Workflows and agents in the supervisor: the engine's process, verbs, commands, a page.

Never: running workflows (`metamcp_worker.engine`).
"""

from metamcp_supervisor.features import Feature

FEATURE = Feature(
    commands={
        "workflow": (
            "metamcp_supervisor.workflows.workflow_commands:workflow_",
            "Check, draw and run workflows.",
        )
    },
    tables=("metamcp_supervisor.workflows.engine_settings:TABLE",),
    verbs="metamcp_supervisor.workflows.workflow_orders:VERBS",
    page="metamcp_supervisor.workflows.workflows_page:PAGE",
    service="metamcp_supervisor.workflows.engine_process:EngineProcess",
    metrics="metamcp_supervisor.workflows.engine_process:METRICS",
)
