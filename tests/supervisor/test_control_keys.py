"""An order that comes again with its key is answered as before, and not carried out again."""

import asyncio
import json

import pytest

from metamcp_supervisor.control.answers import (
    KEY_CHARACTERS_MAX,
    KEYS_MAX,
    REMEMBERED_S,
    OrderAnswers,
)
from metamcp_supervisor.control.control import ControlLimits
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc.errors import ProtocolError
from tests.supervisor.control.test_control import peer, run
from tests.supervisor.small_gateway import server, steered

ORDER = ("stop", b"{}")


class Done:
    """Counts how often it was carried out, and says so."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self) -> object:
        self.times += 1
        return self.times


@pytest.mark.promise("M80")
def test_a_repeated_key_gets_the_same_answer_and_does_nothing() -> None:
    async def main() -> None:
        async with steered(server("git")) as (gateway, directory):
            answers: list[object] = []
            for _ in range(3):  # a connection each, as a script that tries again has
                async with peer(directory) as client:
                    answers.append((await client.ask("restart", names=["git"], key="a"))["result"])
            async with peer(directory) as client:
                await client.ask("wait", names=["git"], above={"git": 1})
            assert answers[0] == answers[1] == answers[2]
            assert gateway.servers["git"].generation == 2
            assert [event.what for event in gateway.journal.since(0)].count("restart") == 1

    run(main())


def test_a_refusal_is_repeated_too() -> None:
    async def main() -> None:
        async with steered(server("git")) as (gateway, directory), peer(directory) as client:
            first = await client.ask("reload", expect="old", key="a")
            assert first["error"]["code"] == Exit.FAILED
            gateway.fault = "status is not even asked"
            assert await client.ask("reload", expect="old", key="a") == first

    run(main())


def test_a_key_cannot_stand_for_two_orders() -> None:
    async def main() -> None:
        async with steered(server("git")) as (gateway, directory), peer(directory) as client:
            await client.ask("start", names=["git"], key="a")
            error = (await client.ask("stop", names=["git"], key="a"))["error"]
            assert error["code"] == Exit.FAILED
            assert "was given to another order" in error["message"]
            assert gateway.servers["git"].state == "ready"

    run(main())


def test_users_have_keys_of_their_own_and_they_are_forgotten_in_time() -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        answers, done = OrderAnswers(lambda: now), Done()
        assert await answers.once((1, "a"), ORDER, done) == 1
        assert await answers.once((2, "a"), ORDER, done) == 2
        assert await answers.once((1, "a"), ORDER, done) == 1
        now = REMEMBERED_S + 1
        assert await answers.once((1, "a"), ORDER, done) == 3

    run(main())


def test_the_table_of_keys_has_a_bound() -> None:
    async def main() -> None:
        answers, done = OrderAnswers(lambda: 0.0), Done()
        for number in range(KEYS_MAX + 1):
            await answers.once((1, str(number)), ORDER, done)
        assert await answers.once((1, "1"), ORDER, done) == 2
        assert await answers.once((1, "0"), ORDER, done) == KEYS_MAX + 2
        with pytest.raises(ProtocolError):
            await answers.once((1, "x" * (KEY_CHARACTERS_MAX + 1)), ORDER, done)

    run(main())


def test_two_at_once_are_carried_out_once() -> None:
    async def main() -> None:
        answers, go, done = OrderAnswers(lambda: 0.0), asyncio.Event(), Done()

        async def slow() -> object:
            await go.wait()
            return await done()

        both = [asyncio.create_task(answers.once((1, "a"), ORDER, slow)) for _ in range(2)]
        asyncio.get_running_loop().call_soon(go.set)
        assert await asyncio.gather(*both) == [1, 1]

    run(main())


def test_what_broke_off_may_be_tried_again() -> None:
    async def main() -> None:
        answers, done = OrderAnswers(lambda: 0.0), Done()

        async def broken() -> object:
            raise RuntimeError("of the gateway")

        with pytest.raises(RuntimeError):
            await answers.once((1, "a"), ORDER, broken)
        assert await answers.once((1, "a"), ORDER, done) == 1

    run(main())


def test_a_line_that_is_never_finished_ends_its_connection() -> None:
    async def main() -> None:
        async with (
            steered(limits=ControlLimits(idle_s=0.05)) as (_, directory),
            peer(directory) as client,
        ):
            client.send(json.dumps({"jsonrpc": "2.0", "id": 1})[:-1].encode())
            assert (await client.line())["error"]["code"] == Exit.TIMEOUT
            assert await client.line() == {}

    run(main())
