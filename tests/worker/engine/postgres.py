"""A PostgreSQL of its own for tests, from the programs of the system."""

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

WAIT_S = 60
PASSWORD = "correct-horse-battery"


def _programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`, which Debian does not have on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    named = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(named).resolve().parent if named else None


def _user() -> str | None:
    """Another user for root, as whom no PostgreSQL runs."""
    if os.getuid():
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return "nobody"


class Postgres:
    """Database server on a free port of 127.0.0.1, and of another `address` of this machine.
    `url`: of its database, with a password."""

    def __init__(self, folder: Path, programs: Path, address: str = "127.0.0.1") -> None:
        self._data, self._programs = folder / "data", programs
        self._numbers = itertools.count(1)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])
        self.url = f"postgresql://metamcp:{PASSWORD}@127.0.0.1:{self.port}/postgres"
        if (user := _user()) is not None:
            shutil.chown(folder, user)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run("initdb", "-U", "metamcp", "-A", "scram-sha-256", f"--pwfile={secret}", "-N")
        settings = self._data / "postgresql.conf"
        with settings.open("a") as file:
            file.write(f"port = {self.port}\nunix_socket_directories = ''\nfsync = off\n")
            file.write(f"listen_addresses = '127.0.0.1, {address}'\n")
        with (self._data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {address}/24 scram-sha-256\n")

    def database(self) -> str:
        """Return the URL of a new database."""
        name = f"test_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url.replace("/postgres", f"/{name}")

    def holds(self, text: bytes) -> bool:
        """Whether a text is in any file of the server."""
        self.sql("CHECKPOINT")
        return any(text in file.read_bytes() for file in self._data.rglob("*") if file.is_file())

    def start(self) -> None:
        self._run("pg_ctl", "start", "-w", "-t", str(WAIT_S), "-l", str(self._data / "log"))

    def stop(self) -> None:
        """End it at once, as a loss of power does."""
        self._run("pg_ctl", "stop", "-w", "-t", str(WAIT_S), "-m", "immediate")

    def sql(self, text: str, url: str = "") -> list[tuple[object, ...]]:
        import psycopg

        with psycopg.connect(url or self.url, autocommit=True) as base:
            found = base.execute(text.encode())
            return found.fetchall() if found.description else []

    def _run(self, program: str, *arguments: str) -> None:
        user = _user()
        done = subprocess.run(
            [self._programs / program, "-D", self._data, *arguments], cwd="/", user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=2 * WAIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{program} {arguments} ended with {done.returncode}"


@contextmanager
def postgres(address: str = "127.0.0.1") -> Generator[Postgres]:
    """A server that runs. Without the programs the test is skipped, except where CI is true."""
    programs = _programs()
    if programs is None:
        if os.environ.get("CI") == "true":
            pytest.fail("PostgreSQL is not installed")
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="metamcp-postgres-"))
    folder.chmod(0o711)
    try:
        server = Postgres(folder, programs, address)
        server.start()
        try:
            yield server
        finally:
            with suppress(AssertionError):
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
