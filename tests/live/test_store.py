"""A gateway with its tables in a real PostgreSQL: kept without any file, copied, and away."""

import json
import os
import signal
import subprocess
from collections.abc import Generator
from typing import Any

import pytest

from tests import programs
from tests.live.gateway import ROOT, Completed, Gateway, fake
from tests.worker.engine.postgres import PASSWORD, Postgres, postgres

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SECRET = "a-secret-of-this-cluster-with-more-than-32-bytes"
ENVIRON = {"PG_PASSWORD": PASSWORD, "CLUSTER": SECRET}
PAGE = (ROOT / "docs" / "operating.md").read_text()
TOOLS = [["one", "echo"]]


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


def make_gateway(url: str) -> Gateway:
    written = url.replace(PASSWORD, "${env:PG_PASSWORD}")
    gateway = Gateway(
        {"one": fake()},
        extra=f'[gateway]\nauth = "keys"\nstore = "{written}"\ncluster_secret = "${{env:CLUSTER}}"',
    )
    gateway.environ |= ENVIRON
    return gateway


def run(gateway: Gateway, *words: str, ok: int = 0) -> Completed:
    """A verb that finds this gateway by its configuration."""
    command = [*programs.PROGRAM, *words, "--config", str(gateway.config)]
    done = programs.run(command, env={**os.environ, **gateway.environ}, cwd=gateway.folder)
    assert done.returncode == ok, done
    return done


def refused_start(url: str, code: int = 75) -> str:
    """The last line of a gateway that cannot have this database."""
    gateway = make_gateway(url)
    gateway.waits = False
    with gateway:
        assert gateway.process is not None
        assert gateway.process.wait(60) == code
        return gateway.log.read_text().splitlines()[-1]


def names(gateway: Gateway) -> list[str]:
    """The names of all keys, in alphabetical order; they are listed by their random ids."""
    keys = json.loads(gateway.run("keys", "list", "--json").stdout)["keys"]
    return sorted(key["name"] for key in keys)


def add_toolset(gateway: Gateway) -> None:
    order = {"type": "Build", "toolset": "dev", "tools": TOOLS}
    gateway.ask("toolsets-change", {"order": order, "force": True})


def toolsets(gateway: Gateway) -> list[str]:
    listing: Any = gateway.ask("toolsets", {"names": ()})
    return [each["name"] for each in listing["toolsets"]]


def test_what_it_stores_is_there_for_a_gateway_on_another_machine(server: Postgres) -> None:
    url = server.database()
    with make_gateway(url) as gateway:
        gateway.run("keys", "create", "laptop")
        add_toolset(gateway)
        gateway.ctl("upgrade")
        assert names(gateway) == ["laptop"]
        gateway.run("keys", "create", "phone")
        assert gateway.status()["store"] == url.replace(f"metamcp:{PASSWORD}", "***")
        log = gateway.log.read_text()
        files = {path.name for path in (gateway.folder / "state").iterdir()}
        assert not {"metamcp.db", "keys.pepper", "handles.key"} & files
        os.kill(gateway.pid, signal.SIGKILL)
    assert PASSWORD not in log
    assert SECRET not in log
    with make_gateway(url) as gateway:
        assert names(gateway) == ["laptop", "phone"]
        assert toolsets(gateway) == ["dev"]
        assert gateway.status()["keys_unusable"] == ""


def test_changes_are_refused_while_the_database_is_away_and_a_start_ends_with_75(
    server: Postgres,
) -> None:
    with make_gateway(server.database()) as gateway:
        gateway.run("keys", "create", "laptop")
        server.stop()
        try:
            refused = gateway.run("keys", "create", "phone", ok=(1,)).stderr
            assert "the store in PostgreSQL cannot be written at 127.0.0.1: " in refused
            unread = gateway.run("ctl", "upgrade", ok=(1,)).stderr
            assert "the store in PostgreSQL cannot be read at 127.0.0.1: " in unread
            assert "PostgreSQL cannot be used at 127.0.0.1: " in refused_start(server.url)
            foot = gateway.ctl("status")
            assert "changes of keys, views and tool sets are refused: the store in Postgr" in foot
        finally:
            server.start()
        gateway.run("keys", "create", "phone")
        assert names(gateway) == ["laptop", "phone"]
        assert "are refused" not in gateway.ctl("status")


def test_a_database_that_will_never_do_ends_a_start_at_once(server: Postgres) -> None:
    url = server.database()
    server.sql("CREATE SCHEMA metamcp_store", url)
    server.sql("CREATE TABLE metamcp_store.layout AS SELECT 99 AS version, '' AS mark", url)
    assert "it is of version 99, and this program knows" in refused_start(url, code=65)


def test_one_gateway_has_the_database_and_verbs_use_it_while_none_runs(server: Postgres) -> None:
    url = server.database()
    with make_gateway(url) as gateway:
        status = json.loads(run(gateway, "store", "status", "--json").stdout)
        assert (status["in_use"], status["version"]) == (True, status["newest"])
        assert "another gateway uses it; end that one first" in refused_start(url)
        gateway.stop()
        run(gateway, "keys", "create", "laptop", "--expires", "1h")
        assert json.loads(run(gateway, "store", "status", "--json").stdout)["rows"]["api_key"] == 1
        gateway.start()
        assert names(gateway) == ["laptop"]


def test_a_file_is_copied_once_and_named_until_then(server: Postgres) -> None:
    url = server.database()
    with make_gateway(url) as gateway:
        gateway.stop()
        gateway.run("keys", "--state-dir", str(gateway.folder / "state"), "create", "laptop")
        gateway.start()
        (note,) = [event["cause"] for event in gateway.events() if event["what"] == "note"]
        assert f"what is in {gateway.folder / 'state'}/metamcp.db is not in the store" in note
        assert names(gateway) == []
        gateway.stop()
        gateway.environ["METAMCP_STATE_DIR"] = str(gateway.folder / "state")
        assert "       1  API keys\n" in run(gateway, "store", "copy").stdout
        assert "has rows already" in run(gateway, "store", "copy", ok=1).stderr
        assert "       1  API keys\n" in run(gateway, "store", "status").stdout
        copied = run(gateway, "backup", "copy", "--without-secrets").stderr
        assert "'pg_dump --schema metamcp_store' copies them" in copied
        gateway.start()
        assert names(gateway) == ["laptop"]
        assert gateway.status()["keys_unusable"] == ""
        (command,) = [line for line in PAGE.splitlines() if line.startswith("pg_dump")]
        environ = {**os.environ, "DATABASE_URL": url}
        subprocess.run(["sh", "-c", command], env=environ, cwd=gateway.folder, check=True)
        assert "COPY metamcp_store.api_key" in (gateway.folder / "store.sql").read_text()
