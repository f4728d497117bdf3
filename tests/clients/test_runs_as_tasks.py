"""A run of a workflow as a task of a client of the official SDK for TypeScript."""

import json

import pytest

from tests.clients import programs
from tests.live.gateway import Gateway, fake

pytestmark = [pytest.mark.live, pytest.mark.promise("M52")]

EXTRA = """
[endpoints.default]
namespace = "default"
builtins = ["workflows"]
"""
HELLO = """
name: hello
steps:
  - wait: 1s
  - output: hello
"""


def test_a_client_of_the_sdk_polls_for_a_run_as_a_task() -> None:
    if why := programs.missing():
        pytest.skip(why)
    gateway = Gateway({"one": fake()}, extra=EXTRA)
    (gateway.folder / "hello.yaml").write_text(HELLO)
    gateway.config.write_text(f'workflows = ["hello.yaml"]\n{gateway.config.read_text()}')
    with gateway:
        wanted = {
            "url": f"http://127.0.0.1:{gateway.port}/mcp", "arguments": {"name": "hello"},
        }  # fmt: skip
        heard = json.loads(programs.node(programs.HERE / "tasks.mjs", json.dumps(wanted)))
    assert heard[0] == ["taskCreated", "working"]
    assert ["taskStatus", "working"] in heard
    assert heard[-1] == ["result", "hello"]
