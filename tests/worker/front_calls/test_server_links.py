"""What a front knows of its servers beside their calls."""

import asyncio

from metamcp_worker.front_calls.server_links import ServerStates
from metamcp_worker.ipc.messages import ServerState


def test_lists_wait_for_a_first_start_without_a_known_list_and_for_nothing_else() -> None:
    async def body() -> None:
        states = ServerStates()
        waits: list[bool] = []
        for server, state, listed in (
            ("other", "warming", False), ("a", "warming", False), ("a", "ready", True),
            ("a", "warming", False), ("b", "warming", True), ("b", "error", False),
            ("b", "warming", False),
        ):  # fmt: skip
            states.learn(ServerState(server=server, state=state, listed=listed))
            waits.append(states.unmet_s(("a", "b")) > 0)
        assert waits == [False, True, False, False, False, False, False]

    asyncio.run(body())
