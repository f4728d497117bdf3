"""API keys, stored and sent to fronts: created, changed and revoked one order after the other.

Owns: the rows of the keys in the database, the turn of each order, notifying fronts and waiting
until all of them have applied it. Never: the rules (`key_rules`), the peppers (`peppers`),
replacing a front (`fronts` does), checking a credential (fronts do).

An order is on disk before a front hears of it, and its answer comes when every front has applied
it. A front that does not confirm in time that a key has ended is killed, and the front that takes
its place has the new table.
"""

import asyncio
import contextlib
import hmac
import secrets
import time
from bisect import bisect_right
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from operator import itemgetter
from typing import Any, TypeVar

from msgspec import structs

from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.fronts.fronts import KILLED_S_MAX, Fronts
from metamcp_supervisor.keys import key_rules, peppers
from metamcp_supervisor.keys.key_rules import StoredKey
from metamcp_supervisor.keys.peppers import PepperUnfit
from metamcp_supervisor.store.database import Database, Rows, StoreError
from metamcp_supervisor.verbs import (
    KeyChanged,
    KeyList,
    KeyOrder,
    KeyShown,
    NewKey,
    PepperRotated,
    Rotate,
)
from metamcp_worker.access import api_key
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.figures import KeyUse, ShowKeyUse
from metamcp_worker.ipc.key_table import METRICS_SCOPE, ChangeKeys, KeyChanges, KeySpec
from metamcp_worker.ipc.spec import UNLIMITED, UseLimits

T = TypeVar("T")

CONFIRM_S_MAX = 3.0
"""Maximum seconds for a front to confirm a change; if a key ended, it is replaced then."""

SHOWN_MAX = 100
"""Maximum keys in one answer, which is one line of the control socket."""
EXPIRIES_MAX = 100
"""Maximum names of keys whose ends are metrics; those that end first."""
CLOSE_S_MAX = 10.0
"""Maximum seconds for the last orders when the gateway ends."""


