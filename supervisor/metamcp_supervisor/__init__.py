"""The supervisor: the processes, their policy, the files on disk, and everything an operator sees.

A tool call comes only to the verbs that make or carry one (`bridge`, `calls`), in processes of
their own. Each package has one purpose, which its docstring says; `tests/test_tidy.py` holds which
package may import which.
"""

import os


def _version() -> str:
    """Return what the build wrote, from the tag; in a checkout that was not built, its fallback."""
    path = os.path.join(os.path.dirname(__file__), "version.txt")
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "0.1.dev0"


VERSION = _version()
"""Version of the project, the same as in its metadata. Reading the installed metadata instead would
load parsers of mail and of archives, which take 1.5 MiB for as long as the gateway runs."""
