"""What only shows when all files are put together."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.assemble import assemble
from metamcp_supervisor.config.config import Address, Endpoint, GatewayConfig
from metamcp_supervisor.config.document import (
    ConfigDocument,
    ConfigDraft,
    ConfigFindings,
    EndpointDraft,
    GatewayDraft,
    SourceLocation,
)
from tests.supervisor.configs import messages

SITE = SourceLocation(ConfigDocument("x", Path(), {}))


def served(host: str, *written: bool | None) -> list[bool]:
    """Is HTTP+SSE served on endpoints where that is written so, or not at all (None)?"""
    drafts = tuple(
        EndpointDraft(site=SITE, endpoint=Endpoint(name=str(at), namespace="default"), sse=sse)
        for at, sse in enumerate(written)
    )
    found = assemble(
        [ConfigDraft(site=SITE, endpoints=drafts)],
        [GatewayDraft(listen=(Address(host, 1), SITE))],
        default=GatewayConfig(state_dir=Path("/s"), runtime_dir=Path("/r")),
        files=(), transports=tuple[str, ...], client_port=lambda gateway: 1,
        findings=ConfigFindings(),
    )  # fmt: skip
    return [endpoint.sse for endpoint in found.endpoints.values()]


@pytest.mark.parametrize(("host", "default"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_a_deprecated_transport_is_off_where_others_can_reach_it_unless_it_is_written(
    host: str, default: bool
) -> None:
    assert served(host) == [default]
    assert served(host, None, True, False) == [default, True, False]


LENT = "[servers.tiny]\ncommand = 'x'\n[workspaces.b.servers.tiny]\ncommand = 'x'\n"
OF_A = f"{LENT}[workspaces.a.namespaces.default]\n"


@pytest.mark.promise("M61")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{OF_A}servers = ['b:tiny']",
            "servers[0]: 'b:tiny' is of another workspace; only 'default:' can be named",
        ),
        (
            f"{OF_A}servers = ['tiny']",
            "servers[0]: no server of this workspace is named 'tiny'; did",
        ),
        (f"{OF_A}servers = ['default:tini']", "no server is named 'default:tini'; did you mean 'd"),
        (
            f"{LENT}[namespaces.x]\nservers = ['b:tiny']",
            "servers[0]: 'b:tiny' is of another workspace; others cannot be named",
        ),
    ],
)
def test_a_namespace_with_a_server_that_it_cannot_have_says_which_it_can(
    tmp_path: Path, text: str, message: str
) -> None:
    assert message in messages(tmp_path, text)[0]
