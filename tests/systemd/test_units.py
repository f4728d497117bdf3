"""The units as files: what systemd says of them, and that they are where they should be."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.cli import systemd
from metamcp_supervisor.cli.errors import CommandRefused
from metamcp_supervisor.systemd.listen import BACKLOG
from metamcp_supervisor.systemd.sd_notify import FDS_MAX
from metamcp_supervisor.systemd.sd_sockets import CLIENTS
from metamcp_supervisor.verbs import Exit

ROOT = Path(__file__).parents[2]
PACKAGED = ROOT / "supervisor/metamcp_supervisor/systemd/units"
EXPOSURE_MAX = 2.0
NAMES = sorted(
    str(path.relative_to(PACKAGED)) for path in PACKAGED.rglob("*") if path.is_file()
)  # fmt: skip
analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: systemd)"
)


def service(name: str = systemd.SERVICE) -> str:
    return (PACKAGED / name).read_text()


def settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def written(folder: Path, *, user: bool = False) -> list[str]:
    """The units of an installation whose program exists."""
    paths: list[str] = []
    for name, text in systemd.units(user, ("/bin/true",), None, version=0).items():
        (folder / name).write_text(text)
        paths.append(str(folder / name))
    return paths


def test_deploy_shows_the_units_that_are_packaged() -> None:
    deploy = ROOT / "deploy"
    for name in NAMES:
        assert (deploy / name).read_bytes() == (PACKAGED / name).read_bytes()
    units = {path for path in deploy.glob("metamcp*") if path.is_file()}
    assert {str(path.relative_to(deploy)) for path in units} <= set(NAMES)
    assert len(NAMES) == 5


@analyze
@pytest.mark.process
@pytest.mark.promise("M81")
@pytest.mark.parametrize("user", [False, True])
def test_systemd_finds_nothing_to_say_about_the_units(tmp_path: Path, user: bool) -> None:
    scope = ["--user"] if user else []
    done = subprocess.run(
        ["systemd-analyze", *scope, "verify", "--man=no", *written(tmp_path, user=user)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@analyze
@pytest.mark.process
@pytest.mark.promise("M81")
def test_the_service_is_hardly_exposed(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", written(tmp_path)[0]],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize(
    "line",
    [
        "MemoryDenyWriteExecute=yes",  # Node.js dies at its start
        "ProcSubset=pid",  # Node.js counts no processors, Python no memory
        "ProtectControlGroups=yes",  # against Delegate=
        "SystemCallFilter=~@resources",  # no priorities for servers
    ],
)
def test_hardening_that_breaks_servers_stays_out(line: str) -> None:
    assert line not in service().splitlines()


def test_limits_in_the_units_are_those_of_the_gateway() -> None:
    found = settings(service())
    assert found["FileDescriptorStoreMax"] == str(FDS_MAX)
    prevented = found["RestartPreventExitStatus"]
    assert prevented == f"{Exit.USAGE} {Exit.CONFIG} {Exit.NO_PERMISSION}"
    socket = settings(service(systemd.SOCKET))
    assert (socket["FileDescriptorName"], socket["Backlog"]) == (CLIENTS, str(BACKLOG))


def test_the_units_name_this_installation_and_its_configuration() -> None:
    text = systemd.units(False, ("/opt/my env/metamcp",), "/srv/100%.toml", version=252)[
        systemd.SERVICE
    ]
    assert 'ExecStart="/opt/my env/metamcp" serve --config /srv/100%%.toml\n' in text
    assert 'ExecReload="/opt/my env/metamcp" ctl reload\n' in text
    with pytest.raises(CommandRefused, match="cannot be written into a unit"):
        systemd.units(False, ("/opt/a\nb",), None, version=252)


def test_newer_systemd_gets_longer_pauses_between_restarts() -> None:
    assert systemd.STEPS not in systemd.units(False, ("/m",), None, version=253)
    assert systemd.STEPS in systemd.units(False, ("/m",), None, version=254)


def metamcp(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "XDG_CONFIG_HOME": str(home), "PATH": str(home), "HOME": str(home)}
    command = [sys.executable, "-m", "metamcp_supervisor", "systemd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False)


@pytest.mark.process
def test_without_systemd_nothing_is_written_and_one_sentence_says_why(tmp_path: Path) -> None:
    done = metamcp(tmp_path, "install", "--user")
    assert (done.returncode, "is not run by systemd" in done.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []
    tried = metamcp(tmp_path, "install", "--user", "--dry-run")
    assert tried.stdout == f"{tmp_path}/systemd/user/metamcp.service: would be written\n"
    assert "metamcp.toml does not exist yet" in tried.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_units_that_were_changed_are_told_with_the_difference(tmp_path: Path) -> None:
    shown = metamcp(tmp_path, "show", "--user")
    assert (shown.returncode, ": not installed\n" in shown.stdout) == (1, True)
    path = tmp_path / "systemd/user/metamcp.service"
    path.parent.mkdir(parents=True)
    path.write_text(shown.stdout.partition("\n")[2].removesuffix("\n"))
    assert metamcp(tmp_path, "show", "--user").returncode == 0
    path.write_text(path.read_text().replace("WatchdogSec=20", "WatchdogSec=1h"))
    assert ": differs\n" in metamcp(tmp_path, "show", "--user").stdout
    tried = metamcp(tmp_path, "install", "--user", "--dry-run").stdout
    assert "  -WatchdogSec=1h\n  +WatchdogSec=20\n" in tried
    removed = metamcp(tmp_path, "uninstall", "--user", "--dry-run").stdout
    assert removed == f"{path}: would be removed\n"
