"""Rankings by meaning, with a supervisor that the test plays: asked once, never waited for."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from metamcp_worker.builtin_tools.builtin import Rankings
from metamcp_worker.builtin_tools.search_index import Indexes
from metamcp_worker.builtin_tools.vector_search_io import (
    QUERIES_KEPT,
    QUERIES_MAX,
    ToolVectorSearch,
)
from metamcp_worker.front_calls.front_views import Viewers
from metamcp_worker.ipc.embedding import TEXTS_MAX, Vectors
from metamcp_worker.ipc.spec import FrontSpec, SemanticSearchSpec
from metamcp_worker.search.vectors import shrunk
from tests.worker.builtin_tools.test_search_index_updates import spec
from tests.worker.front.offers import offer

MODEL = SemanticSearchSpec(model="m", weight=0.4)
UP, ACROSS = shrunk([1.0, 0.1]), shrunk([0.1, 1.0])


class Supervisor:
    """What a front asks it. `texts`: the texts of each ticket that is not answered."""

    def __init__(self, indexes: Indexes, meaning: SemanticSearchSpec = MODEL) -> None:
        self.texts: dict[int, Sequence[str]] = {}
        self.queries: list[int] = []
        self.came = asyncio.Event()
        self.seeking = ToolVectorSearch(self._send, indexes, meaning)

    def _send(self, ticket: int, texts: Sequence[str], query: bool) -> None:
        self.texts[ticket] = texts
        if query:
            self.queries.append(ticket)
        self.came.set()

    async def tools(self) -> tuple[int, Sequence[str]]:
        """The next ticket for tools."""
        while True:
            for ticket, texts in self.texts.items():
                if ticket not in self.queries:
                    del self.texts[ticket]
                    return ticket, texts
            self.came.clear()
            await self.came.wait()

    def ranked(self, query: str) -> "asyncio.Future[list[str]]":
        """The names of tools, once the search hears of them."""
        found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

        def done(rankings: Rankings) -> None:
            found.set_result([name for one in rankings for _, name in one.found])

        self.seeking.rank("default", query, None, done)
        return found


@asynccontextmanager
async def opened_search(*tools: str) -> AsyncGenerator[tuple[Supervisor, Viewers]]:
    viewers = Viewers()
    viewers.configure(FrontSpec(version="1", endpoints=(spec("a"),), hosts=()))
    viewers.put("a", offer(*tools))
    viewers.refresh()
    supervisor = Supervisor(viewers.indexes)
    viewers.index("default")
    yield supervisor, viewers
    supervisor.seeking.close()


async def test_the_nearest_tools_are_ranked_and_a_query_is_asked_for_once() -> None:
    async with opened_search("t", "u") as (supervisor, _viewers):
        ticket, texts = await supervisor.tools()
        assert [text.split(".")[1] for text in texts] == [" t", " u"]
        supervisor.seeking.on_vectors(ticket, Vectors((UP, ACROSS)))
        first = supervisor.ranked("  what is   across ")
        same = supervisor.ranked("what is across")
        (query,) = supervisor.queries
        assert supervisor.texts[query] == ["what is across"]
        supervisor.seeking.on_vectors(query, Vectors((ACROSS,)))
        assert await first == await same == ["u", "t"]
        assert supervisor.ranked("what is across").result() == ["u", "t"]
        assert len(supervisor.queries) == 1


async def test_a_vector_that_comes_too_late_is_there_for_the_next_search() -> None:
    async with opened_search("t") as (supervisor, _viewers):
        supervisor.seeking.on_vectors((await supervisor.tools())[0], Vectors((UP,)))
        assert await supervisor.ranked("up") == []
        supervisor.seeking.on_vectors(supervisor.queries[0], Vectors((UP,)))
        assert supervisor.ranked("up").result() == ["t"]


async def test_who_has_no_vectors_says_so_and_is_asked_again() -> None:
    async with opened_search("t") as (supervisor, _viewers):
        ticket, texts = await supervisor.tools()
        supervisor.seeking.on_vectors(ticket, Vectors(pause_s=0.01))
        again, same = await supervisor.tools()
        assert (again > ticket, same) == (True, texts)
        ranked = supervisor.ranked("up")
        supervisor.seeking.on_vectors(supervisor.queries[0], Vectors())
        assert ranked.result() == []
        supervisor.ranked("up")
        assert len(supervisor.queries) == 2
        supervisor.seeking.on_vectors(supervisor.queries[1], Vectors((b"",)))  # it means nothing
        assert supervisor.ranked("up").result() == []
        assert len(supervisor.queries) == 2


async def test_what_nobody_can_be_asked_for_is_answered_at_once() -> None:
    async with opened_search("t") as (supervisor, _viewers):
        assert supervisor.ranked("  ").result() == []
        waiting = [supervisor.ranked(f"query {number}") for number in range(QUERIES_MAX)]
        assert supervisor.ranked("one more").result() == []
        assert len(supervisor.queries) == QUERIES_MAX
        supervisor.seeking.close()
        assert [one.result() for one in waiting] == [[]] * QUERIES_MAX
        assert supervisor.seeking.adjust(SemanticSearchSpec(model="m", weight=0.0))
        assert supervisor.ranked("weightless").result() == []
        assert not supervisor.seeking.adjust(SemanticSearchSpec(model="other", weight=0.4))


async def test_the_oldest_queries_are_forgotten() -> None:
    async with opened_search("t") as (supervisor, _viewers):
        for number in range(QUERIES_KEPT + 1):
            supervisor.ranked(f"query {number}")
            supervisor.seeking.on_vectors(supervisor.queries[-1], Vectors((UP,)))
        assert supervisor.ranked("query 1").done()
        assert not supervisor.ranked("query 0").done()


async def test_many_tools_are_asked_for_in_parts_and_a_change_in_a_part_of_its_own() -> None:
    async with opened_search(*[f"t{number}" for number in range(2 * TEXTS_MAX + 1)]) as (
        supervisor,
        viewers,
    ):
        sizes: list[int] = []
        while sum(sizes) < 2 * TEXTS_MAX + 1:
            ticket, texts = await supervisor.tools()
            sizes.append(len(texts))
            supervisor.seeking.on_vectors(ticket, Vectors((UP,) * len(texts)))
        assert sizes == [TEXTS_MAX, TEXTS_MAX, 1]
        viewers.put("a", offer("t0", "new"))
        viewers.refresh()
        viewers.index("default")
        ticket, texts = await supervisor.tools()
        assert len(texts) == 1
        supervisor.seeking.on_vectors(ticket, Vectors((UP,)))
        supervisor.ranked("up")
        supervisor.seeking.on_vectors(supervisor.queries[0], Vectors((UP,)))
        assert supervisor.ranked("up").result() == ["t0", "new"]
