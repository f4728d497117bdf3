import pytest
from msgspec import structs

from metamcp_supervisor.telemetry import health
from metamcp_supervisor.telemetry.health import GatewayPulse
from metamcp_supervisor.verbs import GatewayStatus, ServerStatus
from tests.supervisor.small_gateway import SmallGateway, server

ALIVE = GatewayPulse(fronts=("warming", "ready"), nursery_pid=76)


def status(*servers: ServerStatus, state: str = "active") -> GatewayStatus:
    return structs.replace(SmallGateway(*servers).status(), state=state)


def lines(checks: list[health.HealthCheck]) -> list[str]:
    return [str(check) for check in checks]


@pytest.mark.promise("M86")
def test_alive_needs_nursery_and_a_front_and_no_server() -> None:
    assert health.passes(health.live(ALIVE))
    without = structs.replace(ALIVE, nursery_pid=0)
    assert lines(health.live(without)) == [
        "[+]loop ok",
        "[-]nursery not running",
        "[+]fronts ok",
    ]


def test_alive_fails_when_no_front_serves() -> None:
    assert lines(health.live(structs.replace(ALIVE, fronts=("warming", "error")))) == [
        "[+]loop ok",
        "[+]nursery ok",
        "[-]fronts none serves (warming, error)",
    ]
    assert not health.passes(health.live(structs.replace(ALIVE, fronts=())))


@pytest.mark.promise("M86")
def test_alive_fails_when_the_supervisors_own_loop_is_late() -> None:
    assert health.passes(health.live(structs.replace(ALIVE, loop_lag_s=4.9)))
    late = health.live(structs.replace(ALIVE, loop_lag_s=5.0))
    assert lines(late)[0] == "[-]loop 5.0 s late"


@pytest.mark.promise("M86")
def test_what_is_excluded_does_not_matter_and_unknown_names_are_told() -> None:
    checks = health.ready(status(server("git", "error", required=True)))
    assert not health.passes(checks)
    found, remarks = health.without(checks, ["server:git", "nobody", "a\nb", "nobody"])
    assert health.passes(found)
    assert lines(found)[-1] == "[+]server:git excluded: ok"
    assert remarks == ["no check here is named 'nobody'", "no check here is named 'a\\nb'"]
    assert len(health.quote_name("x" * 1000)) < 110


def test_ready_waits_for_required_servers_only() -> None:
    git, fs = server("git", "error"), server("fs", "idle", required=True)
    assert health.passes(health.ready(status(git, fs)))
    bad = structs.replace(git, required=True, reason="spawn", message="secret path")
    assert lines(health.ready(status(bad, fs))) == [
        "[+]gateway ok",
        "[+]fronts ok",
        "[-]server:git error: spawn",
        "[+]server:fs ok",
    ]


@pytest.mark.parametrize("state", ["starting", "draining"])
def test_a_gateway_that_starts_or_drains_is_not_ready(state: str) -> None:
    assert lines(health.ready(status(state=state)))[0] == f"[-]gateway {state}"


def test_started_means_that_the_first_warm_up_is_decided() -> None:
    assert not health.passes(health.check_startup(status(state="starting")))
    assert not health.passes(health.check_startup(status(server("git", "warming", required=True))))
    assert health.passes(health.check_startup(status(server("git", "warming"))))
    assert health.passes(health.check_startup(status(server("git", "error", required=True))))


def test_a_stopped_server_is_missed_only_where_it_is_named() -> None:
    found = status(server("git", "stopped"), server("fs", "error"), server("web", "idle"))
    assert [s.name for s in health.not_ready(found)] == ["fs"]
    assert [s.name for s in health.not_ready(found, ["git", "web"])] == ["git"]


def test_what_serves_a_single_client_is_missed_only_by_its_name() -> None:
    git, own = server("git"), server("git@00000000002a", "warming")
    assert health.not_ready(status(git, own)) == []
    assert health.not_ready(status(git, own), [own.name]) == [own]
