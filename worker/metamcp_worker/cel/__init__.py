"""Expressions in CEL: what policies, consent and workflows ask of a call, with limits on each.

Never: what an expression decides (`guard`, `engine`).
"""
