"""The web console: its process, its pages, sessions of browsers, and the files that a browser gets.

Never: carrying out an order or checking a right (`control`).
"""

from metamcp_supervisor.features import Feature

FEATURE = Feature(
    commands={
        "console": (
            "metamcp_supervisor.console.console_commands:console",
            "Open the web console, and end its sessions.",
        )
    },
    verbs="metamcp_supervisor.console.console_orders:VERBS",
    service="metamcp_supervisor.console.console_process:ConsoleProcess",
)
