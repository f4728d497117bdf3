"""The whole gateway: the order of start and stop, reload, and the upgrade in place.

Never: the work of any part.
"""
