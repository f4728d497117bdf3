"""Tool sets and views: the database, the order in which fronts learn of changes, and what the
tools of an endpoint cost in the context of a client.

Never: the lists that a client sees in a view (`metamcp_worker.catalog`).
"""
