"""Middleware in the supervisor: a process for each line of `[[middleware]]`.

Never: hooks (`metamcp_worker.middleware`).
"""

from metamcp_supervisor.features import Feature

FEATURE = Feature(service="metamcp_supervisor.middleware.middleware_process:Middlewares")
