"""`[[middleware]]`: what a file may say, how it is shown, and what is missing."""

import json
from pathlib import Path

import pytest

from metamcp_supervisor.config import json_schema
from metamcp_supervisor.config.config import MiddlewareConfig
from metamcp_supervisor.config.middleware_tables import OPTIONS_BYTES_MAX
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import tables
from tests.supervisor.configs import loaded, messages

SERVER = '[servers.git]\ncommand = ["git-server"]\n'
FILE = f"""{SERVER}
[[middleware]]
name = "redaction"
match = "*/*"

[[middleware]]
name = "long-texts"
uses = "filter"
match = ["git/git_log", "git/git_diff"]
order = 5
timeout = "1s"
mode = "permissive"
memory_max = "64M"
options = {{ text_max = 1000 }}
"""


def test_each_table_is_one_with_defaults(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE).middleware
    assert found == (
        MiddlewareConfig(name="redaction", uses="redaction", match=("*/*",)),
        MiddlewareConfig(
            name="long-texts", uses="filter", match=("git/git_log", "git/git_diff"), order=5,
            timeout_s=1.0, mode="permissive", memory_bytes=64 << 20,
            options='{"text_max": 1000}',
        ),
    )  # fmt: skip


def test_they_are_shown_as_they_are_written(tmp_path: Path) -> None:
    assert tables(loaded(tmp_path, FILE))["middleware"] == [
        {
            "name": "redaction", "match": ["*/*"], "order": 0, "timeout": "200ms",
            "mode": "enforce", "memory_max": "256M",
        },
        {
            "name": "long-texts", "uses": "filter", "match": ["git/git_log", "git/git_diff"],
            "order": 5, "timeout": "1s", "mode": "permissive", "memory_max": "64M",
            "options": {"text_max": 1000},
        },
    ]  # fmt: skip
    assert "middleware" not in tables(loaded(tmp_path, SERVER))


def test_a_reload_says_which_have_changed(tmp_path: Path) -> None:
    before, after = loaded(tmp_path, FILE), loaded(tmp_path, FILE.replace("1000", "10"))
    assert fingerprint(before) != fingerprint(after)
    changed = {each.server: each.why for each in plan(before, after).changes if each.why}
    assert changed == {"[[middleware]]": "long-texts changed"}
    without = loaded(tmp_path, SERVER)
    changed = {each.server: each.why for each in plan(before, without).changes if each.why}
    assert changed == {"[[middleware]]": "redaction removed, long-texts removed"}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('match = "*/*"', "middleware[0]: needs a 'name'"),
        ('name = "a b"\nmatch = "*/*"', "middleware[0]: needs a 'name'"),
        ('name = "cache"', "middleware[0]: has no 'match'; write one like \"github/*\""),
        (
            'name = "cache"\nmatch = "git"',
            "'git' is not of the form server/name, where *",
        ),
        (
            'name = "cash"\nmatch = "*/*"',
            "no installed package brings the middleware 'cash'; there are: cache, filter",
        ),
        (
            'name = "cache"\nmatch = "*/*"\n[[middleware]]\nname = "cache"\nmatch = "*/*"',
            "middleware[1].name: 'cache' is the name of another one; choose another, and say",
        ),
        ('name = "cache"\nmatch = "*/*"\nmode = "strict"', "'strict' is not a choice"),
        ('name = "cache"\nmatch = "*/*"\ntimeout = "1h"', 'must be from "1ms" to "10m"'),
        ('name = "cache"\nmatch = "*/*"\noptions = { since = 2026-01-01 }', "JSON does not have"),
        (
            f'name = "cache"\nmatch = "*/*"\noptions = {{ text = "{"x" * OPTIONS_BYTES_MAX}" }}',
            "bytes of JSON; the most is 32768",
        ),
        ('name = "cache"\nmatch = "*/*"\nttl = "5m"', "unknown key 'ttl'"),
    ],
)
def test_a_mistake_has_one_clear_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    found = messages(tmp_path, f"{SERVER}[[middleware]]\n{line}\n")
    assert any(sentence in each for each in found), found


def test_it_must_be_an_array_of_tables(tmp_path: Path) -> None:
    found = messages(tmp_path, f'{SERVER}[middleware]\nname = "cache"\n')
    assert any("must be a list of tables, not a table" in each for each in found), found


def test_the_schema_has_it_as_an_array() -> None:
    found = json.loads(json.dumps(json_schema.schema()))["properties"]["middleware"]
    assert found["type"] == "array"
    assert found["items"]["properties"]["mode"]["enum"] == ["enforce", "permissive"]
