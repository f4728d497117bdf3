"""TLS with the true binary: the local authority, other files, clients with certificates."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

import httpx2
import pytest
from mcp.client.client import Client as Sdk
from mcp.client.streamable_http import streamable_http_client

from metamcp_supervisor.certificates import authority
from tests import programs
from tests.live.gateway import Gateway, fake
from tests.live.test_metrics import page
from tests.waiting import until
from tests.worker.http.test_fetch_tls import certificate

pytestmark = pytest.mark.live


def trusting(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


def answer(gateway: Gateway, context: ssl.SSLContext, host: str = "127.0.0.1") -> int:
    """The status of a page over TLS."""
    connection = http.client.HTTPSConnection(host, gateway.port, timeout=30, context=context)
    try:
        connection.request("GET", "/api")
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


def serial(gateway: Gateway, context: ssl.SSLContext) -> str:
    """Of the certificate that a new connection gets."""
    with (
        socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as safe,
    ):
        found = safe.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    extra = '[gateway]\ntls = "required"\n'
    with Gateway({"new": fake("--era", "both")}, extra=extra) as found:
        yield found


def ca(gateway: Gateway) -> Path:
    return gateway.folder / "state" / "tls" / "ca.pem"


@pytest.mark.promise("M6")
async def test_a_gateway_makes_its_authority_and_a_real_client_that_trusts_it_calls(
    gateway: Gateway,
) -> None:
    assert answer(gateway, trusting(ca(gateway))) == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        answer(gateway, ssl.create_default_context())
    for name in ("ca.key", "gateway.key"):
        assert (ca(gateway).parent / name).stat().st_mode & 0o077 == 0
    assert gateway.status()["url"].startswith("https://127.0.0.1:")
    async with (
        httpx2.AsyncClient(verify=trusting(ca(gateway)), timeout=30) as web,
        Sdk(streamable_http_client(gateway.status()["url"], http_client=web)) as client,
    ):
        said = await client.call_tool("new__echo", {"text": "over TLS"})
        assert "over TLS" in str(said.content)


def test_the_ends_of_certificates_are_metrics(gateway: Gateway) -> None:
    def ends() -> dict[str, float]:
        family = page(gateway)["metamcp_certificate_expiry_timestamp_seconds"]
        return {sample.labels["certificate"]: sample.value for sample in family.samples}

    until(lambda: ends().keys() == {"gateway", "authority"}, "the files are read")
    shown = authority.read_certificate(gateway.folder / "state")
    for name, end in (("gateway", shown.expires), ("authority", shown.ca_expires)):
        assert ends()[name] == datetime.fromisoformat(end).timestamp()


def test_plain_http_is_cut_off_and_the_gateway_goes_on(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as plain:
        plain.sendall(b"GET /api HTTP/1.1\r\nHost: localhost\r\n\r\n")
        said = b""
        while data := plain.recv(4096):  # until the end: it is not kept waiting
            said += data
        assert not said.startswith(b"HTTP")
    assert answer(gateway, trusting(ca(gateway))) == 200


@pytest.mark.promise("M6")
def test_a_renewed_certificate_is_for_new_connections_and_old_ones_go_on(gateway: Gateway) -> None:
    context = trusting(ca(gateway))
    before = serial(gateway, context)
    old = http.client.HTTPSConnection("127.0.0.1", gateway.port, timeout=60, context=context)
    old.request("GET", "/api")
    old.getresponse().read()
    state = gateway.folder / "state"
    cert, kept = state / authority.CERT, (state / authority.CERT).read_bytes()
    cert.write_text("not a certificate")
    until(lambda: "stays in force" in gateway.log.read_text(), "the broken file is said", 30)
    assert serial(gateway, context) == before
    cert.write_bytes(kept)
    cert.unlink()
    assert authority.ensure(state)
    until(lambda: serial(gateway, context) != before, "the new certificate is there", 30)
    old.request("GET", "/api")
    assert old.getresponse().status == 200
    old.close()


def test_an_upgraded_gateway_renews_its_certificate_too(gateway: Gateway) -> None:
    context = trusting(ca(gateway))
    before = serial(gateway, context)
    (gateway.folder / "state" / authority.CERT).unlink()
    gateway.ctl("upgrade")
    until(lambda: serial(gateway, context) != before, "the new certificate is there", 30)


def test_the_authority_cannot_vouch_for_anybody_else(tmp_path: Path) -> None:
    authority.make(tmp_path, ["box.lan"])
    authority.issue(tmp_path, ("bank.example",))  # as whoever has stolen its key
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / authority.CERT, tmp_path / authority.KEY)
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(ours, theirs, server_side=True)
    other = trusting(tmp_path / authority.CA).wrap_bio(theirs, ours, server_hostname="bank.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        greet(other, one)


def greet(client: ssl.SSLObject, server: ssl.SSLObject) -> None:
    for _ in range(4):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()


def test_tls_verbs_say_what_there_is_and_what_to_do(tmp_path: Path, gateway: Gateway) -> None:
    def tls(*words: str, ok: int = 0) -> str:
        command = [*gateway.command("tls")[:3], "tls", "--state-dir", str(tmp_path), *words]
        done = programs.run(command)
        assert done.returncode == ok, done.stderr
        return done.stdout + done.stderr

    assert "'metamcp tls init' makes one" in tls("show", ok=1)
    assert "is not the name or address of a host" in tls("init", "--name", "a b", ok=1)
    tls("init", "--name", "box.lan", "--name", "192.0.2.7")
    found = json.loads(tls("show", "--json"))
    assert found["names"] == ["localhost", "127.0.0.1", "::1", "box.lan", "192.0.2.7"]
    assert found["ca"] in tls("trust-help")
    assert "say --yes to make it" in tls("init", ok=2)
    assert json.loads(tls("show", "--json")) == found, "nothing was made"
    assert f"clients need the new file {found['ca']}" in tls("init", "--yes")
    (tmp_path / authority.CA).write_text("")
    assert "ca.pem is not a certificate in PEM; restore it, or" in tls("show", ok=1)


@pytest.mark.parametrize(
    ("setting", "scheme"), [('tls = "required"', "https"), ("behind_proxy = true", "https"),
                            ("behind_proxy = false", "http")],
)  # fmt: skip
def test_the_page_for_browsers_names_urls_as_clients_reach_them(setting: str, scheme: str) -> None:
    with Gateway({"new": fake()}, extra=f"[gateway]\n{setting}\n") as gateway:
        where = "127.0.0.1", gateway.port
        connection = http.client.HTTPConnection(*where, timeout=30)
        if "tls" in setting:
            context = trusting(ca(gateway))
            connection = http.client.HTTPSConnection(*where, timeout=30, context=context)
        with closing(connection):
            connection.request("GET", "/", headers={"Accept": "text/html"})
            page = connection.getresponse().read().decode()
    assert page.count(f"{scheme}://127.0.0.1:{gateway.port}/mcp") == 3
    assert page.count("://") == 3


@pytest.mark.promise("M6")
def test_a_client_without_a_certificate_is_cut_off_where_one_is_asked_for(tmp_path: Path) -> None:
    authority.make(tmp_path, [])
    client = certificate(tmp_path)
    files = {
        "cert": tmp_path / authority.CERT,
        "key": tmp_path / authority.KEY,
        "client_ca": client,
    }
    inner = ", ".join(f'{name} = "{file}"' for name, file in files.items())
    extra = f"[gateway]\ntls = {{ {inner} }}\n"
    with Gateway({"new": fake()}, extra=extra) as gateway:
        context = trusting(tmp_path / authority.CA)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            answer(gateway, context)
        context.load_cert_chain(client)
        assert answer(gateway, context) == 200


@pytest.mark.promise("M6")
def test_a_front_that_starts_with_broken_files_refuses_clients_until_they_are_mended(
    tmp_path: Path,
) -> None:
    authority.make(tmp_path, [])
    cert, key = tmp_path / authority.CERT, tmp_path / authority.KEY
    extra = f'[gateway]\ntls = {{ cert = "{cert}", key = "{key}" }}\n'
    with Gateway({"new": fake()}, extra=extra) as gateway:
        context = trusting(tmp_path / authority.CA)
        assert answer(gateway, context) == 200
        front, kept = gateway.status()["fronts"][0]["pid"], key.read_bytes()
        key.write_text("not a key")
        os.kill(front, signal.SIGKILL)
        log = gateway.log
        until(lambda: "connections are closed until it can be used" in log.read_text(), "it says")
        for _ in range(3):
            begun = time.monotonic()
            with pytest.raises((ssl.SSLError, ConnectionError)):
                answer(gateway, context)
            assert time.monotonic() - begun < 2
        key.write_bytes(kept)
        begun = time.monotonic()

        def well() -> bool:
            with suppress(ssl.SSLError, ConnectionError):
                return answer(gateway, context) == 200
            return False

        until(well, "the front takes the mended files")
        assert time.monotonic() - begun < 10


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the program openssl is asked")
@pytest.mark.parametrize(("version", "accepted"), [("-tls1_1", False), ("-tls1_2", True)])
def test_openssl_is_accepted_from_tls_1_2_on(
    gateway: Gateway, version: str, accepted: bool
) -> None:
    where = f"127.0.0.1:{gateway.port}"
    said = subprocess.run(
        ["openssl", "s_client", "-connect", where, version, "-cipher", "DEFAULT@SECLEVEL=0"],
        input="", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "no protocols available" not in said.stderr  # openssl itself would speak it
    assert ("Cipher is (NONE)" in said.stdout) is not accepted, said.stdout


def test_files_that_cannot_be_used_are_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("nothing")
    extra = f'[gateway]\ntls = {{ cert = "{tmp_path}/a.pem", key = "{tmp_path}/b.pem" }}\n'
    gateway = Gateway({"new": fake()}, extra=extra, wait=False)
    with gateway:
        assert gateway.process is not None
        assert gateway.process.wait(timeout=60) == 65
        assert f"TLS: {tmp_path}/b.pem does not exist" in gateway.log.read_text()
