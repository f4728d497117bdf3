"""A wheel that is installed alone: its command, and a gateway that the command starts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.live.gateway import SERVER, free_port
from tests.packages.checkout import run


def installed(wheel: Path, folder: Path) -> Path:
    """The command in an environment that has the wheel, and beside it what it depends on."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = folder.glob("lib/*/site-packages")
    (mine,) = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text(f"{mine}\n")
    return folder / "bin/metamcp"


@contextmanager
def serving(program: Path, folder: Path, environ: Mapping[str, str]) -> Generator[tuple[int, int]]:
    """`metamcp up` of that command beside an `.mcp.json`: its port and its process."""
    server = {"command": SERVER[0], "args": [SERVER[1]]}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"echo": server}}))
    port, ops = free_port(), free_port()
    flags = ("--yes", "--port", str(port), "--ops-listen", f"127.0.0.1:{ops}")
    process = subprocess.Popen(
        [program, "up", *flags],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    said = b""
    while b"/mcp" not in said:
        line = process.stdout.readline()
        assert line, said.decode()
        said += line
    yield port, process.pid
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


if __name__ == "__main__":
    installed(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
