"""References in values."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_supervisor.config.references import (
    EditorInput,
    References,
    Unresolved,
    expand,
    input_variable,
    refers,
    starts_program,
)
from tests.supervisor.configs import loaded


def references(**environ: str) -> References:
    return References(
        environ=environ,
        secret=lambda path: f"<{path}>",
        credential=lambda name: f"[{name}]",
        printed=lambda kind, rest: f"{kind} {rest}",
        inputs={"token": EditorInput("Your token"), "region": EditorInput("", "eu")},
        folders={"workspaceFolder": "/w", "/": "/"},
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "a"),
        ("${env:A}", "a"),
        ("x${A}y${A}", "xaya"),
        ("${NO:-d}${env:NO:-e}", "de"),
        ("${EMPTY:-d}|${NO:-}", "d|"),
        ("${NO:-https://x:1/-}", "https://x:1/-"),
        ("${NESTED}", "${A}"),
        ("$${A} $$${A} $$$${A}", "${A} $a $${A}"),
        ("$HOME pa$$word $ {A} $", "$HOME pa$$word $ {A} $"),
        ("${file:/run/x y}", "</run/x y>"),
        ("${cred:api-key}${credential:api-key}", "[api-key][api-key]"),
        ("${cmd:pass show x}|${keyring:a/b}", "cmd pass show x|keyring a/b"),
        ("${input:region}", "eu"),
        ("${workspaceFolder}${/}bin", "/w/bin"),
    ],
)
@pytest.mark.promise("M16")
def test_references_become_their_values(text: str, expected: str) -> None:
    assert expand(text, references(A="a", EMPTY="", NESTED="${A}")) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${NO}", "the environment variable NO is not set"),
        ("${env:NO}", "the environment variable NO is not set"),
        ("${input:token}", r"the input 'token' \(Your token\) is missing; .* variable TOKEN"),
        ("${A", "has no '}'"),
        ("${A:-${A}}", "cannot be nested"),
        ("${A B}", "is not a reference"),
        ("${}", "is not a reference"),
        ("${EMPTY}", "the environment variable EMPTY is empty; set it, or write"),
        ("${input:empty}", "the input 'empty' is missing"),
        ("${command:x}", "not available in this version"),
        ("${vault:x}", "is not a kind of reference"),
    ],
)
def test_what_leads_nowhere_is_told(text: str, words: str) -> None:
    with pytest.raises(Unresolved, match=words):
        expand(text, references(A="a", EMPTY=""))


def test_values_of_references_to_secrets_are_told_apart() -> None:
    found: list[str] = []
    text = "${A}|x${MY_TOKEN}|${file:f}|${cred:c}|${cmd:c}|${keyring:k/u}|${input:region}"
    expand(text, references(A="a", MY_TOKEN="t"), found.append)
    assert found == ["t", "<f>", "[c]", "cmd c", "keyring k/u", "eu"]


def test_an_input_is_the_variable_of_its_name_in_upper_case() -> None:
    assert input_variable("github-token.v2") == "GITHUB_TOKEN_V2"
    assert expand("${input:region}", references(REGION="us")) == "us"


def test_a_credential_without_a_service_manager_is_told() -> None:
    with pytest.raises(
        Unresolved, match=r"'key' is missing: \$CREDENTIALS_DIRECTORY is not set; .*systemd"
    ):
        expand("${credential:key}", References(environ={}, secret=str))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${cmd:x}", True),
        ("a$$${keyring:a/b}", True),
        ("$${cmd:x}", False),
        ("${cmdx:y}${file:cmd:}", False),
    ],
)
def test_references_that_start_a_program_are_told_from_others(text: str, found: bool) -> None:
    assert starts_program(text) is found


@given(st.text())
def test_text_without_references_stays_as_it_is(text: str) -> None:
    if "${" not in text:
        assert expand(text, references()) == text
        assert not refers(text)


@given(st.text(), st.text(min_size=1))
def test_a_value_is_put_in_once_and_never_looked_into(before: str, value: str) -> None:
    before = before.replace("$", "")
    assert expand(before + "${A}", references(A=value)) == before + value


@given(st.text(st.sampled_from(list("${}A:-env"))))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    with suppress(Unresolved):
        expand(text, references(A="a"))


@pytest.mark.promise("M95")
def test_secrets_in_the_file_or_in_arguments_give_a_warning_without_them(tmp_path: Path) -> None:
    got = loaded(
        tmp_path,
        '[servers.git]\ncommand = ["x", "--token=${T}"]\n'
        'env = { API_KEY = "sk-canary", TOKEN_FILE = "/t", A_TOKEN = "${T}" }\n',
        environ={"T": "a-canary"},
    )
    assert len(got.warnings) == 2
    assert "every user of this machine can see arguments" in got.warnings[0]
    assert "${env:API_KEY} takes it from the environment" in got.warnings[1]
    assert "canary" not in "".join(got.warnings).replace(str(tmp_path), "")


@pytest.mark.promise("M82")
def test_what_stands_for_the_folder_of_a_project_stays_until_a_process_starts(
    tmp_path: Path,
) -> None:
    text = """
[servers.team]
command = ["x", "${project}/${env:project}"]
cwd = "${project}/sub"
sharing = "per-project"
[servers.plain]
command = ["x", "${project}"]
"""
    found = loaded(tmp_path, text, environ={"project": "p"}).servers
    assert found["team"].command == ("x", "${project}/p")
    assert (found["team"].cwd, found["team"].folder) == (Path("${project}/sub"), str(tmp_path))
    assert found["plain"].command == ("x", "p")
