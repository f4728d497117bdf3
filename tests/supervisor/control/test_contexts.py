"""The file of contexts: what may stand in it, who may read it, and where a verb goes."""

import re
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from metamcp_supervisor import runtime
from metamcp_supervisor.cli.ctl import ctl
from metamcp_supervisor.control import contexts
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit

URL = "https://gateway.lan:6272"
PLACE = "[contexts.prod]\n"


def read(path: Path, text: str, mode: int = 0o600) -> dict[str, object]:
    path.write_text(text)
    path.chmod(mode)
    return contexts.read_tables(path)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("prod", "is not a table"),
        ({}, "needs either 'url', of a console, or 'ssh', a host"),
        ({"url": URL, "key": "k", "ssh": "lab"}, "needs either 'url'"),
        ({"url": URL, "kee": "k"}, "'kee' is not known here; did you mean 'key'?"),
        ({"url": URL, "key": 7}, "'key' is not a text"),
        ({"url": "", "key": "k"}, "'url' is not a text"),
        (
            {"url": URL},
            "needs 'key', an API key for the console; 'metamcp keys create NAME --scope",
        ),
        ({"url": "http://gateway.lan:6272", "key": "k"}, "the key would travel unencrypted"),
        ({"url": "http://127.0.0.1.evil.example", "key": "k"}, "would travel unencrypted"),
        ({"ssh": "-oProxyCommand=x"}, "'ssh' begins with '-', which ssh takes for an option"),
        ({"ssh": "lab", "key": "k"}, "'ssh' needs no 'key' and no 'ca'"),
    ],
)
def test_a_table_that_names_no_gateway_is_refused_with_a_sentence(table: object, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        contexts.context_of(table)


@pytest.mark.parametrize(
    "url",
    ["gateway.lan:6272", "ftp://gateway.lan", "https://", f"{URL}/console", f"{URL}/?a=b",
     "https://ann@gateway.lan", "https://gateway.lan:x", "https://gateway.lan:99999", "https://["],
)  # fmt: skip
def test_what_is_not_the_url_of_a_console_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="'url' is not the URL of a console"):
        contexts.context_of({"url": url, "key": "k"})


@pytest.mark.parametrize("url", [URL, f"{URL}/", "http://127.0.0.1:1", "http://[::1]:1"])
def test_a_console_on_loopback_needs_no_tls(url: str) -> None:
    assert contexts.context_of({"url": url, "key": "k"}).url == url


@pytest.mark.parametrize(
    "text", ["contexts = 1", "url = 'x'", "[contexts.a]\n[other]", "[contexts"]
)
def test_a_file_with_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        Failed, match=r"contexts\.toml: (is not TOML|has something else)"
    ) as refusal:
        read(tmp_path / contexts.FILE, text)
    assert refusal.value.exit is Exit.CONFIG


def test_others_may_neither_write_the_file_nor_read_a_key_in_it(tmp_path: Path) -> None:
    path = tmp_path / contexts.FILE
    with pytest.raises(Failed, match=r"contexts\.toml: does not exist"):
        contexts.read_tables(path)
    held, named = f"{PLACE}key = 'mmcp_x'\n", f"{PLACE}key = '${{file:prod.key}}'\n"
    assert read(path, held) == {"prod": {"key": "mmcp_x"}}
    with pytest.raises(Failed, match="read or written by others; run 'chmod 600' on it"):
        read(path, held, 0o644)
    assert read(path, named, 0o644)
    with pytest.raises(Failed, match="may be written by others; run 'chmod go-w' on it"):
        read(path, named, 0o664)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664, "it is not changed"


@pytest.mark.parametrize(
    ("line", "verb"),
    [
        ("status git", "status"),
        ("ctl", "ctl"),
        ("ctl -q down --yes", "ctl down"),
        ("ctl --runtime-dir /x doctor", "ctl doctor"),
        ("ctl --no-color --config /x --runtime-dir=/x upgrade", "ctl upgrade"),
        ("ctl --config --runtime-dir down", "ctl down"),
        ("ctl --config", "ctl"),
    ],
)
def test_the_value_of_an_option_is_no_verb(line: str, verb: str) -> None:
    assert contexts.verb_of(line.split()) == verb


def test_the_options_of_ctl_with_a_value_are_complete() -> None:
    options = [option for option in ctl.params if isinstance(option, click.Option)]
    valued = {name for option in options if not option.is_flag for name in option.opts}
    assert valued == contexts.VALUED


def test_down_ends_no_gateway_while_a_context_names_another_one() -> None:
    environ = {runtime.CONTEXT: "prod"}
    for words in (["down", "--yes"], ["--runtime-dir", "context:prod", "down", "--yes"]):
        done = CliRunner().invoke(ctl, words, env=environ)
        assert done.exit_code == Exit.USAGE
        assert "the context 'prod' is another one; unset METAMCP_CONTEXT" in done.stderr


def test_a_context_shows_its_key_nowhere() -> None:
    assert "mmcp_x" not in repr(contexts.context_of({"url": URL, "key": "mmcp_x"}))
