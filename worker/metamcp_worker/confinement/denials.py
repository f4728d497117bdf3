"""Rights that a confined server wanted and did not have, as its last words tell them.

Owns: the patterns of messages, and the advice. Never: reading the words, the rights themselves.
"""

import re
from collections.abc import Iterable, Iterator
from posixpath import dirname, isabs, normpath
from typing import Literal, NamedTuple

from metamcp_worker.ipc.spec import ConfinementSpec

_DENIED = re.compile(
    r"\b(?:EACCES|EPERM|EROFS|[Pp]ermission denied|[Oo]peration not permitted|Read-only file)"
)
_PATH = re.compile(r"""['"`\u2018]((?:/|\.{1,2}/)[^'"`\u2019]*)|(?:^|[\s(:])(/[^\s:,;()'"`]+)""")
_TO_WRITE = re.compile(
    r"\b(?:mkdir|mkdtemp|unlink|rmdir|rename|symlink|link|copyfile|write|creat\w*|touch|chmod"
    r"|utime|ftruncate|truncate|Read-only|save|remove|delete)"
)
_DATABASE = re.compile(r"unable to open database file|attempt to write a readonly database", re.I)
"""Words of SQLite, which names no path."""
_CONNECT = re.compile(r"\bconnect\w*\b.*?:(\d{1,5})\b")
_NAMESPACES = re.compile(r"^bwrap: .*(?:namespace|uid map|[Pp]ermission|not permitted)")


class DeniedRight(NamedTuple):
    """A right that was denied. `path`: for `connect` the number of a port."""

    right: Literal["read", "write", "connect"]
    path: str


def denials(
    lines: Iterable[str], spec: ConfinementSpec, granted: Iterable[str] = ()
) -> Iterator[DeniedRight]:
    """Yield the rights that these lines complain of. `granted`: paths that the server may read, so
    that it can only have wanted to change them."""
    known = [path.rstrip("/") for path in granted]
    restricted = spec.network == "none" or bool(spec.tcp_ports)
    for line in lines:
        if _DATABASE.search(line):
            yield DeniedRight("write", ".")
        if not _DENIED.search(line):
            continue
        if restricted and (found := _CONNECT.search(line)):
            yield DeniedRight("connect", found[1])
            continue
        paths = (normpath(quoted or bare) for quoted, bare in _PATH.findall(line))
        for path in filter(isabs, paths):
            readable = any(f"{path}/".startswith(f"{one}/") for one in known)
            if readable or _TO_WRITE.search(line):
                yield DeniedRight("write", _folder(path))
            else:
                yield DeniedRight("read", path)
            break


def advice(lines: Iterable[str], spec: ConfinementSpec, granted: Iterable[str] = ()) -> str:
    """Return a sentence about the first right that these last lines of a server complain of, with
    the line to add; empty if they complain of none."""
    if spec.profile == "none":
        return ""
    lines = list(lines)
    for line in filter(_NAMESPACES.match, lines):
        return f"this machine does not let bubblewrap make namespaces, as 'strict' needs: {line}"
    for right, path in denials(lines, spec, granted):
        what, line = f"{right} {path}", f'{right} = ["{path}"]'
        if right == "connect":
            ports = ", ".join(map(str, sorted({*spec.tcp_ports, int(path)})))
            what, line = f"connect to port {path}", f"network = {{ tcp_ports = [{ports}] }}"
        return f"its sandbox '{spec.profile}' does not let it {what}: add {line} to its table"
    return ""


def _folder(path: str) -> str:
    """Return the folder of a file: programs that change a file often make others beside it."""
    folder = dirname(path)
    return path if folder == "/" else folder
