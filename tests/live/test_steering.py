"""What an operator does with one server while clients are at work."""

from collections.abc import Iterator

import pytest

from benchmarks import machine
from tests.live.client import Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"git": fake(), "other": fake()}) as found:
        yield found


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    found = Client(gateway.port)
    yield found
    found.close()


@pytest.mark.promise("M80")
def test_a_drained_server_runs_on_and_gets_no_new_calls(gateway: Gateway, client: Client) -> None:
    before = gateway.server("git")
    gateway.ctl("drain", "git")
    until(lambda: "error" in client.call("git__echo", text="a"), "calls are kept from it")
    answer = client.call("git__echo", text="a")
    assert "an operator keeps calls from it" in answer["error"]["message"]
    assert gateway.server("git")["state"] == "draining"
    assert "metamcp ctl undrain git" in " ".join(gateway.ctl("describe", "git").split())
    assert client.text("other__echo", text="a") == "a"
    gateway.ctl("undrain", "git")
    until(lambda: "result" in client.call("git__echo", text="a"), "calls come again")
    assert gateway.server("git")["pid"] == before["pid"]


@pytest.mark.promise("M80")
def test_only_an_operator_lets_a_server_out_of_quarantine(gateway: Gateway, client: Client) -> None:
    gateway.ctl("quarantine", "git", "--why", "it talks too much")
    until(lambda: gateway.server("git")["phase"] == "quarantined", "it is kept out")
    until(lambda: not gateway.server("git")["worker_pid"], "nothing of it runs")
    until(
        lambda: (
            "it is in quarantine: it talks too much"
            in client.call("git__echo", text="a")["error"]["message"]
        ),
        "the front says so",
    )
    assert "it talks too much" in " ".join(gateway.ctl("describe", "git").split())
    assert not gateway.server("git")["worker_pid"]
    gateway.ctl("clear", "git")
    gateway.wait("git")
    assert client.text("git__echo", text="a") == "a"
    gateway.ctl("clear", "git", ok=[1])


@pytest.mark.promise("M73")
def test_the_stacks_of_a_worker_can_be_seen_while_it_works(
    gateway: Gateway, client: Client
) -> None:
    # Frames of machine code are in no stack of Python.
    seen = "child/run.py" if machine.gateway() == machine.PURE else "metamcp_worker/__main__.py"
    assert seen in gateway.ctl("dump-stacks", "git")
    assert client.text("git__echo", text="a") == "a"
    assert "stacks" in gateway.ctl("logs", "git")
