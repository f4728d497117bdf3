"""Views of single sessions, and servers beside a tool set: what orders make of them."""

import pytest

from metamcp_supervisor.views.ledger import Ledger
from metamcp_worker.ipc.disclosure import (
    Activate,
    Amend,
    Build,
    Delete,
    Load,
    Unequip,
    Unload,
    ViewContent,
)
from tests.supervisor.views.test_ledger import ANN, LOG, ME, QUERY, SESSION, STATUS, after, done


@pytest.mark.promise("M37")
def test_a_session_sees_what_its_principal_sees_until_its_first_order() -> None:
    ledger = after(Build("dev", (STATUS,), equip=True))
    assert ledger.find_view(SESSION) == ViewContent((STATUS,), toolset="dev")
    done(ledger, Build("data", (QUERY,)), SESSION)
    assert ledger.sessions(["8a01"]) == [], "that is no order about its view"
    done(ledger, Load((LOG,)), SESSION)
    assert ledger.find_view(SESSION) == ViewContent((STATUS, LOG)), "what was in view stays there"
    done(ledger, Unequip())
    assert ledger.find_view(SESSION) == ViewContent((STATUS, LOG))
    done(ledger, Unload((STATUS, LOG)), SESSION)
    assert ledger.find_view(SESSION) == ViewContent(own=True)
    done(ledger, Load((LOG,)), SESSION)
    assert ledger.find_view(SESSION) == ViewContent((LOG,))


@pytest.mark.promise("M32")
def test_a_session_that_unequips_sees_nothing_whatever_its_principal_sees() -> None:
    ledger = after(Build("dev", (STATUS,), equip=True))
    done(ledger, Unequip(), SESSION)
    assert ledger.find_view(SESSION) == ViewContent(own=True)
    assert ledger.find_view(ME) == ViewContent((STATUS,), toolset="dev")
    assert Ledger(ledger.read_everything()).find_view(SESSION) == ViewContent(own=True), (
        "it stays so"
    )


def test_servers_in_view_beside_a_tool_set_stay_when_that_changes_or_goes() -> None:
    ledger = after(Build("dev", (STATUS,), equip=True), Activate("db"))
    done(ledger, Amend("dev", add=(LOG,)), ANN)
    assert ledger.find_view(ME) == ViewContent((STATUS, LOG), ("db",), "dev")
    done(ledger, Delete("dev"), ANN)
    assert ledger.find_view(ME) == ViewContent(servers=("db",))
