"""Gateways that other machines can reach, and endpoints that take tokens: what is refused, and what
is filled in."""

from pathlib import Path

import pytest

from metamcp_supervisor.config import show
from metamcp_supervisor.config.config import Address, GatewayConfig
from metamcp_supervisor.config.network import is_own_url
from metamcp_supervisor.servers.specs import own_log_spec
from tests.supervisor.configs import loaded, messages


@pytest.mark.promise("M64")
def test_other_machines_are_let_in_only_with_a_credential_and_not_in_the_clear(
    tmp_path: Path,
) -> None:
    wide = '[gateway]\nlisten = "0.0.0.0:6270"\n'
    both = messages(tmp_path, wide)
    assert ["asks for no credential" in both[0], "unencrypted" in both[1]] == [True, True]
    got = loaded(tmp_path, f'{wide}auth = "keys"\nbehind_proxy = true\n')
    assert got.endpoints["default"].auth == ("keys",)
    got = loaded(tmp_path, f'{wide}auth = "keys"\ntls = "local"\n')
    assert got.gateway.tls is not None
    assert got.gateway.tls.local
    one = '[endpoints.x]\nnamespace = "default"\nauth = "none"\n'
    (said,) = messages(tmp_path, f'{wide}auth = "keys"\nbehind_proxy = true\n{one}')
    assert "the endpoint 'x' asks for no credential; write auth = \"keys\" for this" in said
    open_by_flag = f'{wide}auth = "keys"\nbehind_proxy = true\n'
    (said,) = messages(tmp_path, open_by_flag, flags={"auth": "none"})
    assert "asks for no credential; leave out --auth and METAMCP_AUTH, or set 'keys'" in said


TOKENS = '[endpoints.x]\nnamespace = "default"\nauth = "oauth"\n'


@pytest.mark.promise("M65")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "accepts tokens, and nothing says whose; write [endpoints.x.oauth] with an 'issuer'"),
        ("oauth = {}", "has no 'issuer', the URL of the authorization server"),
        ("oauth.issuer = 'id'", 'oauth.issuer: must begin with "https://" or'),
        ("oauth.issuer = 'http://id.example'", "only on this machine tokens may go unencrypted"),
        ("oauth.issuer = 'https://127.0.0.1:1'", "allow_private = true permits that"),
        (
            "oauth = { issuer = 'https://id.example', introspection = 'https://id.example/i' }",
            "oauth.introspection: needs 'client_id' and 'client_secret' to ask there",
        ),
        (
            "oauth = { issuer = 'https://id.example', client_secret = '${NOT_SET}' }",
            "oauth.client_secret: the environment variable NOT_SET",
        ),
        ("auth", "has a table 'oauth' and accepts no tokens"),
        (
            "wide",
            "oauth: has no 'audience': the URL that clients use, as https://HOST/metamcp/x/mcp",
        ),
    ],
)
def test_an_issuer_that_cannot_be_used_is_refused(
    tmp_path: Path, settings: str, message: str
) -> None:
    text = TOKENS + settings + "\n"
    if settings == "auth":
        text = TOKENS.replace("oauth", "keys") + "oauth.issuer = 'https://id.example'\n"
    if settings == "wide":
        text = f"{TOKENS}oauth.issuer = 'https://id.example'\n[gateway]\nlisten = '0.0.0.0:1'\n"
        text += "auth = 'keys'\nbehind_proxy = true\n"
    assert any(message in said for said in messages(tmp_path, text))
    of_acme = messages(tmp_path, f"[workspaces.acme.{TOKENS.removeprefix('[')}")
    assert any("write [workspaces.acme.endpoints.x.oauth] with" in said for said in of_acme)


@pytest.mark.promise("M65")
def test_an_endpoint_on_loopback_knows_for_which_url_its_tokens_are(tmp_path: Path) -> None:
    text = f"{TOKENS}oauth.issuer = 'https://id.example'\n"
    text += text.replace("endpoints.x", "endpoints.default")
    got = loaded(tmp_path, text).endpoints
    issuers = [got[name].oauth for name in ("x", "default")]
    assert [one and one.audience for one in issuers] == [
        "http://127.0.0.1:6270/metamcp/x/mcp",
        "http://127.0.0.1:6270/mcp",
    ]
    assert [one and one.metadata for one in issuers] == [
        "http://127.0.0.1:6270/.well-known/oauth-protected-resource/metamcp/x/mcp",
        "http://127.0.0.1:6270/.well-known/oauth-protected-resource/mcp",
    ]


