"""Writes the man pages: `python -m deploy.docs.man DIR`, from the root of the project.

`DIR` gets `man1` and `man5`. With SOURCE_DATE_EPOCH the pages have that day, else today.
"""

import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from deploy.docs import commands, man_pages, notes
from metamcp_supervisor.verbs import Exit


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.stderr.write("usage: python -m deploy.docs.man DIR\n")
        return 2
    write(Path(sys.argv[1]))
    return 0


def write(folder: Path) -> list[Path]:
    """Write all pages below `folder`, and return their paths."""
    paths: list[Path] = []
    for name, text in texts(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())).items():
        path = folder / f"man{name[-1]}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        paths.append(path)
    return paths


def texts(second: int) -> dict[str, str]:
    """Return the text of each page by the name of its file. `second`: the day of the pages, in
    seconds since 1970."""
    day = time.strftime("%Y-%m-%d", time.gmtime(second))
    return man_pages.pages(commands.tree(), notes.of(Exit), version("metamcp"), day)


if __name__ == "__main__":
    sys.exit(main())
