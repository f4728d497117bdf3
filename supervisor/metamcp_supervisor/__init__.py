"""The supervisor: the processes, their policy, the files on disk, and everything an operator sees.

A tool call never comes here. Each package has one purpose, which its docstring says;
`tests/test_tidy.py` holds which package may import which.
"""

VERSION = "0.1.0.dev0"
"""As in the project's metadata. Whoever asks the installed metadata for it loads parsers of mail
and of archives, which a gateway then has for as long as it runs: a MiB and a half."""
