"""Tool sets and views: the database, and the order in which fronts learn of changes.

Never: the lists that a client sees in a view (`metamcp_worker.catalog`).
"""
