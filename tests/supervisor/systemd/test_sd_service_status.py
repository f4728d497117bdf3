"""What the gateway says of itself, by its status."""

from metamcp_supervisor.telemetry import health
from metamcp_supervisor.verbs import FrontStatus, GatewayStatus, ServerStatus


def server(name: str, state: str, phase: str = "", reason: str = "") -> ServerStatus:
    return ServerStatus(name=name, state=state, phase=phase or state, generation=1, reason=reason)


def status(*servers: ServerStatus, state: str = "active", front: str = "ready") -> GatewayStatus:
    return GatewayStatus(
        version="9.9",
        pid=1,
        state=state,
        up_s=1.0,
        url="",
        ops_url="",
        config_hash="",
        config_files=(),
        config_age_s=1.0,
        state_dir="/state",
        nursery_pid=2,
        fronts=(FrontStatus(number=0, pid=3, state=front, up_s=1.0),),
        servers=servers,
        endpoints={},
    )


def test_the_sentence_counts_what_is_wanted_and_names_what_is_missing() -> None:
    found = status(
        server("git", "active"),
        server("fs", "idle"),
        server("old", "stopped", "disabled"),
        server("linear", "error", "backoff", "connect"),
    )
    said = "2 of 3 servers ready; not ready: linear (backoff: connect)"
    assert health.sentence(found, refused=False) == said


def test_many_missing_servers_are_a_number() -> None:
    found = status(*(server(f"s{number}", "warming") for number in range(9)), state="starting")
    said = health.sentence(found, refused=True)
    assert said.startswith("starts; 0 of 9 servers ready; not ready: s0 (warming), s1")
    assert "6 more; the last reload was refused" in said


def test_nothing_wanted_and_the_end_have_sentences_of_their_own() -> None:
    assert health.sentence(status(), refused=False) == "no server is wanted"
    ending = status(server("git", "draining"), state="draining")
    assert health.sentence(ending, refused=True).startswith("stops:")


def test_only_a_lasting_lack_of_fronts_or_nursery_ends_the_signs_of_life() -> None:
    limit = max(health.FRONTLESS_S_MAX, health.UNNURSED_S_MAX)
    found = status(server("git", "error"), front="error")
    assert not health.has_front(found)
    assert health.has_front(status())
    assert health.faults(found, frontless_s=limit, unnursed_s=limit) == []
    faults = health.faults(found, frontless_s=limit + 1, unnursed_s=limit + 1)
    assert faults == ["no nursery for 61 s", "no front serves for 61 s"]
    ending = status(state="draining", front="error")
    assert health.faults(ending, frontless_s=limit + 1, unnursed_s=limit + 1) == []
