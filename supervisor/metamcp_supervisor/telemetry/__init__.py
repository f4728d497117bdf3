"""Metrics, health, journal, logs and traces: all that shows from outside what happens.

Never: decisions about servers.
"""
