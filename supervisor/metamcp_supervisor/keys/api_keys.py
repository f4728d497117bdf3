"""API keys, kept and told: made, changed and revoked one order after the other.

Owns: the rows of the keys in the database, the file of the pepper, the turn of each order, telling
fronts and waiting until all of them have applied it. Never: the rules (`key_rules`), replacing a
front (`fronts` does), checking a credential (fronts do).

An order is on disk before a front hears of it, and its answer comes when every front has applied
it. A front that does not confirm in time is killed: what took its place has the new table."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from metamcp_supervisor.config import files
from metamcp_supervisor.config.references import Unresolved
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.keys import key_rules
from metamcp_supervisor.keys.key_rules import KeyOrderInvalid, StoredKey
from metamcp_supervisor.store.database import Database, Rows, Unstored
from metamcp_supervisor.verbs import (
    Expire,
    KeyChanged,
    KeyList,
    KeyOrder,
    KeyShown,
    NewKey,
    Revoke,
    Rotate,
)
from metamcp_worker.access import api_key
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.key_table import KeyChanges, Keys, KeySpec

CONFIRM_S_MAX = 3.0
"""Maximum seconds for a front to confirm a change; then it is replaced."""


class PepperUnfit(MetaMCPError):
    """The pepper cannot be used. The text says why and what to do."""


class ApiKeys:
    """API keys of a gateway, or of its state directory while it does not run. `endpoints`: returns
    the workspace of each endpoint, None if that is not known; `clock`: seconds since the epoch;
    `fronts`: None while the gateway does not run; `note`: called with a sentence about an error.
    Call `begin` first."""

    def __init__(
        self,
        database: Database,
        endpoints: Callable[[], dict[str, str] | None],
        clock: Callable[[], float],
        fronts: Fronts | None = None,
        note: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._database = database
        self._endpoints = endpoints
        self._clock = clock
        self._fronts = fronts
        self._note = note
        self._keys: dict[str, StoredKey] = {}
        self._pepper = b""
        self._read = False
        self._turn = asyncio.Lock()
        self._generation = 0
        self._applied = asyncio.Event()

    async def begin(self) -> None:
        """Read all keys. After an error, which is noted, no key is valid, and each order tries to
        read them again."""
        try:
            await self._begin()
        except (Unstored, PepperUnfit) as why:
            self._note(f"no API key is valid: {why}")

    async def _begin(self) -> None:
        none: tuple[StoredKey, ...] = ()
        rows = await self._database.read(_stored, none)
        self._keys = {key.spec.id: key for key in rows}
        if self._keys:
            self._pepper = _pepper(self._database.path.parent / key_rules.PEPPER, make=False)
        self._read = True

    def listed(self, names: Sequence[str]) -> KeyList:
        """Return the keys with these ids or names, or all. Raises KeyOrderInvalid."""
        every = sorted(self._keys.values(), key=lambda key: (key.created, key.spec.id))
        found = [self.found(name) for name in names] if names else every
        now = self._clock()
        return KeyList(keys=tuple(_shown(one, now) for one in found))

    def found(self, word: str) -> StoredKey:
        """Return the key with this id or name. Raises KeyOrderInvalid."""
        return key_rules.found(self._keys.values(), word)

    async def ordered(self, order: KeyOrder, by: str) -> KeyChanged:
        """Carry out an order of `by`; the answer has the text of a new key. Raises as `carry_out`
        does."""
        stored, text = await self.carry_out(order, by)
        return KeyChanged(**structs.asdict(_shown(stored, self._clock())), key=text)

    async def carry_out(self, order: KeyOrder, by: str) -> tuple[StoredKey, str]:
        """Carry out an order of `by`. Returns the key that it was about, or that it made, and the
        text of a new key, which nobody can learn again. Raises KeyOrderInvalid, PepperUnfit and
        Unstored."""
        async with self._turn:
            if not self._read:
                await self._begin()
                await self._tell(KeyChanges(pepper=self._pepper, whole=True, put=self._specs()))
            match order:
                case NewKey():
                    return await self._create(order, by)
                case Rotate():
                    return await self._rotate(order, by)
                case Expire(key=word):
                    old = self.found(word)
                    spec = structs.replace(old.spec, expires=self._clock())
                    ended = structs.replace(old, spec=spec)
                    await self._change([ended], [], told_gone=[old.spec.id])
                    return ended, ""
                case Revoke(key=word):
                    old = self.found(word)
                    await self._change([], [old.spec.id])
                    return old, ""

    async def _create(self, order: NewKey, by: str) -> tuple[StoredKey, str]:
        if len(self._keys) >= key_rules.KEYS_MAX:
            raise KeyOrderInvalid(f"there are {key_rules.KEYS_MAX} keys already; revoke some")
        now, places = self._clock(), self._endpoints()
        key_rules.check(order, places)
        text, key_id, digest = self._new()
        made = StoredKey(
            spec=key_rules.spec_of(order, key_id, digest, now), created=now, created_by=by
        )
        await self._change([made], [])
        return made, text

    async def _rotate(self, order: Rotate, by: str) -> tuple[StoredKey, str]:
        old = self.found(order.key)
        grace_s = key_rules.seconds(order.grace, 0.0, key_rules.GRACE_S_MAX)
        text, key_id, digest = self._new()
        now = self._clock()
        new, kept = key_rules.successor(old, key_id, digest, now, grace_s)
        made = StoredKey(spec=new, created=now, created_by=by)
        if kept is None:
            await self._change([made], [old.spec.id])
        else:
            await self._change([made, structs.replace(old, spec=kept)], [])
        return made, text

    def _new(self) -> tuple[str, str, bytes]:
        """Return text, id and digest of a new key. Raises PepperUnfit."""
        if not self._pepper:
            self._pepper = _pepper(self._database.path.parent / key_rules.PEPPER, make=True)
        while True:
            text = api_key.make(secrets.token_bytes(api_key.RANDOM_BYTES))
            if (key_id := api_key.id_of(text)) not in self._keys:
                return text, key_id, api_key.digest(self._pepper, text)

    async def _change(
        self, put: Sequence[StoredKey], gone: Sequence[str], told_gone: Sequence[str] = ()
    ) -> None:
        """Store a change and tell it to all fronts. `told_gone`: keys that stay in the list, but
        that fronts must not accept any more. Raises Unstored."""
        encoded = [(key.spec.id, codec.dump(key).decode()) for key in put]

        def change(rows: Rows) -> None:
            rows.change("DELETE FROM api_key WHERE id = ?", [(name,) for name in gone])
            rows.change(
                "INSERT INTO api_key VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET body = excluded.body",
                encoded,
            )

        await self._database.write(change)
        for name in gone:
            del self._keys[name]
        self._keys |= {key.spec.id: key for key in put}
        told = tuple(key.spec for key in put if key.spec.id not in told_gone)
        await self._tell(KeyChanges(pepper=self._pepper, put=told, gone=(*gone, *told_gone)))

    # Fronts

    def welcome(self, front: FrontProcess) -> None:
        """Send all keys to a new front. Raises OSError."""
        if self._keys:
            self._send(front, KeyChanges(pepper=self._pepper, whole=True, put=self._specs()))

    def _specs(self) -> tuple[KeySpec, ...]:
        return tuple(key.spec for key in self._keys.values())

    async def _tell(self, changes: KeyChanges) -> None:
        """Tell all fronts a change, and wait until each has applied it or is about to be
        replaced."""
        if self._fronts is None:
            return
        # Larger than any number of the program before this one, whose fronts may still confirm.
        number = self._generation = max(self._generation + 1, int(self._clock() * 1000))
        told: list[FrontProcess] = []
        for front in self._fronts.roster.all():
            try:
                self._send(front, changes)
                told.append(front)
            except OSError as error:
                self._fronts.untold(front, error)
        deadline = asyncio.get_running_loop().time() + CONFIRM_S_MAX
        while late := [one for one in told if one.keys < number and not one.silent]:
            self._applied.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._applied.wait()
            except TimeoutError:
                for front in late:
                    self._fronts.unconfirmed(front)
                return

    def _send(self, front: FrontProcess, changes: KeyChanges) -> None:
        front.on_keys = self._confirmed
        front.send(Keys(generation=self._generation), [packets.blob(codec.dump(changes))])

    def _confirmed(self, front: FrontProcess, number: int) -> None:
        front.keys = max(front.keys, number)
        self._applied.set()


def _shown(key: StoredKey, now: float) -> KeyShown:
    spec = key.spec
    return KeyShown(
        id=spec.id,
        name=spec.name,
        workspace=spec.workspace,
        endpoints=spec.endpoints,
        scopes=spec.scopes,
        expires=_iso(spec.expires) if spec.expires else None,
        principal=spec.principal,
        url=spec.url,
        limits={name: value for name, value in structs.asdict(spec.limits).items() if value},
        created=_iso(key.created),
        created_by=key.created_by,
        state=key_rules.state(spec, now),
    )


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _stored(rows: Rows) -> tuple[StoredKey, ...]:
    found = rows.read("SELECT body FROM api_key ORDER BY id")
    return tuple(codec.typed(StoredKey, body.encode()) for (body,) in found)


def _pepper(path: Path, *, make: bool) -> bytes:
    """Return the pepper; make it, whole and once, if it is not there. Raises PepperUnfit."""
    try:
        if make and not os.path.lexists(path):
            text = secrets.token_hex(api_key.PEPPER_BYTES)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.make_once(path, f"{text}\n".encode())
        found = bytes.fromhex(files.secret(path).strip())
    except (Unresolved, ValueError) as why:
        said = str(why) if isinstance(why, Unresolved) else f"{path} is damaged"
        raise PepperUnfit(
            f"API keys cannot be checked: {said}; restore it from a backup, or remove it and make"
            " new keys"
        ) from None
    except OSError as error:
        raise PepperUnfit(
            f"API keys cannot be made: {path} cannot be made: {error.strerror}"
        ) from None
    if len(found) != api_key.PEPPER_BYTES:
        raise PepperUnfit(
            f"API keys cannot be checked: {path} is damaged; restore it from a backup"
        )
    return found
