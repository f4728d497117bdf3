"""The table `[consent]`: what is read, what is wrong with it, how it is shown."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.config import ConsentConfig
from metamcp_supervisor.config.reload import plan
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.servers.specs import consent_spec
from metamcp_worker.ipc.spec import ConsentRule
from tests.supervisor.configs import loaded, messages

ALL = """
[servers.git]
command = ["git-server"]
trust_annotations = true
[consent]
timeout = "9s"
on_no_elicitation = "queue"
use_annotations = true
[[consent.rules]]
match = "git/*"
effect = "allow"
[[consent.rules]]
match = ["*/delete*", "wiki/x"]
effect = "ask"
"""


@pytest.mark.promise("M97")
def test_all_of_it_is_read_shown_and_told_to_fronts(tmp_path: Path) -> None:
    got = loaded(tmp_path, ALL)
    rules = (
        ConsentRule(match=("git/*",), effect="allow"),
        ConsentRule(match=("*/delete*", "wiki/x"), effect="ask"),
    )
    assert got.consent == ConsentConfig(
        rules=rules, timeout_s=9.0, on_no_elicitation="queue", use_annotations=True
    )
    spec = consent_spec(got)
    assert (spec.rules, spec.timeout_s, spec.unaskable) == (rules, 9.0, "queue")
    assert (spec.hints, spec.trusted) == (True, ("git",))
    shown = tables(got)["consent"]
    assert shown == {
        "rules": [
            {"match": ["git/*"], "effect": "allow"},
            {"match": ["*/delete*", "wiki/x"], "effect": "ask"},
        ],
        "timeout": "9s", "on_no_elicitation": "queue", "use_annotations": True,
    }  # fmt: skip


def test_without_it_nobody_is_asked_and_nothing_is_shown(tmp_path: Path) -> None:
    got = loaded(tmp_path, '[servers.git]\ncommand = ["git-server"]\n')
    assert got.consent == ConsentConfig()
    assert "consent" not in tables(got)


@pytest.mark.promise("M97")
def test_a_change_of_it_is_in_the_plan_of_a_reload(tmp_path: Path) -> None:
    old, new = loaded(tmp_path, ALL), loaded(tmp_path, ALL.replace("wiki/x", "wiki/y"))
    assert [(one.server, one.action) for one in plan(old, new).changes if one.why] == [
        ("[consent]", "in-place")
    ]


@pytest.mark.promise("M97")
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("rules = 7", "must be a list of tables, not"),
        ("rules = [7]", "must be a table, not"),
        ('rules = [{ match = "git" , effect = "ask" }]', "'git' is not of the form server/name"),
        ('rules = [{ match = ["a/b", "/x"], effect = "ask" }]', "'/x' is not of the form"),
        ('rules = [{ match = 7, effect = "ask" }]', "must be a string, not"),
        ('rules = [{ match = "a/b" }]', "has no 'effect'"),
        ('rules = [{ effect = "ask" }]', "has no 'match'"),
        ('rules = [{ match = "a/b", effect = "sak" }]', "'sak' is not a choice; did you mean"),
        ('rules = [{ match = "a/b", effect = "ask", x = 1 }]', "unknown key 'x'"),
        ('timeout = "10ms"', "is too short; the shortest time here is"),
        ('on_no_elicitation = "ask"', "'ask' is not a choice"),
        ("rule = []", "unknown key 'rule'; did you mean 'rules'?"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, table: str, message: str) -> None:
    text = f'[consent]\n{table}\n[servers.git]\ncommand = ["git-server"]\n'
    (said,) = messages(tmp_path, text)
    assert message in said
