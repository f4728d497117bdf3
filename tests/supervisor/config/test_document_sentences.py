"""Sentences about a configuration: how often, how many, and what a terminal gets of them."""

from pathlib import Path

from metamcp_supervisor.config.document import PROBLEMS_MAX
from tests.supervisor.configs import loaded, messages, problems


def test_one_mistake_is_told_once(tmp_path: Path) -> None:
    """What refers to a server with an error is not an error of its own."""
    text = (
        '[servers.git]\ncommand = ["${NO}"]\n[namespaces.dev]\nservers = ["git"]\n'
        'tools."git.x" = { enabled = false }\n[endpoints.dev]\nnamespace = "dev"\n'
    )
    assert len(problems(tmp_path, text)) == 1


def test_a_disabled_server_may_refer_to_what_is_not_there(tmp_path: Path) -> None:
    text = '[servers.git]\ncommand = ["x"]\nenabled = false\nenv = { T = "${NO}" }\n'
    got = loaded(tmp_path, text + '[namespaces.dev]\nservers = ["git"]\n')
    assert dict(got.servers) == {}
    assert got.namespaces["dev"].servers == ()
    assert "NO is not set" in got.warnings[0]
    assert got.warnings[0].endswith("the server is disabled and left out")
    got = loaded(tmp_path, text, environ={"NO": "now it is"})
    assert not got.servers["git"].enabled


def test_a_program_with_arguments_in_its_name_gives_a_warning(tmp_path: Path) -> None:
    got = loaded(tmp_path, '[servers.a]\ncommand = "uvx mcp-server-git"\n')
    assert "is started as one program with spaces in its name" in got.warnings[0]
    assert loaded(tmp_path, '[servers.a]\ncommand = "/Apps/My App/x"\n').warnings == ()


def test_a_key_cannot_steer_the_terminal_that_shows_it(tmp_path: Path) -> None:
    (message,) = messages(tmp_path, '"\\u001b[2J\\u202e" = 1\n')
    assert message.isprintable()
    assert "\\u001b[2J\\u202e" in message


def test_the_number_of_errors_told_is_limited(tmp_path: Path) -> None:
    found = problems(tmp_path, "\n".join(f"k{number} = 1" for number in range(1000)))
    assert len(found) == PROBLEMS_MAX + 1
    assert str(found[-1]) == f"and {1000 - PROBLEMS_MAX} more errors"
