"""The supervisor package: lives. Who runs, why, and what an operator sees of it.

Four rooms, each of which imports only those before it: `wanted` (the configuration), `watched` (the
journal, logs, metrics, the control socket), `lives` (states, workers, fronts), `cli` (the command).
At the top: `run` wires them, `runtime` owns the runtime directory, `verbs` is what ctl is told.
"""