class ApiKeys:
    """API keys of a gateway, or of its state directory while it does not run. `endpoints`: returns
    the workspace of each endpoint, None if that is not known; `clock`: seconds since the epoch;
    `fronts`: None while the gateway does not run; `note`: called with a sentence about an error;
    `servers`: returns the names of servers, none if they are not known; `confirm_s`: see
    CONFIRM_S_MAX."""

    def __init__(
        self,
        database: Database,
        endpoints: Callable[[], dict[str, str] | None],
        clock: Callable[[], float],
        fronts: Fronts | None = None,
        note: Callable[[str], None] = lambda sentence: None,
        *,
        servers: Callable[[], Collection[str]] = tuple,
        confirm_s: float = CONFIRM_S_MAX,
    ) -> None:
        self._database = database
        self._endpoints = endpoints
        self._clock = clock
        self._fronts = fronts
        self._note = note
        self._servers = servers
        self._confirm_s = confirm_s
        self._keys: dict[str, StoredKey] = {}
        self._limits: dict[str, UseLimits] | None = None
        """See `limits`; None: to be collected."""
        self._sorted: list[str] | None = None
        """All ids, in order; None: to be sorted."""
        self._expiries: list[tuple[float, str, str]] | None = None
        """See `key_rules.expiries`; None: to be collected."""
        self._pepper = b""
        self._older_peppers: tuple[bytes, ...] = ()
        """Peppers before the last rotation which some key still needs."""
        self.unusable = ""
        """Why no key is valid; empty if keys can be used, or if there is none."""
        self._read = False
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._generation = 0

    @property
    def busy(self) -> bool:
        """Whether an order is being carried out or waits for its turn."""
        return bool(self._under_way)

    def has(self, key_id: str) -> bool:
        """Whether a key with this id is valid now."""
        key = self._keys.get(key_id)
        return key is not None and key_rules.state(key.spec, self._clock()) == "active"

    def find_valid_key(self, text: str) -> KeySpec | None:
        """Return the key with this text if it is valid now."""
        key = self._keys.get(api_key.id_of(text))
        if key is None or not self._pepper or not self.has(key.spec.id):
            return None
        peppers = (self._pepper, *self._older_peppers)
        same = [hmac.compare_digest(api_key.digest(p, text), key.spec.digest) for p in peppers]
        return key.spec if any(same) else None

    def may_read_metrics(self, text: str) -> bool:
        """Whether the key with this text reads metrics from other machines."""
        key = self.find_valid_key(text)
        return key is not None and key.scopes == (METRICS_SCOPE,)

    @property
    def limits(self) -> Mapping[str, UseLimits]:
        """Limits of use by id, of keys that have some."""
        if self._limits is None:
            limits_by_id = {name: key.spec.limits for name, key in self._keys.items()}
            self._limits = {
                name: limits for name, limits in limits_by_id.items() if limits != UNLIMITED
            }
        return self._limits

    def metric_rows(self) -> Iterator[tuple[str, Iterable[tuple[tuple[str, ...], float]]]]:
        """Yield the family about the ends of keys that are valid now."""
        if self._expiries is None:
            self._expiries = key_rules.expiries(self._keys.values())
        begin = bisect_right(self._expiries, self._clock(), key=itemgetter(0))
        ends = self._expiries[begin : begin + EXPIRIES_MAX]
        rows = (((workspace, name), end) for end, workspace, name in ends)
        yield "metamcp_key_expiry_timestamp_seconds", rows

    def principals(self) -> frozenset[tuple[str, str]]:
        """Return workspace and name of each principal that has a valid key."""
        now = self._clock()
        return frozenset(
            (key.spec.workspace, f"key:{key.spec.principal}")
            for key in self._keys.values()
            if not 0 < key.spec.expires <= now
        )

    async def begin(self) -> None:
        """Read all keys. After an error, which is noted, no key is valid, and each order tries to
        read them again."""
        try:
            await self._load()
        except (StoreError, PepperUnfit) as error:
            self._note(f"no API key is valid: {error}")

    async def close(self) -> None:
        """Wait for the orders that are under way, unless the disk hangs; call this before the
        database is closed."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_S_MAX)

    async def list_keys(
        self, names: Sequence[str], after: str = "", most: int = SHOWN_MAX
    ) -> KeyList:
        """Return the keys with these ids or names; without names, in the order of ids, those after
        the id `after`. `most`: how many at most. Raises KeyUnknown and StoreError."""
        with contextlib.suppress(PepperUnfit):
            await self._load()
        now = self._clock()
        if names:
            keys = [self._find_key(name) for name in names]
            return KeyList(keys=tuple(self._describe_key(key, now) for key in keys[:most]))
        if self._sorted is None:
            self._sorted = sorted(self._keys)
        start = bisect_right(self._sorted, after)
        ids = self._sorted[start : start + most]
        page = tuple(self._describe_key(self._keys[key_id], now) for key_id in ids)
        return KeyList(keys=page, more=len(self._sorted) - start - len(page))

    async def read_key_use(self, name: str) -> KeyUse:
        """Return what ends when a key does, as far as fronts say. Raises KeyUnknown and
        StoreError."""
        await self._load_rows()
        question = ShowKeyUse(ticket=0, key=self._find_key(name).spec.id)
        fronts = self._fronts.list_serving() if self._fronts is not None else ()
        pending = (front.questions.ask(question, CONFIRM_S_MAX) for front in fronts)
        uses = [
            codec.decode_as(KeyUse, reply[1]) for reply in await asyncio.gather(*pending) if reply
        ]
        return KeyUse(
            streams=sum(use.streams for use in uses),
            sessions=sum(use.sessions for use in uses),
            calls=sum(use.calls for use in uses),
        )

    async def carry_out_order(self, order: KeyOrder, by: str) -> KeyChanged:
        """Carry out an order of `by`, to its end even if the caller is cancelled. The answer has
        the text of a new key, which nobody can learn again. Raises KeyOrderInvalid, KeysFull,
        PepperUnfit and StoreError."""
        return await self._finish(self._carry_out(order, by))

    async def rotate_pepper(self, grace: str) -> PepperRotated:
        """Make a new pepper, for keys that are made from now on, to its end even if the caller is
        cancelled. The valid keys end after `grace`, as `24h`; a key that is rotated meanwhile is
        a new one. Raises KeyOrderInvalid, PepperUnfit and StoreError."""
        return await self._finish(self._rotate_pepper(grace))

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _carry_out(self, order: KeyOrder, by: str) -> KeyChanged:
        async with self._turn:
            try:
                await self._load()
            except PepperUnfit:  # keys can end without it
                if isinstance(order, NewKey | Rotate):
                    raise
            now, text = self._clock(), ""
            doubts: tuple[str, ...] = ()
            if isinstance(order, NewKey):
                doubts = key_rules.doubts(order, self._keys.values(), self._servers(), now)
            if isinstance(order, NewKey | Rotate):
                text, key_id, digest = await self._new()
                change = key_rules.build_new_key(
                    order, self._keys.values(), key_id, digest, now, by, self._endpoints(),
                    api_key.mark(self._pepper),
                )  # fmt: skip
            else:
                change = key_rules.end_key(order, self._find_key(order.key), now)
            late = await self._change(change.put, change.drop, change.over)
        fields = structs.asdict(self._describe_key(change.about, now))
        old = [_iso(key.spec.expires) for key in change.put if key is not change.about]
        return KeyChanged(
            **fields, key=text, unconfirmed=late, doubts=doubts, old_until=old[0] if old else ""
        )

    async def _rotate_pepper(self, grace: str) -> PepperRotated:
        async with self._turn:
            await self._load()
            now = self._clock()
            until = now + key_rules.seconds(grace, 0.0, key_rules.EXPIRES_S)
            mark = api_key.mark(self._pepper)
            put = key_rules.end_old_keys(self._keys.values(), mark, until, now)
            marks = {key.pepper for key in (*self._keys.values(), *put)}
            older = filter(None, (self._pepper, *self._older_peppers))
            older_peppers = tuple(pepper for pepper in older if api_key.mark(pepper) in marks)
            pepper = secrets.token_bytes(api_key.PEPPER_BYTES)
            # First: keys that end before there is a new pepper would end for nothing.
            await peppers.replace(self._database, (pepper, *older_peppers))
            self._pepper, self._older_peppers = pepper, older_peppers
            over = () if until > now else tuple(key.spec.id for key in put)
            late = await self._change(put, (), over) if put else ()
        return PepperRotated(keys=len(put), until=_iso(until), unconfirmed=late)

    def _find_key(self, word: str) -> StoredKey:
        return key_rules.find_key(self._keys.values(), word, self._clock())

    async def _new(self) -> tuple[str, str, bytes]:
        """Return text, id and digest of a new key. Raises PepperUnfit and StoreError."""
        if not self._pepper:
            self._pepper, *older = await peppers.make(self._database)
            self._older_peppers = tuple(older)
        while True:
            text = api_key.make(secrets.token_bytes(api_key.RANDOM_BYTES))
            if (key_id := api_key.id_of(text)) not in self._keys:
                return text, key_id, api_key.digest(self._pepper, text)

    async def _load(self) -> None:
        """Read keys and pepper, unless that is done already, and send them to the fronts. Raises
        StoreError and PepperUnfit."""
        try:
            await self._load_rows()
            fresh = bool(self._keys and not self._pepper)
            if fresh:
                self._pepper, *older = await peppers.read(self._database, self._keys.values())
                self._older_peppers = tuple(older)
        except (StoreError, PepperUnfit) as error:
            self.unusable = str(error)
            raise
        self.unusable = ""
        if fresh:
            await self._tell(self._table())

    async def _load_rows(self) -> None:
        if not self._read:
            none: tuple[StoredKey, ...] = ()
            rows = await self._database.read(_read_keys, none)
            self._keys = {key.spec.id: key for key in rows}
            self._limits = self._sorted = self._expiries = None
            self._read = True

    async def _change(
        self, put: Sequence[StoredKey], drop: Sequence[str], over: Collection[str]
    ) -> tuple[str, ...]:
        """Store a change (see TableChange) and send it to all fronts. Return those that did not
        confirm in time. Raises StoreError; then nothing was changed."""
        encoded = [(key.spec.id, codec.dump(key).decode()) for key in put]

        def write(rows: Rows) -> None:
            rows.change("DELETE FROM api_key WHERE id = ?", [(name,) for name in drop])
            rows.change(
                "INSERT INTO api_key VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET body = excluded.body",
                encoded,
            )

        await self._database.write(write)
        for name in drop:
            del self._keys[name]
        self._keys |= {key.spec.id: key for key in put}
        if not self._keys:
            self.unusable = ""
        self._limits = self._sorted = self._expiries = None
        ids = frozenset(over)
        specs = (key.spec for key in put if key.spec.id not in ids)
        changes = KeyChanges(
            pepper=self._pepper,
            older=self._older_peppers,
            put=tuple(filter(key_rules.for_fronts, specs)),
            gone=(*drop, *over),
        )
        return await self._tell(changes)

    def _describe_key(self, key: StoredKey, now: float) -> KeyShown:
        spec, state = key.spec, key_rules.state(key.spec, now)
        return KeyShown(
            id=spec.id,
            name=spec.name,
            workspace=spec.workspace,
            endpoints=spec.endpoints,
            scopes=spec.scopes,
            expires=_iso(spec.expires) if spec.expires else None,
            principal=spec.principal,
            url=spec.url,
            limits=_list_limits(spec.limits),
            created=_iso(key.created),
            created_by=key.created_by,
            state=key_rules.UNUSABLE if self.unusable and state == key_rules.ACTIVE else state,
        )

    # Fronts

    def welcome(self, front: FrontProcess) -> None:
        """Send all keys to a new front. Raises OSError."""
        if self._keys and self._pepper:
            self._send(front, self._table())

    def _table(self) -> KeyChanges:
        """Return all keys, as a front gets them at first."""
        specs = tuple(k.spec for k in self._keys.values() if key_rules.for_fronts(k.spec))
        return KeyChanges(pepper=self._pepper, older=self._older_peppers, whole=True, put=specs)

    async def _tell(self, changes: KeyChanges) -> tuple[str, ...]:
        """Send all fronts a change, and wait until each has applied it or has ended. Return those
        that did not in time. If a key ended, they are killed: they might still accept it."""
        fronts = self._fronts
        if fronts is None:
            return ()
        # Larger than any number of the program before this one, whose fronts may still confirm.
        number = self._generation = max(self._generation + 1, int(self._clock() * 1000))
        recipients = fronts.list_serving()
        for front in recipients:
            try:
                self._send(front, changes)
            except OSError as error:
                fronts.untold(front, error)

        def behind() -> list[FrontProcess]:
            return [
                front
                for front in fronts.list_serving()
                if front in recipients and front.keys < number
            ]

        if await fronts.until(lambda: not behind(), self._confirm_s):
            return ()
        late = behind()
        if changes.gone or changes.whole:
            for front in late:
                fronts.replace_unconfirmed(front)
            await fronts.until(lambda: not behind(), KILLED_S_MAX)
        return tuple(front.process_name for front in late)

    def _send(self, front: FrontProcess, changes: KeyChanges) -> None:
        front.send(ChangeKeys(generation=self._generation), [packets.blob(codec.dump(changes))])


def _list_limits(limits: UseLimits) -> dict[str, float]:
    if limits == UNLIMITED:
        return {}
    return {name: value for name, value in structs.asdict(limits).items() if value}


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _read_keys(rows: Rows) -> tuple[StoredKey, ...]:
    records = rows.read("SELECT body FROM api_key ORDER BY id")
    return tuple(codec.decode_as(StoredKey, body.encode()) for (body,) in records)


async def names(base: Database) -> list[tuple[str, str, str]]:
    """Return id, name and workspace of all keys, without a gateway; none if they cannot be read."""
    specs = [key.spec for key in await _peek_keys(base)]
    return [(spec.id, spec.name, spec.workspace) for spec in specs]


async def find_fault(base: Database) -> str:
    """Return why no key of this database is valid, without a gateway; empty for no reason."""
    try:
        if keys := await _peek_keys(base):
            await peppers.read(base, keys)
    except (PepperUnfit, StoreError) as error:
        return str(error)
    return ""


async def _peek_keys(base: Database) -> tuple[StoredKey, ...]:
    """Return all keys; none if a file with them cannot be read. Raises StoreError for a database
    elsewhere."""
    none: tuple[StoredKey, ...] = ()
    try:
        return await base.peek(_read_keys, none)
    except StoreError:
        if base.secrets is not None:
            raise
        return none
