"""A configuration that is changed on the disk, and nobody says so."""

import json

import pytest

from tests.live.client import Client
from tests.live.gateway import Gateway, fake
from tests.live.test_first_launch import Folder, folder
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M78")]
WATCH = "[gateway]\nwatch = true"

__all__ = ["folder"]


def names(gateway: Gateway) -> list[str]:
    return [server["name"] for server in gateway.status()["servers"]]


def refusals(gateway: Gateway) -> list[str]:
    return [event["cause"] for event in gateway.events(type="reload refused")]


def reloads(gateway: Gateway) -> int:
    return sum(event["what"] == "reloaded" for event in gateway.events())


def test_a_changed_file_is_read_and_only_what_changed_restarts() -> None:
    with Gateway({"a": fake(), "b": fake()}, extra=WATCH) as gateway:
        pid = gateway.server("a")["pid"]
        gateway.write({"a": fake(), "c": fake()})
        until(lambda: names(gateway) == ["a", "c"], "the new file counts")
        assert gateway.server("a")["pid"] == pid


def test_a_file_with_an_error_changes_nothing_is_told_once_and_counts_when_it_is_mended() -> None:
    with Gateway({"a": fake()}, extra=WATCH) as gateway:
        gateway.config.write_text("[servers.a]\ncomand = 1\n")
        until(lambda: refusals(gateway), "the refusal is in the journal")
        assert names(gateway) == ["a"]
        gateway.write({"a": fake(), "b": fake()})
        until(lambda: names(gateway) == ["a", "b"], "the mended file counts")
        (refusal,) = refusals(gateway)
        assert "metamcp.toml:2: servers.a.comand" in refusal


def test_what_is_not_to_be_watched_is_not_read() -> None:
    with Gateway({"a": fake()}) as still, Gateway({"a": fake()}, extra=WATCH) as watching:
        for gateway in (still, watching):
            gateway.write({"b": fake()})
        until(lambda: names(watching) == ["b"], "who watches has read its file")
        assert names(still) == ["a"]


def test_who_writes_a_server_down_beside_a_running_gateway_has_it_a_moment_later(
    folder: Folder,
) -> None:
    folder.up("--config", ".mcp.json")
    until(folder.answers, "it listens")
    client = Client(folder.port)
    until(lambda: "my-echo__echo" in client.tools(), "the first server is ready")
    folder.add("Other")
    until(lambda: "other__echo" in client.tools(), "the second server is ready")
    client.close()


def test_a_file_that_is_included_is_watched_also_while_it_is_missing_or_wrong() -> None:
    with Gateway({"a": fake()}, extra=WATCH) as gateway:
        included = gateway.config.with_name("more.json")
        text = gateway.config.read_text()
        gateway.config.write_text(f'include = ["more.json"]\n{text}')
        until(lambda: refusals(gateway), "it does not exist")
        included.write_text('{"mcpServers": ')
        until(lambda: len(refusals(gateway)) == 2, "it is no JSON")
        included.write_text(json.dumps({"mcpServers": {"b": {"command": "no-such-program"}}}))
        until(lambda: names(gateway) == ["a", "b"], "the mended file counts")


@pytest.mark.promise("M52")
def test_workflows_are_read_again_when_their_files_change() -> None:
    with Gateway({"a": fake()}, extra=WATCH) as gateway:
        flows = gateway.config.with_name("flows")
        text = gateway.config.read_text()
        gateway.config.write_text(f'workflows = ["flows"]\n{text}')
        until(lambda: refusals(gateway), "the folder does not exist")
        flows.mkdir()
        (flows / "one.yaml").write_text("name: one\nsteps: [{wait: soon}]\n")
        until(lambda: len(refusals(gateway)) == 2, "the workflow has a mistake")
        assert "flows/one.yaml:2: steps[0].wait: must be a duration" in refusals(gateway)[-1]
        (flows / "one.yaml").write_text("name: one\nsteps: [{wait: 5s}]\n")
        until(lambda: reloads(gateway) == 1, "the mended file counts")
        (flows / "two.yaml").write_text("name: two\nsteps: [{wait: 5s}]\n")
        until(lambda: reloads(gateway) == 2, "so does a second file of the folder")
