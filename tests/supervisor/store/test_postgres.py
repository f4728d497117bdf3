"""The tables in a real PostgreSQL: what is kept, who may use them, and what failures do."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.cli.backup import copy_file
from metamcp_supervisor.keys.api_keys import ApiKeys, find_fault, names
from metamcp_supervisor.keys.key_rules import PEPPER
from metamcp_supervisor.keys.peppers import PepperUnfit
from metamcp_supervisor.store.database import SCHEMA, STEPS, TABLES, DatabaseFile, Rows, StoreError
from metamcp_supervisor.store.postgres import PostgresDatabase, find_flaw
from metamcp_supervisor.verbs import NewKey, Revoke
from metamcp_supervisor.views.ledger import Delta
from metamcp_supervisor.views.store import Store
from metamcp_worker.ipc.disclosure import DisclosureState
from metamcp_worker.ipc.saved_scripts import Script
from tests.live.gateway import free_port
from tests.supervisor.stored import ANN, DEV, EQUIPPED, ME, PUT, written
from tests.waiting import until
from tests.worker.engine.postgres import PASSWORD, Postgres, postgres

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SECRET = "s" * 32
LOCK = 0x6D63_7002
"""Lower half of the number of the lock."""
ADD = "INSERT INTO quota VALUES (?, ?, ?, ?)"


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def url(server: Postgres) -> str:
    return server.database()


@asynccontextmanager
async def opened(
    url: str, folder: Path = Path("/nowhere"), *, secret: str = SECRET, answer_s: float = 5.0
) -> AsyncGenerator[PostgresDatabase]:
    """The tables, taken as a gateway does."""
    database = PostgresDatabase(url, secret, folder, answer_s=answer_s, lock_s=0.5)
    try:
        await database.open()
        yield database
    finally:
        await database.close()


def api_keys(database: PostgresDatabase | DatabaseFile) -> ApiKeys:
    return ApiKeys(database, lambda: {"desk": "default"}, time.time)


async def fetch(database: PostgresDatabase, sql: str, *values: object) -> list[tuple[Any, ...]]:
    none: list[tuple[Any, ...]] = []
    return await database.read(lambda rows: list(rows.read(sql, values)), none)


async def count(database: PostgresDatabase, table: str) -> int:
    ((number,),) = await fetch(database, f"SELECT count(*) FROM {table}")
    return int(number)


def add(name: str) -> Callable[[Rows], None]:
    return lambda rows: rows.change(ADD, [("endpoint", name, 1, 1)])


async def test_views_tool_sets_and_scripts_are_there_for_the_next_gateway(url: str) -> None:
    script = Script("a", 1, "return 1", created=1.5)
    async with opened(url) as database:
        store = Store(database)
        assert await store.read(()) == DisclosureState()
        await store.write(PUT)
        await store.write(Delta(((ANN, EQUIPPED),), script=script))
    async with opened(url) as database:
        state = await Store(database).read(())
    assert state == DisclosureState(((ANN, EQUIPPED), (ME, EQUIPPED)), (DEV,), (script,))


async def test_keys_and_their_pepper_are_there_for_a_gateway_without_any_file(
    url: str, server: Postgres
) -> None:
    async with opened(url) as database:
        keys = api_keys(database)
        await keys.begin()
        made = [await keys.carry_out_order(NewKey(name=name), "root") for name in ("a", "b")]
        await keys.carry_out_order(Revoke(key="b"), "root")
    async with opened(url) as database:
        keys = api_keys(database)
        await keys.begin()
        assert [keys.find_valid_key(each.key) is not None for each in made] == [True, False]
        await keys.rotate_pepper("1h")
        assert keys.find_valid_key(made[0].key)
    async with opened(url) as database:
        keys = api_keys(database)
        await keys.begin()
        assert keys.find_valid_key(made[0].key)
    ((sealed,),) = server.sql(f"SELECT body FROM {SCHEMA}.secret WHERE name = '{PEPPER}'", url)
    assert not server.holds(made[0].key.encode())
    assert isinstance(sealed, bytes)
    assert not all(32 <= byte < 127 for byte in sealed), "the pepper is encrypted"


async def test_another_secret_opens_nothing_and_says_so(url: str) -> None:
    async with opened(url) as database:
        made = await api_keys(database).carry_out_order(NewKey(name="a"), "root")
    async with opened(url, secret="t" * 32) as database:
        keys = api_keys(database)
        with pytest.raises(
            PepperUnfit, match=r"of another cluster_secret; set the one .* or revoke all"
        ):
            await keys.carry_out_order(NewKey(name="b"), "root")
        assert keys.find_valid_key(made.key) is None
        assert [key.name for key in (await keys.list_keys([])).keys] == ["a"]
        await keys.carry_out_order(Revoke(key="a"), "root")
        again = await keys.carry_out_order(NewKey(name="b"), "root")
        assert keys.find_valid_key(again.key)


async def test_a_pepper_that_is_gone_or_foreign_is_an_error_with_a_remedy(
    url: str, server: Postgres
) -> None:
    async with opened(url) as database:
        await api_keys(database).carry_out_order(NewKey(name="a"), "root")
        server.sql(f"DELETE FROM {SCHEMA}.secret", url)
        with pytest.raises(PepperUnfit, match="is gone; revoke all keys"):
            await api_keys(database).carry_out_order(NewKey(name="b"), "root")
        await database.secrets.write(PEPPER, b"00" * 32)
        with pytest.raises(PepperUnfit, match="not the one with which these keys were made"):
            await api_keys(database).carry_out_order(NewKey(name="b"), "root")


async def test_one_gateway_uses_the_tables_and_the_next_gets_them_when_it_is_gone(
    url: str,
) -> None:
    async with opened(url):
        with pytest.raises(StoreError, match="another gateway uses it; end that one first"):
            async with opened(url):
                pass
    async with opened(url) as database:
        await database.write(add("a"))


async def test_a_session_that_was_lost_is_followed_by_another_unless_somebody_came_between(
    url: str, server: Postgres
) -> None:
    async with opened(url) as first:
        await first.write(add("a"))
        end_sessions(server, url)
        await first.write(add("b"))
        assert await count(first, "quota") == 2
        end_sessions(server, url)
        async with opened(url) as second:
            await second.write(add("c"))
        with pytest.raises(
            StoreError, match="others changed it since the connection was lost; restart"
        ):
            await first.write(add("d"))


async def test_who_only_reads_between_two_sessions_changes_nothing_for_the_gateway(
    url: str, server: Postgres
) -> None:
    async with opened(url) as first:
        await first.write(add("a"))
        end_sessions(server, url)
        async with opened(url) as second:
            assert await count(second, "quota") == 1
        await first.write(add("b"))
        assert await count(first, "quota") == 2


async def test_changes_that_a_failover_lost_are_noticed(url: str, server: Postgres) -> None:
    async with opened(url) as database:
        await database.write(add("a"))
        before = server.sql(f"SELECT mark FROM {SCHEMA}.layout", url)[0][0]
        await database.write(add("b"))
        end_sessions(server, url)
        server.sql(f"UPDATE {SCHEMA}.layout SET mark = '{before}'", url)
        with pytest.raises(StoreError, match="others changed it since the connection was lost"):
            await database.write(add("c"))


async def test_a_lost_session_is_followed_by_another_before_anybody_orders(
    url: str, server: Postgres
) -> None:
    database = PostgresDatabase(url, SECRET, Path("/nowhere"), lock_s=0.5, watch_s=0.05)
    await database.open()
    watching = asyncio.create_task(database.watch())
    end_sessions(server, url)
    holds = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = {LOCK}"
    await asyncio.to_thread(until, lambda: server.sql(holds, url), "it has the lock again")
    watching.cancel()
    await database.close()


async def test_keys_are_listed_beside_the_gateway_that_has_them(url: str, tmp_path: Path) -> None:
    async with opened(url) as database:
        made = await api_keys(database).carry_out_order(NewKey(name="a"), "root")
        beside = PostgresDatabase(url, SECRET, tmp_path)
        assert await names(beside) == [(made.id, "a", "default")]
        assert await find_fault(beside) == ""
        foreign = PostgresDatabase(url, "t" * 32, tmp_path)
        assert "secrets of another cluster_secret" in await find_fault(foreign)


def end_sessions(server: Postgres, url: str) -> None:
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE application_name = 'metamcp store' AND datname = '{url.rpartition('/')[2]}'"
    )


async def test_a_change_is_there_whole_or_not_at_all(url: str) -> None:
    async with opened(url) as database:

        def change(rows: Rows) -> None:
            add("a")(rows)
            add("a")(rows)

        with pytest.raises(StoreError, match="duplicate key"):
            await database.write(change)
        assert await count(database, "quota") == 0


async def test_a_database_that_stops_refuses_changes_and_is_used_again_once_it_is_back(
    url: str, server: Postgres
) -> None:
    async with opened(url) as database:
        server.stop()
        try:
            with pytest.raises(StoreError, match=r"cannot be written at 127\.0\.0\.1: .*refused"):
                await database.write(add("a"))
        finally:
            server.start()
        await database.write(add("b"))
        assert await count(database, "quota") == 1


async def test_a_database_that_does_not_answer_is_given_up_in_time(
    url: str, server: Postgres
) -> None:
    async with opened(url, answer_s=1.0) as database:
        ((pid,),) = await fetch(database, "SELECT pg_backend_pid()")
        os.kill(int(pid), signal.SIGSTOP)
        begin = time.monotonic()
        try:
            with pytest.raises(StoreError, match="does not answer within 1 s"):
                await database.write(add("a"))
        finally:
            os.kill(int(pid), signal.SIGCONT)
        assert time.monotonic() - begin < 3
        await database.write(add("b"))
        assert await count(database, "quota") == 1


async def test_a_change_that_was_refused_but_made_ends_all_others_until_a_restart(
    url: str, server: Postgres
) -> None:
    """A commit that waits for a replica is in the tables already."""
    async with opened(url, answer_s=1.0) as database:
        await database.write(add("a"))
        wait_for_replica(server, "nobody")
        try:
            with pytest.raises(StoreError, match="does not answer"):
                await database.write(add("b"))
        finally:
            wait_for_replica(server, "")
        with pytest.raises(
            StoreError, match="a change that was reported as refused; restart the gateway"
        ):
            await until_asked(database)
    async with opened(url) as database:
        assert await count(database, "quota") == 2


async def test_a_change_that_is_made_again_anyway_ends_nothing(url: str, server: Postgres) -> None:
    async with opened(url, answer_s=1.0) as database:
        wait_for_replica(server, "nobody")
        try:
            with pytest.raises(StoreError, match="whether the change was made is not known"):
                await database.write(add("a"), repeats=True)
            assert database.trouble
        finally:
            wait_for_replica(server, "")
        await until_asked(database)
        assert await count(database, "quota") == 2
        assert database.trouble == ""


async def until_asked(database: PostgresDatabase) -> None:
    """Write, again while the session that waits is in the way."""
    for _ in range(20):
        try:
            return await database.write(add("c"))
        except StoreError as error:
            if "does not answer" not in str(error):
                raise
    return None


def wait_for_replica(server: Postgres, name: str) -> None:
    server.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    server.sql("SELECT pg_reload_conf()")
    until(lambda: server.sql("SHOW synchronous_standby_names") == [(name,)], "it is in force")


async def test_a_commit_whose_answer_is_lost_is_asked_for_in_the_next_session(
    url: str, server: Postgres
) -> None:
    async with opened(url, answer_s=20.0) as database:
        await database.write(add("a"))
        wait_for_replica(server, "nobody")
        writing = asyncio.create_task(database.write(add("b")))
        await asyncio.to_thread(until, lambda: waits(server), "its commit waits")
        await asyncio.to_thread(wait_for_replica, server, "nobody2")
        server.sql("ALTER SYSTEM SET synchronous_standby_names = ''")
        end_sessions(server, url)
        await asyncio.to_thread(wait_for_replica, server, "")
        await writing
        assert await count(database, "quota") == 2


def waits(server: Postgres) -> bool:
    return bool(server.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda url: url.replace(PASSWORD, "wrong"), "password authentication failed for user"),
        (lambda url: url.replace("127.0.0.1", "nohost.invalid"), "at nohost.invalid: failed to"),
        (lambda url: url + "_nowhere", "does not exist"),
        (lambda url: "postgresql://[", "its URL is not valid; write postgresql://USER@HOST"),
    ],
)
async def test_a_database_that_cannot_be_reached_is_one_sentence_without_the_password(
    url: str, spoil: Callable[[str], str], sentence: str
) -> None:
    with pytest.raises(StoreError, match=sentence) as error:
        async with opened(spoil(url)):
            pass
    assert PASSWORD not in str(error.value)
    assert "\n" not in str(error.value)


async def test_a_user_without_rights_is_refused_with_the_reason(url: str, server: Postgres) -> None:
    server.sql("CREATE USER guest PASSWORD 'guest-of-tests'")
    guest = url.replace(f"metamcp:{PASSWORD}", "guest:guest-of-tests")
    with pytest.raises(StoreError, match="permission denied for database"):
        async with opened(guest):
            pass


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_a_pooler_is_refused_if_it_gives_sessions_to_others(
    url: str, server: Postgres, tmp_path: Path, mode: str
) -> None:
    with pooler(server, tmp_path, mode) as port:
        pooled = url.replace(f":{server.port}/", f":{port}/")
        if mode == "session":
            async with opened(pooled) as database:
                await database.write(add("a"))
                assert await count(database, "quota") == 1
            return
        with pytest.raises(StoreError, match="a pooler in front of it gives the session to others"):
            async with opened(pooled):
                pass


@contextmanager
def pooler(server: Postgres, folder: Path, mode: str) -> Generator[int]:
    """A PgBouncer in front of the server, and its port."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        assert os.environ.get("CI") != "true", "PgBouncer is not installed"
        pytest.skip("PgBouncer is not installed (apt install pgbouncer)")
    port = free_port()
    users, settings = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text(f'"metamcp" "{PASSWORD}"\n')
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port} user=metamcp password={PASSWORD}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = plain\nauth_file = {users}\npool_mode = {mode}\n"
    )
    as_user = ["-u", "nobody"] if os.getuid() == 0 else []
    for path in (folder, users, settings):
        path.chmod(0o755)
    running = subprocess.Popen(
        [program, *as_user, str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: listens(port), "the pooler listens")
        yield port
    finally:
        running.terminate()
        running.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_an_old_database_and_a_replica_are_refused() -> None:
    assert (
        find_flaw(130_020, is_replica=False) == "it is PostgreSQL 13; the store needs 14 or newer"
    )
    assert "a replica, which is read-only" in find_flaw(150_018, is_replica=True)
    assert find_flaw(140_000, is_replica=False) == ""


async def test_tables_of_a_newer_program_are_used_only_if_they_say_that_they_may(
    url: str, server: Postgres
) -> None:
    async with opened(url):
        pass
    newer = len(STEPS) + 1
    server.sql(f"UPDATE {SCHEMA}.layout SET version = {newer}", url)
    with pytest.raises(StoreError, match=f"of version {newer}, and this program knows versions"):
        async with opened(url):
            pass
    server.sql(f"CREATE TABLE {SCHEMA}.min_reader AS SELECT {len(STEPS)} AS version", url)
    async with opened(url) as database:
        await database.write(add("a"))
        assert (await database.describe()).version == newer


async def test_a_file_is_copied_whole_with_its_keys_and_only_to_empty_tables(
    url: str, tmp_path: Path
) -> None:
    await written(tmp_path, PUT)
    file = DatabaseFile(tmp_path)
    made = await api_keys(file).carry_out_order(NewKey(name="a"), "root")
    async with opened(url, tmp_path) as database:
        content = await copy_file(file, database, [PEPPER])
        assert (content.in_use, content.version) == (True, len(STEPS))
        assert content.rows == dict.fromkeys(TABLES, 0) | {
            "toolset": 1,
            "view": 1,
            "api_key": 1,
        }
        assert (await file.describe()).rows == content.rows
        keys = api_keys(database)
        await keys.begin()
        assert keys.find_valid_key(made.key)
        assert await Store(database).read(()) == DisclosureState(((ME, EQUIPPED),), (DEV,))
        with pytest.raises(StoreError, match="has rows already"):
            await copy_file(file, database, [PEPPER])
    await file.close()


@pytest.mark.parametrize("content", [b"zz\n", b"\xff"])
async def test_a_damaged_file_of_keys_is_not_copied(
    url: str, tmp_path: Path, content: bytes
) -> None:
    await written(tmp_path, PUT)
    (tmp_path / PEPPER).write_bytes(content)
    async with opened(url, tmp_path) as database:
        with pytest.raises(StoreError, match=r"keys\.pepper is damaged; restore it, or remove it"):
            await copy_file(DatabaseFile(tmp_path), database, [PEPPER])
        assert await count(database, "toolset") == 0


async def test_a_file_that_is_not_copied_yet_is_named_at_the_start(
    url: str, tmp_path: Path
) -> None:
    await written(tmp_path, PUT)
    database = PostgresDatabase(url, SECRET, tmp_path)
    assert "'metamcp store copy' copies it" in await database.open()
    await database.write(add("a"))
    assert await database.open() == ""
    await database.close()


async def test_the_steps_make_the_tables_that_are_copied_and_counted(url: str) -> None:
    async with opened(url) as database:
        sql = "SELECT tablename FROM pg_tables WHERE schemaname = ?"
        rows = await fetch(database, sql, SCHEMA)
    assert {name for (name,) in rows} == {*TABLES, "layout", "secret"}
