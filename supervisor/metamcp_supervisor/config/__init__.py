"""The configuration: its files, its settings, its errors, and the effect of a change.

Never: processes, the network.
"""
