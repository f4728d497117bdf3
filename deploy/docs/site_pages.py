"""Pages of the site, from Markdown that reads on a forge.

Owns: links that leave docs/, the folders of versions. Never: files and the builder (`site`).
"""

import posixpath
import re
from collections.abc import Iterable

FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n\n?", re.MULTILINE | re.DOTALL)
"""Diagram that a forge draws. On the site, a script from elsewhere would have to."""
LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:\[[^\]]*\]|[^\[\]])*)\]"
    r"\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)"
)
"""Link to a file. A link with a colon goes to another site."""
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")
LATEST = "latest"
DEVELOPMENT = "dev"
MOVED = {"CHANGELOG.md": "docs/changes.md"}
"""Files outside of docs/ that are pages of the site."""


def page(text: str, path: str, repository: str) -> str:
    """Return a page without diagrams, and with links that work on the site. `path`: its place here,
    as `docs/tls.md`; `repository`: URL below which a file of the project is shown, or empty: then a
    link to such a file becomes its text."""

    def linked(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found["path"]))
        target = MOVED.get(target, target)
        if target.startswith("docs/"):
            place = posixpath.relpath(target, posixpath.dirname(MOVED.get(path, path)))
        elif repository:
            place = f"{repository.removesuffix('/')}/{target}"
        else:
            return found["text"]
        return f"{found['image']}[{found['text']}]({place}{found['anchor'] or ''})"

    parts = FENCED.split(DIAGRAM.sub("", text))
    parts[::2] = [LINK.sub(linked, part) for part in parts[::2]]
    return "".join(parts)


def repository(url: str, version: str) -> str:
    """Return the URL below which the files of a version are shown, or an empty text without one."""
    tag = f"v{version}" if RELEASE.fullmatch(version) else "main"
    return f"{url.rstrip('/')}/blob/{tag}" if url else ""


def folder(version: str) -> str:
    """Return the folder of a version: a release has its own, all others share one."""
    return version if RELEASE.fullmatch(version) else DEVELOPMENT


def newest(folders: Iterable[str]) -> str:
    """Return the folder that `latest` repeats: the newest release, or development before one."""
    releases = [found for name in folders if (found := RELEASE.fullmatch(name))]
    if not releases:
        return DEVELOPMENT
    return max(releases, key=lambda found: tuple(map(int, found.groups())))[0]


def versions(folders: Iterable[str]) -> list[dict[str, object]]:
    """Return the list of versions that each page offers, the newest first."""
    names = sorted(folders, key=_order, reverse=True)
    latest = newest(names)
    return [
        {"version": name, "title": name, "aliases": [LATEST] if name == latest else []}
        for name in names
    ]


def _order(name: str) -> tuple[int, ...]:
    found = RELEASE.fullmatch(name)
    return tuple(map(int, found.groups())) if found else (-1,)
