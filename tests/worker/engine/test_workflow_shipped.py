"""Programs in the workflows that are shipped, run by the true Deno."""

import json
import subprocess
from pathlib import Path

import pytest

from metamcp_worker.engine import definition, load, workflow
from metamcp_worker.engine.workflow import CodeStep
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import SHIPPED
from tests.worker.sandbox.sandboxes import DENO

pytestmark = pytest.mark.process

DIFF = """\
Diff with HEAD:
diff --git a/app.py b/app.py
--- a/app.py
+++ b/app.py
@@ -1,2 +1,4 @@
 import os
+print("here")
+password = "hunter2hunter2"
-x = 1
+x = 2
"""
FILE = """\
import os

@app.get("/a")
def a():
    return 1

async def total(
    items,
):
    s = 0

    return s

def b(): ...
"""
TOTAL = "async def total(\n    items,\n):\n    s = 0\n\n    return s"


def result(tmp_path: Path, name: str, step: str, args: object) -> object:
    """What the program of a step returns for these arguments; the words of its error."""
    loaded = load.load([("default", f"{SHIPPED}{name}")])
    found, _ = definition.parse(codec.value(bytes(loaded.definitions["default"][name])))
    assert found is not None
    (code,) = (
        one.code
        for one in workflow.walk(found.steps)
        if isinstance(one, CodeStep) and one.id == step
    )
    program = tmp_path / "program.ts"
    program.write_text(
        f"const args: any = {json.dumps(args)};\n"
        f"const run = async () => {{{code}}};\n"
        "console.log(JSON.stringify(await run().catch((error) => error.message)));\n"
    )
    command = [DENO, "run", "--no-check", "--no-remote", str(program)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.promise("M53")
def test_a_review_finds_usual_mistakes_with_their_lines(tmp_path: Path) -> None:
    found = result(tmp_path, "review-change", "found", {"diff": DIFF})
    assert found == {
        "files": {"app.py": {"added": 3, "removed": 1}},
        "findings": [
            {"file": "app.py", "line": 2, "what": "output for debugging", "text": 'print("here")'},
            {
                "file": "app.py",
                "line": 3,
                "what": "a secret, maybe",
                "text": 'password = "hunter2hunter2"',
            },
        ],
        "untested": False,
    }


@pytest.mark.promise("M53")
def test_a_refactoring_finds_the_whole_function(tmp_path: Path) -> None:
    args = {"text": FILE, "name": "total"}
    assert result(tmp_path, "refactor-function", "old", args) == {"text": TOTAL, "line": 7}
    missing = result(tmp_path, "refactor-function", "old", {"text": FILE, "name": "nix"})
    assert missing == "the file has no function nix"


@pytest.mark.promise("M53")
def test_an_endpoint_is_added_at_the_end_and_not_twice(tmp_path: Path) -> None:
    args = {"file": FILE, "code": "\n@app.get('/b')\ndef c(): ...\n", "path": "/b"}
    added = result(tmp_path, "add-endpoint", "texts", args)
    assert added == f"{FILE.rstrip()}\n\n\n@app.get('/b')\ndef c(): ...\n"
    again = result(tmp_path, "add-endpoint", "texts", {**args, "path": "/a"})
    assert again == "the file has /a already"
