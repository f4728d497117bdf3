"""`python -m metamcp_worker …`: picks the program from the first word and imports only its file."""

import importlib
import os
import sys

from metamcp_worker.runtime import lazy_import

PROGRAMS = {"nursery": "metamcp_worker.runtime.nursery"}


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in PROGRAMS:
        sys.stderr.write(f"usage: python -m metamcp_worker {{{','.join(PROGRAMS)}}} …\n")
        return os.EX_USAGE
    lazy_import.prepare()
    code = importlib.import_module(PROGRAMS[argv[0]]).main(argv[1:])
    assert isinstance(code, int)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
