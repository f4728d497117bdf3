"""The process of vectors over its control socket, the endpoint real: what it answers and counts."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metamcp_worker.embedder.run import REFUSED_MAX, EmbedderWorker
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.embedding import Embed, Embedded, EmbedFigures, EmbedOn, Vectors
from metamcp_worker.ipc.messages import Heartbeat
from metamcp_worker.ipc.spec import EmbeddingsSpec
from metamcp_worker.search.vectors import shrunk
from tests.live.embeddings import Embeddings, embedded
from tests.worker.rawhttp import until

pytestmark = pytest.mark.process

KEY = "of-the-endpoint-alone"
_read = codec.reader(Embedded | EmbedFigures | Heartbeat)


class Supervisor:
    """The other end of its control socket."""

    def __init__(self, path: Path, endpoint: Embeddings) -> None:
        ours, theirs = packets.pair()
        self.path = path
        self.endpoint = endpoint
        self.answers: dict[int, Vectors] = {}
        self.counts: dict[str, int] = {}
        self._channel = packets.Channel(ours, self._packet, lambda: None)
        self._process = asyncio.create_task(EmbedderWorker(theirs).run())
        spec = EmbeddingsSpec(
            url=endpoint.url, model="m", key=KEY, id="1", store=str(path), timeout_s=20.0
        )
        self._channel.send(messages.pack(EmbedOn()), [packets.blob(codec.dump(spec))])

    def _packet(self, data: bytes, fds: list[int]) -> None:
        match _read(data):
            case Embedded(ticket=ticket):
                self.answers[ticket] = codec.decode_as(Vectors, packets.read_blob(fds.pop()))
            case EmbedFigures(counts=counts):
                self.counts = counts
            case _:
                pass

    def ask(self, ticket: int, *texts: str, query: bool = False) -> None:
        message = Embed(ticket=ticket, query=query)
        self._channel.send(messages.pack(message), [packets.blob(codec.dump(texts))])

    async def answer(self, ticket: int) -> Vectors:
        await until(lambda: ticket in self.answers)
        return self.answers[ticket]

    async def counted(self, **counts: int) -> None:
        await until(lambda: self.counts == counts)

    async def close(self) -> int:
        self._channel.close()
        return await self._process


@asynccontextmanager
async def opened_supervisor(path: Path) -> AsyncGenerator[Supervisor]:
    with Embeddings() as endpoint:
        supervisor = Supervisor(path, endpoint)
        try:
            yield supervisor
        finally:
            endpoint.open.set()
            assert await supervisor.close() == 0


def vector(text: str) -> bytes:
    return shrunk(embedded(text))


async def test_a_query_whose_search_did_not_wait_so_long_is_counted_as_late(tmp_path: Path) -> None:
    async with opened_supervisor(tmp_path / "vectors.db") as supervisor:
        supervisor.endpoint.open.clear()
        supervisor.ask(1, "a dog", query=True)
        await until(lambda: bool(supervisor.endpoint.texts))
        asyncio.get_running_loop().call_later(0.2, supervisor.endpoint.open.set)
        assert await supervisor.answer(1) == Vectors((vector("a dog"),))
        supervisor.ask(2, "a cat")
        assert await supervisor.answer(2) == Vectors((vector("a cat"),))
        supervisor.ask(3, "a cat")
        assert await supervisor.answer(3) == Vectors((vector("a cat"),))
        await supervisor.counted(late=1, embedded=1, kept=1)


async def test_with_a_file_that_fails_in_the_middle_vectors_are_made_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "vectors.db"

    logger = logging.getLogger("metamcp")
    logger.addHandler(caplog.handler)
    try:
        async with opened_supervisor(path) as supervisor:
            supervisor.ask(1, "a cat")
            assert await supervisor.answer(1) == Vectors((vector("a cat"),))
            with sqlite3.connect(path) as other:
                other.execute("DROP TABLE vector")
            other.close()
            for ticket in (2, 3):
                supervisor.ask(ticket, "a cat")
                assert await supervisor.answer(ticket) == Vectors((vector("a cat"),))
            assert supervisor.endpoint.texts == ["a cat"] * 3
    finally:
        logger.removeHandler(caplog.handler)
    said = [one.getMessage() for one in caplog.records if "not kept" in one.getMessage()]
    assert len(set(said)) == 1
    assert "no such table" in said[0]
    assert KEY not in caplog.text


async def test_no_query_waits_for_a_disk_that_is_slow_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "vectors.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")  # the file is waited for

    async with opened_supervisor(path) as supervisor:
        supervisor.ask(1, "a cat")
        supervisor.ask(2, "a dog", query=True)
        assert await supervisor.answer(2) == Vectors((vector("a dog"),))
        other.execute("ROLLBACK")
        assert await supervisor.answer(1) == Vectors((vector("a cat"),))
        supervisor.ask(3, "a cat")
        assert await supervisor.answer(3) == Vectors((vector("a cat"),))
        assert supervisor.endpoint.texts.count("a cat") == 1
    other.close()


async def test_one_text_that_is_refused_costs_the_others_nothing(tmp_path: Path) -> None:
    async with opened_supervisor(tmp_path / "vectors.db") as supervisor:
        supervisor.endpoint.refuses = "endless"
        supervisor.ask(1, "endless", "a dog", "an endless one", "a cat")
        found = await supervisor.answer(1)
        assert found == Vectors((b"", vector("a dog"), b"", vector("a cat")))
        supervisor.ask(2, "an endless query", query=True)
        assert await supervisor.answer(2) == Vectors()
        supervisor.ask(3, "a dog", query=True)
        assert await supervisor.answer(3) == Vectors((vector("a dog"),))
        supervisor.endpoint.refuses = ""
        supervisor.ask(4, "endless")
        assert await supervisor.answer(4) == Vectors((vector("endless"),))


async def test_an_endpoint_that_takes_nothing_is_not_asked_for_each_text(tmp_path: Path) -> None:
    async with opened_supervisor(tmp_path / "vectors.db") as supervisor:
        supervisor.endpoint.refuses = " "
        supervisor.ask(1, *(f"text {number}" for number in range(20)))
        found = await supervisor.answer(1)
        assert (found.found, found.pause_s > 0) == ((), True)
        assert len(supervisor.endpoint.headers) == 1 + REFUSED_MAX
