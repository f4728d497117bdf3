"""The roots of a client: the folders that it works in, as it told them.

Owns: what is read of the answer to `roots/list`, and such an answer for a folder. Never: asking,
which process serves a client (`process_names`).
"""

from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from msgspec import Raw

from metamcp_worker.ipc import codec

Asked = Literal["", "in calls", "ahead"]
"""When a server asks for the roots of its client: never, only while a call is with it, or before
there is any. The last one has to know its client before it is called."""
METHOD = "roots/list"
CHANGED = "notifications/roots/list_changed"
TOLD = "metamcp/roots"
"""What a front tells the worker of a process whose client has other roots than before."""
NONE = b'{"roots":[]}'
"""The answer of a client that has none."""
ROOTS_MAX = 64
"""Of one client."""
ROOTS_BYTES_MAX = 16 * 1024
"""Of its answer: it crosses the control socket with the wish for a process."""
PATH_BYTES_MAX = 4096


def wider(one: Asked, other: Asked) -> Asked:
    """What is true of a server of which both were seen."""
    return "ahead" if "ahead" in (one, other) else one or other


class RootsUnfit(Exception):
    """An answer to `roots/list` that is none. The text says why."""


def uris(answer: bytes) -> tuple[str, ...]:
    """The URIs in a raw result of `roots/list`, in its order. Raises Unfit."""
    if len(answer) > ROOTS_BYTES_MAX:
        raise RootsUnfit(f"it has more than {ROOTS_BYTES_MAX} bytes")
    try:
        listed = codec.items(codec.level(answer).get("roots", Raw(b"null")))
        found = [codec.text(codec.level(one).get("uri", Raw(b"null"))) for one in listed]
    except codec.Malformed as error:
        raise RootsUnfit(f"it is not as the protocol has it: {error}") from None
    if len(found) > ROOTS_MAX:
        raise RootsUnfit(f"it has more than {ROOTS_MAX} roots")
    if None in found:
        raise RootsUnfit("it has a root without a URI")
    return tuple(filter(None, found))


def folder(answer: bytes) -> str:
    """The path of the first root, as a folder of this machine; empty if it is none."""
    try:
        first = next(iter(uris(answer)), "")
        parts = urlsplit(first)
    except (RootsUnfit, ValueError):
        return ""
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return ""
    path = unquote(parts.path)
    return path if fit(path) else ""


def of_folder(path: str) -> bytes:
    """The answer of a client that works in this folder."""
    root = {"uri": f"file://{quote(path)}", "name": path.rstrip("/").rpartition("/")[2] or path}
    return codec.dump({"roots": [root]})


def effective(answer: bytes, directory: str) -> bytes:
    """The roots of a client that gave this answer, if any; the folder that it works in if it has
    none of its own."""
    if directory and not uris(answer or NONE):
        return of_folder(directory)
    return answer


def fit(path: str) -> bool:
    """Is it the path of a folder, as a whole?"""
    return path.startswith("/") and "\0" not in path and len(path.encode()) <= PATH_BYTES_MAX
