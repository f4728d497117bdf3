"""Write `docs/performance.md` and its charts anew from the newest results that are kept.

    python -m benchmarks.page [FILE]

Only what stands between markers is replaced. Exit code 1 if there is no result.
"""

import sys
from pathlib import Path

import msgspec

from benchmarks import pages
from benchmarks.figures import Result
from benchmarks.machine import ROOT

RESULTS = ROOT / "benchmarks" / "results"
COMPILED = RESULTS / "compiled"
"""Results of a compiled gateway."""
PAGE = ROOT / "docs" / "performance.md"


def newest(folder: Path = RESULTS) -> Path | None:
    """Their names are the times at which they were measured."""
    return max(folder.glob("*.json"), default=None)


def read(path: Path) -> Result:
    return msgspec.json.decode(path.read_bytes(), type=Result)


def files(result: Result, text: str) -> dict[Path, str]:
    """Everything that is generated, by where it belongs. `text`: the page as it is."""
    folder = PAGE.parent / pages.FOLDER
    drawn = {folder / name: picture for name, picture in pages.pictures(result).items()}
    compiled = newest(COMPILED)
    found = pages.filled(text, result, None if compiled is None else read(compiled))
    return {PAGE: found, **drawn}


def main() -> int:
    path = Path(sys.argv[1]) if sys.argv[1:] else newest()
    if path is None:
        print(f"no result in {RESULTS}: run 'make bench-publish'", file=sys.stderr)
        return 1
    for target, text in files(read(path), PAGE.read_text()).items():
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
        print(f"written: {target.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
