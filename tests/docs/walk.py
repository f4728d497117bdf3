"""A newcomer who types the commands of a page, with the program that a wheel installs."""

import os
import pty
import shlex
import signal
import subprocess
import sys
import sysconfig
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.house import ROOT
from tests.live.gateway import SERVER, free_port
from tests.waiting import until

PORT = 6270
"""Port of the gateway on the pages; a walk has another one."""
QUESTION = b"[y/N]"
BUILD_S = 60.0
COMMAND_S = 60.0
#: Programs that uvx would download; the server is a fake with the tools of the real one.
SERVERS = {
    "mcp-server-time": "--garbage --only get_current_time",
    "mcp-server-git": "--garbage --only git_status,git_log",
}


def wheel(folder: Path) -> Path:
    """Build the wheel of this project into `folder`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=BUILD_S)
    (found,) = folder.glob("*.whl")
    return found


def offline(folder: Path) -> dict[str, str]:
    """Environment in which pip installs from this folder alone, without dependencies."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_NO_DEPS": "1"}


def dependencies(environment: Path) -> None:
    """Let this virtual environment find what is installed beside the tests."""
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (environment / "bin" / "deno").symlink_to(Path(sysconfig.get_path("scripts"), "deno"))


class Walk:
    """Folder and terminal of a newcomer. `said`: what the gateway wrote to its terminal."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.said = b""
        self._gateway: subprocess.Popen[bytes] | None = None
        self._terminal = -1
        shims = folder / "shims"
        shims.mkdir()
        fakes = [f"{name}) exec {shlex.join(SERVER)} {how} ;;" for name, how in SERVERS.items()]
        cases = [f'metamcp) exec {program} "$@" ;;', *fakes]
        shim = ["#!/bin/sh", "name=$1", "shift", "case $name in", *cases, "esac", ""]
        (shims / "uvx").write_text("\n".join(shim))
        (shims / "uvx").chmod(0o700)
        kept = {key: one for key, one in os.environ.items() if not key.startswith("METAMCP_")}
        self.environ = kept | {
            "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "LINEAR_TOKEN": "x" * 12,
            "METAMCP_LISTEN": f"127.0.0.1:{self.port}",
            "METAMCP_OPS_LISTEN": f"127.0.0.1:{free_port()}",
            "PATH": f"{program.parent}:{shims}:{os.environ['PATH']}",
        }  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._gateway is not None:
            self._gateway.send_signal(signal.SIGINT)
            self.gone()

    def type(self, line: str) -> str:
        """Type a command, and return what it prints. The gateway has a terminal of its own."""
        line = line.replace(f":{PORT}", f":{self.port}")
        words = shlex.split(line)
        if {"up", "serve"} & set(words[:3]):
            self._stay(words)
            return ""
        if words[0] == "curl":
            return until(lambda: self._tried(line), f"an answer to {line}")
        if words[-1] == "-f":
            return self._followed(words)
        done = self._run(line)
        assert done.returncode == 0, f"{line} -> {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def gone(self) -> int:
        """Wait for the end of the gateway, and return its exit code."""
        assert self._gateway is not None
        code = self._gateway.wait(COMMAND_S)
        self._reader.join(COMMAND_S)
        os.close(self._terminal)
        self._gateway = None
        return code

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", line], cwd=self.folder, env=self.environ, timeout=COMMAND_S,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def _tried(self, line: str) -> str:
        done = self._run(f"{line} --fail --silent")
        return done.stdout if done.returncode == 0 else ""

    def _followed(self, words: list[str]) -> str:
        """Return the first line of a command that follows, and interrupt it."""
        with subprocess.Popen(
            words, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
        return first

    def _stay(self, words: list[str]) -> None:
        """Start the gateway in a terminal, and say yes if it asks."""
        self._terminal, theirs = pty.openpty()
        self._gateway = subprocess.Popen(
            words, cwd=self.folder, env=self.environ, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        until(self._spoken, f"{shlex.join(words)} says where it listens, or asks")
        if QUESTION in self.said:
            os.write(self._terminal, b"y\n")

    def _read(self) -> None:
        """Read what the gateway writes, until its end closes the terminal."""
        with suppress(OSError):
            while found := os.read(self._terminal, 65536):
                self.said += found

    def _spoken(self) -> bool:
        return f":{self.port}".encode() in self.said or QUESTION in self.said
