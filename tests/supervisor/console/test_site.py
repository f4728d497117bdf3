"""Who may ask the console for what, over HTTP: hosts, origins, sessions, roles."""

import asyncio
import contextlib
import json
from pathlib import Path

import htpy as h
import pytest

from metamcp_supervisor import runtime
from metamcp_supervisor.console import site
from metamcp_supervisor.console.gateway_client import SessionEnded, connect_gateway
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from tests.hosts import MORE_THAN_A_HOST
from tests.supervisor.console.served import OWN, Browser, opened
from tests.supervisor.console.test_fragments import HOSTILE, Elements
from tests.supervisor.small_gateway import server

pytestmark = pytest.mark.process

SERVERS = server("git"), server("db", "error", reason="exit", message="gone")


async def raw(browser: Browser, request: bytes) -> bytes:
    """The answer to these bytes, to its end."""
    host, port = browser.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    found = await reader.read()
    writer.close()
    return found


async def test_every_answer_has_the_headers_that_close_a_browser() -> None:
    async with opened(*SERVERS) as browser:
        await browser.login()
        answers = [
            await browser.http.get("/"),
            await browser.http.get("/static/console.js"),
            await browser.http.get("/static/none"),
            await browser.get("/servers"),
            await browser.get("/none"),
            await browser.http.get("/frame"),
        ]
        for answer in answers:
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
            for name in ("cross-origin-opener-policy", "cross-origin-resource-policy"):
                assert answer.headers[name] == "same-origin"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] in ("no-store", "no-cache")
            assert "set-cookie" not in answer.headers


async def test_a_page_without_a_session_has_no_data() -> None:
    async with opened(*SERVERS) as browser:
        shells = [(await browser.http.get(path)).text for path in ("/", "/servers/git", "/x?y=z")]
        assert len(set(shells)) == 1
        assert "git" not in shells[0]
        for path in ("/f/servers", "/frame", "/events", "/download/logs/git"):
            answer = await browser.http.get(path, headers=OWN)
            assert answer.status_code == 401
            wrong = {**OWN, "authorization": "Bearer wrong"}
            answer = await browser.http.get(path, headers=wrong)
            assert answer.status_code == 401
            assert "has ended" in answer.text


@pytest.mark.promise("M107")
@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "[::", *MORE_THAN_A_HOST],
)
async def test_a_foreign_name_of_the_console_is_refused_everywhere(host: str) -> None:
    async with opened() as browser:
        for path in ("/", "/static/console.js", "/f/servers", "/login"):
            head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            assert (await raw(browser, head.encode())).startswith(
                (b"HTTP/1.1 421", b"HTTP/1.1 400")
            )


@pytest.mark.promise("M107")
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        {"sec-fetch-site": "none"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"sec-fetch-site": "same-origin", "origin": "https://evil.example"},
        {},
    ],
)
async def test_another_page_changes_nothing_even_with_the_token(headers: dict[str, str]) -> None:
    async with opened(*SERVERS) as browser:
        await browser.login()
        given = {**headers, "authorization": f"Bearer {browser.token}"}
        form = {"order": "stop", "names": "git"}
        answer = await browser.http.post("/f/servers", data=form, headers=given)
        assert answer.status_code == 403
        assert (await browser.http.get("/f/servers", headers=given)).status_code == 403
        assert browser.gateway.servers["git"].state == "ready"


async def test_a_get_changes_nothing() -> None:
    async with opened(*SERVERS) as browser:
        await browser.login()
        for page in site.all_pages():
            await browser.get(f"/{page.name}?order=stop&names=git")
        answer = await browser.http.put("/f/servers", headers=browser.headers)
        assert answer.status_code == 405
        assert browser.gateway.servers["git"].state == "ready"


@pytest.mark.promise("M67")
async def test_an_order_is_carried_out_in_the_name_of_the_session() -> None:
    async with opened(*SERVERS) as browser:
        ordered: list[str] = []
        browser.gateway.journal.ordered = ordered.append
        await browser.login(Role.OPERATOR)
        answer = await browser.post("/servers", order="stop", names=["git", "db"])
        assert answer.status_code == 200
        assert "Stop was ordered: git, db." in Elements(answer.text).text
        assert browser.gateway.servers["git"].state == "stopped"
        assert ordered[-1].startswith("'stop git db' asked by console session ")
        assert "(operator)" in ordered[-1]


