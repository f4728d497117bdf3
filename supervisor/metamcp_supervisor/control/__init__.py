"""The control socket: access to it, its orders, and their answers.

Never: carrying an order out (`gateway`).
"""
