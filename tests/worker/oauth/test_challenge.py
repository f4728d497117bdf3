"""What a refusal says of the authorization that a server wants."""

import pytest

from metamcp_worker.oauth.challenge import SCOPES_MAX, Challenge, scopes

METADATA = "https://mcp.example/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    ("status", "header", "wanted"),
    [
        (401, "", True),
        (401, 'Bearer error="invalid_token"', True),
        (403, 'Bearer error="insufficient_scope", scope="a"', True),
        (403, "Bearer error=insufficient_scope", True),
        (403, "", False),
        (403, 'Bearer error="invalid_token"', False),
        (403, 'Bearer my_error="insufficient_scope"', False),
        (400, 'Bearer error="insufficient_scope"', False),
        (200, "", False),
    ],
)
def test_only_some_refusals_are_about_authorization(status: int, header: str, wanted: bool) -> None:
    assert (Challenge.of(status, header) is not None) is wanted


def test_a_challenge_names_scopes_and_metadata_in_any_order() -> None:
    header = f'Basic realm="x", Bearer scope="b a b", resource_metadata="{METADATA}"'
    found = Challenge.of(401, header)
    assert found is not None
    assert found.scopes == ("b", "a")
    assert found.value("resource_metadata") == METADATA
    assert found.value("error") == ""


def test_a_challenge_can_be_made_to_ask_for_other_scopes() -> None:
    found = Challenge(401, f'Bearer scope="a", resource_metadata="{METADATA}"', "2025-11-25")
    other = found.with_scopes(["x", "y"])
    assert (other.scopes, other.value("resource_metadata")) == (("x", "y"), METADATA)
    assert (other.status, other.protocol) == (401, "2025-11-25")
    assert found.with_scopes([]).header == f'Bearer resource_metadata="{METADATA}"'
    assert Challenge(401).with_scopes([]).header == "Bearer"


def test_what_is_no_scope_is_left_out_and_there_are_not_too_many() -> None:
    assert scopes('a "b" c\\ é d') == ("a", "d")
    assert len(scopes(" ".join(map(str, range(1000))))) == SCOPES_MAX
