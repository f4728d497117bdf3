"""The demo as a new user runs it: real servers from public packages, both eras, exit code 0."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.live.gateway import ROOT

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

CALLS = (
    "git__git_log",
    "time__get_current_time",
    "fetch__fetch",
    "filesystem__read_text_file",
    "memory__read_graph",
    "notes__add_note",
)


@pytest.mark.promise("M13")
@pytest.mark.promise("M19")
@pytest.mark.promise("M106")
def test_the_demo_shows_real_answers_of_six_servers_in_both_eras() -> None:
    missing = [name for name in ("node", "npm", "git") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"the demo needs {', '.join(missing)}")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo" / "demo.py"), "demo"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in CALLS:
        assert done.stdout.count(f"  {name} ") == 2, f"{name} in both eras: {done.stdout}"
    assert "ERROR" not in done.stdout
