"""A package with middleware in a folder of its own, as `pip install` would leave it."""

import shutil
from pathlib import Path

PACKAGE = Path(__file__).parent / "fakes" / "hooks_package.py"
ENTRIES = {"shout": "Shout", "watch": "Watch", "bad": "Bad"}


def install(folder: Path, code: Path | str = PACKAGE, **entries: str) -> Path:
    """Put a package into this folder, which is to be on PYTHONPATH. `code`: its only module;
    `entries`: names of classes by entry point."""
    folder.mkdir(parents=True, exist_ok=True)
    module = folder / "hooks_package.py"
    if isinstance(code, Path):
        shutil.copy(code, module)
    else:
        module.write_text(code)
    info = folder / "hooks-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hooks\nVersion: 1.0\n")
    points = [f"{name} = hooks_package:{of}" for name, of in (entries or ENTRIES).items()]
    (info / "entry_points.txt").write_text("\n".join(["[metamcp.middleware]", *points, ""]))
    return folder
