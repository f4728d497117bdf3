import asyncio
import http.client
import itertools
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.config.config import Address, UnixAddress
from metamcp_supervisor.systemd import listen
from metamcp_supervisor.telemetry.admin import PAGES, Admin
from metamcp_supervisor.telemetry.health import GatewayPulse, Readings
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_worker.http.requests import HttpRequest
from metamcp_worker.http.serve import HttpServer
from tests import unixhttp
from tests.hosts import MORE_THAN_A_HOST
from tests.supervisor.small_gateway import SmallGateway, server

DOCS = Path(__file__).parents[3] / "docs" / "operating.md"
Answer = tuple[int, dict[str, str], str]
Ask = Callable[..., Coroutine[Any, Any, Answer]]


def fetch(port: int, path: str, method: str, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers={"Accept-Encoding": "gzip", **headers})
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, fields, answer.read().decode()
    finally:
        connection.close()


class LookedAt(SmallGateway):
    """A gateway that counts how often somebody looks at its status."""

    looks = 0

    def status(self, names: Collection[str] | None = None) -> GatewayStatus:
        self.looks += 1
        return super().status(names)


class Seen:
    """What there is to see of it, beside its status."""

    def __init__(self, gateway: SmallGateway) -> None:
        self._gateway = gateway

    def read(self) -> Readings:
        return Readings()

    def pulse(self) -> GatewayPulse:
        states = tuple(front.state for front in self._gateway.fronts)
        return GatewayPulse(fronts=states, nursery_pid=self._gateway.nursery_pid)


@asynccontextmanager
async def opened_admin(
    gateway: SmallGateway,
    clock: Callable[[], float] = lambda: 0.0,
    opens: Callable[[str], bool] = lambda _key: False,
    request: type[HttpRequest] = HttpRequest,
) -> AsyncGenerator[Ask]:
    """A function that asks the pages over a real socket."""
    address = Address("ops.example", 0)
    admin = Admin(
        gateway.status, Seen(gateway), Metrics("9.9"), address, clock, ["*.example.com"], opens
    )  # fmt: skip
    server = HttpServer(admin, request=request)
    sock = socket.create_server(("127.0.0.1", 0))
    port: int = sock.getsockname()[1]

    async def ask(
        path: str, method: str = "GET", host: str = "localhost", authorization: str = ""
    ) -> Answer:
        headers = {"Host": host, "Authorization": authorization}
        return await asyncio.to_thread(fetch, port, path, method, headers)

    await server.start([sock])
    try:
        yield ask
    finally:
        await server.drain(1.0)


@pytest.mark.promise("M86")
async def test_a_healthy_gateway_says_ok_on_every_health_page() -> None:
    async def lines(ask: Ask, path: str) -> Sequence[str]:
        return (await ask(path))[2].splitlines()

    async with opened_admin(SmallGateway(server("git", required=True))) as ask:
        for path in PAGES:
            code, headers, body = await ask(path)
            assert (code, body) == (200, "ok\n")
            assert headers["cache-control"] == "no-store"
        assert await lines(ask, "/readyz?verbose") == [
            "[+]gateway ok", "[+]fronts ok", "[+]server:git ok", "ok",
        ]  # fmt: skip


@pytest.mark.promise("M86")
async def test_a_missing_required_server_makes_it_unready_but_not_dead() -> None:
    async with opened_admin(
        SmallGateway(server("git", "error", required=True, reason="spawn", message="secret"))
    ) as ask:
        assert (await ask("/livez"))[0] == 200
        for path in ("/readyz", "/healthz"):
            code, _, body = await ask(path)
            assert code == 503
            assert "[-]server:git error: spawn\n" in body
            assert "secret" not in body


@pytest.mark.promise("M86")
async def test_the_question_of_life_needs_no_status() -> None:
    gateway = SmallGateway(server("git", required=True))
    gateway.fault = "every server is looked at"
    async with opened_admin(gateway) as ask:
        assert (await ask("/livez"))[0] == 200
        assert (await ask("/readyz"))[0] == 500
        gateway.nursery_pid = 0
        code, _, body = await ask("/livez")
        assert code == 503
        assert "[-]nursery not running\n" in body


@pytest.mark.promise("M85")
async def test_the_metrics_are_text_for_prometheus() -> None:
    async with opened_admin(SmallGateway()) as ask:
        code, headers, body = await ask("/metrics")
        assert code == 200
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "content-encoding" not in headers, "on one machine that costs more than it saves"
        assert 'metamcp_build_info{python="' in body


