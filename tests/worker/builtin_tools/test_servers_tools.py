"""The built-in tools that bring whole servers into view: what they order and what they say."""

from typing import Any

import pytest

from metamcp_worker.builtin_tools import servers_tools
from metamcp_worker.ipc.disclosure import Activate, Deactivate, ViewContent
from metamcp_worker.ipc.messages import ServerState
from tests.worker.front.offers import offer
from tests.worker.front.places import Place, structured

NAMES = ["gateway_activate", "gateway_deactivate", "gateway_status"]


def place(**more: Any) -> Place:
    return Place("servers", git=offer("status", "log"), db=offer("query"), **more)


@pytest.mark.promise("M35")
def test_at_first_the_three_built_in_tools_are_in_view_and_nothing_else() -> None:
    assert place().listed == NAMES
    assert [item.key for item in servers_tools.FAMILY.items] == NAMES


@pytest.mark.promise("M35")
def test_activating_brings_all_tools_of_a_server_and_deactivating_takes_them_out() -> None:
    here = place()
    ask = here.ask("gateway_activate", name="git")
    assert ask.order == Activate("git")
    shown = ViewContent(servers=("git",))
    reply = here.done(ask, shown)
    assert reply.text == "git is active: its 2 tools are in view: git_status, git_log."
    assert structured(reply) == {
        "name": "git", "state": "active", "ready": True, "active": True, "tools": 2,
    }  # fmt: skip
    assert here.listed == [*NAMES, "git_status", "git_log"]
    again = here.done(here.ask("gateway_activate", name="git"), shown)
    assert again.text.startswith("git is active already")
    ask = here.ask("gateway_deactivate", name="git")
    assert ask.order == Deactivate("git")
    reply = here.done(ask, ViewContent())
    assert "out of view, and it runs on" in reply.text
    assert structured(reply)["state"] == "ready"
    assert here.listed == NAMES
    not_active = here.done(here.ask("gateway_deactivate", name="git"), ViewContent())
    assert not_active.text == "git was not active."


@pytest.mark.promise("M35")
def test_a_server_that_is_not_ready_yet_is_activated_and_comes_by_itself() -> None:
    here = place(new=None)
    reply = here.done(here.ask("gateway_activate", name="new"), ViewContent(servers=("new",)))
    assert reply.text == "new is activated; its tools come into view as soon as it is ready."
    assert structured(reply)["state"] == "warming"
    here.put("new", offer("t"))
    assert here.listed == [*NAMES, "new_t"]


@pytest.mark.promise("M35")
def test_a_crash_takes_the_tools_out_of_view_and_its_message_is_told() -> None:
    here = place()
    here.show(ViewContent(servers=("git",)))
    here.down("git", "it exited with 3")
    assert here.listed == NAMES
    git, db = structured(here.reply("gateway_status"))["servers"]
    assert (git["state"], git["error"]) == ("error", "it exited with 3")
    assert (db["state"], db["active"]) == ("ready", False)
    reply = here.reply("gateway_activate", name="git")
    assert reply.failed
    assert "it exited with 3" in reply.text
    here.up("git")
    assert here.listed == [*NAMES, "git_status", "git_log"]


@pytest.mark.parametrize("name", ["gateway_activate", "gateway_deactivate"])
def test_a_server_that_is_not_there_is_told_with_those_that_are(name: str) -> None:
    reply = place().reply(name, name="svn")
    assert reply.failed
    assert reply.text == "There is no server 'svn' behind this endpoint; there are: git, db."


def test_a_server_that_is_not_configured_any_more_can_be_deactivated() -> None:
    here = place()
    here.show(ViewContent(servers=("old",)))
    assert here.ask("gateway_deactivate", name="old").order == Deactivate("old")


def test_when_a_failed_server_is_tried_again_is_told() -> None:
    here = place()
    here.state(ServerState(server="git", state="error", listed=False, retry_after_ms=4000))
    assert here.reply("gateway_activate", name="git").text == (
        "git was not activated: it is in error; it is tried again in 4 s."
    )


@pytest.mark.parametrize(
    ("news", "why"),
    [
        ({"state": "stopped"}, "stopped; `metamcp ctl start git` starts it"),
        ({"state": "quarantined"}, "in quarantine; `metamcp ctl clear git` starts it"),
        (
            {"state": "error", "message": "it exited with 3"},
            "in error: it exited with 3; `metamcp ctl start git` starts it",
        ),
        ({"state": "error", "message": "it hangs", "retry_after_ms": 0}, "in error: it hangs"),
        ({"state": "draining", "message": "it waits for db"}, "draining: it waits for db"),
    ],
)
def test_what_starts_a_server_is_told_where_nothing_else_does(
    news: dict[str, Any], why: str
) -> None:
    here = place()
    here.state(ServerState(server="git", listed=False, **news))
    reply = here.reply("gateway_activate", name="git")
    assert reply.text == f"git was not activated: it is {why}."
    told = f" ({news['message']})" if "message" in news else ""
    status = here.reply("gateway_status").text.splitlines()[0]
    assert status == f"- git: {news['state']}, 2 tools{told}"


@pytest.mark.parametrize("name", ["gateway_activate", "gateway_deactivate"])
def test_a_refusal_says_what_failed_and_why(name: str) -> None:
    here = place()
    reply = here.refused(here.ask(name, name="git"), "the disk is full")
    assert reply.failed
    assert reply.text == f"Failed to {name.removeprefix('gateway_')} git: the disk is full"
