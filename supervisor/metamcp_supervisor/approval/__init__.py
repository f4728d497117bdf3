"""Definitions that are approved: the lock file, what differs from it, and quarantine.

Never: hiding tools from clients (the fronts do), asking users (`cli`).
"""
