"""Writes the reference pages: `python -m deploy.docs.write`, from the root of the project."""

import sys
from pathlib import Path

from deploy.docs import commands, notes, reference
from metamcp_supervisor.__main__ import HEADINGS
from metamcp_supervisor.cli.errors import INTERRUPTED
from metamcp_supervisor.verbs import Exit
from metamcp_worker.front_clients import rest
from metamcp_worker.ipc import errors

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def files() -> dict[Path, str]:
    """Return the text that belongs into each file."""
    interrupted = notes.Note("", INTERRUPTED, "Interrupted with Ctrl-C.")
    codes = notes.of(errors.Code)
    return {
        FOLDER / "verbs.md": reference.verbs(commands.tree(), HEADINGS),
        FOLDER / "codes.md": reference.codes(
            codes, errors.HTTP_STATUS, rest.STATUSES, [*notes.of(Exit), interrupted]
        ),
        FOLDER / "builtin-tools.md": reference.builtin_tools(),
    }


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
