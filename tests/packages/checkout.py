"""A checkout of what is here now, with a tag: what a release is built from."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGERS = ROOT / ".venv/packages/bin"
"""Programs that build and check packages: `requirements/packages.txt`."""
VERSION = "9.8.7"
BUILD_S_MAX = 300.0
COMPILE_S_MAX = 800.0


def run(*command: str | Path, cwd: Path, ok: bool = True, environ: Mapping[str, str] = {}) -> str:
    """What it prints on both streams."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=COMPILE_S_MAX if environ else BUILD_S_MAX,
        check=False,
    )
    said = done.stdout + done.stderr
    assert (done.returncode == 0) is ok, f"{command} -> {done.returncode}: {said[-4000:]}"
    return said


def checkout(folder: Path, *, tag: str = f"v{VERSION}") -> Path:
    """A repository with one commit: the files of this one, also those that are not committed."""
    listed = run("git", "ls-files", "-z", "-co", "--exclude-standard", cwd=ROOT).split("\0")
    for name in filter(None, listed):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists():
            target.write_bytes(source.read_bytes())
    run("git", "init", "--quiet", cwd=folder)
    run("git", "add", "--all", cwd=folder)
    settings = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "gc.auto=0")
    run("git", *settings, "commit", "--quiet", "--message=all", cwd=folder)
    if tag:
        run("git", *settings, "tag", tag, cwd=folder)
    return folder


def built(source: Path, folder: Path, *targets: str, environ: Mapping[str, str] = {}) -> list[Path]:
    """The files that the build of this source makes: of `wheel`, `sdist`, or both."""
    chosen = [word for target in targets for word in ("-t", target)]
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-d",
        folder,
        *chosen,
        cwd=source,
        environ=environ,
    )
    return sorted(folder.glob("metamcp-*"))
