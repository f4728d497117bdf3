"""The .deb on a machine that a real systemd runs: installed, configured, upgraded, removed, purged.

The tests share one machine and are read from top to bottom.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.checkout import PACKAGERS, ROOT, VERSION, built, checkout, run
from tests.systemd.machine import Machine, missing

WHY_NOT = missing() or ("" if shutil.which("dpkg-deb") else "needs dpkg-deb")
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.promise("M81"),
    # The first test waits for two packages and a boot.
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]
PYTHON = os.path.realpath("/usr/bin/python3")
NEW_VERSION = "9.8.8"
CONFIG = "etc/metamcp/metamcp.toml"
SERVERS = ROOT / "tests/packages/servers"
PORT = 6270
EDIT = """
[servers.node]
command = ["npx", "--offline", "--yes", "--package=file:/srv/{tarball}", "hello-npm"]
read = ["/srv"]

[servers.python]
command = ["uvx", "--offline", "--python", "{python}", "--from", "/srv/{wheel}", "hello-py"]
read = ["/srv"]
"""
DROP_IN = "[Service]\nEnvironment=PATH=/opt/tools:/usr/bin:/bin\n"
#: What Debian's own packages must not do and this one does on purpose: an environment in /opt, with
#: the files of wheels as they come, and no address of a person.
EXPECTED = {
    "bogus-mail-host",
    "dir-or-file-in-opt",
    "executable-not-elf-or-script",
    "maintainer-script-calls-systemctl",
    "no-changelog",
    "package-installs-python-pycache-dir",
    "script-not-executable",
    "unstripped-binary-or-object",
    "unusual-interpreter",
}


class Debian(Machine):
    """With a layer above /usr, and a package database that knows what the package depends on."""

    def places(self) -> list[str]:
        return ["--overlay=/usr::/usr", f"--bind-ro={PACKAGERS}:/opt/tools"]

    def environment(self) -> dict[str, str]:
        return {}

    def furnish(self) -> None:
        super().furnish()
        database = self.root / "var/lib/dpkg"
        for folder in ("info", "updates", "triggers", "alternatives"):
            (database / folder).mkdir(parents=True)
        needed = (Path(PYTHON).name, "systemd", "libc6")
        status = run("dpkg-query", "--status", *needed, cwd=self.root)
        # What these need in turn is there, too, but not in this database.
        status = re.sub(r"^(Pre-)?Depends:.*\n", "", status, flags=re.MULTILINE)
        (database / "status").write_text(status)
        for name in needed:
            (database / f"info/{name}.list").touch()
        for folder in ("srv", "var/log", "var/cache"):
            (self.root / folder).mkdir(exist_ok=True)

    def metamcp(self, *arguments: str, ok: bool = True) -> str:
        return self.run("/usr/bin/metamcp", *arguments, ok=ok)

    def dpkg(self, *arguments: str) -> str:
        return self.run("dpkg", "--force-unsafe-io", *arguments)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("deb")
    built(checkout(tmp_path_factory.mktemp("source")), dist, "wheel")
    run(sys.executable, "-m", "deploy.packages.build", dist, "deb", cwd=ROOT)
    (made,) = dist.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package as its next version, which comes with another configuration."""
    tree = tmp_path_factory.mktemp("newer") / "tree"
    run("dpkg-deb", "--raw-extract", package, tree, cwd=package.parent)
    control = tree / "DEBIAN/control"
    control.write_text(
        control.read_text().replace(f"Version: {VERSION}", f"Version: {NEW_VERSION}")
    )
    (version,) = tree.glob("opt/metamcp/lib/*/site-packages/metamcp_supervisor/version.txt")
    version.write_text(f"{NEW_VERSION}\n")
    with (tree / CONFIG).open("a") as file:
        file.write("# New in this version.\n")
    made = package.with_name("newer.deb")
    run("dpkg-deb", "-Znone", "--build", tree, made, cwd=package.parent)
    return made