@pytest.mark.promise("M67")
def test_the_console_is_off_and_other_machines_reach_it_only_over_tls(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").gateway.console_listen is None
    got = loaded(tmp_path, '[gateway]\nconsole_listen = "127.0.0.1:6272"\n')
    assert str(got.gateway.console_listen) == "127.0.0.1:6272"
    wide = '[gateway]\nconsole_listen = "0.0.0.0:6272"\n'
    (said,) = messages(tmp_path, wide)
    assert "gateway.console_listen: " in said
    assert 'would travel unencrypted to 0.0.0.0:6272; write tls = "required"' in said
    assert loaded(tmp_path, f'{wide}tls = "required"\n').gateway.console_listen is not None
    (said,) = messages(tmp_path, '[gateway]\nconsole_listen = "127.0.0.1:6271"\n')
    assert "127.0.0.1:6271 is taken by another listener of [gateway]" in said


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ("proxy.example", "'proxy.example' names no network; write a network like"),
        ("10.0.0.0/33", "'10.0.0.0/33' names no network"),
        ("10.0.0.7/8", "'10.0.0.7/8' is an address in a network; write 10.0.0.0/8 for"),
        ("::ffff:10.0.0.7", "'::ffff:10.0.0.7' stands for IPv4; write it as IPv4"),
    ],
)
def test_what_is_no_network_of_proxies_is_refused(
    tmp_path: Path, network: str, reason: str
) -> None:
    (said,) = messages(tmp_path, f'[gateway]\ntrusted_proxies = ["10.0.0.0/8", "{network}"]\n')
    assert reason in said


LONG = 'cluster_secret = "0123456789abcdef0123456789abcdef"\n'
STORE = 'store = "postgresql://u:a-password@db.example/metamcp"\n'


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (STORE, "gateway.store: needs 'cluster_secret', too, in [gateway]; 'openssl rand -hex 32'"),
        (STORE + 'cluster_secret = "short-one"\n', "has fewer than 32 bytes; 'openssl rand"),
        ('store = "mysql://db/x"\n' + LONG, "gateway.store: must begin with postgresql://"),
        ('store = "postgresql://${env:NOT_SET}@db/x"\n' + LONG, "NOT_SET"),
        ('store = "postgresql://u:a-pass@word@db/x"\n' + LONG, "has one of @ / ? # in the user"),
        ('store = "postgresql://u:a-pass/word@db/x"\n' + LONG, "percent-encode it, as %40 for @"),
    ],
)
def test_what_is_wrong_with_a_store_is_said_at_its_place(
    tmp_path: Path, lines: str, reason: str
) -> None:
    said = messages(tmp_path, f"[gateway]\n{lines}")
    assert any(reason in each for each in said), said
    assert "a-password" not in "".join(said)


def test_a_store_and_its_secret_are_masked_wherever_they_are_shown(tmp_path: Path) -> None:
    config = loaded(tmp_path, f"[gateway]\n{STORE}{LONG}")
    assert {"a-password", "0123456789abcdef0123456789abcdef"} <= {*own_log_spec(config).secrets}
    assert "a-password" not in repr(config.gateway)
    assert "0123456789abcdef" not in repr(config.gateway)
    shown = show.tables(config)["gateway"]
    assert isinstance(shown, dict)
    assert (shown["store"], shown["cluster_secret"]) == (
        "postgresql://***@db.example/metamcp", "***",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("listen", "url", "own"),
    [
        ("127.0.0.1", "http://127.0.0.1:6270/mcp", True),
        ("127.0.0.1", "http://LOCALHOST:6270/metamcp/x/mcp?a=1", True),
        ("127.0.0.1", "http://[::1]:6270/mcp", True),
        ("127.0.0.1", "https://127.0.0.1:6270/sse", True),
        ("127.0.0.1", "http://127.0.0.1:6271/mcp", False),
        ("127.0.0.1", "http://127.0.0.1/mcp", False),
        ("127.0.0.1", "http://box.example:6270/mcp", True),
        ("127.0.0.1", "http://other.example:6270/mcp", False),
        ("0.0.0.0", "http://localhost:6270/mcp", True),
        ("10.0.0.1", "http://10.0.0.1:6270/mcp", True),
        ("10.0.0.1", "http://127.0.0.1:6270/mcp", False),
        ("127.0.0.1", "http://127.0.0.1:none/mcp", False),
        ("127.0.0.1", "", False),
    ],
)
def test_an_address_tells_whether_a_url_is_this_gateway(listen: str, url: str, own: bool) -> None:
    folder = Path("/x")
    gateway = GatewayConfig(
        listen=Address(listen, 6270),
        allowed_hosts=("box.example", "*.example"),
        state_dir=folder,
        runtime_dir=folder,
    )
    assert is_own_url(url, gateway, 6270) is own
    assert not is_own_url(url, gateway, 0), "the port is not known yet"
