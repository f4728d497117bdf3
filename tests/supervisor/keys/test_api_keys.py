"""Orders about API keys, on a real database and with fronts that the tests play."""

import asyncio
import os
import signal
import sqlite3
import stat
import string
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from metamcp_supervisor.keys.api_keys import (
    EXPIRIES_MAX,
    SHOWN_MAX,
    ApiKeys,
    find_fault,
)
from metamcp_supervisor.keys.key_rules import DAY_S, PEPPER, KeyOrderInvalid
from metamcp_supervisor.keys.peppers import PepperUnfit
from metamcp_supervisor.store.database import FILE, DatabaseFile, StoreError
from metamcp_supervisor.verbs import Expire, KeyChanged, NewKey, Revoke, Rotate
from metamcp_worker.access import api_key
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.key_table import ChangeKeys, KeyChanges, KeySpec
from metamcp_worker.ipc.messages import Listen
from tests.supervisor.stage import Player, Stage, front_up, opened_stage, until

pytestmark = pytest.mark.process


def at_rest(folder: Path, now: float = 1000.0) -> ApiKeys:
    return ApiKeys(DatabaseFile(folder, busy_s=0.1), lambda: {"desk": "default"}, lambda: now)


async def keyed(stage: Stage, folder: Path) -> ApiKeys:
    """Keys of the gateway on this stage."""
    stage.keys = ApiKeys(
        DatabaseFile(folder, busy_s=0.1), lambda: None, time.time, stage.fronts, confirm_s=0.2
    )
    await stage.keys.begin()
    return stage.keys


@asynccontextmanager
async def keyed_front(folder: Path) -> AsyncGenerator[tuple[ApiKeys, Player]]:
    """The keys of a gateway, and a front of it."""
    async with opened_stage(folder) as stage:
        yield await keyed(stage, folder), await front_up(stage)


def ends(keys: ApiKeys) -> dict[tuple[str, ...], float]:
    """When keys end, as the page of metrics says it."""
    ((name, rows),) = keys.metric_rows()
    assert name == "metamcp_key_expiry_timestamp_seconds"
    return dict(rows)


def changes(player: Player) -> list[KeyChanges]:
    """What a front was told of keys."""
    found: list[KeyChanges] = []
    for message, fds in player.sent:
        if isinstance(message, ChangeKeys):
            found.append(codec.decode_as(KeyChanges, packets.read_blob(os.dup(fds[0]))))
    return found


def valid(player: Player) -> dict[str, KeySpec]:
    """The keys that a front knows after what it was told."""
    found: dict[str, KeySpec] = {}
    for change in changes(player):
        found = {} if change.whole else found
        found |= {key.id: key for key in change.put}
        for gone in change.gone:
            del found[gone]
    return found


# At rest


@pytest.mark.promise("M63")
async def test_a_key_is_shown_once_and_only_its_digest_is_stored(tmp_path: Path) -> None:
    made = await at_rest(tmp_path / "state").carry_out_order(NewKey(name="laptop"), "ann")
    assert api_key.id_of(made.key) == made.id
    assert (made.created_by, made.expires) == ("ann", "1970-04-01T00:16:40Z")
    again = at_rest(tmp_path / "state")
    await again.begin()
    (shown,) = (await again.list_keys([])).keys
    assert (shown.id, shown.name, shown.state) == (made.id, "laptop", "active")
    secret = made.key.rpartition("_")[2].encode()
    for path in (tmp_path / "state").iterdir():
        assert secret not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    pepper = bytes.fromhex((tmp_path / "state" / PEPPER).read_text())
    assert pepper not in (tmp_path / "state" / FILE).read_bytes()
    assert pepper.hex().encode() not in (tmp_path / "state" / FILE).read_bytes()


@pytest.mark.promise("M107")
async def test_only_the_whole_text_of_a_valid_key_is_taken_for_it(tmp_path: Path) -> None:
    now = [1000.0]
    keys = ApiKeys(DatabaseFile(tmp_path), lambda: None, lambda: now[0])
    made = await keys.carry_out_order(NewKey(name="ann", expires="1h"), "root")
    found = keys.find_valid_key(made.key)
    assert found is not None
    assert found.id == made.id
    number = 0
    for digit in made.id:
        number = number * 62 + (string.digits + string.ascii_letters.swapcase()).index(digit)
    forged = api_key.make(number.to_bytes(8) + bytes(32))
    assert api_key.id_of(forged) == made.id
    for text in ("", made.id, made.key[:-1], f"{made.key}x", forged, made.key.lower()):
        assert keys.find_valid_key(text) is None
    now[0] += 3600
    assert keys.find_valid_key(made.key) is None


