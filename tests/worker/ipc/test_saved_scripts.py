"""Files of scripts: what is written is read again, whatever the code says."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import Language
from metamcp_worker.ipc.saved_scripts import SUFFIXES, Script, ScriptHead, file_read, format_script

SCHEMA = '{"type":"object"}'


def test_the_first_line_says_what_the_code_does_not() -> None:
    script = Script("sum", 1, "return 1\n", "typescript", "Adds.", SCHEMA, expose=True)
    assert format_script(script) == (
        '// metamcp: {"description":"Adds.","parameters":{"type":"object"},"expose":true}\n'
        "return 1\n"
    )
    assert format_script(Script("a", 1, "return 1", "javascript")) == "return 1"


@pytest.mark.promise("M48")
@given(
    code=some.one_of(some.text(), some.sampled_from(["// metamcp: {}\nx", "//metamcp:1", "\n"])),
    language=some.sampled_from(list(SUFFIXES)),
    description=some.text(),
    parameters=some.sampled_from(["", SCHEMA]),
    expose=some.booleans(),
)
def test_what_is_written_is_read_again(
    code: str, language: Language, description: str, parameters: str, expose: bool
) -> None:
    script = Script("a", 1, code, language, description, parameters, expose)
    head, rest = file_read(format_script(script))
    assert rest == code
    assert head == ScriptHead(description or None, Raw(parameters.encode()), expose or None)


def test_a_first_line_that_says_something_else_is_refused() -> None:
    with pytest.raises(codec.Malformed):
        file_read('// metamcp: {"descripton": "x"}\nreturn 1')
