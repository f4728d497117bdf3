"""Servers that are reached and not started: what a URL, a header, an authorization may be."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from metamcp_supervisor.config import sections
from metamcp_supervisor.config.show import masked_url
from metamcp_worker.ipc.spec import OAuth
from tests.supervisor.configs import loaded, messages

URL = "https://x.example/mcp"


def told(folder: Path, *settings: str, **environ: str) -> str:
    """The one error that these settings of a server give, after its place."""
    text = "\n".join(["[servers.x]", *settings, ""])
    (got,) = messages(folder, text, environ=environ)
    return got.partition("servers.x")[2].lstrip(".")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("${NO}", "the environment variable NO is not set"),
        ("wss://x.example/", 'must begin with "https://" or "http://"'),
        ("file:///etc/passwd", 'must begin with "https://" or "http://"'),
        ("x.example/mcp", 'must begin with "https://" or "http://"'),
        ("", "has a character in it that no URL has"),
        ("https://a b/", "has a character in it that no URL has"),
        ("https://x\\\\@y/", "has a character in it that no URL has"),
        ("https://é.example/", "has a character in it that no URL has"),
        ("https://me:canary@x.example/", "has credentials in it; put them into 'headers'"),
        ("https://x.example/#canary", "has a fragment ('#…') in it, which is never sent"),
        ("https:///mcp", "has no proper host and port in it"),
        ("https://x.example:canary/", "has no proper host and port in it"),
        ("https://x.example:0/", "has no proper host and port in it"),
        ("https://x.example:/", "has no proper host and port in it"),
        ("https://[::1/", "has no proper host and port in it"),
        ("https://a%00b/", "has no proper host and port in it"),
        ("https://x.example/" + "a" * 8192, "is longer than 8192 bytes"),
    ],
)
def test_what_is_no_url_of_a_server_is_refused_without_repeating_it(
    tmp_path: Path, url: str, why: str
) -> None:
    got = told(tmp_path, f'url = "{url}"')
    assert got.startswith(f"url: {why}")
    assert "canary" not in got


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://x.example/mcp?key=canary", "https://x.example"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("HTTPS://[::1]:1/a", "https://[::1]:1"),
        ("http://mcp_server:80/sse", "http://mcp_server:80"),
    ],
)
def test_a_good_url_is_taken_and_shown_by_its_origin(tmp_path: Path, url: str, origin: str) -> None:
    assert loaded(tmp_path, f'[servers.x]\nurl = "{url}"\n').servers["x"].url == url
    assert sections.origin(url) == origin


@given(some.text())
def test_any_text_is_a_url_or_has_a_flaw(text: str) -> None:
    if not sections.url_flaw(text):
        assert sections.origin(text).startswith(("http://", "https://"))


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("headers = { Host = 'y' }", "headers.Host: follows from 'url'; leave it out"),
        ("headers = { CONNECTION = 'y' }", "headers.CONNECTION: belongs to the connection"),
        ("headers = { te = 'y' }", "headers.te: belongs to the connection"),
        ("headers = { Content-Type = 'y' }", "headers.Content-Type: is set by the gateway"),
        ("headers = { accept = 'y' }", "headers.accept: is set by the gateway"),
        ("headers = { Mcp-Session-Id = 'y' }", "headers.Mcp-Session-Id: is set by the gateway"),
        ("headers = { Last-Event-ID = 'y' }", "headers.Last-Event-ID: is set by the gateway"),
        ('headers = { "A B" = "y" }', 'headers."A B": is not the name of a header'),
        ('headers = { "A:" = "y" }', 'headers."A:": is not the name of a header'),
        ('headers = { A = "y\\r\\nB: c" }', "headers.A: has a character in it that no header"),
        ('headers = { A = "é" }', "headers.A: has a character in it that no header"),
        ("headers = { A = 'Bearer ${EMPTY:-}' }", "headers.A: begins or ends with a blank"),
        ("headers = { A = '${BREAK}' }", "headers.A: has a character in it that no header"),
        ("headers = { A = '${NO}' }", "headers.A: the environment variable NO is not set"),
        ("headers = { A = 'x', a = 'y' }", "headers.a: is there twice"),
        ("headers = { A = 3 }", "headers.A: must be a string, in quotes, not a number"),
        ("headers = 'A: b'", "headers: must be a table, not a string"),
        (f"headers = {{ A = '{'x' * 12_288}' }}", "headers: have more than 12288 bytes together"),
        ("transport = 'htpp'", "transport: 'htpp' reaches no URL; did you mean 'http'?"),
        ("options = { a = 'b' }", "options: is for a transport that a package brings"),
        ("module = 'a:b'", "module: a server has only one of 'url' and 'module'"),
        ("args = ['x']", "args: needs 'command', the program that gets these arguments"),
    ],
)
@pytest.mark.promise("M98")
def test_a_setting_that_no_request_can_have_is_refused(
    tmp_path: Path, setting: str, why: str
) -> None:
    got = told(tmp_path, f'url = "{URL}"', setting, EMPTY="", BREAK="a\nB: c")
    assert got.startswith(why)


def test_the_number_of_headers_and_options_is_limited(tmp_path: Path) -> None:
    many = ", ".join(f"H{number} = 'x'" for number in range(257))
    assert told(tmp_path, f"url = '{URL}'", f"headers = {{ {many} }}").startswith(
        "headers: has more than 64 headers"
    )
    got = told(tmp_path, "transport = 'x'", "enabled = false", f"options = {{ {many} }}")
    assert got.startswith("options: has more than 256 options")


@given(some.text(), some.text())
def test_what_passes_as_a_header_is_one_line_of_ascii(name: str, value: str) -> None:
    if not sections.flaw(name) and not sections.value_flaw(value):
        line = f"{name}: {value}"
        assert line.isascii()
        assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    ("oauth", "why"),
    [
        ("'yes'", "oauth: must be true or a table, not a string"),
        ("{ clientid = 'x' }", "oauth.clientid: unknown key 'clientid'; did you mean 'client_id'?"),
        ("{ client_secret = '${S}' }", "oauth.client_secret: needs 'client_id', the id"),
        ("{ client_id = 'x', client_metadata_url = 'https://a.example/x' }",
         "oauth.client_metadata_url: a client has one id"),
        ("{ client_metadata_url = 'http://a.example/x' }",
         'oauth.client_metadata_url: must begin with "https://" and have a path'),
        ("{ client_metadata_url = 'https://a.example' }",
         'oauth.client_metadata_url: must begin with "https://" and have a path'),
        ("{ client_metadata_url = 'https://a b/' }",
         "oauth.client_metadata_url: has a character in it that no URL has"),
        (f"{{ scopes = {['a'] * 65} }}", "oauth.scopes: has more than 64 scopes"),
        ("{ grant = 'client_credentials' }", "oauth.grant: 'client_credentials' needs 'client_id'"),
        ("{ grant = 'password' }", "oauth.grant: 'password' is not a choice"),
        ("{ scopes = ['a b'] }", "oauth.scopes[0]: is not a scope"),
        ("{ client_id = '${NO}' }", "oauth.client_id: the environment variable NO is not set"),
    ],
)  # fmt: skip
def test_an_authorization_that_cannot_work_is_refused(tmp_path: Path, oauth: str, why: str) -> None:
    assert told(tmp_path, f"url = '{URL}'", f"oauth = {oauth}", S="s").startswith(why)


def test_a_server_is_authorized_in_one_way(tmp_path: Path) -> None:
    text = f"[servers.x]\nurl = '{URL}'\noauth = %s\n"
    assert loaded(tmp_path, text % "true").servers["x"].oauth == OAuth()
    assert loaded(tmp_path, text % "{}").servers["x"].oauth == OAuth()
    assert loaded(tmp_path, text % "false").servers["x"].oauth is None
    got = told(tmp_path, f"url = '{URL}'", "oauth = true", "headers = { authorization = '${T}' }",
               T="t")  # fmt: skip
    assert got.startswith("oauth: gets the header 'Authorization'")


@pytest.mark.promise("M95")
def test_a_secret_in_the_file_or_in_the_clear_gives_a_warning_without_it(tmp_path: Path) -> None:
    got = loaded(
        tmp_path,
        "[servers.x]\nurl = 'http://x.example/?api_key=canary&page=2'\n"
        "headers = { Authorization = 'Bearer canary', X-Api-Key = '${K}', X-Team = 'a' }\n"
        "[servers.y]\nurl = 'http://localhost/'\nenv = { A = 'b' }\n"
        "oauth = { client_id = 'a', client_secret = 'a-canary' }\n",
        environ={"K": "a-canary"},
    )
    assert [each.partition("servers.")[2].partition(";")[0] for each in got.warnings] == [
        "x.url: looks like a secret written into the file",
        "x.headers.Authorization: looks like a secret written into the file",
        "x.url: headers and tokens cross the network unencrypted",
        "y.env: means nothing for a server that is reached by URL",
        "y.oauth.client_secret: looks like a secret written into the file",
    ]
    assert "canary" not in "".join(got.warnings).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://x.example/mcp", "https://x.example/mcp"),
        ("https://x.example/mcp?a=b&c&d=${D}&e=", "https://x.example/mcp?a=***&***&d=${D}&e="),
        ("https://x.example/${A}?k=${B:-secret}", "https://x.example/${A}?k=***"),
        ("https://x.example/s/NTk4ZjQ2MTItY2Fu/mcp", "https://x.example/s/NTk4ZjQ2MTItY2Fu/mcp"),
        ("https://x.example/s/NTk4ZjQ2MTItY2FuYXJ5/mcp", "https://x.example/s/***/mcp"),
        ("https://me:secret@x.example/", "https://***@x.example/"),
        ("${URL}", "${URL}"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert masked_url(url) == shown


@pytest.fixture
def package(tmp_path: Path) -> str:
    """A folder with an installed package that brings the transport `kafka`."""
    folder = tmp_path / "site"
    info = folder / "broker-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[metamcp.transports]\nkafka = broker:connect\n")
    return str(folder)


def test_a_transport_of_a_package_must_be_installed(tmp_path: Path, package: str) -> None:
    text = "[servers.x]\ntransport = 'kafka'\n"
    (got,) = messages(tmp_path, text)
    assert got == (
        "metamcp.toml:2: servers.x.transport: no installed package brings a transport named"
        " 'kafka'; there are none"
    )
    assert not loaded(tmp_path, text + "enabled = false\n").servers["x"].enabled
    sys.path.append(package)
    try:
        assert loaded(tmp_path, text).servers["x"].transport == "kafka"
        (got,) = messages(tmp_path, text.replace("kafka", "kafak"))
        assert got.endswith("named 'kafak'; did you mean 'kafka'?")
        (got,) = messages(tmp_path, text.replace("kafka", "sse"))
        assert got.endswith("servers.x.transport: 'sse' is for a server with 'url'; write its URL")
    finally:
        sys.path.remove(package)
