"""The image: built by the lines of its Dockerfile, and run as its container would be.

Buildah builds and runs it without a daemon. The base image is made of Debian's packages, so no
registry of images is needed; the image of the same name there has the same packages.
"""

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.config import installation
from tests.packages.checkout import PACKAGERS, ROOT, VERSION, built, checkout, run
from tests.systemd.machine import missing

BASE = "localhost/debian:trixie-slim"
NAME = f"localhost/metamcp:{VERSION}"
STORE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metamcp-ci/images"
"""Images stay here between runs: a line of the Dockerfile is run again when something before it has
changed."""
CERTIFICATES = Path("/etc/ssl/certs")
UID = 6270
BUILD_S_MAX = 540
WHY_NOT = missing() or next(
    (f"needs {one}" for one in ("buildah", "debootstrap", "curl") if shutil.which(one) is None), ""
)
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
real = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
CONFIG = """
[servers.node]
command = ["npx", "--offline", "--yes", "--package=file:/srv/hello-npm-1.0.0.tgz", "hello-npm"]
read = ["/srv"]

[servers.python]
command = ["uvx", "--offline", "--python", "/usr/bin/python3", "--from",
           "/srv/hello_py-1.0.0-py3-none-any.whl", "hello-py"]
read = ["/srv"]
"""


def buildah(*arguments: str | Path) -> list[str]:
    """This command of buildah, on the images of the tests."""
    places = ("--root", STORE / "storage", "--runroot", STORE / "run")
    return ["buildah", *map(str, places), "--storage-driver", "overlay", *map(str, arguments)]


def done(*arguments: str | Path) -> str:
    command = buildah(*arguments)
    environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    found = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
    )
    assert found.returncode == 0, f"{command}: {(found.stdout + found.stderr)[-4000:]}"
    return found.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Built from a checkout; what it says of itself."""
    STORE.mkdir(parents=True, exist_ok=True)
    if BASE not in done("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
        base(tmp_path_factory.mktemp("base") / "root")
    source = checkout(tmp_path_factory.mktemp("source"))
    # The proxy of a company may vouch for what is fetched; the authorities of this machine know it.
    volume = f"{CERTIFICATES}:{CERTIFICATES}:ro"
    bundle = CERTIFICATES / "ca-certificates.crt"
    done(
        *("build", "--pull-never", "--layers", "--format", "docker", "--quiet", "--tag", NAME),
        *("--build-arg", f"VERSION={VERSION}", "--build-arg", f"PIP_CERT={bundle}"),
        *("--volume", volume, "--file", source / "deploy/Dockerfile", source),
    )
    found: dict[str, Any] = json.loads(done("inspect", "--type", "image", NAME))["Docker"]["config"]
    return found


def base(root: Path) -> None:
    """Make the base image of this name of packages of Debian."""
    command = ("debootstrap", "--variant=minbase", "--include=ca-certificates", "trixie", root)
    subprocess.run(command, check=True, capture_output=True, timeout=BUILD_S_MAX)
    container = done("from", "scratch")
    done("add", "--quiet", container, root, "/")
    done("commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(root)


class Container:
    """A container of the image in a network of its own, with a configuration and two packages."""

    def __init__(self, image: dict[str, Any], folder: Path) -> None:
        self.name = done("from", "--pull-never", NAME)
        (folder / "metamcp.toml").write_text(CONFIG)
        folder.chmod(0o755)
        self.output = folder / "output"
        self.output.mkdir()
        self.output.chmod(0o777)
        config = f"{folder / 'metamcp.toml'}:/etc/metamcp/metamcp.toml:ro"
        volumes = (f"{folder}:/srv:ro", config, f"{self.output}:/output")
        self.flags = [word for one in volumes for word in ("--volume", one)]
        command = [*image["Entrypoint"], *image["Cmd"]]
        inside = buildah("run", *self.flags, self.name, "--", *command)
        self.log = (folder / "log").open("wb")
        net = ("unshare", "--net", "--", "/bin/sh", "-c", 'ip link set lo up; exec "$@"', "sh")
        self.process = subprocess.Popen(
            [*net, *inside],
            env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )  # fmt: skip

    def run(self, *command: str, ok: bool = True) -> str:
        """What a command prints in the network of the container, in its files.

        It writes to a file: buildah copies what it writes to a pipe in a goroutine, and exits
        without waiting for it (`chroot/run_common.go`), so that on a busy machine nothing comes.
        """
        environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        to_file = ("/bin/sh", "-c", 'exec "$@" >/output/stdout', "sh")
        inside = buildah("run", *self.flags, self.name, "--", *to_file, *command)
        net = ("nsenter", f"--net=/proc/{self.process.pid}/ns/net", "--")
        done = subprocess.run(
            [*net, *inside], env=environ, capture_output=True, text=True, timeout=90, check=False
        )
        output = (self.output / "stdout").read_text()
        assert (done.returncode == 0) is ok, output + done.stderr
        return output

    def post(self, path: str, *flags: str) -> str:
        """What the port answers to a call from outside of the files of the container."""
        authority = Path(done("mount", self.name)) / "var/lib/metamcp/state/tls/ca.pem"
        curl = ("curl", "--silent", "--show-error", "--cacert", str(authority), "--json", "{}")
        net = ("nsenter", f"--net=/proc/{self.process.pid}/ns/net", "--")
        url = f"https://localhost:6270{path}"
        return run(*net, *curl, *flags, url, cwd=ROOT)

    def close(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.log.close()
        done("rm", self.name)


@pytest.fixture(scope="module")
def container(
    image: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("srv")
    run("npm", "pack", "--silent", "--pack-destination", folder,
        cwd=ROOT / "tests/packages/servers/hello_npm")  # fmt: skip
    built(ROOT / "tests/packages/servers/hello_py", folder, "wheel")
    started = Container(image, folder)
    yield started
    started.close()


def test_hadolint_has_nothing_to_say() -> None:
    assert run(PACKAGERS / "hadolint", "deploy/Dockerfile", cwd=ROOT) == ""


def test_the_image_has_what_traces_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "requirements/runtime.txt").read_text().splitlines()
    for one in project["optional-dependencies"][installation.TRACES.name]:
        name = one.partition(">")[0]
        assert any(line.startswith(f"{name}==") for line in locked), name


@real
def test_the_image_has_a_user_of_its_own_and_the_launchers(
    image: dict[str, Any], container: Container
) -> None:
    assert image["User"] == f"{UID}:{UID}"
    assert container.run("id", "-u").strip() == str(UID)
    assert container.run("metamcp", "--version") == f"metamcp {VERSION} (pure)\n"
    for folder in ("/var/lib/metamcp", "/var/cache/metamcp", "/run/metamcp"):
        assert container.run("stat", "-c", "%u %a", folder) == f"{UID} 700\n"
    assert container.run("node", "--version").startswith("v")
    assert container.run("uvx", "--version").startswith("uvx")


@real
def test_a_container_is_healthy_and_serves_npx_and_uvx_with_a_key(
    image: dict[str, Any], container: Container
) -> None:
    container.run("metamcp", "ctl", "wait", "--timeout", "60s")
    _, *health = image["Healthcheck"]["Test"]
    container.run(*health)
    key = container.run("metamcp", "keys", "create", "laptop").strip().splitlines()[-1]
    assert key.startswith("mmcp_")
    for tool, said in (
        ("node__hello", "hello from node v"),
        ("python__hello", "hello from python"),
    ):
        assert said in container.post(f"/api/{tool}", "--header", f"X-API-Key: {key}")
    assert "401" in container.post("/api/node__hello", "--include")
