"""Process that makes vectors: it answers the requests of the supervisor, and reports to it.

Owns: the control socket, which requests may be under way, how long a source that failed is left
alone, counts and log lines about the source, requests to an endpoint, the thread of the model on
this machine, the end of the process. Never: the API of an endpoint (`embeddings_api`), the model
(`local_model`), the file (`vector_store`), the use of vectors.

Queries go before tools, because searches wait for queries; clients do not wait for tools.
"""

import asyncio
import logging
import math
import os
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from metamcp_worker.embedder import embeddings_api
from metamcp_worker.embedder.embeddings_api import NoVectors, TextRefused
from metamcp_worker.embedder.vector_store import VectorStore, VectorStoreError
from metamcp_worker.http.fetch import ConnectionBroken, FetchLimits, Origin, Unreachable
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.embedding import (
    QUERY_S_MAX,
    TEXTS_MAX,
    Embed,
    Embedded,
    EmbedFigures,
    EmbedOn,
    Vectors,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Stop, Tune
from metamcp_worker.ipc.spec import EmbeddingsSpec
from metamcp_worker.runtime import logs, loop
from metamcp_worker.runtime.role_worker import RoleWorker

if TYPE_CHECKING:
    from metamcp_worker.embedder.local_model import Model

QUERIES_MAX = 8
"""Maximum queries at the source at once; a further query is answered without a vector."""
ASKS_MAX = 64
"""Maximum requests that wait or are carried out; each front has one for tools, some for queries."""
REFUSED_MAX = 4
"""Number of refused texts, with none accepted, after which the source counts as failed."""
PAUSE_S_MIN = 1.0
"""Seconds that a source is left alone after a failure; they double with every further failure."""
PAUSE_S_MAX = 60.0
NOTE_S = 300.0
"""Minimum seconds between two log lines about a source that fails, each time in another way."""

REQUESTS_MAX = 16
"""Maximum requests at once: queries of all fronts, and one for tools."""
END_S = 1.0
"""Seconds beyond the timeout until an answer must be complete; a server that sends byte by byte
would not end otherwise."""

log = logging.getLogger("metamcp.embeddings")
T = TypeVar("T")
_read = codec.reader(EmbedOn | Embed | Tune | Stop)


class VectorSource(Protocol):
    """Source of vectors: an endpoint, or a model on this machine."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text. Raises NoVectors; TextRefused for a refused text."""
        ...

    async def close(self) -> None: ...


def main(sock: socket.socket) -> int:
    """Run this process and return its exit code. `sock`: the control socket to the supervisor."""
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await EmbedderWorker(sock).run()


class EmbedderWorker(RoleWorker):
    what = "the process that makes vectors"
    log = log

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _read)
        self._spec = EmbeddingsSpec()
        self._source: VectorSource | None = None
        self._shelf: VectorStore | None = None
        self._keeps = False
        self._size = 0
        """Count of numbers of a vector; 0 before the first vector."""
        self._tools, self._disk = asyncio.Lock(), asyncio.Lock()
        self._queries = 0
        self._failures = 0
        self._until = 0.0
        """Time of the loop until which the source is left alone."""
        self._said, self._quiet_until = "", 0.0
        self._counts: Counter[str] = Counter()

    async def end(self) -> None:
        await super().end()
        if self._source is not None:
            await self._source.close()

    def take(self, message: Message, fds: list[int]) -> None:
        match message:
            case EmbedOn():
                self._begin(codec.decode_as(EmbeddingsSpec, packets.read_value(fds)))
            case Embed(ticket=ticket, query=query):
                self._ask(ticket, codec.decode_as(list[str], packets.read_value(fds)), query=query)
            case _:
                pass

    def _begin(self, spec: EmbeddingsSpec) -> None:
        self._spec = spec
        self._levels = spec.log
        logs.tune(spec.log)
        self._keeps = True
        try:
            if spec.folder:
                self._source = LocalVectorSource(Path(spec.folder))
            else:
                self._source = EmbeddingsEndpoint(spec)
        except NoVectors as error:
            self._on_failure(str(error))

    # Texts

    def _ask(self, ticket: int, texts: Sequence[str], *, query: bool) -> None:
        if not 0 < len(texts) <= TEXTS_MAX or len(self._chores) > ASKS_MAX:
            self._answer(ticket, Vectors(pause_s=PAUSE_S_MIN))
        else:
            work = self._query(texts) if query else self._of_tools(texts)
            self._chores.begin(self._answer_when_done(ticket, work))

    async def _answer_when_done(self, ticket: int, work: Coroutine[None, None, Vectors]) -> None:
        try:
            vectors = await work
        except NoVectors as error:
            self._on_failure(str(error))
            vectors = Vectors(pause_s=self._pause_s)
        self._answer(ticket, vectors)

    async def _query(self, texts: Sequence[str]) -> Vectors:
        """Make the vector of a query, which is not stored. Raises NoVectors."""
        if self._queries >= QUERIES_MAX or self._pause_s:
            return Vectors()
        self._queries += 1
        try:
            return Vectors(tuple(await self._embed(texts, QUERY_S_MAX)))
        except TextRefused:  # the fault of this text, not of the source
            return Vectors()
        finally:
            self._queries -= 1

    async def _of_tools(self, texts: Sequence[str]) -> Vectors:
        """Take the stored vectors of tools, and make and store the others. Raises NoVectors."""
        vectors = await self._read_vectors(texts)
        self._counts["kept"] += sum(vector is not None for vector in vectors.values())
        lacking = [text for text, vector in vectors.items() if vector is None]
        async with self._tools:
            for at in range(0, len(lacking), self._spec.batch):
                if self._pause_s:
                    return Vectors(pause_s=self._pause_s)
                batch = lacking[at : at + self._spec.batch]
                try:
                    made = dict(zip(batch, await self._embed(batch), strict=True))
                except TextRefused:
                    made = await self._made_apart(batch)
                vectors |= made
                await self._keep(made)
        return Vectors(tuple([vectors[text] or b"" for text in texts]))

    async def _embed(self, texts: Sequence[str], wait_s: float = math.inf) -> list[bytes]:
        """Make vectors. `wait_s`: seconds after which they count as late. Raises NoVectors."""
        began = self._loop.time()
        try:
            if self._source is None:
                raise NoVectors("it cannot be used")
            made = await self._source.embed(texts)
            vectors = embeddings_api.pack_vectors(made, self._size)
        except NoVectors:
            self._counts["failed"] += len(texts)
            raise
        late = self._loop.time() - began > wait_s
        self._counts["late" if late else "embedded"] += len(texts)
        self._size = len(made[0])
        if self._failures:
            log.warning("vectors are made again; searches go by meaning too")
        self._failures, self._until, self._said = 0, 0.0, ""
        return vectors

    async def _made_apart(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Make vectors text by text, because the source refused a text among them. Texts that it
        refuses are left out, and asked for again after a restart. Raises NoVectors."""
        made: dict[str, bytes] = {}
        for tried, text in enumerate(texts, 1):
            try:
                (made[text],) = await self._embed([text])
            except TextRefused:
                last = tried == REFUSED_MAX or (tried == len(texts) and not self._size)
                if last and not made:
                    raise
        message = "%s refuses the texts of %d tools, which are found by words alone"
        log.warning(message, self._source, len(texts) - len(made))
        return made

    # Stored vectors

    async def _read_vectors(self, texts: Sequence[str]) -> dict[str, bytes | None]:
        stored: list[bytes | None] | None = await self._on_disk(lambda shelf: shelf.get(texts))
        vectors = dict(zip(texts, stored or [None] * len(texts), strict=True))
        self._size = self._size or max(
            (len(vector) for vector in vectors.values() if vector), default=0
        )
        return vectors

    async def _keep(self, made: dict[str, bytes]) -> None:
        await self._on_disk(lambda shelf: shelf.put(made))

    async def _on_disk(self, work: Callable[[VectorStore], T]) -> T | None:
        """Work on the store in a thread, and open it there too, because a disk may hang. Return
        None from the first failure on."""
        async with self._disk:
            if not self._keeps:
                return None
            try:
                return await asyncio.to_thread(self._at_shelf, work)
            except VectorStoreError as error:
                log.warning("%s", error)
                self._keeps = False
                if self._shelf is not None:
                    self._shelf.close()
                return None

    def _at_shelf(self, work: Callable[[VectorStore], T]) -> T:
        """Work on the store, which is opened first if needed. Raises Unkept."""
        if self._shelf is None:
            self._shelf = VectorStore(Path(self._spec.store), self._spec.id)
        return work(self._shelf)

    # A source that fails

    @property
    def _pause_s(self) -> float:
        return max(0.0, self._until - self._loop.time())

    def _on_failure(self, reason: str) -> None:
        """Leave the source alone for a while, and log the reason unless it was logged."""
        now = self._loop.time()
        if not self._pause_s:  # failures during a pause count once
            pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** min(self._failures, 16))
            self._failures += 1
            self._until = now + pause_s
        if reason != self._said and (not self._said or now >= self._quiet_until):
            self._said, self._quiet_until = reason, now + NOTE_S
            source = self._spec.folder or str(self._source or "the endpoint")
            log.error("%s makes no vectors: %s; searches go by words alone", source, reason)

    # News

    def _answer(self, ticket: int, vectors: Vectors) -> None:
        try:
            self.tell(Embedded(ticket=ticket), (packets.blob(codec.dump(vectors)),))
        except OSError as error:
            log.error("an answer is lost: %s", error)

    def figures(self) -> EmbedFigures:
        return EmbedFigures(counts=dict(self._counts))


ONE_THREAD = {"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment that numpy reads when it is loaded. With more threads it would take every processor
from the servers, and on a busy machine its threads wait for each other ten times as long as they
work."""


class LocalVectorSource:
    """Source of vectors from the model in a folder, which is loaded at the first text and runs in a
    thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model: Model | None = None
        self._thread = ThreadPoolExecutor(1, "model")

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text. Raises NoVectors."""
        vectors: list[list[float]] = []
        for text in texts:  # one by one, so that a query can come in between
            loop = asyncio.get_running_loop()
            vectors += await loop.run_in_executor(self._thread, self._embed_text, text)
        return vectors

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _embed_text(self, text: str) -> list[list[float]]:
        os.environ.update(ONE_THREAD)
        from metamcp_worker.embedder.local_model import Model, ModelUnfit

        try:
            if self._model is None:
                self._model = Model(self._folder)
            return self._model.embed([text])
        except ModelUnfit as error:
            raise NoVectors(str(error)) from None


class EmbeddingsEndpoint:
    """Source of vectors at a URL. Raises NoVectors for a URL or key that cannot be used."""

    def __init__(self, spec: EmbeddingsSpec) -> None:
        self._spec = spec
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if spec.key:
            headers["Authorization"] = f"Bearer {spec.key}"
        limits = FetchLimits(requests_max=REQUESTS_MAX, connect_s=spec.timeout_s)
        try:
            self._origin = Origin(spec.url, headers=headers, limits=limits)
        except (Unreachable, UnicodeEncodeError) as error:
            raise NoVectors(str(error)) from None

    def __str__(self) -> str:
        return str(self._origin)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text. Raises NoVectors; TextRefused for a refused text."""
        wait_s = self._spec.timeout_s
        try:
            async with asyncio.timeout(wait_s + END_S):
                answer = await self._request_embeddings(texts, wait_s)
        except TimeoutError:
            raise NoVectors(f"{self} did not end its answer in {wait_s:g} s") from None
        except (Unreachable, ConnectionBroken, TooLarge) as error:
            raise NoVectors(str(error)) from None
        return embeddings_api.read(answer, len(texts))

    async def _request_embeddings(self, texts: Sequence[str], wait_s: float) -> bytes:
        """Return the body of the answer. Raises NoVectors, Unreachable, Broken and TooLarge."""
        body = embeddings_api.request(self._spec.model, texts)
        async with await self._origin.send("POST", {}, body, answer_s=wait_s) as response:
            if response.status != 200:
                raise _status_refused(response.status)
            limit = embeddings_api.bytes_max(len(texts))
            return await response.read(wait_s=wait_s, limit_bytes=limit)

    async def close(self) -> None:
        await self._origin.close()


def _status_refused(status: int) -> NoVectors:
    message = f"it answers with status {status}"
    match status:
        case 400 | 413 | 422:
            return TextRefused(message)
        case 401 | 403:
            return NoVectors(f"{message}; does 'key' have the right token?")
        case 404:
            return NoVectors(f"{message}; 'url' must end as its /embeddings does")
        case 429:
            return NoVectors(f"{message}, too many requests")
        case _:
            return NoVectors(message)
