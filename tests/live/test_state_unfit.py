"""A state directory with FIFOs in place of its files: the gateway starts, says so, and ends."""

import os
import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from tests import programs
from tests.live.client import Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live


def test_fifos_in_place_of_files_make_the_gateway_wait_for_nobody() -> None:
    servers = {"one": {**fake(), "pinning": "enforce"}, "two": fake()}
    with Gateway(servers, extra='[recording]\ncalls = "full"') as gateway:
        _call(gateway)
        kept = gateway.command("toolsets", "create", "desk", "one.echo")
        programs.run(kept, check=True)
        state = gateway.folder / "state"
        until((state / "definitions.lock").exists, "what is seen first is kept")
        gateway.stop()
        places = [path for path in state.rglob("*") if path.is_file()]
        assert {path.name for path in places} >= {"metamcp.db", "definitions.lock", "owner"}
        assert sum(path.parent.parent.name == "catalogue" for path in places) >= 2
        for path in (*places, state / "metamcp.db-journal", state / "ports"):
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        gateway.start()
        assert sum("is a FIFO" in line for line in gateway.log.read_text().splitlines()) >= 3
        assert "metamcp.db-journal is not a regular file" in gateway.log.read_text()
        _call(gateway)
        assert gateway.stop() == 0


@pytest.mark.promise("M125")
def test_tables_of_a_newer_version_are_not_called_none_at_all() -> None:
    with Gateway({"two": fake()}) as gateway:
        gateway.run("toolsets", "create", "desk", "two.echo")
        assert gateway.stop() == 0
        with closing(sqlite3.connect(gateway.folder / "state" / "metamcp.db")) as database:
            database.execute("PRAGMA user_version = 99")
        gateway.start()
        sentence = "it is of version 99, and this program knows versions up to"
        assert f"tool sets, views and scripts are left out: {sentence}" in _spoken(gateway)
        assert sentence in gateway.run("toolsets", "list", ok=(1,)).stderr
        assert sentence in gateway.run("scripts", "list", ok=(1,)).stderr
        _call(gateway)


def _spoken(gateway: Gateway) -> str:
    """What `status` says, without the path of the file."""
    return re.sub(r"/\S+ cannot be read, so it stays as it is: ", "", gateway.ctl("status"))


def _call(gateway: Gateway) -> None:
    client = Client(gateway.port)
    assert client.text("two__echo", text="hi") == "hi"
    client.close()


def test_a_state_directory_that_cannot_be_made_ends_the_start_with_path_and_remedy() -> None:
    gateway = Gateway({"one": fake()})
    (gateway.folder / "file").touch()
    place = gateway.folder / "file" / "state"
    done = gateway.run("serve", "--config", gateway.config, "--state-dir", place, ok=())
    shutil.rmtree(gateway.folder)
    why = f"the state cannot be kept: {place}: Not a directory; choose another --state-dir\n"
    assert (done.returncode, done.stderr) == (77, f"metamcp: {why}")
