"""Which variables could matter to a server that does not get them."""

import pytest

from metamcp_supervisor.config import environment

NAMES = ("PATH", "GITHUB_TOKEN", "AWS_SECRET", "API_KEY", "DATABASE_URL", "METAMCP_KEY", "DB_A")


@pytest.mark.parametrize(
    ("words", "said", "expected"),
    [
        ("github npx server-github", "", ("GITHUB_TOKEN",)),
        ("files npx server-files", "Error: DATABASE_URL is not set", ("DATABASE_URL",)),
        ("github", "set AWS_SECRET and PATH, or METAMCP_KEY", ("AWS_SECRET", "GITHUB_TOKEN")),
        ("mcp api key token url server", "no key", ()),
        ("files", "NOT_DATABASE_URL_EITHER", ()),
        ("files /github/aws/database/bin/python", "", ()),
        ("files npx @github/server-aws", "", ("AWS_SECRET",)),
    ],
)
def test_what_a_server_names_or_is_called_like_could_matter(
    words: str, said: str, expected: tuple[str, ...]
) -> None:
    assert environment.withheld(NAMES, (), {}, words.split(), said) == expected


def test_what_it_gets_is_not_withheld_and_few_are_named() -> None:
    said = "GITHUB_TOKEN"
    assert environment.withheld(NAMES, ("GITHUB_*",), {}, ["x"], said) == ()
    assert environment.withheld(NAMES, (), {"GITHUB_TOKEN"}, ["x"], said) == ()
    many = tuple(f"GIT_{number}" for number in range(20))
    assert len(environment.withheld(many, (), {}, ["git"], "")) == environment.NAMED_MAX
    assert environment.sentence(()) == ""
    assert "these variables of the gateway: A, B" in environment.sentence(("A", "B"))
