"""The workers: MCP towards clients and servers, and the pipes between.

`front` and `child` are the two kinds of worker and never import each other. The supervisor imports
`ipc`, `http`, `runtime`, `oauth` and `bridge`, and nothing else from here.

A compiled wheel has a shared object beside each module on the way of a call, which Python prefers
to the source.
"""

import os
import sys

PURE = "METAMCP_PURE"
"""Environment variable: with the value 1, a process runs the sources of a compiled wheel."""


if os.environ.get(PURE) == "1":
    from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader

    def _sources(folder: str) -> FileFinder:
        """Return a finder that sees only sources. Raises ImportError for folders of others."""
        if not f"{folder}{os.sep}".startswith(f"{os.path.dirname(__file__)}{os.sep}"):
            raise ImportError(folder)
        return FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, _sources)
