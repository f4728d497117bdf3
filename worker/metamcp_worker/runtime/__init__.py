"""The life of a process: the nursery that forks it, its event loop, memory, log and tasks.

Never: the work that a process is for.
"""
