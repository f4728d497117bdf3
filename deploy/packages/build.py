"""`make deb`: a .deb and an .rpm from the built wheel and the locked requirements.

Owns: the tree of files that both have. Never: what is said about them (`nfpm.yaml`).

The packages hold a virtual environment in /opt/metamcp of the Python of this distribution, so each
is for one minor version of Python and one kind of processor, and depends on exactly that Python.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = "opt/metamcp"
TOOLS = ROOT / ".venv/packages/bin"
"""Programs of `requirements/packages.txt`."""
PYTHON = os.path.realpath("/usr/bin/python3")
"""The Python of this distribution, by the name of its minor version."""
ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/metamcp",
    "zsh": "usr/share/zsh/vendor-completions/_metamcp",
    "fish": "usr/share/fish/vendor_completions.d/metamcp.fish",
}
EPOCH = os.environ.get("SOURCE_DATE_EPOCH", "1580601600")
"""Time of all files in seconds since 1970; without the variable as in the wheel."""
KINDS = ("deb", "rpm")


def main() -> None:
    """Build both, or the kinds that are named, into a folder, from the only wheel there."""
    dist = Path(sys.argv[1]).resolve()
    wheels = sorted(dist.glob("metamcp-*.whl"))
    if len(wheels) != 1:
        sys.exit(
            f"{dist} has {len(wheels)} wheels of metamcp; leave the one to pack ('make clean')"
        )
    version = wheels[0].name.split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        environment(stage, dist, version)
        system_files(stage, dist)
        for path in stage.rglob("*"):
            os.utime(path, (int(EPOCH), int(EPOCH)), follow_symlinks=False)
        for kind in sys.argv[2:] or KINDS:
            pack(stage, dist, version, kind)


def environment(stage: Path, dist: Path, version: str) -> None:
    """Make the virtual environment, with paths as they are after the installation."""
    home = stage / HOME
    run(PYTHON, "-m", "venv", "--without-pip", str(home))
    install = (str(TOOLS / "uv"), "pip", "install", "--quiet", "--python", str(home / "bin/python"),
               "--no-deps", "--link-mode", "copy", "--only-binary", ":all:")  # fmt: skip
    run(*install, "--require-hashes", "-r", str(ROOT / "requirements/runtime.txt"))
    run(*install, "--no-index", "--find-links", str(dist), f"metamcp=={version}")
    (home / ".lock").unlink(missing_ok=True)  # of uv
    for path in (home / "bin").iterdir():
        if not path.name.startswith("python") and path.name != "metamcp":
            path.unlink()
    for path in (home / "bin/metamcp", home / "pyvenv.cfg"):
        path.write_text(path.read_text().replace(str(stage), ""))
    # Nobody may write there later; a hash in place of a time makes two builds the same.
    run(PYTHON, "-m", "compileall", "-q", "-s", str(stage), "-p", "/",
        "--invalidation-mode", "unchecked-hash", str(home / "lib"))  # fmt: skip


def system_files(stage: Path, dist: Path) -> None:
    """Put units, completion, the schema and pages of the manual where the system looks for them."""
    own = ROOT / "deploy/packages"
    units = ROOT / "supervisor/metamcp_supervisor/systemd/units"
    copied = {
        units / "metamcp.service": "usr/lib/systemd/system/metamcp.service",
        units / "metamcp.socket": "usr/lib/systemd/system/metamcp.socket",
        units / "metamcp-user.service": "usr/lib/systemd/user/metamcp.service",
        own / "sysusers.conf": "usr/lib/sysusers.d/metamcp.conf",
        own / "tmpfiles.conf": "usr/lib/tmpfiles.d/metamcp.conf",
        ROOT / "LICENSE": "usr/share/doc/metamcp/copyright",
    }
    copied |= {path: f"usr/share/man/man1/{path.name}" for path in (dist / "man").glob("*.1.gz")}
    for source, place in copied.items():
        put(stage / place, source.read_bytes())
    for shell, place in COMPLETIONS.items():
        put(stage / place, program(stage, "completion", shell))
    put(stage / "usr/share/metamcp/metamcp.schema.json", program(stage, "config", "schema"))


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o644)


def program(stage: Path, *arguments: str) -> bytes:
    """Return what the packed program prints."""
    command = [stage / HOME / "bin/python", "-P", "-m", "metamcp_supervisor", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def pack(stage: Path, dist: Path, version: str, kind: str) -> None:
    values = {
        "ARCH": ARCHES[platform.machine()],
        "PYTHON": PYTHON.rpartition("/")[2],
        "SOURCE_DATE_EPOCH": EPOCH,
        "STAGE": str(stage),
        # In both, what stands behind ~ is older than the release: 1.0~dev3 before 1.0.
        "VERSION": version.replace(".dev", "~dev"),
    }
    config = "deploy/packages/nfpm.yaml"
    command = [TOOLS / "nfpm", "package", "--config", config, "--packager", kind, "--target", dist]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **values})


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    if shutil.which(PYTHON) is None:
        sys.exit(f"{PYTHON} is missing; install the python3 of this distribution")
    main()
