"""`[[policies]]`: what a file may say, how its mistakes are told, and what fronts are told."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.servers.specs import front_spec
from metamcp_worker.ipc.spec import PolicySpec
from tests.supervisor.configs import loaded, messages

pytestmark = pytest.mark.promise("M100")

SERVER = '[servers.git]\ncommand = ["git-server"]\n'
RULE = '[[policies]]\nname = "a"\neffect = "deny"\n'


def test_a_rule_concerns_everything_and_counts_unless_it_says_otherwise(tmp_path: Path) -> None:
    found = loaded(tmp_path, SERVER + RULE)
    rule = PolicySpec(name="a", match=("*/*",), effect="deny")
    assert found.policies == front_spec(found, "1").policies == (rule,)
    assert tables(found)["policies"] == [
        {"name": "a", "match": ["*/*"], "effect": "deny", "mode": "enforce"}
    ]
    assert "policies" not in tables(loaded(tmp_path, SERVER))


def test_a_plan_names_the_rules_that_changed(tmp_path: Path) -> None:
    old = loaded(tmp_path, SERVER + RULE)
    new = loaded(tmp_path, SERVER + RULE.replace("deny", "log") + RULE.replace('"a"', '"b"'))
    assert fingerprint(old) != fingerprint(new)
    changes = {each.server: each.why for each in plan(old, new).changes if each.why}
    assert changes == {"[policies]": "a, b changed"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[policies]]\neffect = "deny"', "metamcp.toml:3: policies[0]: has no 'name'"),
        ('[[policies]]\nname = "a"', "metamcp.toml:3: policies[0]: has no 'effect'"),
        (RULE + RULE, "metamcp.toml:7: policies[1].name: 'a' is the name of another rule"),
        (RULE.replace("deny", "dny"), "policies[0].effect: 'dny' is not a choice; did you mean"),
        (RULE + 'match = "git"', "policies[0].match: 'git' must be written 'server/name'"),
        (RULE + 'match = ["git/*", "/x"]', "policies[0].match[1]: '/x' must be written"),
        (RULE + "match = []", "policies[0].match: is empty, so the rule concerns nothing"),
        (RULE + "match = 1", "policies[0].match: must be a list of strings, not a number"),
        (RULE + 'when = ""', "policies[0].when: an expression is empty"),
        (RULE + 'when = "foo == 1"', "metamcp.toml:6: policies[0].when: the expression 'foo == 1'"),
        (RULE + 'wen = "true"', "policies[0].wen: unknown key 'wen'; did you mean 'when'?"),
        (RULE.replace('"a"', '"a b"'), "policies[0].name: 'a b' may have only a-z"),
        ("[policies]\na = 1", "policies: must be a list of tables, [[policies]], not a table"),
        (RULE + f'message = "{"x" * 1001}"', "policies[0].message: may have at most 1000"),
    ],
)
def test_each_mistake_is_one_sentence_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    (sentence,) = messages(tmp_path, SERVER + text)
    assert told in sentence


def test_a_glob_that_no_server_can_have_is_a_warning(tmp_path: Path) -> None:
    found = loaded(tmp_path, SERVER + RULE + 'match = ["git/*", "gti/*", "x*/y"]')
    assert [one.partition("match: ")[2] for one in found.warnings] == [
        "'gti/*' concerns nothing: no server is named 'gti'; did you mean 'git'?",
        "'x*/y' concerns nothing: no server is like 'x*'; there are: git",
    ]


def test_rules_belong_into_the_main_file(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text(RULE)
    told = messages(tmp_path, f'include = ["more.toml"]\n{SERVER}')
    assert any("belongs into" in one for one in told)
