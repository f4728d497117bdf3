"""Which questions a client may be asked, by what its request declared."""

from typing import Any

import pytest

from metamcp_worker.front_calls import client_questions
from metamcp_worker.ipc import codec

FORM, URL, SAMPLE, ROOTS = (
    "elicitation/create", "elicitation/create:url", "sampling/createMessage", "roots/list",
)  # fmt: skip


def caller(**capabilities: object) -> bytes:
    return codec.dump({"clientCapabilities": capabilities, "clientInfo": {"name": "c"}})


def may(declared: bytes, question: str, **params: Any) -> bool:
    method, _, mode = question.partition(":")
    if mode:
        params["mode"] = mode
    return client_questions.may_be_asked(declared, method, codec.dump(params))


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("elicitation", "form", "url"),
    [
        ({}, True, False),
        ({"form": {}}, True, False),
        ({"url": {}}, False, True),
        ({"form": {}, "url": {}}, True, True),
        ({"url": None, "x": {}}, True, False),
        (None, False, False),
        (True, False, False),
    ],
)
def test_elicitation_needs_the_mode_that_was_declared(
    elicitation: object, form: bool, url: bool
) -> None:
    declared = caller(elicitation=elicitation)
    assert may(declared, FORM) is form
    assert may(declared, FORM + ":form") is form
    assert may(declared, URL) is url
    assert not may(declared, FORM + ":voice")
    assert not may(declared, FORM, mode=None)
    assert not may(declared, SAMPLE)
    assert not may(declared, ROOTS)
    assert client_questions.may_be_asked_anything(declared) is (form or url)


@pytest.mark.promise("M23")
def test_sampling_with_tools_needs_more_than_sampling() -> None:
    plain, able = caller(sampling={}), caller(sampling={"tools": {}})
    assert may(plain, SAMPLE, maxTokens=1)
    assert may(plain, SAMPLE, tools=None, toolChoice=None, includeContext="none")
    extras: list[dict[str, Any]] = [{"tools": []}, {"toolChoice": {"mode": "auto"}}]
    for extra in extras:
        assert not may(plain, SAMPLE, **extra)
        assert may(able, SAMPLE, **extra)
        assert not may(caller(), SAMPLE, **extra)


@pytest.mark.promise("M23")
def test_context_needs_its_capability_from_clients_that_know_it() -> None:
    wish = {"includeContext": "thisServer"}
    assert may(caller(sampling={"context": {}}), SAMPLE, **wish)
    assert not may(caller(sampling={"tools": {}}), SAMPLE, **wish)
    assert may(caller(sampling={}), SAMPLE, **wish)  # of a time when there was no such capability


def test_roots_need_their_capability_and_nothing_else_may_be_asked() -> None:
    declared = caller(roots={"listChanged": True}, elicitation={}, sampling={})
    assert may(declared, ROOTS)
    assert client_questions.may_be_asked(declared, "roots/list", b"")
    assert not may(caller(roots=False), ROOTS)
    assert not may(declared, "ping")
    assert not may(declared, "tools/call")


@pytest.mark.parametrize("broken", [b"", b"[]", b"{}", b'{"clientCapabilities":7}', b"nonsense"])
def test_a_client_of_which_nothing_can_be_read_is_asked_nothing(broken: bytes) -> None:
    assert not may(broken, FORM)
    assert not client_questions.may_be_asked_anything(broken)
    assert not client_questions.may_be_asked(caller(roots={}), "roots/list", b"[")


def test_a_client_with_a_long_description_is_read_each_time() -> None:
    declared = caller(roots={}, x="y" * client_questions.CALLER_BYTES_MAX)
    assert may(declared, ROOTS)
    assert not may(declared, FORM)
