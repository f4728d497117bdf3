"""Code mode and scripts in the supervisor: the process of the sandboxes, verbs, commands, a page.

Never: running code (`metamcp_worker.sandbox`), the rows of scripts (`views`).
"""

from metamcp_supervisor.features import Feature

FEATURE = Feature(
    commands={
        "scripts": (
            "metamcp_supervisor.code_mode.script_commands:scripts_",
            "Save, list and run scripts: programs that call tools.",
        )
    },
    verbs="metamcp_supervisor.code_mode.script_orders:VERBS",
    page="metamcp_supervisor.code_mode.scripts_page:PAGE",
    service="metamcp_supervisor.code_mode.code_process:CodeProcess",
    metrics="metamcp_supervisor.code_mode.code_process:METRICS",
)
