"""`[ai]`, `[engine]` and `builtins`: what a file may say, and who is told which of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.config import sections
from metamcp_supervisor.config.config import AiConfig
from metamcp_supervisor.config.options import option
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.servers.specs import front_spec, own_log_spec
from metamcp_supervisor.workflows.engine_settings import EngineConfig
from metamcp_worker.ipc import codec
from tests.supervisor.configs import loaded, messages, write

GIT = '[servers.git]\ncommand = ["git-server"]\n'
FILE = f"""
[ai]
provider = "anthropic"
url = "https://models.example"
model = "small"
key = "${{env:TOKEN}}"
steps_max = 5
timeout = "1m"
cost_max = 0.5
input_price = 3

[engine]
database = "postgresql://metamcp:${{env:PASSWORD}}@db.example/runs"
keep = "7d"
sync = "normal"
runs_max = 3

[endpoints.dev]
namespace = "default"
builtins = ["agent", "workflows"]

{GIT}"""
ENVIRON = {"TOKEN": "key-of-the-model", "PASSWORD": "battery%2Fstaple"}


def test_everything_has_its_place_and_the_key_is_shown_nowhere(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE, environ=ENVIRON)
    assert found.warnings == ()
    assert found.ai == AiConfig(
        provider="anthropic", url="https://models.example", model="small", key=ENVIRON["TOKEN"],
        steps_max=5, timeout_s=60.0, cost_max=0.5, input_price=3.0,
    )  # fmt: skip
    database = f"postgresql://metamcp:{ENVIRON['PASSWORD']}@db.example/runs"
    assert found.table(EngineConfig) == EngineConfig(
        database=database, keep_s=7 * 86_400.0, sync="normal", runs_max=3
    )
    front = front_spec(found, "1")
    assert front.endpoints[0].builtins == ("agent", "workflows")
    shown = tables(found)
    assert shown["engine"] == {
        "database": "postgresql://***@db.example/runs", "keep": "168h", "sync": "normal",
        "runs_max": 3,
    }  # fmt: skip
    everything = codec.dump([shown, front]).decode() + repr(found)
    assert ENVIRON["TOKEN"] not in everything
    assert ENVIRON["PASSWORD"] not in everything
    assert {ENVIRON["PASSWORD"], "battery/staple"} <= set(own_log_spec(found).secrets)
    assert '"key":"***"' in everything
    assert ENVIRON["TOKEN"] in own_log_spec(found).secrets


def test_the_written_defaults_are_those_of_the_values() -> None:
    ai, engine = AiConfig(), EngineConfig()
    for key in ("steps_max", "tokens_max", "answer_tokens_max"):
        assert option("ai", key).default == str(getattr(ai, key))
    assert option("ai", "timeout").default == f'"{ai.timeout_s / 60:.0f}m"'
    assert option("engine", "keep").default == f'"{engine.keep_s / 86_400:.0f}d"'
    assert option("engine", "runs_max").default == str(engine.runs_max)


def test_a_change_is_applied_in_place_and_no_plan_has_the_key(tmp_path: Path) -> None:
    old = loaded(tmp_path, FILE, environ=ENVIRON)
    new = loaded(tmp_path, FILE.replace("7d", "8d"), environ={**ENVIRON, "TOKEN": "another-key"})
    changes = {each.server: each.why for each in plan(old, new).changes if each.why}
    assert changes == {"[ai]": "key changed", "[engine]": "keep changed"}
    assert fingerprint(old) != fingerprint(new)
    plain = loaded(tmp_path, GIT)
    assert "ai" not in tables(plain)
    assert "engine" not in tables(plain)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[ai]\nmodel = "m"', "ai: has no 'url'"),
        ('[ai]\nurl = "https://x/"', "ai: has no 'model'"),
        ('[ai]\nurl = "host"\nmodel = "m"', "ai.url: must begin with"),
        ('[ai]\nurl = "https://x/"\nmodel = "m"\nkey = "${env:NOT_SET}"', "ai.key: the environ"),
        ('[ai]\nurl = "https://x/"\nmodel = "m"\nprovider = "openia"', "did you mean 'openai'"),
        ('[ai]\nurl = "https://x/"\nmodel = "m"\ncost_max = -1', "ai.cost_max: must be from 0 to"),
        ('[ai]\nurl = "https://x/"\nmodel = "m"\ntimeout = "1ms"', "ai.timeout: is too short"),
        ('[engine]\nkeep = "1s"', "engine.keep: is too short"),
        ('[engine]\ndatabase = "mysql://host/x"', "engine.database: must begin with postgresql://"),
        ('[engine]\ndatabase = "${env:NOT_SET}"', "engine.database: the environ"),
        ("[engine]\nruns_max = 0", "engine.runs_max: must be from 1 to"),
        ("[notify]", "notify.command: is empty; name a program"),
        ('[notify]\ncommand = ["", "x"]', "notify.command: is empty; name a program"),
        ('[notify]\ncommand = "say"', "notify.command: must be a list of strings"),
        ('[notify]\ncommand = ["x"]\non = ["failed"]', "notify.on: unknown key 'on'"),
        ('[hooks]\non = ["failed"]', "hooks.command: is empty; name a program"),
        (
            '[hooks]\ncommand = ["x"]\non = ["xxxx"]',
            "there are: approval, drifted, failed, quarantined, recovered, reload-refused",
        ),
        ('[hooks]\ncommand = ["x"]\non = "faild"', "is not a choice; did you mean 'failed'?"),
        ('[hooks]\ncommand = ["x"]\non = []', "hooks.on: must be a string or a list of strings"),
        ('[endpoints.x]\nnamespace = "default"\nbuiltins = ["catalogue"]', "mean 'catalog'"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    found = messages(tmp_path, f"{text}\n{GIT}")
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.process
def test_a_gateway_without_the_packages_for_a_database_says_so(tmp_path: Path) -> None:
    """An importer hides them."""
    hidden = """
