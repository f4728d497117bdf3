"""A machine of its own that a real systemd runs, in a second: a container of `systemd-nspawn`.

Its root directory is a handful of files and links; programs are those of this machine (/usr, Python
and this checkout, all read-only). It has a network of its own with nothing but loopback, so it
reaches nobody and its ports are free.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

import httptools

from tests.live import processes
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
PYTHON = "/opt/python"
"""Where a Python that is not below /usr is inside: not in a home directory, which is hidden from
services."""
SOURCES = "/opt/metamcp"
PACKAGES = "/opt/packages"
#: With the groups of old, systemd in a container is not told when one is empty.
UNIFIED = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
CAP_SYS_ADMIN = 21
BOOT_S_MAX = 30.0
RUN_S_MAX = 60.0

ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "group": "root:x:0:\n",
    "os-release": "ID=metamcp-test\n",
    "nsswitch.conf": "passwd: files systemd\ngroup: files systemd\nhosts: files\n",
    "hosts": "127.0.0.1 localhost\n",
}


def missing() -> str:
    """Why there can be no such machine here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root"
    if sys.platform != "linux" or not Path("/bin").is_symlink():
        return "needs a Linux that has all programs below /usr"
    for program in ("systemd-nspawn", "systemd-analyze", "nsenter"):
        if shutil.which(program) is None:
            return f"needs {program} (Debian: systemd-container, util-linux)"
    if not Path("/usr/lib/systemd/systemd").exists():
        return "needs systemd to be installed"
    effective = next(line for line in _read("/proc/self/status").splitlines() if "CapEff" in line)
    if not int(effective.split()[1], 16) >> CAP_SYS_ADMIN & 1:
        return "needs a root that may mount (CAP_SYS_ADMIN)"
    return ""


class Machine:
    """Booted in the `with` block; powered off at its end, with nothing left."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="metamcp-machine-"))
        self.log = self.root.with_suffix(".log")
        own = Path(sys.base_prefix)
        self._inside = not own.is_relative_to("/usr")
        found = Path(os.path.realpath(sys.executable))
        self.python = f"{PYTHON}/{found.relative_to(own)}" if self._inside else str(found)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.furnish()
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **UNIFIED},
                )
            until(self._is_up, "the machine is up", BOOT_S_MAX)
        except BaseException:
            self._destroy()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._destroy()

    def enter(self, *command: str) -> list[str]:
        """This command, run by its root."""
        names = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd")
        return ["nsenter", f"--target={self._leader()}", *names, "--", *command]

    def run(self, *command: str, ok: bool = True) -> str:
        """What it prints on both streams."""
        done = subprocess.run(
            self.enter(*command), capture_output=True, text=True, timeout=RUN_S_MAX, check=False
        )
        said = done.stdout + done.stderr
        assert (done.returncode == 0) is ok, f"{command} -> {done.returncode}: {said}"
        return said

    def metamcp(self, *arguments: str, ok: bool = True) -> str:
        settings = [f"{name}={value}" for name, value in self.environment().items()]
        command = (self.python, "-P", "-m", "metamcp_supervisor", *arguments)
        return self.run("/usr/bin/env", *settings, *command, ok=ok)

    def show(self, name: str, unit: str = "metamcp.service") -> str:
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def journal(self, unit: str = "metamcp.service") -> str:
        return self.run("journalctl", "--no-pager", f"--unit={unit}")

    def ask(self, port: int, tool: str, arguments: str = "{}") -> "subprocess.Popen[str]":
        """A client in the network of the machine, with this machine's Python."""
        module = [sys.executable, "-m", "tests.systemd.ask", str(port), tool, arguments]
        return subprocess.Popen(
            ["nsenter", f"--target={self._leader()}", "--net", "--", *module],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pids(self, unit: str = "metamcp.service") -> set[int]:
        """Of the unit's processes, as this machine counts them."""
        inside = self.show("ControlGroup", unit)
        return {
            pid
            for pid in processes.below(self._leader())
            if inside and inside in _read(f"/proc/{pid}/cgroup")
        }

    def outside(self, pid: int) -> int:
        """The pid that a process of the machine has here."""
        for candidate in processes.below(self._leader()):
            for line in _read(f"/proc/{candidate}/status").splitlines():
                if line.startswith("NSpid:") and line.split()[-1] == str(pid):
                    return candidate
        raise AssertionError(f"no process {pid} in the machine")

    def power_off(self) -> int:
        """The exit code of the container."""
        assert self._process is not None
        with suppress(AssertionError):  # the command may be ended with the rest
            self.run("systemctl", "poweroff")
        return self._process.wait(BOOT_S_MAX)

    def environment(self) -> dict[str, str]:
        """Of every service: where Python finds what is bound in."""
        found = {
            "PYTHONPATH": f"{SOURCES}/supervisor:{SOURCES}/worker:{PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if self._inside:
            found["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
        return found

    def manager(self) -> str:
        """Settings of a systemd whose services have that environment."""
        settings = " ".join(f'"{key}={value}"' for key, value in self.environment().items())
        return f"[Manager]\nDefaultEnvironment={settings}\n"

    def furnish(self) -> None:
        for name in ("usr", "proc", "sys", "dev", "run", "tmp", "var", "root", "home", "opt"):
            (self.root / name).mkdir()
        for name in ("bin", "sbin", "lib", "lib64", "lib32", "libx32"):
            if Path("/", name).is_symlink():
                (self.root / name).symlink_to(f"usr/{name}")
        etc = self.root / "etc"
        (etc / "systemd/system.conf.d").mkdir(parents=True)
        for name, text in {**ETC, "machine-id": f"{uuid.uuid4().hex}\n"}.items():
            (etc / name).write_text(text)
        (etc / "systemd/system.conf.d/test.conf").write_text(self.manager())
        self.root.chmod(0o755)

    def places(self) -> list[str]:
        """What of this machine is there inside, as options of systemd-nspawn."""
        packages = Path(httptools.__file__).parent.parent
        bound = {"/usr": "/usr", str(packages): PACKAGES}
        for name in ("supervisor", "worker", "tests"):
            bound[str(ROOT / name)] = f"{SOURCES}/{name}"
        if self._inside:
            bound[sys.base_prefix] = PYTHON
        return [f"--bind-ro={outer}:{inner}" for outer, inner in bound.items()]

    def _command(self) -> list[str]:
        return [
            "systemd-nspawn", "--quiet", f"--directory={self.root}", "--boot", "--console=pipe",
            "--register=no", "--keep-unit", "--private-network", "--link-journal=no",
            "--resolv-conf=off", "--timezone=off", f"--machine=metamcp-{os.getpid()}",
            *self.places(),
            "systemd.firstboot=off",
        ]  # fmt: skip

    def _leader(self) -> int:
        """The first process of the machine."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        table = processes.parents()
        return next(pid for pid, parent in table.items() if parent == self._process.pid)

    def _is_up(self) -> bool:
        try:
            command = self.enter("systemctl", "is-system-running")
        except StopIteration:
            return False
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.strip() in {"running", "degraded"}

    def _destroy(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                for pid in processes.below(self._process.pid):
                    os.kill(pid, signal.SIGKILL)
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(BOOT_S_MAX)
        shutil.rmtree(self.root, ignore_errors=True)
        self.log.unlink(missing_ok=True)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
