"""Rights that a confined server wanted and did not have, as its last words tell them.

Owns: the patterns of messages, and the advice. Never: reading the words, the rights.
"""

import re
from collections.abc import Iterable
from posixpath import dirname, isabs, normpath

from metamcp_worker.ipc.spec import ConfinementSpec

_DENIED = r"(?:EACCES|EPERM|EROFS|[Pp]ermission denied|[Oo]peration not permitted|Read-only file)"
_LINE = re.compile(rf"\b{_DENIED}")
_PATH = re.compile(r"['\"`\u2018]((?:/|\.{1,2}/)[^'\"`\u2019]*)|(?:^|[\s(:])(/[^\s:,;()'\"`]+)")
_TO_WRITE = re.compile(
    r"\b(?:mkdir|mkdtemp|unlink|rmdir|rename|symlink|link|copyfile|write|creat\w*|touch|chmod"
    r"|utime|ftruncate|truncate|Read-only|save|remove|delete)"
)
_CONNECT = re.compile(r"\bconnect\w*\b.*?:(\d{1,5})\b")
_NAMESPACES = re.compile(r"^bwrap: .*(?:namespace|uid map|[Pp]ermission|not permitted)")


def advice(lines: Iterable[str], spec: ConfinementSpec, granted: Iterable[str] = ()) -> str:
    """Return a sentence about the first right that these last lines of a server complain of, with
    the line to add; empty if they complain of none. `granted`: paths that it may read."""
    if spec.profile == "none":
        return ""
    known = [path.rstrip("/") for path in granted]
    for line in lines:
        if _NAMESPACES.match(line):
            return f"this machine lets bubblewrap make no namespaces, which 'strict' needs: {line}"
        if not _LINE.search(line):
            continue
        if (spec.tcp_ports or spec.network == "none") and (found := _CONNECT.search(line)):
            port = int(found[1])
            ports = ", ".join(map(str, sorted({*spec.tcp_ports, port})))
            return _sentence(
                spec, f"connect to port {port}", f"network = {{ tcp_ports = [{ports}] }}"
            )
        for quoted, bare in _PATH.findall(line):
            path = normpath(quoted or bare)
            if not isabs(path):
                continue
            readable = any(f"{path}/".startswith(f"{one}/") for one in known)
            if readable or _TO_WRITE.search(line):
                return _sentence(spec, f"change {path}", f'write = ["{_folder(path)}"]')
            return _sentence(spec, f"read {path}", f'read = ["{path}"]')
    return ""


def _folder(path: str) -> str:
    """Return the folder of a file: who changes a file often makes others beside it."""
    folder = dirname(path)
    return path if folder == "/" else folder


def _sentence(spec: ConfinementSpec, what: str, line: str) -> str:
    return f"its sandbox '{spec.profile}' does not let it {what}: add {line} to its table"