async def test_the_metrics_are_made_anew_only_when_they_are_old() -> None:
    gateway = SmallGateway()
    times = itertools.chain([0.0, 0.0, 0.1, 0.2], itertools.repeat(0.3))
    async with opened_admin(gateway, lambda: next(times)) as ask:
        assert "metamcp_up 1.0" in (await ask("/metrics"))[2]
        gateway.state = "draining"
        assert "metamcp_up 1.0" in (await ask("/metrics"))[2]
        assert "metamcp_up 1.0" in (await ask("/metrics"))[2]
        assert "metamcp_up 0.0" in (await ask("/metrics"))[2]


async def test_a_page_that_took_long_is_used_for_ten_times_as_long() -> None:
    gateway, times = LookedAt(), iter((0.0, 1.0, 9.9, 10.0, 10.0, 10.2, 10.3))
    async with opened_admin(gateway, lambda: next(times, 10.3)) as ask:
        for looks in (1, 1, 2, 2, 3):  # at 0, 9.9, 10, 10.2 and 10.3 seconds
            await ask("/metrics")
            assert gateway.looks == looks


async def test_scrapes_at_the_same_time_share_a_page() -> None:
    gateway = LookedAt()
    async with opened_admin(gateway) as ask:
        answers = await asyncio.gather(*(ask("/metrics") for _ in range(5)))
        assert len({body for _, _, body in answers}) == 1
        assert gateway.looks == 1


async def test_a_foreign_name_that_points_here_is_refused() -> None:
    async with opened_admin(SmallGateway()) as ask:
        for host in ("localhost", "127.0.0.1:6271", "[::1]:6271", "OPS.example:1", "10.1.2.3"):
            assert (await ask("/livez", host=host))[0] == 200, host
        foreign = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:6271", "")
        for host in (*foreign, *MORE_THAN_A_HOST):
            assert (await ask("/metrics", host=host))[0] == 403, host
            assert (await ask("/readyz", host=host))[0] == 200, "a probe calls it what it likes"
        assert (await ask("/metrics", host="metrics.example.com:1"))[0] == 200, "it is allowed"


class FromAbroad(HttpRequest):
    @property
    def address(self) -> str:
        return "::ffff:203.0.113.9"


async def test_from_another_machine_every_page_needs_a_key_and_the_name_is_free() -> None:
    async with opened_admin(
        SmallGateway(), opens=lambda key: key == "right", request=FromAbroad
    ) as ask:
        for path in ("/metrics", *PAGES, "/other"):
            for header in ("", "Bearer wrong", "Basic right", "Bearer"):
                code, headers, body = await ask(path, authorization=header)
                assert (code, headers["www-authenticate"]) == (401, "Bearer")
                assert "metamcp keys create NAME --scope metrics" in body
        code, _, body = await ask("/metrics", host="pod.example", authorization="bearer right")
        assert (code, "metamcp_build_info" in body) == (200, True)
        assert (await ask("/livez", authorization="Bearer right"))[0] == 200


async def test_on_a_unix_socket_no_name_is_a_foreign_one(tmp_path: Path) -> None:
    path = tmp_path / "ops.sock"
    address = UnixAddress(path)
    small = SmallGateway()
    admin = Admin(small.status, Seen(small), Metrics("9.9"), address, lambda: 0.0)
    server = HttpServer(admin)
    async with asyncio.timeout(30):
        await server.start([listen.bind_file(address, "--ops-listen")])
        try:
            for host in ("localhost", "metrics.example:80", ""):
                for page in ("/metrics", *PAGES):
                    code, _ = await asyncio.to_thread(unixhttp.get, path, page, host)
                    assert code == 200, (page, host)
        finally:
            await server.drain(1.0)


async def test_other_paths_and_methods_are_told_what_there_is() -> None:
    async with opened_admin(SmallGateway()) as ask:
        code, _, body = await ask("/")
        assert code == 404
        assert all(path in body for path in ("/metrics", *PAGES))
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            code, headers, _ = await ask("/metrics", method)
            assert (code, headers["allow"]) == (405, "GET, HEAD")


async def test_a_head_is_the_answer_without_its_body() -> None:
    async with opened_admin(SmallGateway()) as ask:
        code, headers, body = await ask("/livez", "HEAD")
        assert (code, headers["content-length"], body) == (200, "3", "")


def test_the_documentation_knows_every_page() -> None:
    text = DOCS.read_text()
    assert all(f"| `{path}` |" in text for path in ("/metrics", *PAGES))
