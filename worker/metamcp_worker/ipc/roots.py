"""Roots of a client: the folders that the client says it works in.

Owns: reading the answer to `roots/list`, and making such an answer for a folder. Never: asking,
which process serves a client (`process_names`).
"""

from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from msgspec import Raw

from metamcp_worker.ipc import codec

Asked = Literal["", "in calls", "ahead"]
"""When a server asks for the roots of its client: never, only during a call, or ahead of any call.
A server that keeps the answer counts as one that asks ahead, and has to have its client before a
call."""
METHOD = "roots/list"
CHANGED = "notifications/roots/list_changed"
TOLD = "metamcp/roots"
"""Method of the notification that a front sends to a worker when the roots of the client have
changed."""
NONE = b'{"roots":[]}'
"""Answer of a client that has no roots."""
ROOTS_MAX = 64
"""Maximum roots of one client."""
ROOTS_BYTES_MAX = 16 * 1024
"""Maximum bytes of a client's answer, which crosses the control socket in
`messages.ServerWanted`."""
PATH_BYTES_MAX = 4096


def wider(first: Asked, second: Asked) -> Asked:
    """Return the value for a server that was seen to ask in both ways."""
    return "ahead" if "ahead" in (first, second) else first or second


class RootsUnfit(Exception):
    """Raised for an unusable answer to `roots/list`. The text says why."""


def uris(answer: bytes) -> tuple[str, ...]:
    """Return the URIs in a raw result of `roots/list`, in its order. Raises RootsUnfit."""
    if len(answer) > ROOTS_BYTES_MAX:
        raise RootsUnfit(f"it has more than {ROOTS_BYTES_MAX} bytes")
    try:
        listed = codec.items(codec.level(answer).get("roots", Raw(b"null")))
        root_uris = [codec.text(codec.level(root).get("uri", Raw(b"null"))) for root in listed]
    except codec.Malformed as error:
        raise RootsUnfit(f"it is not as the protocol has it: {error}") from None
    if len(root_uris) > ROOTS_MAX:
        raise RootsUnfit(f"it has more than {ROOTS_MAX} roots")
    if None in root_uris:
        raise RootsUnfit("it has a root without a URI")
    return tuple(filter(None, root_uris))


def folder(answer: bytes) -> str:
    """Return the path of the first root if it is a folder of this machine, else an empty string."""
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
    """Return the answer of a client that works in this folder."""
    root = {"uri": f"file://{quote(path)}", "name": path.rstrip("/").rpartition("/")[2] or path}
    return codec.dump({"roots": [root]})


def effective(answer: bytes, directory: str) -> bytes:
    """Return the client's answer, or an answer with the folder that it works in if the client gave
    no roots."""
    if directory and not uris(answer or NONE):
        return of_folder(directory)
    return answer


def fit(path: str) -> bool:
    """Whether this can be the absolute path of a folder."""
    return path.startswith("/") and "\0" not in path and len(path.encode()) <= PATH_BYTES_MAX
