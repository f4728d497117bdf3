"""`[embeddings]`: what a file may say, what processes are told of it, and what is hidden."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.config.installation import MEANING, describe_missing
from metamcp_supervisor.config.options import option
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.embeddings.embedder import embeddings_spec, meaning_spec
from metamcp_supervisor.embeddings.embedding_settings import Embeddings
from metamcp_supervisor.servers.specs import front_spec, own_log_spec
from metamcp_worker.ipc import codec
from tests.supervisor.configs import loaded, messages, write

pytestmark = pytest.mark.promise("M36")

ROOT = Path(__file__).parents[3]
URL = "https://vectors.example/v1/embeddings"
SEARCH = '[endpoints.default]\nnamespace = "default"\nexposure = "search"\n'
GIT = '[servers.git]\ncommand = ["git-server"]\n'
FILE = f"""
[embeddings]
url = "{URL}?version=${{env:VERSION}}"
model = "small"
key = "${{env:TOKEN}}"
weight = 0.5

[servers.git]
command = ["git-server"]

{SEARCH}"""
ENVIRON = {"VERSION": "word-of-the-url", "TOKEN": "token-of-the-header"}


def test_everything_has_its_place(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE, environ=ENVIRON)
    assert found.warnings == ()
    assert found.table(Embeddings) == Embeddings(
        url=f"{URL}?version=word-of-the-url", model="small", key="token-of-the-header", weight=0.5
    )
    told = embeddings_spec(found)
    assert told is not None
    assert (told.url, told.key) == (f"{URL}?version=word-of-the-url", "token-of-the-header")
    assert told.store == str(found.gateway.state_dir / "vectors.db")
    meaning = meaning_spec(found)
    assert meaning is not None
    assert (meaning.weight, meaning.model) == (0.5, told.id)


def test_the_written_defaults_are_those_of_the_values() -> None:
    default = Embeddings()
    assert option("embeddings", "weight").default == str(default.weight)
    assert option("embeddings", "timeout").default == f'"{default.timeout_s:g}s"'
    assert option("embeddings", "batch").default == str(default.batch)


def test_nobody_is_asked_for_vectors_where_no_endpoint_has_a_search(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE.replace('"search"', '"toolset"'), environ=ENVIRON)
    assert (embeddings_spec(found), meaning_spec(found)) == (None, None)
    found = loaded(tmp_path, SEARCH + '[servers.git]\ncommand = ["x"]\n')
    assert (embeddings_spec(found), meaning_spec(found)) == (None, None)


def test_secrets_are_shown_nowhere_and_no_front_learns_them(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE, environ=ENVIRON)
    shown = tables(found)["embeddings"]
    assert shown == {
        "url": f"{URL}?version=${{env:VERSION}}", "model": "small", "key": "***", "weight": 0.5,
        "timeout": "10s", "batch": 32,
    }  # fmt: skip
    assert set(own_log_spec(found).secrets) == set(ENVIRON.values())
    told = embeddings_spec(found)
    assert told is not None
    assert set(told.log.secrets) == set(ENVIRON.values())
    front = codec.dump([front_spec(found, "1"), meaning_spec(found)]).decode()
    for secret in ENVIRON.values():
        assert secret not in repr(found) + front


def test_another_key_is_the_same_model_and_another_name_is_another(tmp_path: Path) -> None:
    def model(text: str, **environ: str) -> str:
        told = embeddings_spec(loaded(tmp_path, text, environ=ENVIRON | environ))
        assert told is not None
        return told.id

    assert model(FILE) == model(FILE, TOKEN="new", VERSION="2")
    assert model(FILE) != model(FILE.replace("small", "large"))
    assert model(FILE) != model(FILE.replace("vectors.example", "other.example"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('url = "host:80"\nmodel = "m"', "embeddings.url: must begin with"),
        ('url = "https://x/"', "embeddings.url: needs 'model'"),
        ('url = "https://u:p@x/"\nmodel = "m"', "embeddings.url: has credentials in it"),
        ('url = "https://x/"\nmodel = "m"\nkey = "${env:NOT_SET}"', "embeddings.key: the environ"),
        ('url = "https://x/"\nmodel = "m"\nkey = "a\\nb"', "embeddings.key: has a character"),
        ('key = "${env:A:-x}"', "embeddings.key: is for vectors from a 'url'"),
        ('model = "m"', "embeddings.model: is for vectors from a 'url'"),
        ("weight = 2", "embeddings.weight: must be from 0 to 1"),
        ("batch = 0", "embeddings.batch: must be from 1 to 64"),
        ('timeout = "1h"', "embeddings.timeout: must be more than 0 and at most"),
        ("size = 3", "embeddings.size: unknown key 'size'"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    found = messages(tmp_path, f"[embeddings]\n{text}\n")
    assert len(found) == 1
    assert said in found[0]


def test_what_hardly_is_meant_is_warned_of(tmp_path: Path) -> None:
    text = FILE.replace("https://", "http://").replace("${env:TOKEN}", "written-here")
    said = "".join(loaded(tmp_path, text, environ=ENVIRON).warnings)
    assert "embeddings.url: headers and tokens cross" in said
    assert "embeddings.key: looks like a secret written into the file" in said
    (said,) = loaded(tmp_path, "[embeddings]\nweight = 1\n" + SEARCH + GIT).warnings
    assert "has no 'url' and no 'folder', so searches go by words alone" in said


def test_a_folder_needs_packages_and_says_how_to_get_them(tmp_path: Path) -> None:
    text = '[embeddings]\nfolder = "model"\n' + SEARCH + GIT
    if not describe_missing(MEANING):
        found = loaded(tmp_path, text)
        assert found.table(Embeddings).folder == tmp_path / "model"
        return
    (said,) = messages(tmp_path, text)
    assert 'pip install "metamcp[semantic]"' in said


def test_vectors_have_one_source(tmp_path: Path) -> None:
    text = f'[embeddings]\nurl = "{URL}"\nmodel = "m"\nfolder = "x"\n'
    assert "embeddings.folder: vectors have one source" in "".join(messages(tmp_path, text))


def test_nobody_loads_anything_for_it_who_does_not_use_it() -> None:
    """Neither the supervisor nor what all workers share, which costs each of them memory."""
    look = (
        "import importlib, sys, metamcp_supervisor.gateway.gateway;"
        "from metamcp_worker.runtime import nursery;"
        "[importlib.import_module(name) for name in nursery.PRELOAD];"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    loaded_ones = set(done.stdout.split())
    assert "metamcp_worker.front.run" in loaded_ones
    assert not loaded_ones & {
        "metamcp_worker.embedder", "metamcp_worker.builtin_tools.vector_search",
        "metamcp_worker.builtin_tools.vector_search_io",
        "metamcp_worker.search.vectors", "numpy", "safetensors", "sqlite3", "tokenizers",
    }  # fmt: skip


def test_an_included_file_may_not_say_it(tmp_path: Path) -> None:
    write(tmp_path, "more.toml", f'[embeddings]\nurl = "{URL}"\nmodel = "m"\n')
    found = messages(tmp_path, 'include = ["more.toml"]\n')
    assert [each.split(": ")[1] for each in found] == ["embeddings"]


def test_a_reload_takes_it_over_in_place_and_tells_no_value(tmp_path: Path) -> None:
    old = loaded(tmp_path, FILE, environ=ENVIRON)
    new = loaded(tmp_path, FILE, environ={"VERSION": "another", "TOKEN": "another-token"})
    (change,) = [each for each in plan(old, new).changes if each.action != "unchanged"]
    assert (change.server, change.action) == ("[embeddings]", "in-place")
    assert change.why == "url changed, key changed"
    assert fingerprint(old) != fingerprint(new)


def test_the_documented_example_is_one(tmp_path: Path) -> None:
    part = (ROOT / "docs/views.md").read_text().split("\n## Search by meaning\n")[1]
    blocks = re.findall(r"```toml\n(.*?)```", part.split("\n## ")[0], re.DOTALL)
    found = loaded(tmp_path, blocks[0] + SEARCH + GIT, environ={"OPENAI_API_KEY": "x" * 8})
    assert found.table(Embeddings).url
    assert found.warnings == ()
