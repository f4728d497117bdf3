"""The supervisor: the processes, their policy, the files on disk, and everything an operator sees.

A tool call never comes here. Each package has one purpose, which its docstring says;
`tests/test_tidy.py` holds which package may import which.
"""

VERSION = "0.1.0.dev0"
"""Version of the project, the same as in its metadata. Reading the installed metadata instead would
load parsers of mail and of archives, which take 1.5 MiB for as long as the gateway runs."""
