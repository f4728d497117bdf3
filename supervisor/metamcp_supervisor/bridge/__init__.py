"""`metamcp connect`: the pipes of a client on one side, the endpoint of a gateway on the other.

Never: which gateway, starting one (`cli`).
"""
