"""`metamcp consent` at a prompt: what waits, the answer of an operator, the end of grants."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from metamcp_supervisor.consent.consents import Consents
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc.consent_records import ConsentGrant, OpenConsent
from tests.supervisor.small_gateway import SmallGateway, server, steered

pytestmark = [pytest.mark.process, pytest.mark.promise("M97")]

COMMAND = (sys.executable, "-m", "metamcp_supervisor", "consent")
QUESTION = OpenConsent(
    id="1-17", server="git", tool="push", workspace="default", endpoint="default",
    principal="ann", client="an\x1b[2Jagent", arguments='{"to": "' + "a" * 100 + '"}',
    source="client", asked=False, since=0.0, until=1e12,
)  # fmt: skip
GRANT = ConsentGrant(
    id="g1", holder="none:local", principal="ann", server="git", tool="push", definition="d",
    rules="r", given=0.0, until=1e9, by="client",
)  # fmt: skip
Said = Callable[..., Awaitable[tuple[int, str, str]]]


@asynccontextmanager
async def asked() -> AsyncGenerator[tuple[SmallGateway, Said]]:
    """A gateway in which one call waits and one grant counts, and the command."""
    async with steered(server("git")) as (gateway, directory):
        gateway.services[Consents] = gateway.consents
        gateway.consents.open[QUESTION.id] = QUESTION
        gateway.consents.given[GRANT.id] = GRANT

        async def said(*arguments: str) -> tuple[int, str, str]:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, "--runtime-dir", str(directory), *arguments,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, err = await process.communicate()
            assert process.returncode is not None
            return process.returncode, out.decode(), err.decode()

        yield gateway, said


async def test_what_waits_is_listed_with_what_was_agreed_to() -> None:
    async with asked() as (gateway, said):
        code, shown, _ = await said("list")
        assert code == 0
        for text in ("1-17", "git.push", "g1", "ann"):
            assert text in shown
        assert "\x1b" not in shown
        assert "a" * 100 in shown  # what runs, whole
        found = json.loads((await said("list", "--json"))[1])
        assert (found["v"], found["questions"][0]["id"], found["grants"][0]["id"]) == (
            1, "1-17", "g1",
        )  # fmt: skip
        gateway.consents.open.clear()
        gateway.consents.given.clear()
        assert "no call waits" in (await said("list"))[1]


async def test_an_operator_agrees_or_not_and_the_journal_says_who() -> None:
    async with asked() as (gateway, said):
        assert await said("approve", "1-17", "--for", "24h") == (0, "1-17: git.push approved\n", "")
        code, _, why = await said("approve", "1-17")
        assert (code, "no question '1-17' is open" in why) == (Exit.UNKNOWN_NAME, True)
        gateway.consents.open[QUESTION.id] = QUESTION
        assert (await said("deny", "1-17"))[1] == "1-17: git.push denied\n"
        assert gateway.consents.answers == [("1-17", "24h"), ("1-17", None)]
        told = [one.cause for one in gateway.journal.since(0) if one.what == "consent"]
        assert told[0].startswith("git/push approved (24h) by ")
        assert told[1].startswith("git/push denied by ")


async def test_grants_end_by_name_or_all_together() -> None:
    async with asked() as (gateway, said):
        assert (await said("revoke"))[0] == Exit.USAGE
        assert (await said("revoke", "g9"))[0] == Exit.UNKNOWN_NAME
        assert (await said("revoke", "g1"))[1] == "g1: git.push revoked\n"
        gateway.consents.given[GRANT.id] = GRANT
        found = json.loads((await said("revoke", "--all", "--json"))[1])
        assert [one["id"] for one in found["grants"]] == ["g1"]
        assert (await said("grant"))[0] == Exit.USAGE
