"""Rights that a confined server wanted and did not have: as the kernel or its last words show them.

Owns: the kinds of rights, whether a server has one, the patterns of messages, the advice. Never:
reading the words, which rights it gets (`rules`).
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from posixpath import dirname, isabs, normpath
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from metamcp_worker.ipc.messages import LEARNT, REFUSED
from metamcp_worker.ipc.spec import ConfinementSpec

if TYPE_CHECKING:  # the supervisor needs none of the rules
    from metamcp_worker.confinement.rules import FileRights

_DENIED = re.compile(
    r"\b(?:EACCES|EPERM|EROFS|[Pp]ermission denied|[Oo]peration not permitted|Read-only file)"
)
_PATH = re.compile(r"""['"`\u2018]((?:/|\.{1,2}/)[^'"`\u2019]*)|(?:^|[\s(:])(/[^\s:,;()'"`]+)""")
_TO_WRITE = re.compile(
    r"\b(?:mkdir|mkdtemp|unlink|rmdir|rename|symlink|link|copyfile|write|creat\w*|touch|chmod"
    r"|utime|ftruncate|truncate|Read-only|save|remove|delete)"
)
_MAKES_FOLDER = re.compile(r"\b(?:mkdir|makedirs|create directory)\b")
_TRACE_LINES_MAX = 3
"""Maximum lines of a traceback above the error that are looked at for what was called."""
_DATABASE = re.compile(r"unable to open database file|attempt to write a readonly database", re.I)
"""Words of SQLite, which names no path."""
_ITSELF = re.compile(
    r"EACCES.*\buv_(?:resident_set_memory|uptime)|dereference unique_ptr that is NULL"
    r"|mount -t proc proc /proc"
)
"""Words of Node.js, DuckDB and `ps`, which name no path, where `/proc` is closed to them."""
_CONNECT = re.compile(r"\bconnect\w*\b.*?:(\d{1,5})\b")
_NAMESPACES = re.compile(r"^bwrap: .*(?:namespace|uid map|[Pp]ermission|not permitted)")


Right = Literal[
    "read", "write", "needs", "unix_sockets", "datagrams", "abstract_sockets", "tcp_ports",
    "network", "system_calls",
]  # fmt: skip
"""Kinds of rights; the first four and `tcp_ports` are named as in the table of a server."""
_DEEDS: dict[Right, str] = {
    "needs": "read about its own process, which a launcher started, nor about other ",
    "unix_sockets": "connect to the unix socket ",
    "datagrams": "make a unix socket for datagrams",
    "abstract_sockets": "connect to the abstract unix socket ",
    "tcp_ports": "connect to port ",
    "network": "make a socket of ",
    "system_calls": "make the system call ",
}
FAMILIES = {2: "IPv4", 10: "IPv6"}
"""Names of the domains of sockets that a network has."""


class DeniedRight(NamedTuple):
    """A right that was denied. `path`: of a file or socket, the number of a port, the name of a
    system call, of a network or of a need; empty for `datagrams`."""

    right: Right
    path: str


def counter_of(denied: DeniedRight, *, learnt: bool = False) -> str:
    """Return the name under which this right is counted where it is refused, or where a trial
    learns that it would be."""
    return f"{LEARNT if learnt else REFUSED}{denied.right} {denied.path}"


def denied_of(counter: str, kind: str = REFUSED) -> DeniedRight | None:
    """Return the right that a counter is about; None for a counter of something else. `kind`:
    prefix of the counter."""
    right, _, path = counter.removeprefix(kind).partition(" ")
    return DeniedRight(cast("Right", right), path) if counter.startswith(kind) else None


def sentence(denied: DeniedRight, spec: ConfinementSpec) -> str:
    """Return what the sandbox of a server does not let it do, and what to write to allow it."""
    right, path = denied
    deed = f"{_DEEDS.get(right, f'{right} ')}{path}"
    match right:
        case "read" | "write" | "needs" | "unix_sockets":
            line = f'add {right} = ["{path}"] to its table'
        case "datagrams":
            line = "add unix_sockets with the path of the socket to its table"
        case "tcp_ports":
            ports = ", ".join(map(str, sorted({*spec.tcp_ports, int(path)})))
            line = f"add network = {{ tcp_ports = [{ports}] }} to its table"
        case "network":
            line = 'write network = "host" in its table'
        case _:
            line = 'only sandbox = "none" allows that'
    return f"its sandbox '{spec.profile}' does not let it {deed}: {line}"


def denials(
    lines: Iterable[str], spec: ConfinementSpec, granted: Iterable[str] = ()
) -> Iterator[DeniedRight]:
    """Yield the rights that these lines complain of. `granted`: paths that the server may read, so
    that it can only have wanted to change them. A folder that it wanted to make ends with a slash,
    as in `write`, for which the gateway makes it."""
    readable_paths = [path.rstrip("/") for path in granted]
    restricted = spec.network == "none" or bool(spec.tcp_ports)
    trace = deque[str](maxlen=_TRACE_LINES_MAX)
    for line in lines:
        makes_folder = any(map(_MAKES_FOLDER.search, (*trace, line)))
        trace.append(line) if line[:1].isspace() else trace.clear()
        if _DATABASE.search(line):
            yield DeniedRight("write", ".")
        if _ITSELF.search(line):
            yield DeniedRight("needs", "processes")
            continue
        if not _DENIED.search(line):
            continue
        if restricted and (match := _CONNECT.search(line)):
            yield DeniedRight("tcp_ports", match[1])
            continue
        paths = (normpath(quoted or bare) for quoted, bare in _PATH.findall(line))
        for path in filter(isabs, paths):
            readable = any(
                f"{path}/".startswith(f"{readable_path}/") for readable_path in readable_paths
            )
            if path.startswith("/proc/"):
                yield DeniedRight("needs", "processes")
            elif makes_folder:
                yield DeniedRight("write", f"{path}/")
            elif readable or _TO_WRITE.search(line):
                yield DeniedRight("write", _folder(path))
            else:
                yield DeniedRight("read", path)
            break


def advice(
    lines: Iterable[str],
    spec: ConfinementSpec,
    granted: Iterable[str] = (),
    refused: Sequence[str] = (),
) -> str:
    """Return a sentence about the first right that these last lines of a server complain of, with
    the line to add; empty if they complain of none. `refused`: sentences about paths that stay
    closed though its command line names them, for a complaint without a path."""
    if spec.profile == "none":
        return ""
    lines = list(lines)
    for line in filter(_NAMESPACES.match, lines):
        return f"this machine does not let bubblewrap make namespaces, as 'strict' needs: {line}"
    for denied in denials(lines, spec, granted):
        return refused[0] if denied.path == "." and refused else sentence(denied, spec)
    return ""


def _folder(path: str) -> str:
    """Return the folder of a file: programs that change a file often make others beside it."""
    folder = dirname(path)
    return path if folder == "/" else folder


def find_needed_right(
    path: str, *, exists: bool, writes: bool, folder: bool = False
) -> DeniedRight | None:
    """Return the right that a process needs which opens this real path, or makes it; None where
    nothing is. `folder`: it makes a folder."""
    if exists:
        return DeniedRight("write" if writes else "read", path)
    if folder:
        return DeniedRight("write", f"{path}/")
    return DeniedRight("write", dirname(path)) if writes else None


def is_granted(denied: DeniedRight, granted: "FileRights", *, folder: bool = False) -> bool:
    """Whether these rights, with real paths, hold that one. A new folder needs the one around it.
    `folder`: it is a folder that is read."""
    path = dirname(denied.path.rstrip("/")) if denied.path.endswith("/") else denied.path
    open_to = granted.write if denied.right == "write" else (*granted.read, *granted.write)
    open_to += granted.names if folder else ()
    return any(f"{path}/".startswith(f"{granted_path}/") for granted_path in open_to)


def with_right(granted: "FileRights", denied: DeniedRight) -> "FileRights":
    """Return these rights and that one, so that rights below it are not reported again."""
    path = denied.path.rstrip("/")
    if denied.right == "write":
        return granted._replace(write=(*granted.write, path))
    return granted._replace(read=(*granted.read, path))
