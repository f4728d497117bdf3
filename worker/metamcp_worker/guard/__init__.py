"""Guarded calls: rules about calls, and the steps that a call takes before its server gets it.

Never: calls that no rule concerns, which this package does not see.
"""
