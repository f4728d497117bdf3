"""Processes: the nursery that forks workers, heartbeats, stacks, control groups and limits.

Never: the choice of processes that should run (`servers`, `fronts`).
"""
