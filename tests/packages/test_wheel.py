"""The wheel and the source distribution: what they say, what they hold, and that they run alone."""

import email
import email.message
import hashlib
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.live.client import Client
from tests.packages.checkout import ROOT, VERSION, built, run
from tests.packages.installed import serving
from tests.waiting import until

pytestmark = pytest.mark.process

URL = "https://forge.example.com/us/metamcp"


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as found:
        (name,) = [name for name in found.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(found.read(name))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_tag_is_the_version_everywhere(wheel: Path, program: Path) -> None:
    assert metadata(wheel)["Version"] == VERSION
    assert run(program, "--version", cwd=wheel.parent) == f"metamcp {VERSION} (pure)\n"


def test_a_checkout_without_a_tag_has_a_version_too(dist: Path, tmp_path: Path) -> None:
    run("git", "clone", "--quiet", "--no-tags", dist.parent, tmp_path, cwd=tmp_path)
    said = run(sys.executable, "-m", "hatchling", "version", cwd=tmp_path)
    assert said.startswith("0.1.dev")


def test_the_installed_command_serves_an_mcp_json(program: Path, tmp_path: Path) -> None:
    with serving(program, tmp_path, {}) as (port, _):
        client = Client(port)
        until(lambda: "echo__echo" in client.tools(), "the server is ready")
        assert client.text("echo__echo", text="hi") == "hi"
        client.close()


def test_the_wheel_of_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    (source,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        packed.extractall(tmp_path, filter="data")
    (again,) = built(tmp_path / f"metamcp-{VERSION}", tmp_path / "dist", "wheel")
    assert (again.name, digest(again)) == (wheel.name, digest(wheel))


def test_two_builds_of_a_commit_are_the_same(dist: Path, tmp_path: Path) -> None:
    run("git", "clone", "--quiet", dist.parent, tmp_path / "source", cwd=tmp_path)
    again = built(tmp_path / "source", tmp_path / "dist")
    assert [digest(path) for path in again] == [digest(path) for path in sorted(dist.iterdir())]


def test_an_index_accepts_both(dist: Path) -> None:
    assert {path.name for path in dist.iterdir()} == {
        f"metamcp-{VERSION}-py3-none-any.whl",
        f"metamcp-{VERSION}.tar.gz",
    }


def test_the_page_of_the_package_names_its_makers_and_its_repository(
    dist: Path, tmp_path: Path
) -> None:
    (wheel,) = built(dist.parent, tmp_path, "wheel", environ={"METAMCP_URL": URL})
    found = metadata(wheel)
    assert found["Author"] == "MetaMCP contributors"
    links = dict(text.split(", ") for text in found.get_all("Project-URL", []))
    assert links["Source"] == URL
    assert links["Issues"] == f"{URL}/issues"


def test_dashboards_and_rules_are_written_into_a_folder(program: Path, tmp_path: Path) -> None:
    said = run(program, "dashboards", "monitoring", cwd=tmp_path)
    boards = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
    names = ("alerts.yml", "inhibition.yml", "recording.yml")
    rules = [ROOT / "deploy/prometheus" / name for name in names]
    for source in [*boards, *rules]:
        written = (
            tmp_path / "monitoring" / source.relative_to(ROOT / "deploy").parts[0] / source.name
        )
        assert written.read_bytes() == source.read_bytes()
        assert f"{written.relative_to(tmp_path)}: written\n" in said
    assert not list(tmp_path.rglob("*.test.yml"))
    changed = tmp_path / "monitoring/grafana/overview.json"
    changed.write_text("{}")
    said = run(program, "dashboards", "monitoring", cwd=tmp_path)
    assert "overview.json: replaced\n" in said
    assert "alerts.yml: unchanged\n" in said
    wiki = "https://wiki.example/metamcp"
    said = run(program, "dashboards", "monitoring", "--runbook-url", wiki, cwd=tmp_path)
    assert [line for line in said.splitlines() if "unchanged" not in line] == [
        "monitoring/prometheus/alerts.yml: replaced"
    ]
    (tmp_path / "file").touch()
    said = run(program, "dashboards", "file", cwd=tmp_path, ok=False)
    assert said == "metamcp: file is a file; name a folder\n"
