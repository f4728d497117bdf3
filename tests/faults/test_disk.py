"""A full disk below the state directory and the log: no call and no server notices, what was
written before stays whole, and what could not be written is told and made up for."""

import json
import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk"),
]

DISK = "128k"
PAGE_BYTES = 4096


@contextmanager
def small_disk(path: Path) -> Generator[Path, None, None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextmanager
def full(disk: Path) -> Generator[None, None, None]:
    """Not one page is free meanwhile."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(PAGE_BYTES))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def read_only(*folders: Path) -> Generator[None, None, None]:
    """As after an error of the disk: what is open stays open, and nothing new can be written."""
    for folder in folders:
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        until(partial(remounted, folder), "nothing writes below the folder")
    try:
        yield
    finally:
        for folder in folders:
            subprocess.run(["umount", "--lazy", folder], check=True)


def remounted(folder: Path) -> bool:
    """Whether the folder can be read only now; not while a file there is being written."""
    command = ["mount", "-o", "remount,bind,ro", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_on_a_read_only_disk_the_doctor_says_so_and_the_gateway_ends_as_always() -> None:
    with ExitStack() as stack:
        gateway = stack.enter_context(Gateway({"one": fake()}))
        until(lambda: kept(gateway.folder / "state", "one"), "nothing is written any more")
        stack.enter_context(read_only(*homes(gateway)))
        report = gateway.ctl("doctor", ok=(1,))
        assert f"{gateway.folder}/state cannot be written: Read-only file system" in report
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(30) == 0
        log = gateway.log.read_text()
        assert f"socket and token stay in {gateway.folder}/run: Read-only file system" in log
        assert "Traceback" not in log


def homes(gateway: Gateway) -> tuple[Path, Path]:
    return gateway.folder / "state", gateway.folder / "run"


def kept(disk: Path, server: str) -> dict[str, bytes]:
    """Every file with a catalogue of the server."""
    folder = disk / "catalogue" / server
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def test_on_a_full_disk_calls_go_on_and_no_file_is_cut(tmp_path: Path) -> None:
    gateway = Gateway({"one": fake(), "two": fake()})
    with small_disk(tmp_path / "disk") as disk:
        (gateway.folder / "state").symlink_to(disk)
        gateway.log = disk / "log"
        with gateway:
            before = until(lambda: kept(disk, "one"), "its catalogue is on the disk")
            with full(disk), Callers(gateway.port, ["two"], callers=4) as run:
                written = gateway.log.stat().st_size
                gateway.write({"one": fake("--tools", "9", "--garbage"), "two": fake()})
                gateway.ctl("reload")
                until(
                    lambda: "No space left" in gateway.journal(),
                    "the journal says what could not be written",
                )
                os.kill(gateway.status()["fronts"][0]["pid"], signal.SIGKILL)
                pid = until(lambda: gateway.server("one")["pid"], "the reload has started it anew")
                os.kill(pid, signal.SIGKILL)
                until(lambda: gateway.server("one")["state"] == "active", "it is back")
                until(lambda: gateway.logs("one"), "its lines are in memory")
                now = run.tally.right
                until(lambda: run.tally.right > now + 50, "calls are answered")
            assert run.tally.wrong == []
            assert run.tally.errors.total() == run.tally.refused == 0
            assert kept(disk, "one") == before, "neither cut nor half a new one beside it"
            gateway.ctl("restart", "one", "--wait")
            after = until(
                lambda: {
                    name: data for name, data in kept(disk, "one").items() if name not in before
                },
                "the new catalogue is written",
            )
            assert all(json.loads(data) for data in after.values())
            lines = gateway.log.read_bytes()[written:].splitlines()
            assert any(b" lines lost" in line for line in lines)
            whole = [line for line in lines if line.endswith(b"}")]
            assert len(whole) >= len(lines) - 1, "no line was added to one that was cut"
            assert all(json.loads(line) for line in whole)
