"""Arguments that an operator has fixed or given a default: what a server gets of a client's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from metamcp_worker.catalog.offers import ArgumentOverrides, fill_arguments
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, ProtocolError

FIXED = ArgumentOverrides(fixed={"repo": b'"/safe"'})
DEFAULT = ArgumentOverrides(defaults={"n": b"5"})
BOTH = ArgumentOverrides(fixed={"repo": b'"/safe"'}, defaults={"n": b"5", "m": b"[1]"})


def sent(arguments: bytes | None, mend: ArgumentOverrides) -> bytes | None:
    """What becomes of these arguments."""
    params = {"name": Raw(b'"t"')}
    if arguments is not None:
        params["arguments"] = Raw(arguments)
    found = fill_arguments(params, mend)
    assert found["name"] == params["name"]
    return bytes(found["arguments"]) if "arguments" in found else None


@pytest.mark.promise("M27")
@pytest.mark.parametrize("nothing", [None, b"null", b"{}", b"{ }"])
def test_who_sends_nothing_sends_what_is_fixed_and_what_has_a_default(
    nothing: bytes | None,
) -> None:
    given = sent(nothing, BOTH)
    assert given is not None
    assert given.replace(b" ", b"") == b'{"n":5,"m":[1],"repo":"/safe"}'


@pytest.mark.promise("M22", "M27")
def test_everything_else_stays_the_bytes_that_the_client_sent() -> None:
    odd = b'{"b": 1.0,  "a":[12345678901234567890123, "\\u00e9"],"a2" :null }'
    assert sent(odd, FIXED) == odd[:-1] + b',"repo":"/safe"}'
    assert sent(odd, ArgumentOverrides(defaults={"b": b"2"})) == odd
    assert sent(b' {"b":1e400}\n', DEFAULT) == b' {"b":1e400,"n":5}'


@pytest.mark.promise("M27")
@pytest.mark.parametrize(
    "arguments",
    [
        b'{"repo":"/evil"}',
        b'{"repo":null}',
        b'{"re\\u0070o":"/evil"}',
        b'{"repo":"/evil","repo":"/more"}',
        b'{ "repo" : {"x":[1]} }',
    ],
)
def test_what_a_client_says_of_a_fixed_argument_is_replaced(arguments: bytes) -> None:
    assert sent(arguments, FIXED) == b'{"repo":"/safe"}'


def test_what_is_fixed_comes_after_its_like_in_other_letters() -> None:
    """For servers that take both for the same name, and the last one."""
    assert sent(b'{"Repo":"/evil"}', FIXED) == b'{"Repo":"/evil","repo":"/safe"}'


@pytest.mark.promise("M27")
def test_a_default_counts_only_where_the_client_says_nothing() -> None:
    assert sent(b'{"n":null}', DEFAULT) == b'{"n":null}'
    assert sent(b'{"\\u006e":7}', DEFAULT) == b'{"\\u006e":7}'
    assert sent(b'{"m":7}', DEFAULT) == b'{"m":7,"n":5}'


@pytest.mark.promise("M27")
@pytest.mark.parametrize("arguments", [b"[]", b"7", b'"text"', b"true"])
def test_what_is_no_object_is_for_the_server_to_refuse_unless_something_is_fixed(
    arguments: bytes,
) -> None:
    assert sent(arguments, DEFAULT) == arguments
    with pytest.raises(ProtocolError) as refusal:
        sent(arguments, FIXED)
    assert refusal.value.code == Code.INVALID_PARAMS
    assert "params.arguments must be an object" in refusal.value.message


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
objects = st.dictionaries(st.sampled_from("abcdef") | st.text(max_size=3), values, max_size=6)


@pytest.mark.promise("M27")
@given(objects, objects, objects)
def test_fixed_goes_before_the_client_and_the_client_before_a_default(
    client: dict[str, object], fixed: dict[str, object], defaults: dict[str, object]
) -> None:
    defaults = {name: value for name, value in defaults.items() if name not in fixed}
    mend = ArgumentOverrides(
        {name: codec.dump(value) for name, value in fixed.items()},
        {name: codec.dump(value) for name, value in defaults.items()},
    )
    found = sent(codec.dump(client), mend)
    assert found is not None
    assert codec.value(found) == defaults | client | fixed
    assert sent(found, mend) == found or set(fixed) & set(codec.level(found)), "twice is once"
    assert codec.value(sent(found, mend) or b"") == codec.value(found)
