"""The compose file: all that it mounts is there, and the three programs find each other."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metamcp_supervisor.config.options import option
from tests.observability import rules
from tests.observability.boards import FOLDER, ROOT

pytestmark = pytest.mark.promise("M87")
DEPLOY = ROOT / "deploy"
GRAFANA = DEPLOY / "grafana" / "provisioning"


def read(path: Path) -> Any:
    return msgspec.yaml.decode(path.read_bytes())


COMPOSE = read(DEPLOY / "compose.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]
OPS = option("gateway", "ops_listen").default.strip('"')


def mounts(service: str) -> dict[str, str]:
    """Where inside -> what outside."""
    found: dict[str, str] = {}
    for text in SERVICES[service]["volumes"]:
        plain = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        outside, inside = plain.split(":")[:2]
        found[inside] = outside
    return found


def command(service: str) -> str:
    return " ".join(SERVICES[service]["command"])


@pytest.mark.parametrize("service", SERVICES)
def test_all_that_is_mounted_is_there(service: str) -> None:
    for outside in mounts(service).values():
        if outside.startswith("."):
            assert (DEPLOY / outside).exists(), outside
        else:
            assert outside in COMPOSE["volumes"]


def test_nothing_is_reachable_from_elsewhere() -> None:
    for service in SERVICES.values():
        assert service["network_mode"] == "host"
        assert "ports" not in service
    assert "--listen" not in command("gateway")
    assert OPS.startswith("127.0.0.1:")
    assert "--web.listen-address=127.0.0.1:" in command("prometheus")
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_prometheus_finds_the_gateway_and_its_rules() -> None:
    config = read(rules.CONFIG)
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [OPS]}]
    inside = mounts("prometheus")
    assert f"--config.file={next(iter(inside))}" in command("prometheus")
    assert {f"/etc/prometheus/{name}" for name in config["rule_files"]} <= set(inside)


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    (source,) = read(GRAFANA / "datasources" / "prometheus.yml")["datasources"]
    assert source["url"].removeprefix("http://") in command("prometheus")
    assert source["jsonData"]["timeInterval"] == read(rules.CONFIG)["global"]["scrape_interval"]
    (provider,) = read(GRAFANA / "dashboards" / "folder.yml")["providers"]
    place = provider["options"]["path"]
    assert DEPLOY / mounts("grafana")[place] == FOLDER
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (FOLDER / Path(home).name).exists()
    assert str(Path(home).parent) == place


@pytest.mark.process
def test_the_gateway_of_the_compose_file_has_a_valid_configuration(tmp_path: Path) -> None:
    inside = mounts("gateway")
    for place in ("/etc/metamcp/metamcp.toml", "/etc/metamcp/notes.py"):
        shutil.copy(DEPLOY / inside[place], tmp_path / Path(place).name)
    done = subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", "config", "check",
         "--config", str(tmp_path / "metamcp.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
