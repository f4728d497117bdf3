"""Names by which a gateway is asked for, and the listener for probes of other machines."""

import json
import urllib.error
import urllib.request

import pytest

from tests.live.gateway import Gateway, fake, free_port
from tests.waiting import until

pytestmark = pytest.mark.live


def got(port: int, path: str, host: str, accept: str = "*/*") -> tuple[int, str]:
    """Status and body."""
    headers = {"Host": host, "Accept": accept}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.promise("M99")
def test_allowed_names_count_at_both_ports_and_probes_from_elsewhere_learn_no_names() -> None:
    probed = free_port()
    own = f"""
[gateway]
health_listen = "0.0.0.0:{probed}"
allowed_hosts = ["gateway.example.com", "*.internal:80"]
"""
    with Gateway(
        {"secret": {**fake("--exit-after", "1"), "required": True}}, extra=own, wait=False
    ) as gateway:
        until(gateway.answers, "the gateway answers")
        for port, path in ((gateway.port, "/api"), (gateway.ops_port, "/metrics")):
            assert got(port, path, "gateway.example.com:8443")[0] == 200, path
            assert got(port, path, "box.internal")[0] == 200
            refused, told = got(port, path, "box.internal:8080")
            assert refused in (421, 403)
            assert "allowed_hosts" in told
        status, body = got(probed, "/readyz?verbose", "10.1.2.3:99")
        assert (status, body) == (503, "failed\n")
        assert "secret" in gateway.ops("/readyz?verbose")[1]
        assert got(probed, "/livez", "whoever")[0] == 200
        assert got(probed, "/metrics", "localhost")[0] == 404


def test_a_browser_sees_what_this_is_and_how_to_connect() -> None:
    with Gateway({}, extra='[endpoints.default]\nnamespace = "default"\n') as gateway:
        place = f"127.0.0.1:{gateway.port}"
        status, body = got(gateway.port, "/", place, accept="text/html,*/*;q=0.8")
        assert status == 200
        assert f"claude mcp add --transport http metamcp http://{place}/mcp" in body
        assert got(gateway.port, "/", place)[0] == 404, "a program is told that nothing is here"
        assert got(gateway.port, "/", "evil.example", accept="text/html")[0] == 421


def test_every_error_of_rest_has_one_shape() -> None:
    with Gateway({"notes": fake()}, extra="") as gateway:
        for path, method, kind in (
            ("/api/notes__nothing", "POST", "application/json"),
            ("/api/notes__echo", "GET", ""),
            ("/api/notes__echo", "PUT", "application/json"),
            ("/api/notes__echo", "POST", "text/plain"),
            ("/metamcp/nowhere/api", "GET", ""),
            ("/metamcp/nowhere/api/notes__echo", "POST", "application/json"),
        ):
            request = urllib.request.Request(
                f"http://127.0.0.1:{gateway.port}{path}",
                b"{}" if method != "GET" else None, {"Content-Type": kind}, method=method,
            )  # fmt: skip
            with pytest.raises(urllib.error.HTTPError) as found:
                urllib.request.urlopen(request, timeout=10)
            with found.value as error:
                body = json.loads(error.read())
            assert set(body) == {"error"}, (path, method, body)
            assert {"code", "message"} <= set(body["error"])
