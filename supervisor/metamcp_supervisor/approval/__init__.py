"""Definitions that are approved: the lock file, what differs from it, and quarantine.

Never: keeping anything from clients (the fronts do), asking people (`cli`).
"""
