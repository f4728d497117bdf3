"""Table of API keys, as the supervisor sends it to fronts.

Owns: the rows, their changes, the two messages. Never: keys themselves (only digests are here), the
form of a key (`access.api_key`), storing them.
"""

from msgspec import Struct

from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.spec import UNLIMITED, UseLimits

CONSOLE_SCOPES = ("console:viewer", "console:operator", "console:developer", "console:admin")
"""Scopes of keys that open the web console, one for each role, the lowest first. The supervisor
judges them; fronts know none of them."""
METRICS_SCOPE = "metrics"
"""Scope of keys that read metrics and health pages from other machines; the supervisor judges it
too."""


class KeySpec(Struct, frozen=True, kw_only=True):
    """API key without its secret. `id`: its public part; `digest`: of the whole key
    (`access.api_key.digest`); `principal`: owner of views, sessions and handles, the id of the key
    unless several keys share a principal; `endpoints`: empty for all of the workspace; `scopes`:
    empty for all; `expires`: seconds since the epoch, 0 for never; `url`: whether it may stand in a
    URL."""

    id: str
    digest: bytes
    name: str
    principal: str
    workspace: str = "default"
    endpoints: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    expires: float = 0.0
    url: bool = False
    limits: UseLimits = UNLIMITED


class KeyChanges(Struct, frozen=True, kw_only=True):
    """Changes of the table of keys. `pepper`: key of the digests; `older`: of digests before the
    pepper was rotated; `whole`: the rows are all there are; `put`: new and changed rows; `gone`:
    ids of keys that may not be used any more."""

    pepper: bytes
    older: tuple[bytes, ...] = ()
    whole: bool = False
    put: tuple[KeySpec, ...] = ()
    gone: tuple[str, ...] = ()


class ChangeKeys(Message, frozen=True, kw_only=True):
    """Change the table of keys, end all that belongs to keys which are gone, and answer with
    `KeysApplied`. Descriptor: blob with `KeyChanges`. `generation`: goes up by one with every
    change. A front gets the whole table before `Listen`."""

    generation: int


class KeysApplied(Message, frozen=True, kw_only=True):
    """The front has applied all changes up to this generation: no request with a key that is gone
    is accepted, its streams have ended and its calls are cancelled."""

    generation: int
