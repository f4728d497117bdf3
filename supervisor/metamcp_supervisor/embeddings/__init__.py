"""Search by meaning in the supervisor: the process that makes vectors for all fronts.

Never: making vectors (`metamcp_worker.embedder`), using them (fronts).
"""

from metamcp_supervisor.features import Feature

FEATURE = Feature(
    tables=("metamcp_supervisor.embeddings.embedding_settings:TABLE",),
    service="metamcp_supervisor.embeddings.embedder:Embedder",
    metrics="metamcp_supervisor.embeddings.embedder:METRICS",
)
