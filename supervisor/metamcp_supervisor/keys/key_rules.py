"""Rules of API keys: what an order may ask for, and how it changes the existing keys.

Owns: names, scopes, expiry and limits of keys, finding a key by its id or name, the changes that an
order makes. Never: randomness, clocks, the form of a key (`access.api_key`), storing and sending.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, structs

from metamcp_supervisor.config import units
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.verbs import Expire, NewKey, Revoke, Rotate
from metamcp_worker.access import gate
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.key_table import CONSOLE_SCOPES, METRICS_SCOPE, KeySpec
from metamcp_worker.ipc.process_names import DEFAULT
from metamcp_worker.ipc.spec import UseLimits

PEPPER = "keys.pepper"
"""File in the state directory with the key of the digests, in hexadecimal digits; behind it, one a
line, those before it which some key still needs."""
HANDLE_KEY = "handles.key"
"""File in the state directory with the key of ids and states that one client alone may use, in
hexadecimal digits."""
KEYS_MAX = 100_000
"""Maximum number of keys."""
NAME_CHARACTERS_MAX = 64
ENDPOINTS_MAX = 64
"""Maximum endpoints and scopes that a key can name."""
DAY_S = 86_400
EXPIRES_S = 90 * DAY_S
"""Seconds until a key expires if nobody says otherwise."""
EXPIRES_S_MAX = 3650 * DAY_S
ROTATED_S = 10.0
"""Seconds after a rotation in which another one of the same key is taken for one that was ordered
at the same time."""
GRACE_S_MAX = 7 * DAY_S
"""Maximum seconds for which a key and its successor are valid together."""
NEVER = "never"
ACTIVE, EXPIRED, UNUSABLE = "active", "expired", "unusable"
LIMITS = tuple(field.name for field in structs.fields(UseLimits))

_SUPERVISOR_SCOPES = frozenset({*CONSOLE_SCOPES, METRICS_SCOPE})
_NAME = re.compile(r"[^\x00-\x1f\x7f]+")
_SERVER = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class KeysFull(MetaMCPError):
    """There are KEYS_MAX keys."""


class KeyOrderInvalid(MetaMCPError, ValueError):
    """The order is wrong. The text is a sentence without a full stop."""


class KeyUnknown(KeyOrderInvalid, LookupError):
    """No key, workspace or endpoint has this name, or more than one key."""


class StoredKey(Struct, frozen=True, kw_only=True):
    """API key as it is kept. `spec`: what fronts get; `created`: seconds since the epoch;
    `created_by`: the person, as the control socket knows them; `valid_s`: for how long it was
    created, 0 for a key that does not expire; `rotated`: when it took the place of another key, or
    another key took its place, 0 for neither; `pepper`: `api_key.mark` of the pepper of its digest.
    Keys of earlier versions lack the last three."""

    spec: KeySpec
    created: float
    created_by: str = ""
    valid_s: float = 0.0
    rotated: float = 0.0
    pepper: str = ""


class TableChange(Struct, frozen=True, kw_only=True):
    """Change of the table that an order makes. `about`: the key that the answer shows; `put`: rows
    that are new or changed; `drop`: ids of rows to delete; `over`: ids of rows in `put` that stay
    in the list, but may not be used any more."""

    about: StoredKey
    put: tuple[StoredKey, ...] = ()
    drop: tuple[str, ...] = ()
    over: tuple[str, ...] = ()


def build_new_key(
    order: NewKey | Rotate,
    keys: Collection[StoredKey],
    key_id: str,
    digest: bytes,
    now: float,
    by: str,
    endpoints: Mapping[str, str] | None,
    pepper: str = "",
) -> TableChange:
    """Return the change by a new key with this id and digest, created by `by`. `keys`: all keys;
    `endpoints`: see `check`; `pepper`: as in StoredKey. Raises KeyOrderInvalid and KeysFull."""
    if len(keys) >= KEYS_MAX:
        raise KeysFull(f"there are {KEYS_MAX} keys already; revoke some")
    if isinstance(order, NewKey):
        check(order, endpoints)
        valid_s = 0.0 if order.expires == NEVER else seconds(order.expires, EXPIRES_S)
        spec = _spec_of(order, key_id, digest, now + valid_s if valid_s else 0.0)
        new = StoredKey(spec=spec, created=now, created_by=by, valid_s=valid_s, pepper=pepper)
        return TableChange(about=new, put=(new,))
    old = find_key(keys, order.key, now)
    _check_rotation(order.key, old, now)
    grace_s = seconds(order.grace, 0.0, GRACE_S_MAX)
    valid_s = _find_validity(old)
    expires = now + valid_s if valid_s else 0.0
    spec = structs.replace(old.spec, id=key_id, digest=digest, expires=expires)
    new = StoredKey(
        spec=spec, created=now, created_by=by, valid_s=valid_s, rotated=now, pepper=pepper
    )
    if not grace_s:
        return TableChange(about=new, put=(new,), drop=(old.spec.id,))
    old = structs.replace(_until(old, now + grace_s), rotated=now)
    return TableChange(about=new, put=(new, old))


def _find_validity(key: StoredKey) -> float:
    """Return for how many seconds a key was created, 0 for ever. A key of an earlier version says
    it by its end alone, unless a rotation has changed that."""
    if key.valid_s or key.rotated or key.pepper or not key.spec.expires:
        return key.valid_s
    return key.spec.expires - key.created


def _check_rotation(word: str, key: StoredKey, now: float) -> None:
    """Raise KeyOrderInvalid if a key was rotated a moment ago by an order that this one does not
    know of: then the key that the other order printed would end at once. `word`: how the order
    names the key; only who knows the new key names it by its id."""
    newer = key.rotated == key.created and word == key.spec.id
    if key.rotated and not newer and 0 <= now - key.rotated < ROTATED_S:
        raise KeyOrderInvalid(
            f"the key {word[:64]!r} was rotated {now - key.rotated:.0f} s ago, and that new key"
            f" stays valid; to rotate it again, name it by its id, or wait {ROTATED_S:.0f} s"
        )


def doubts(
    order: NewKey, keys: Iterable[StoredKey], servers: Collection[str], now: float
) -> tuple[str, ...]:
    """Return sentences about an order that can be carried out, and is probably a mistake. `keys`:
    the keys before it; `servers`: names, empty if they are not known."""
    sentences = [
        f"the key {key.spec.id} is named '{order.name}' too; name each by its id"
        for key in keys
        if key.spec.name == order.name and state(key.spec, now) == ACTIVE
    ][:1]
    for scope in order.scopes if servers else ():
        server = scope.removeprefix(gate.CALL_OF)
        if server not in {scope, *servers}:
            sentences.append(f"{scope}: no server is named '{server}'; {hint(server, servers)}")
    return tuple(sentences)


def end_key(order: Expire | Revoke, key: StoredKey, now: float) -> TableChange:
    """Return the change by the end of a key."""
    if isinstance(order, Revoke):
        return TableChange(about=key, drop=(key.spec.id,))
    key = _until(key, now)
    return TableChange(about=key, put=(key,), over=(key.spec.id,))


def end_old_keys(
    keys: Iterable[StoredKey], pepper: str, until: float, now: float
) -> tuple[StoredKey, ...]:
    """Return the valid keys as they are after a rotation of the pepper: they end at `until` at the
    latest. `pepper`: mark of the one before, for keys of earlier versions."""
    return tuple(
        structs.replace(
            _until(key, until), valid_s=_find_validity(key), pepper=key.pepper or pepper
        )
        for key in keys
        if state(key.spec, now) == ACTIVE
    )


def _until(key: StoredKey, when: float) -> StoredKey:
    """Return the key, valid until `when` or as long as it is now, whichever is sooner."""
    expires = min(key.spec.expires or when, when)
    return structs.replace(key, spec=structs.replace(key.spec, expires=expires))


def check(order: NewKey, endpoints: Mapping[str, str] | None) -> None:
    """Raise KeyOrderInvalid for an order that cannot be carried out. `endpoints`: the workspace of
    each endpoint, None if the configuration is not known."""
    _check_text("name", order.name)
    if order.principal:
        _check_text("principal", order.principal)
    for many in (order.endpoints, order.scopes):
        if len(many) > ENDPOINTS_MAX:
            raise KeyOrderInvalid(f"a key names at most {ENDPOINTS_MAX} endpoints and scopes")
    for noun, text in (("workspace", order.workspace), *(("endpoint", e) for e in order.endpoints)):
        _check_text(noun, text)
    if endpoints is not None:
        _check_places(order, endpoints)
    for scope in order.scopes:
        _check_scope(scope)
    if METRICS_SCOPE in order.scopes and len(set(order.scopes)) > 1:
        raise KeyOrderInvalid("a key for metrics has no other scope; make a key for each")
    if not _SUPERVISOR_SCOPES.isdisjoint(order.scopes):
        if order.workspace != DEFAULT:
            raise KeyOrderInvalid(
                "console and metrics show all workspaces; a key that opens one of them is of the"
                " workspace default"
            )
        if order.url:
            raise KeyOrderInvalid(
                "a key that opens the console or the metrics may not stand in a URL"
            )


def _spec_of(order: NewKey, key_id: str, digest: bytes, expires: float) -> KeySpec:
    """Return the key that an order asks for, which `check` has passed. Raises KeyOrderInvalid."""
    return KeySpec(
        id=key_id,
        digest=digest,
        name=order.name,
        principal=order.principal or key_id,
        workspace=order.workspace,
        endpoints=tuple(dict.fromkeys(order.endpoints)),
        scopes=tuple(dict.fromkeys(order.scopes)),
        expires=expires,
        url=order.url,
        limits=_limits(order.limits),
    )


def seconds(text: str, default: float, most: float = EXPIRES_S_MAX) -> float:
    """Return the seconds of a duration such as `90d` or `24h`. Raises KeyOrderInvalid."""
    if not text:
        return default
    try:
        return units.duration(text, most)
    except ValueError as error:
        raise KeyOrderInvalid(f"'{text[:32]}' {error}") from None


def find_key(keys: Collection[StoredKey], word: str, now: float) -> StoredKey:
    """Return the key with this id, or the only one with this name, or the only one of them that has
    not expired. Raises KeyUnknown."""
    by_id = [key for key in keys if key.spec.id == word]
    named = by_id or [key for key in keys if key.spec.name == word]
    valid = [key for key in named if state(key.spec, now) == ACTIVE]
    for several in (named, valid):
        if len(several) == 1:
            return several[0]
    if named:
        ids = ", ".join(key.spec.id for key in named[:8])
        raise KeyUnknown(f"{len(named)} keys are named '{word[:64]}'; say the id: {ids}")
    words = [key.spec.id for key in keys] + [key.spec.name for key in keys]
    raise KeyUnknown(
        f"no key has the id or name '{word[:64]}'; {hint(word, words)}"
        if words
        else f"no key has the id or name '{word[:64]}'; 'metamcp keys create NAME' makes one"
    )


def for_fronts(key: KeySpec) -> bool:
    """Whether the key may do something at endpoints; a key for console and metrics alone may
    not."""
    return not key.scopes or not set(key.scopes) <= _SUPERVISOR_SCOPES


def state(key: KeySpec, now: float) -> str:
    """Return `active` or `expired`."""
    return EXPIRED if key.expires and now >= key.expires else ACTIVE


def expiries(keys: Iterable[StoredKey]) -> list[tuple[float, str, str]]:
    """Return when keys end, in seconds since the epoch, with their workspace and name, the soonest
    first. The last of several keys with one name counts: after a rotation that is the new one. A
    name with a key that does not expire is left out."""
    ends: dict[tuple[str, str], float] = {}
    for key in keys:
        label = key.spec.workspace, key.spec.name
        ends[label] = max(ends.get(label, 0.0), key.spec.expires or math.inf)
    return sorted((end, *label) for label, end in ends.items() if end < math.inf)


def _check_text(noun: str, text: str) -> None:
    if not _NAME.fullmatch(text) or len(text) > NAME_CHARACTERS_MAX:
        raise KeyOrderInvalid(
            f"the {noun} of a key has 1 to {NAME_CHARACTERS_MAX} printable characters"
        )


def _check_places(order: NewKey, endpoints: Mapping[str, str]) -> None:
    workspaces = sorted({DEFAULT, *endpoints.values()})
    if order.workspace not in workspaces:
        raise KeyUnknown(
            f"no workspace is named '{order.workspace[:64]}'; {hint(order.workspace, workspaces)}"
        )
    ours = sorted(name for name, workspace in endpoints.items() if workspace == order.workspace)
    for name in order.endpoints:
        if name not in ours:
            raise KeyUnknown(
                f"the workspace {order.workspace} has no endpoint '{name[:64]}'; {hint(name, ours)}"
            )


def _check_scope(scope: str) -> None:
    server = scope.removeprefix(gate.CALL_OF)
    words = (*gate.SCOPES, *CONSOLE_SCOPES, METRICS_SCOPE)
    if scope in words or (server != scope and _SERVER.fullmatch(server)):
        return
    scopes = (*words, f"{gate.CALL_OF}SERVER")
    raise KeyOrderInvalid(f"'{scope[:64]}' is not a scope; {hint(scope, scopes)}")


def _limits(values: Mapping[str, float]) -> UseLimits:
    for name, value in values.items():
        if name not in LIMITS:
            raise KeyOrderInvalid(f"'{name[:64]}' is not a limit; {hint(name, LIMITS)}")
        if not 1 <= value <= 1e9 or value != int(value):
            raise KeyOrderInvalid(f"the limit {name} is a whole number from 1 to 1000000000")
    limits = {name: int(value) for name, value in values.items()}
    if limits.get("burst") and not limits.get("calls_per_minute"):
        raise KeyOrderInvalid("the limit burst needs calls_per_minute, which says how fast it goes")
    return UseLimits(**limits)