@pytest.mark.promise("M125")
@pytest.mark.parametrize("page", ["/servers", "/servers/git"])
async def test_an_order_that_does_not_outlast_a_restart_is_answered_with_that(page: str) -> None:
    async with opened(*SERVERS) as browser:
        browser.gateway.unsaved = "this does not outlast a restart of the gateway: the disk is full"
        await browser.login(Role.OPERATOR)
        text = Elements((await browser.post(page, order="stop", names=["git"])).text).text
        assert "was ordered" in text
        assert browser.gateway.unsaved in text


@pytest.mark.promise("M67")
async def test_a_viewer_looks_and_its_orders_are_refused_in_one_sentence() -> None:
    async with opened(*SERVERS) as browser:
        await browser.login(Role.VIEWER)
        page = await browser.get("/servers")
        assert page.status_code == 200
        assert not [tag for tag, _ in Elements(page.text).found if tag == "input" and _.get("form")]
        answer = await browser.post("/servers/git", order="stop")
        text = Elements(answer.text).text
        assert "'stop' needs the role operator, and this session is viewer here" in text
        assert browser.gateway.servers["git"].state == "ready"
        frame = await browser.http.get("/frame", headers=browser.headers)
        assert "viewer" in Elements(frame.text).text


async def test_a_link_that_was_used_opens_nothing() -> None:
    async with opened() as browser:
        link = {"link": browser.gateway.sessions.link(Role.ADMIN)}
        assert (await browser.http.post("/login", json=link, headers=OWN)).status_code == 200
        again = await browser.http.post("/login", json=link, headers=OWN)
        assert again.status_code == 403
        assert "was used" in again.text
        assert (await browser.http.post("/login", content=b"[", headers=OWN)).status_code == 400
        assert (await browser.http.get("/login", headers=OWN)).status_code == 405


@pytest.mark.promise("M107")
async def test_a_session_that_ends_while_its_connection_is_open_asks_nothing_more() -> None:
    async with opened() as browser:
        await browser.login()
        async with connect_gateway(browser.directory, browser.token) as ask:
            await ask("status")
            browser.gateway.sessions.end([])
            with pytest.raises(SessionEnded):
                await ask("status")


async def test_a_form_that_is_too_large_is_refused() -> None:
    async with opened() as browser:
        await browser.login()
        answer = await browser.post("/servers", names="a" * (site.BODY_BYTES_MAX + 1))
        assert answer.status_code == 413
        answer = await browser.http.get(
            "/f/servers?" + "&".join(["a=b"] * (site.FIELDS_MAX + 1)), headers=browser.headers
        )
        assert answer.status_code in (400, 431)


@pytest.mark.promise("M107")
async def test_what_servers_say_is_inert_on_every_page() -> None:
    hostile = [
        server("bad", "error", reason=text[:500], message=text, origin=text, lacking=(text,))
        for text in HOSTILE
        if text.isascii() or text.isprintable()
    ]
    first = hostile[0]

    for one in (first, *hostile[1:3]):
        async with opened(one, server("git")) as browser:
            await browser.login()
            logs, journal = browser.gateway.logs, browser.gateway.journal
            for text in HOSTILE:
                written = text.encode("utf-8", "replace").decode()
                logs.add("bad", "stderr", [written])
                journal.add("bad", "error", written)
            for path in ("/servers", "/servers/bad", "/logs/bad", "/logs/bad?beside=git&q=<b>"):
                answer = await browser.get(path)
                assert answer.status_code == 200, path
                found = Elements(answer.text)
                assert not {tag for tag, _ in found.found} & {"script", "img", "style", "iframe"}, (
                    path
                )
                for _, attrs in found.found:
                    assert not [name for name in attrs if name.startswith("on")], path
                assert "\x1b" not in answer.text
                assert "\u202e" not in answer.text


@pytest.mark.promise("M107")
async def test_a_page_hears_of_news_until_its_session_is_revoked() -> None:
    async with opened(*SERVERS) as browser:
        await browser.login()
        gateway = browser.gateway
        kinds: set[str] = set()
        async with browser.http.stream("GET", "/events", headers=browser.headers) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            wanted = {"servers", "config", "logs:git"}
            async for line in answer.aiter_lines():
                if line == "event: ended":
                    break
                if line.startswith("data: ") and "kinds" in line:
                    kinds |= set(json.loads(line.removeprefix("data: "))["kinds"])
                    if not kinds:
                        gateway.journal.add("git", "ready→error")
                        gateway.journal.add("gateway", "reload")
                        gateway.logs.add("git", "stderr", ["a line"])
                if kinds >= wanted:
                    gateway.sessions.end([])
            assert kinds >= wanted
        assert (await browser.get("/servers")).status_code == 401