import sys
class Hidden:
    def find_spec(self, name, *_):
        if name == "dbos":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""
    write(tmp_path, "library/sitecustomize.py", hidden)
    text = f'[engine]\ndatabase = "postgresql://host/runs"\n{GIT}'
    path = write(tmp_path, "metamcp.toml", text)
    done = subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", "config", "check", "--config", path],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/library", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 65, done
    said = done.stdout + done.stderr
    assert f"{path}:2: engine.database: runs cannot be kept in PostgreSQL without packages" in said
    assert "'pip install \"metamcp[postgres]\"'" in said


def test_ai_api_takes_the_usual_key_of_its_provider_and_says_why_it_cannot_be_used(
    tmp_path: Path,
) -> None:
    servers = '"mcp_servers": [{"name": "a", "command": "x"}]'

    def read(ai_api: str) -> tuple[AiConfig, list[str]]:
        text = f'{{{servers}, "ai_api": {ai_api}}}'
        environ = {"ANTHROPIC_API_KEY": "key-of-the-usual-place"}
        found = loaded(tmp_path, text, name="config.json", environ=environ)
        return found.ai, list(found.warnings)

    ai, warnings = read('{"provider": "anthropic", "endpoint": "https://models.example"}')
    assert (ai.model, ai.key) == (sections.MODELS["anthropic"], "key-of-the-usual-place")
    assert warnings == []
    for text, said in (
        ('{"provider": "opnai", "endpoint": "https://x/"}', "mean 'openai'"),
        ('{"provider": "openai"}', "has no 'endpoint'"),
    ):
        ai, warnings = read(text)
        assert (ai, len(warnings)) == (AiConfig(), 1)
        assert said in warnings[0]


@pytest.mark.parametrize("table", ["notify", "hooks"])
def test_a_command_for_events_is_taken_as_written_and_shown_without_secrets(
    tmp_path: Path, table: str
) -> None:
    text = f'[{table}]\ncommand = ["say", "${{env:TOKEN}}", "--token", "abc"]\n'
    found = loaded(tmp_path, f"{text}{GIT}", environ=ENVIRON)
    command = found.notify if table == "notify" else found.hooks.command
    assert command == ("say", "${env:TOKEN}", "--token", "abc")
    shown = tables(found)[table]
    assert isinstance(shown, dict)
    assert shown["command"] == ["say", "${env:TOKEN}", "--token", "***"]
    plain = loaded(tmp_path, GIT)
    (change,) = [each for each in plan(plain, found).changes if each.why]
    assert (change.server, change.action) == (f"[{table}]", "in-place")
    assert change.why == "command changed"
    assert fingerprint(plain) != fingerprint(found)
