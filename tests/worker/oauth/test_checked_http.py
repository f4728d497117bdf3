"""Requests to addresses that a server named."""

import ssl
from pathlib import Path

import httpx2
import pytest

from metamcp_worker.http.fetch import Unreachable
from metamcp_worker.oauth.addresses import Reach
from metamcp_worker.oauth.challenge import NotAuthorized
from metamcp_worker.oauth.checked_http import BODY_BYTES_MAX, CheckedHttpClient, page
from tests.worker.http.test_fetch_tls import certificate
from tests.worker.scripted import Request, Wire, serving

HERE = "http://127.0.0.1:9/mcp"
FAR = "https://8.8.8.8/mcp"


def ask(url: str, method: str = "GET", **more: str) -> httpx2.Request:
    return httpx2.Request(method, url, data=more or None)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", "file:///etc/passwd", "a:b", "$(touch x)", "//as.example/x", "",
        "https://", "https://me:secret@as.example/", "https://as.example/a b", "https:/as.example",
        "https://as.example/\n", "https://as.example/\x1b[0m", "https://ex\u00e4mple.com/",
        "https://as.example:0/", "https://as.example:x/", "http://as.example/", "http://10.0.0.1/",
        "ftp://as.example/", "https://as.example/" + "x" * 9000,
    ],
)  # fmt: skip
def test_only_web_addresses_are_opened_and_asked(url: str) -> None:
    with pytest.raises(NotAuthorized) as caught:
        page(url)
    assert "secret" not in str(caught.value)


def test_https_and_this_machine_are_good() -> None:
    for url in ("https://as.example/authorize?x=1", "http://localhost:1/", "http://[::1]:1/"):
        page(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:9/", "http://127.0.0.1:9/", "http://localhost:9/", "https://[::1]:9/",
        "https://10.0.0.1/", "https://192.168.1.1/", "https://169.254.169.254/latest/meta-data",
        "https://[fd00::1]/", "https://[::ffff:10.0.0.1]/", "https://[64:ff9b::a00:1]/",
        "https://0x7f000001/", "https://2130706433/", "https://127.1/",
        "https://224.0.0.1/", "https://0.0.0.0/",
    ],
)  # fmt: skip
@pytest.mark.promise("M11")
async def test_a_server_on_the_internet_does_not_lead_into_the_local_network(url: str) -> None:
    with pytest.raises(NotAuthorized, match="which is not asked: its address is nearer"):
        await CheckedHttpClient(FAR).send(ask(url))


async def test_a_server_that_must_be_on_the_internet_is_not_asked_elsewhere() -> None:
    with pytest.raises(NotAuthorized):
        await CheckedHttpClient(HERE, reach=Reach.PUBLIC).send(ask(HERE))


async def test_cloud_credentials_are_out_of_reach_for_everybody() -> None:
    with pytest.raises(NotAuthorized):
        await CheckedHttpClient(HERE).send(ask("https://169.254.169.254/"))


async def test_a_request_arrives_whole_and_asks_for_nothing_compressed() -> None:
    seen: list[Request] = []

    async def script(wire: Wire) -> None:
        while request := await wire.request():
            seen.append(request)
            await wire.answer(b'{"ok":1}', "Content-Type: application/json", status="201 Made")

    async with serving(script) as url:
        request = ask(url, "POST", code="x y", state="é")
        request.headers["Authorization"] = "Basic abc"
        answer = await CheckedHttpClient(HERE).send(request)
    assert (answer.status_code, answer.content) == (201, b'{"ok":1}')
    assert (answer.request, answer.next_request) == (request, None)
    (got,) = seen
    assert got.line == "POST /mcp HTTP/1.1"
    assert got.body == b"code=x+y&state=%C3%A9"
    assert (got.headers["authorization"], got.headers["accept-encoding"]) == (
        "Basic abc",
        "identity",
    )
    assert got.headers["host"].startswith("127.0.0.1:")


async def test_redirects_stay_in_their_origin_and_never_carry_credentials() -> None:
    lines: list[str] = []

    async def script(wire: Wire) -> None:
        while request := await wire.request():
            lines.append(request.line)
            path = request.line.split(" ")[1]
            where = {"/mcp": "/b", "/b": "c", "/away": "https://evil.example/"}.get(path, "/d")
            status = "200 OK" if path == "/c" else "302 Found"
            await wire.answer(path.encode(), f"Location: {where}", status=status)

    async with serving(script) as url:
        guarded = CheckedHttpClient(HERE)
        assert (await guarded.send(ask(url))).content == b"/c"
        assert (await guarded.send(ask(url.replace("/mcp", "/away")))).status_code == 302
        assert (await guarded.send(ask(url, "POST", code="x"))).status_code == 302
        assert (await guarded.send(ask(url.replace("/mcp", "/x")))).status_code == 302
    assert [line.split(" ")[1] for line in lines] == [
        "/mcp", "/b", "/c", "/away", "/mcp", "/x", "/d", "/d", "/d",
    ]  # fmt: skip


@pytest.mark.parametrize("trouble", ["huge", "compressed", "cut", "silent"])
async def test_answers_are_bounded(trouble: str) -> None:
    async def script(wire: Wire) -> None:
        while await wire.request():
            match trouble:
                case "huge":
                    await wire.answer(bytes(BODY_BYTES_MAX + 1))
                case "compressed":
                    await wire.answer(b"x", "Content-Encoding: gzip")
                case "cut":
                    await wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")
                    return
                case _:
                    return

    async with serving(script) as url:
        with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:\d+ cannot be reached: "):
            await CheckedHttpClient(HERE).send(ask(url))


async def test_who_is_not_there_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:1 cannot be reached: "):
        await CheckedHttpClient(HERE).send(ask("http://127.0.0.1:1/"))
    with pytest.raises(Unreachable, match="its name is unknown"):
        await CheckedHttpClient(HERE).send(ask("https://none-such.invalid/"))


async def test_the_certificate_must_be_for_the_name_although_an_address_is_connected_to(
    tmp_path: Path,
) -> None:
    file = certificate(tmp_path)  # for 127.0.0.1, and not for localhost
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)

    async def script(wire: Wire) -> None:
        while await wire.request():
            await wire.answer(b"{}")

    async with serving(script, tls=tls) as url:
        guarded = CheckedHttpClient(HERE, ca_file=str(file))
        assert (await guarded.send(ask(url))).status_code == 200
        with pytest.raises(Unreachable, match="certificate"):
            await guarded.send(ask(url.replace("127.0.0.1", "localhost")))
        with pytest.raises(Unreachable, match="certificate"):
            await CheckedHttpClient(HERE).send(ask(url))