async def test_without_a_key_no_file_is_made(tmp_path: Path) -> None:
    keys = at_rest(tmp_path / "state")
    await keys.begin()
    assert (await keys.list_keys([])).keys == ()
    with pytest.raises(KeyOrderInvalid, match="no key has the id or name 'x'"):
        await keys.carry_out_order(Revoke(key="x"), "ann")
    assert os.listdir(tmp_path) == []


async def test_keys_that_cannot_be_read_are_not_told_as_none(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not a database at all" * 9)
    noted: list[str] = []
    keys = ApiKeys(DatabaseFile(tmp_path), lambda: None, time.time, note=noted.append)
    await keys.begin()
    assert len(noted) == 1
    assert "no API key is valid" in noted[0]
    with pytest.raises(StoreError, match="is not a database"):
        await keys.list_keys([])
    with pytest.raises(StoreError, match="is not a database"):
        await keys.carry_out_order(NewKey(name="x"), "ann")


async def test_after_the_pepper_is_lost_keys_are_listed_and_revoked_and_then_new_ones_made(
    tmp_path: Path,
) -> None:
    made = await at_rest(tmp_path).carry_out_order(NewKey(name="laptop"), "ann")
    (tmp_path / PEPPER).unlink()
    keys = at_rest(tmp_path)
    await keys.begin()
    assert [key.id for key in (await keys.list_keys([])).keys] == [made.id]
    for order in (NewKey(name="other"), Rotate(key="laptop")):
        with pytest.raises(PepperUnfit, match=r"keys\.pepper does not exist; .* revoke all"):
            await keys.carry_out_order(order, "ann")
    assert keys.unusable
    await keys.carry_out_order(Revoke(key="laptop"), "ann")
    assert not keys.unusable
    again = await keys.carry_out_order(NewKey(name="laptop"), "ann")
    assert again.key


async def test_keys_of_another_pepper_are_unusable_until_theirs_is_back(tmp_path: Path) -> None:
    made = await at_rest(tmp_path).carry_out_order(NewKey(name="laptop"), "ann")
    pepper = (tmp_path / PEPPER).read_text()
    (tmp_path / PEPPER).write_text("ab" * 32)
    keys = at_rest(tmp_path)
    await keys.begin()
    assert "keys.pepper is not the one with which these keys were made" in keys.unusable
    assert await find_fault(DatabaseFile(tmp_path)) == keys.unusable
    assert keys.find_valid_key(made.key) is None
    assert [key.state for key in (await keys.list_keys([])).keys] == ["unusable"]
    (tmp_path / PEPPER).write_text(pepper)
    assert [key.state for key in (await keys.list_keys([])).keys] == ["active"]
    assert (keys.unusable, await find_fault(DatabaseFile(tmp_path))) == ("", "")
    assert keys.find_valid_key(made.key) is not None


async def test_keys_end_after_the_grace_of_a_new_pepper_unless_they_are_rotated(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    keys = ApiKeys(DatabaseFile(tmp_path), lambda: None, lambda: now[0])
    stays, ends, brief = [
        (await keys.carry_out_order(NewKey(name=name, expires=expires), "ann")).key
        for name, expires in (("stays", "90d"), ("ends", "never"), ("brief", "1h"))
    ]
    before = (tmp_path / PEPPER).read_text()
    rotated = await keys.rotate_pepper("1d")
    assert (rotated.keys, rotated.until) == (3, "1970-01-02T00:16:40Z")
    pepper, older = (tmp_path / PEPPER).read_text().split()
    assert older == before.strip() != pepper
    assert stat.S_IMODE((tmp_path / PEPPER).stat().st_mode) == 0o600
    again = ApiKeys(DatabaseFile(tmp_path), lambda: None, lambda: now[0])
    await again.begin()
    for each in (keys, again):
        assert all(map(each.find_valid_key, (stays, ends, brief)))
    now[0] += 3600
    new = (await again.carry_out_order(Rotate(key="stays"), "ann")).key
    assert again.find_valid_key(brief) is None
    assert again.find_valid_key(stays) is None
    now[0] += 86_400
    assert again.find_valid_key(ends) is None
    assert again.find_valid_key(new) is not None
    (shown,) = (await again.list_keys([api_key.id_of(new)])).keys
    assert shown.expires == "1970-04-01T01:16:40Z", "90 days from its rotation"
    for key in (ends, brief):
        await again.carry_out_order(Revoke(key=api_key.id_of(key)), "ann")
    await again.rotate_pepper("1d")
    assert older not in (tmp_path / PEPPER).read_text(), "no key of it is left"
    assert again.find_valid_key(new) is not None


async def test_a_key_of_an_earlier_version_keeps_its_validity_over_a_new_pepper(
    tmp_path: Path,
) -> None:
    keys = at_rest(tmp_path)
    made = await keys.carry_out_order(NewKey(name="old", expires="30d"), "ann")
    sql = "UPDATE api_key SET body = json_remove(body, '$.valid_s', '$.rotated', '$.pepper')"
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute(sql)
        database.commit()
    keys = at_rest(tmp_path)
    await keys.rotate_pepper("1d")
    assert at_rest(tmp_path).find_valid_key(made.key) is None, "not read yet"
    rotated = await keys.carry_out_order(Rotate(key="old"), "ann")
    assert rotated.expires == made.expires


async def test_a_new_pepper_without_a_key_is_for_the_first_one(tmp_path: Path) -> None:
    keys = at_rest(tmp_path / "state")
    assert (await keys.rotate_pepper("")).keys == 0
    assert os.listdir(tmp_path / "state") == [PEPPER]
    made = await keys.carry_out_order(NewKey(name="laptop"), "ann")
    assert keys.find_valid_key(made.key) is not None
    with pytest.raises(KeyOrderInvalid, match="is too long"):
        await keys.rotate_pepper("91d")


async def test_a_pepper_that_others_can_read_is_refused(tmp_path: Path) -> None:
    await at_rest(tmp_path).carry_out_order(NewKey(name="laptop"), "ann")
    (tmp_path / PEPPER).chmod(0o644)
    with pytest.raises(PepperUnfit, match=r"others; run 'chmod 600' on it$"):
        await at_rest(tmp_path).carry_out_order(NewKey(name="other"), "ann")


async def test_the_ends_of_valid_keys_are_a_metric(tmp_path: Path) -> None:
    keys = at_rest(tmp_path, now=1000.0)
    assert ends(keys) == {}
    await keys.carry_out_order(NewKey(name="desk", expires="1d"), "ann")
    await keys.carry_out_order(NewKey(name="lab", expires="never"), "ann")
    assert ends(keys) == {("default", "desk"): 1000.0 + DAY_S}
    for number in range(EXPIRIES_MAX):
        await keys.carry_out_order(NewKey(name=f"job-{number}", expires="12h"), "ann")
    assert len(ends(keys)) == EXPIRIES_MAX
    assert ("default", "desk") not in ends(keys), "those that end first are left"
    await keys.carry_out_order(Expire(key="job-0"), "ann")
    assert ("default", "desk") in ends(keys)
    assert ("default", "job-0") not in ends(keys), "it has ended"


async def test_many_keys_are_listed_in_parts(tmp_path: Path) -> None:
    keys = at_rest(tmp_path)
    made = {
        (await keys.carry_out_order(NewKey(name=f"k{n}"), "ann")).id for n in range(SHOWN_MAX + 5)
    }
    first = await keys.list_keys([])
    assert (len(first.keys), first.more) == (SHOWN_MAX, 5)
    second = await keys.list_keys([], first.keys[-1].id)
    assert (len(second.keys), second.more) == (5, 0)
    assert {key.id for key in (*first.keys, *second.keys)} == made


# With fronts


@pytest.mark.promise("M63")
async def test_a_new_front_knows_all_keys_before_it_listens(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        keys = await keyed(stage, tmp_path)
        made = await keys.carry_out_order(NewKey(name="laptop"), "ann")
        front = await front_up(stage)
        await until(partial(front.told, Listen), "told to listen")
        kinds = [type(message) for message in front.heard]
        assert kinds.index(ChangeKeys) < kinds.index(Listen)
        (told,) = changes(front)
        assert told.whole
        (key,) = told.put
        assert key.digest == api_key.digest(told.pepper, made.key)


async def test_a_front_of_a_gateway_without_keys_is_told_nothing_of_keys(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        await keyed(stage, tmp_path)
        front = await front_up(stage)
        assert not front.told(ChangeKeys)


async def test_each_change_goes_to_every_front_and_is_done_when_all_have_applied_it(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        keys = await keyed(stage, tmp_path)
        stage.fronts.start(2)
        players = [await stage.player(f"front-{slot}") for slot in (0, 1)]
        first = await keys.carry_out_order(NewKey(name="laptop"), "ann")
        for player in players:
            assert valid(player).keys() == {first.id}
        second = await keys.carry_out_order(Rotate(key="laptop"), "ann")
        third = await keys.carry_out_order(Rotate(key=second.id, grace="1h"), "ann")
        for player in players:
            found = valid(player)
            assert found.keys() == {second.id, third.id}
            assert found[second.id].expires < time.time() + 3601
        await keys.carry_out_order(Expire(key=third.id), "ann")
        await keys.carry_out_order(Revoke(key=second.id), "ann")
        for player in players:
            assert not valid(player)
            assert not any(change.whole for change in changes(player))
        shown = (await keys.list_keys([])).keys
        assert [(key.id, key.state) for key in shown] == [(third.id, "expired")]


async def test_fronts_get_the_new_pepper_and_the_older_one(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        keys = await keyed(stage, tmp_path)
        front = await front_up(stage)
        made = await keys.carry_out_order(NewKey(name="laptop"), "ann")
        rotated = await keys.rotate_pepper("1d")
        (first, told) = changes(front)
        assert told.older == (first.pepper,)
        assert told.pepper != first.pepper
        assert 0 < valid(front)[made.id].expires - time.time() <= 86_400
        stage.fronts.start(2)
        player = await stage.player("front-1")
        assert valid(player) == valid(front)
        assert changes(player)[0].older == told.older
        assert (rotated.keys, rotated.unconfirmed) == (1, ())
        await keys.rotate_pepper("")
        assert not valid(player)


async def test_no_front_is_told_of_a_key_for_the_console_alone(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        keys = await keyed(stage, tmp_path)
        front = await front_up(stage)
        ours = await keys.carry_out_order(NewKey(name="ann", scopes=("console:admin",)), "root")
        both = await keys.carry_out_order(
            NewKey(name="bob", scopes=("console:viewer", "mcp:list")), "root"
        )
        assert valid(front).keys() == {both.id}
        stage.fronts.start(2)
        assert valid(await stage.player("front-1")).keys() == {both.id}
        await keys.carry_out_order(Expire(key=ours.id), "root")
        assert keys.find_valid_key(ours.key) is None
        assert keys.find_valid_key(both.key) is not None


async def test_a_front_that_does_not_confirm_the_end_of_a_key_is_killed_and_the_answer_says_so(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        keys = await keyed(stage, tmp_path)
        front = await front_up(stage)
        made = await keys.carry_out_order(NewKey(name="laptop"), "ann")
        front.confirms = False
        done = await keys.carry_out_order(Revoke(key="laptop"), "ann")
        assert done.unconfirmed == ("front-0",)
        assert front.signals == [signal.SIGKILL]
        assert not [one for one in stage.fronts.list_serving() if one.pid == front.pid]
        assert made.unconfirmed == ()


async def test_a_front_that_is_late_with_a_new_key_is_told_and_not_killed(tmp_path: Path) -> None:
    async with keyed_front(tmp_path) as (keys, front):
        front.confirms = False
        made = await keys.carry_out_order(NewKey(name="laptop"), "ann")
        assert made.unconfirmed == ("front-0",)
        assert front.signals == []


async def test_a_front_that_ends_meanwhile_is_not_waited_for_and_not_killed_again(
    tmp_path: Path,
) -> None:
    async with keyed_front(tmp_path) as (keys, front):
        await keys.carry_out_order(NewKey(name="laptop"), "ann")
        front.confirms = False
        asked = asyncio.create_task(keys.carry_out_order(Revoke(key="laptop"), "ann"))
        await until(lambda: len(front.told(ChangeKeys)) == 2, "the front was told")
        front.leave(1)
        assert (await asked).unconfirmed == ()
        assert front.signals == []


async def test_an_order_whose_caller_has_gone_is_carried_out_to_its_end(tmp_path: Path) -> None:
    async with keyed_front(tmp_path) as (keys, front):
        await keys.carry_out_order(NewKey(name="laptop"), "ann")
        front.confirms = False
        asked = asyncio.create_task(keys.carry_out_order(Revoke(key="laptop"), "ann"))
        await until(lambda: len(front.told(ChangeKeys)) == 2, "the front was told")
        asked.cancel()
        assert keys.busy
        await keys.close()
        assert front.signals == [signal.SIGKILL], "it did not confirm"
        assert (await keys.list_keys([])).keys == ()


async def test_a_change_that_cannot_be_written_is_not_told(tmp_path: Path) -> None:
    async with keyed_front(tmp_path) as (keys, front):
        made = await keys.carry_out_order(NewKey(name="laptop"), "ann")
        (tmp_path / FILE).rename(tmp_path / "away.db")
        with pytest.raises(StoreError, match="it is gone"):
            await keys.carry_out_order(Revoke(key="laptop"), "ann")
        assert valid(front).keys() == {made.id}
        assert [key.id for key in (await keys.list_keys([])).keys] == [made.id]


async def test_orders_at_the_same_time_are_carried_out_one_after_the_other(tmp_path: Path) -> None:
    async with keyed_front(tmp_path) as (keys, front):
        made: list[KeyChanged] = await asyncio.gather(
            *(keys.carry_out_order(NewKey(name=f"k{number}"), "ann") for number in range(5))
        )
        assert valid(front).keys() == {one.id for one in made}
        numbers = [message.generation for message in front.told(ChangeKeys)]
        assert numbers == sorted(set(numbers))
