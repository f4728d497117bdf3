"""The supervisor package: lives. Who runs, why, and what an operator sees of it.

Four rooms, each of which imports only those before it: `wanted` (the configuration), `watched` (the
journal, logs, metrics, the control socket), `lives` (states, workers, fronts), `cli` (the command).
At the top: `run` wires them, `runtime` owns the runtime directory, `verbs` is what ctl is told.
"""

VERSION = "0.1.0.dev0"
"""As in the project's metadata. Whoever asks the installed metadata for it loads parsers of mail
and of archives, which a gateway then has for as long as it runs: a MiB and a half."""
