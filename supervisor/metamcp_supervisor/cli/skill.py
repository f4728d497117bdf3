"""The skill of Claude Code: a copy of SKILL.md that is ours, and a link to it where it is read.

Owns: both files. Never: what the skill says (`skill/SKILL.md` of the package), entries (`install`).
"""

import os
from importlib import resources
from pathlib import Path

import click

from metamcp_supervisor.cli.refusing import Refused
from metamcp_supervisor.client_files import disk
from metamcp_supervisor.config.document import printable

_MARK = "<!-- metamcp skill"
"""In every version of it: a file with this is ours."""


def text() -> str:
    """What the skill of this version says."""
    folder = resources.files("metamcp_supervisor") / "skill"
    return folder.joinpath("SKILL.md").read_text(encoding="utf-8")


def canonical() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    home = Path(data) if os.path.isabs(data) else Path.home() / ".local/share"
    return home / "metamcp" / "skill" / "SKILL.md"


def link() -> Path:
    """Where Claude Code looks for the skills of a user."""
    given = os.environ.get("CLAUDE_CONFIG_DIR", "")
    return (Path(given) if given else Path.home() / ".claude") / "skills" / "metamcp" / "SKILL.md"


def put(*, dry_run: bool, force: bool) -> None:
    """Write the copy and link to it; what is right already is left. Raises Refused and OSError."""
    copy, at = canonical(), link()
    if _is_strange(at) and not force:
        raise Refused(
            f"{_shown(at)} is there and not of this skill; it stays (--force replaces it, and keeps"
            " a copy)"
        )
    old = _text(copy)
    if old == text():
        _say(copy, "unchanged")
    else:
        if not dry_run:
            copy.parent.mkdir(parents=True, exist_ok=True)
            disk.place(copy, text().encode(), 0o644)
        _say(copy, "written" if old is None else "replaced", dry_run)
    if at.is_symlink() and os.path.realpath(at) == os.path.realpath(copy):
        _say(at, "unchanged")
        return
    if not dry_run:
        if _is_strange(at) and at.exists():
            disk.keep(disk.Content(at, at.read_bytes(), ""))
        _link(at, copy)
    _say(at, f"linked to {_shown(copy)}", dry_run)


def drop(*, dry_run: bool) -> None:
    """Remove both, and the folders that are empty then. Raises OSError."""
    copy, at = canonical(), link()
    for path in (at, copy):
        if not os.path.lexists(path):
            continue
        if path == at and _is_strange(at):
            _say(at, "left: it is not of this skill")
            continue
        if not dry_run:
            path.unlink()
            _tidy(path.parent)
        _say(path, "removed", dry_run)


def _link(at: Path, copy: Path) -> None:
    """In one step, whatever was there."""
    at.parent.mkdir(parents=True, exist_ok=True)
    fresh = at.with_name(f".{at.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(copy)
    os.replace(fresh, at)


def _is_strange(at: Path) -> bool:
    """Is there something that we did not make? A link that leads nowhere is nobody's loss."""
    if not os.path.lexists(at) or (at.is_symlink() and not at.exists()):
        return False
    if at.is_symlink() and os.path.realpath(at) == os.path.realpath(canonical()):
        return False
    return _MARK not in (_text(at) or "")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _tidy(folder: Path) -> None:
    """Folders of ours, while nothing is in them."""
    while folder.name in ("skill", "metamcp") and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _shown(path: Path) -> str:
    return printable(str(path))


def _say(path: Path, what: str, dry_run: bool = False) -> None:
    click.echo(f"{_shown(path)}: {'would be ' if dry_run else ''}{what}")