async def test_a_page_hears_how_much_waits_for_a_person() -> None:
    async with opened(*SERVERS) as browser:
        await browser.login()
        counts: list[int] = []
        async with browser.http.stream("GET", "/events", headers=browser.headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    counts.append(json.loads(line.removeprefix("data: "))["waiting"])
                    browser.gateway.parked = 3
                if counts[-1:] == [3]:
                    break
        assert counts[0] == 0


def test_only_who_may_answer_has_a_place_for_the_count_of_what_waits() -> None:
    places = [Elements(str(h.fragment[site.frame(role, "1", "here")])).found for role in Role]
    waits = [any(attrs.get("id") == "waits" for _, attrs in found) for found in places]
    assert waits == [role >= Role.OPERATOR for role in Role]


async def test_more_browsers_than_may_follow_are_told_and_pages_still_answer() -> None:
    async with opened(*SERVERS) as browser, contextlib.AsyncExitStack() as streams:
        for number in range(site.STREAMS_MAX):
            if number % site.OWN_STREAMS_MAX == 0:
                await browser.login()
            stream = browser.http.stream("GET", "/events", headers=browser.headers)
            answer = await streams.enter_async_context(stream)
            assert answer.status_code == 200
        await browser.login()
        refused = await browser.http.get("/events", headers=browser.headers)
        assert refused.status_code == 503
        assert "browsers follow the gateway already" in refused.text
        pages = [browser.get("/servers") for _ in range(2 * site.ASKS_MAX)]
        assert {page.status_code for page in await asyncio.gather(*pages)} == {200}


@pytest.mark.promise("M107")
async def test_one_session_takes_no_stream_from_another_one() -> None:
    async with opened(*SERVERS) as browser:
        await browser.login(Role.VIEWER)
        async with contextlib.AsyncExitStack() as streams:
            answers: list[int] = []
            for _ in range(2 * site.STREAMS_MAX):
                stream = browser.http.stream("GET", "/events", headers=browser.headers)
                answer = await streams.enter_async_context(stream)
                answers.append(answer.status_code)
            assert answers.count(200) == site.OWN_STREAMS_MAX
            assert set(answers) == {200, 503}
            await browser.login()
            stream = browser.http.stream("GET", "/events", headers=browser.headers)
            assert (await streams.enter_async_context(stream)).status_code == 200


async def test_a_gateway_that_is_gone_at_the_hello_does_not_end_the_session(tmp_path: Path) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"jsonrpc":"2.0","method":"hello","params":{"v":1}}\n')
        await reader.readline()
        writer.close()

    (tmp_path / runtime.TOKEN).write_text("token")
    path = runtime.socket_path(str(tmp_path))
    async with await asyncio.start_unix_server(leave, path):
        with pytest.raises(Failed) as failed:
            async with connect_gateway(str(tmp_path), "session"):
                pass
    assert failed.value.exit == Exit.NOT_RUNNING
    assert not isinstance(failed.value, SessionEnded)


async def test_a_name_that_nobody_knows_gets_a_sentence() -> None:
    async with opened(*SERVERS) as browser:
        await browser.login()
        answer = await browser.get("/servers/nonesuch")
        assert answer.status_code == 404
        assert "no server is named 'nonesuch'" in Elements(answer.text).text
        answer = await browser.get("/nonesuch")
        assert answer.status_code == 404


@pytest.mark.promise("M107")
async def test_somebody_without_servers_is_told_what_to_do() -> None:
    async with opened() as browser:
        await browser.login(Role.VIEWER)
        text = Elements((await browser.get("/")).text).text
        assert "no server is configured" in text
        assert "metamcp import" in text
        assert "claude mcp add" in text


async def test_an_unchanged_file_is_not_sent_again() -> None:
    async with opened() as browser:
        first = await browser.http.get("/static/htmx.js")
        again = await browser.http.get(
            "/static/htmx.js", headers={"if-none-match": first.headers["etag"]}
        )
        assert (again.status_code, again.content) == (304, b"")


async def test_all_lines_of_a_log_can_be_downloaded() -> None:
    async with opened(*SERVERS) as browser:
        await browser.login()
        browser.gateway.logs.add("git", "stderr", [f"line {n}" for n in range(3000)])
        answer = await browser.http.get("/download/logs/git", headers=browser.headers)
        lines = answer.text.splitlines()
        assert len(lines) == 3000
        assert lines[-1].endswith("stderr  line 2999")
        page = Elements((await browser.get("/logs/git")).text)
        assert sum(tag == "li" for tag, _ in page.found) == 500
