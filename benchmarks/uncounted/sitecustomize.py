"""A gateway that counts no calls: `rigs.uncounted` puts this folder into the path of one, and
Python imports this file by its name at every start.

Only a gateway goes on from here, before it forks its nursery: everything that a front and a worker
do with a call so that it is counted is replaced by nothing, and no call is timed in each part of
the gateway. What is left of counting is the call of each empty function and the test whether a call
is timed. What is to be replaced must be there: with another name for it the gateway does not start.
"""

import sys

NO_CALL = 1 << 62
"""A bit that the number of no call has."""


def nothing(*_: object) -> None:
    """Instead of counting."""


def take_out() -> None:
    from metamcp_worker.child.server_calls import Timing
    from metamcp_worker.front_calls.stats import Stats
    from metamcp_worker.ipc import figures, jsonrpc_bytes

    for owner, name, instead in (
        (Stats, "observe", nothing),
        (jsonrpc_bytes, "is_error", nothing),  # opens answers to know what they count as
        (Timing, "count_call", nothing),
        (figures, "MASK", NO_CALL),
        (figures, "NEXT", NO_CALL),
    ):
        if not hasattr(owner, name):
            sys.exit(f"{owner} has no {name} to take out")  # Python goes on after any other error
        setattr(owner, name, instead)


if {"metamcp_supervisor", "serve"} <= set(sys.orig_argv):  # its nursery is a fork of it
    take_out()
