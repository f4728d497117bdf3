"""The control socket: who may use it, its orders, and their answers.

Never: carrying an order out (`gateway`).
"""
