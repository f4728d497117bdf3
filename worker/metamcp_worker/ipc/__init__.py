"""The contract: messages and values between processes of the gateway, and the pipes for them.

The supervisor and every worker import this package. Never: acting on a message.
"""