@pytest.fixture(scope="module")
def machine(package: Path, newer: Path) -> Iterator[Debian]:
    with Debian() as made:
        shutil.copy(package, made.root / "srv/metamcp.deb")
        shutil.copy(newer, made.root / "srv/newer.deb")
        pack = ("npm", "pack", "--silent", "--pack-destination", made.root / "srv")
        run(*pack, cwd=SERVERS / "hello_npm")
        built(SERVERS / "hello_py", made.root / "srv", "wheel")
        yield made


def answer(machine: Machine, tool: str) -> str:
    client = machine.ask(PORT, tool)
    said, _ = client.communicate(timeout=30)
    assert client.returncode == 0, said
    return said


def test_an_installation_starts_nothing_and_lets_the_group_read_the_configuration(
    machine: Debian,
) -> None:
    machine.dpkg("--install", "/srv/metamcp.deb")
    assert machine.metamcp("--version") == f"metamcp {VERSION} (pure)\n"
    assert machine.run("stat", "-c", "%U:%G %a", f"/{CONFIG}") == "root:metamcp 640\n"
    assert machine.show("ActiveState") == "inactive"
    assert machine.run("systemctl", "is-enabled", "metamcp.service", ok=False) == "disabled\n"


def test_servers_behind_npx_and_uvx_are_served(machine: Debian) -> None:
    (wheel,) = (machine.root / "srv").glob("hello_py-*.whl")
    (tarball,) = (machine.root / "srv").glob("hello-npm-*.tgz")
    with (machine.root / CONFIG).open("a") as file:
        file.write(EDIT.format(python=PYTHON, wheel=wheel.name, tarball=tarball.name))
    folder = machine.root / "etc/systemd/system/metamcp.service.d"
    folder.mkdir(parents=True)
    (folder / "path.conf").write_text(DROP_IN)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", "metamcp.service")
    machine.metamcp("ctl", "--runtime-dir", "/run/metamcp", "wait", "--timeout", "50s")
    assert "hello from node v" in answer(machine, "node__hello")
    assert "hello from python 3." in answer(machine, "python__hello")


def test_an_upgrade_keeps_the_servers_and_the_edited_configuration(machine: Debian) -> None:
    main, before = machine.show("MainPID"), (machine.root / CONFIG).read_text()
    servers = servers_of(machine)
    said = machine.dpkg("--force-confold", "--install", "/srv/newer.deb")
    assert f"{VERSION} → {NEW_VERSION}" in said
    assert machine.metamcp("--version") == f"metamcp {NEW_VERSION} (pure)\n"
    assert (machine.root / CONFIG).read_text() == before
    assert "New in this version" in (machine.root / f"{CONFIG}.dpkg-dist").read_text()
    assert (machine.show("MainPID"), servers_of(machine)) == (main, servers)
    assert "hello from node v" in answer(machine, "node__hello")


def servers_of(machine: Machine) -> set[int]:
    """The processes of the two servers."""
    found: set[int] = set()
    for pid in machine.pids():
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"hello" in line:
            found.add(pid)
    return found


def test_a_removal_keeps_configuration_and_state_and_a_purge_takes_both(machine: Debian) -> None:
    machine.dpkg("--remove", "metamcp")
    assert machine.show("ActiveState") == "inactive"
    assert not (machine.root / "opt/metamcp").exists()
    assert (machine.root / CONFIG).exists()
    assert (machine.root / "var/lib/private/metamcp").is_dir()
    machine.dpkg("--purge", "metamcp")
    left = [*machine.root.glob("etc/metamcp*"), *machine.root.glob("var/*/*/metamcp*")]
    assert left == []


@pytest.mark.skipif(shutil.which("lintian") is None, reason="needs lintian")
def test_lintian_finds_only_what_is_meant(package: Path) -> None:
    done = subprocess.run(
        ["lintian", "--allow-root", "--no-cfg", "--fail-on", "none", str(package)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = set(re.findall(r"^[EW]: \S+: (\S+)", done.stdout, re.MULTILINE))
    assert found <= EXPECTED, done.stdout
