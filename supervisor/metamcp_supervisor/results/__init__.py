"""Large results in the supervisor: removed when nobody can read them, listed and purged.

Never: files of results (`metamcp_worker.results`), keeping a result (workers).
"""

from metamcp_supervisor.features import Feature

FEATURE = Feature(
    commands={
        "results": (
            "metamcp_supervisor.results.result_commands:results_",
            "List, show and remove large results that are kept.",
        )
    },
    verbs="metamcp_supervisor.results.result_orders:VERBS",
    service="metamcp_supervisor.results.result_keeper:ResultKeeper",
)
