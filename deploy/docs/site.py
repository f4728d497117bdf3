"""Builds the documentation site: `python -m deploy.docs.site OUT`, or `make docs`.

`OUT` gets a folder for this version beside those that it has, `latest`, and a first page that leads
there. METAMCP_URL is the address of the repository: links to files outside of docs/ lead there, and
are plain text without it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from deploy.docs import site_pages

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / ".venv" / "docs" / "bin" / "zensical"
BUILD_S = 120
"""Seconds for the builder, which needs two."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")
FIRST = (
    '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>MetaMCP</title>\n'
    '<meta http-equiv="refresh" content="0; url=latest/">\n<a href="latest/">MetaMCP</a>\n</html>\n'
)


def main() -> int:
    given = argparse.ArgumentParser(prog="python -m deploy.docs.site")
    given.add_argument("out", type=Path)
    given.add_argument("--version", default=version("metamcp"))
    options = given.parse_args()
    url = os.environ.get("METAMCP_URL", "")
    return build(options.out, options.version, site_pages.repository(url, options.version))


def build(out: Path, built: str, repository: str) -> int:
    """Build one version into `out`. Return the exit code of the builder, whose words are printed
    if it has warnings."""
    if not BUILDER.exists():
        sys.stderr.write(f"{BUILDER} is missing: 'make docs' installs it and builds the site\n")
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary)
        _stage(stage, repository)
        done = subprocess.run(
            [BUILDER, "build", "--clean", "--strict"],
            cwd=stage, timeout=BUILD_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.stderr.write(COLOUR.sub("", done.stdout))
            return done.returncode
        # Its links are only right at the root of a site.
        (stage / "site" / "404.html").unlink()
        _replace(stage / "site", out / site_pages.folder(built))
    _settle(out)
    return 0


def _stage(stage: Path, repository: str) -> None:
    """Write a copy of the documentation, in which links fit the site."""
    shutil.copytree(ROOT / "docs", stage / "docs")
    shutil.copy(Path(__file__).with_name("zensical.toml"), stage)
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    for path in pages | set(site_pages.MOVED):
        text = site_pages.page((ROOT / path).read_text(), path, repository)
        (stage / site_pages.MOVED.get(path, path)).write_text(text)


def _settle(out: Path) -> None:
    """Write what belongs to all versions: the list, `latest` and the first page."""
    folders = [path.name for path in out.iterdir() if (path / "index.html").is_file()]
    folders = [name for name in folders if name != site_pages.LATEST]
    _replace(out / site_pages.newest(folders), out / site_pages.LATEST)
    (out / "versions.json").write_text(json.dumps(site_pages.versions(folders), indent=2) + "\n")
    (out / "index.html").write_text(FIRST)


def _replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


if __name__ == "__main__":
    sys.exit(main())
