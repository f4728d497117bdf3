"""The process that makes vectors for all fronts, kept alive while fronts use it.

Owns: when the process is needed and with which settings, which front asked for which texts, the
answer to a front without a process. Never: making vectors (`metamcp_worker.embedder`), using them
(fronts), the table of the configuration (`embedding_settings`), the process itself
(`role_process`).

The process is forked for the first texts and ends when no front asks for a while, so a gateway
without such searches does not have it. Failures of the process cause no delay: fronts never wait
for vectors.
"""

import asyncio
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator

from msgspec import structs

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.show import secrets_of_model
from metamcp_supervisor.embeddings.embedding_settings import Embeddings
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.roles.role_process import RoleProcess, ServiceContext
from metamcp_supervisor.servers import specs
from metamcp_supervisor.telemetry.metric_names import MetricFamily
from metamcp_supervisor.telemetry.page_rows import Values, by_one
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.embedding import Embed, Embedded, EmbedFigures, EmbedOn, Vectors
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Heartbeat, Tune
from metamcp_worker.ipc.spec import EmbeddingsSpec, FrontSpec, LogSpec, SemanticSearchSpec

VECTORS = "vectors.db"
WHO = "embedder"
"""Name of the process for `ps` and in the journal."""
ASKS_MAX = 1024
"""Maximum number of requests without an answer yet; a further request is answered without
vectors."""
IDLE_S = 600.0
"""Seconds without a request after which the process ends, to free the memory of a loaded model."""
PAUSE_S = 5.0
"""Seconds that a front must wait before its next request, where a better number is not known."""

_read = codec.reader(Embedded | EmbedFigures | Heartbeat)


#: Outcomes that have series before their first event.
OUTCOMES = ("embedded", "late", "kept", "failed")
METRICS = (
    MetricFamily("metamcp_embedded_texts_total", "counter", ("outcome",),
           "Tools and queries that became vectors, tools that had one kept, and what failed."),
)  # fmt: skip


def meaning_spec(config: Config) -> SemanticSearchSpec | None:
    """Return the settings of vectors for a front, without the secrets of their source; None if
    searches do not use vectors."""
    embeddings = config.table(Embeddings)
    if not embeddings.is_configured or not any(
        endpoint.exposure == "search" for endpoint in config.endpoints.values()
    ):
        return None
    return SemanticSearchSpec(model=_model(embeddings), weight=embeddings.weight)


def embeddings_spec(config: Config) -> EmbeddingsSpec | None:
    """Return the settings of the embedder; None if vectors are not needed."""
    embeddings = config.table(Embeddings)
    if meaning_spec(config) is None:
        return None
    return EmbeddingsSpec(
        url=embeddings.url,
        model=embeddings.model,
        key=embeddings.key,
        folder="" if embeddings.folder is None else str(embeddings.folder),
        id=_model(embeddings),
        store=str(config.gateway.state_dir / VECTORS),
        timeout_s=embeddings.timeout_s,
        batch=embeddings.batch,
        log=specs.log_spec(config, secrets_of_model(embeddings)),
    )


def _model(embeddings: Embeddings) -> str:
    """Return an id that is the same for all settings that make the same vectors. The query of a URL
    does not count: it hardly names a model, and a key in it changes."""
    made_by = [embeddings.url.partition("?")[0], embeddings.model, str(embeddings.folder)]
    return hashlib.sha256(ascii(made_by).encode()).hexdigest()[:16]


class Embedder(RoleProcess):
    """`spec`: returns the settings of the process, None where vectors are not needed."""

    who = WHO
    loss = "searches go by words alone"

    def __init__(
        self,
        context: ServiceContext,
        spec: Callable[[Config], EmbeddingsSpec | None] = embeddings_spec,
        *,
        dice: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(context, _read, dice)
        self._spec_of = spec
        self._texts = context.metrics.counter(METRICS[0].name, OUTCOMES)
        self._tickets = itertools.count(1)
        self._asked: dict[int, tuple[FrontProcess, int]] = {}
        """Front and its own ticket, by the ticket given here."""
        self._waiting: list[tuple[Embed, bytes]] = []
        """Requests to send as soon as the process has started."""
        self._told: EmbeddingsSpec | None = None
        self._idle: asyncio.TimerHandle | None = None

    def _spec(self) -> EmbeddingsSpec | None:
        return self._spec_of(self._config())

    @property
    def is_wanted(self) -> bool:
        return self._spec() is not None

    def add_settings(self, spec: FrontSpec) -> FrontSpec:
        return structs.replace(spec, meaning=meaning_spec(self._config()))

    def metric_rows(self) -> Iterator[tuple[str, Values]]:
        yield METRICS[0].name, by_one(self._texts)

    def on_front_message(self, front: FrontProcess, message: Message, blob: bytes) -> None:
        if isinstance(message, Embed):
            self.embed_texts(front, message, blob)

    def embed_texts(self, front: FrontProcess, message: Embed, blob: bytes) -> None:
        """Pass texts of a front on to the process. Every request is answered, sooner or later,
        unless another program takes over first (upgrade)."""
        spec = self._spec()
        pause_s = self._again - self._loop.time()
        if spec is None or not blob or len(self._asked) >= ASKS_MAX or pause_s > 0:
            self._answer(front, message.ticket, Vectors(pause_s=max(PAUSE_S, pause_s)))
            return
        self._settle()
        ticket = next(self._tickets)
        self._asked[ticket] = front, message.ticket
        self._waiting.append((structs.replace(message, ticket=ticket), blob))
        if self._channel is not None:
            self._flush()
        elif self._launch is None:
            self._told = spec
            self._start()
        self._keep()

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        await super().close()

    # Starting and ending the process

    def _settle(self) -> None:
        """Adapt the process to its settings. A different source or file needs a new process. None
        ends the process, which must not continue with a key that was removed."""
        spec, sent = self._spec(), self._told
        if sent is None or self._channel is None or sent == spec:
            return
        if spec is None:
            self._journal.add(WHO, "stopped", "nobody needs vectors any more")
            self._dismiss()
        elif _without_log(spec) != _without_log(sent):
            self._dismiss()
        else:
            self._told = spec
            log = spec.log
            tune = Tune(format=log.format, level=log.level, levels=log.levels)
            self._channel.send(messages.pack(tune))

    def _send_first_messages(self) -> None:
        assert self._channel is not None
        self._channel.send(messages.pack(EmbedOn()), [packets.blob(codec.dump(self._told))])
        self._flush()

    def _flush(self) -> None:
        """Send all requests that wait."""
        waiting, self._waiting = self._waiting, []
        for message, blob in waiting:
            try:
                fd = packets.blob(blob)
            except OSError:
                self._told_nothing(message.ticket, PAUSE_S)
                continue
            if self._channel is not None:
                self._channel.send(messages.pack(message), [fd])

    def _keep(self) -> None:
        """Restart the idle timer, after a request."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._loop.call_later(IDLE_S, self._rest)

    def _rest(self) -> None:
        self._idle = None
        if self._channel is not None:
            self._journal.add(WHO, "stopped", "nobody asked it for a while")
            self._dismiss()

    def _on_failure(self, delay_s: float) -> None:
        self._waiting.clear()
        self._on_lost(delay_s)

    def _on_lost(self, pause_s: float) -> None:
        """Answer requests that the process got without vectors. Requests that wait go to the next
        process."""
        waiting = {message.ticket for message, _ in self._waiting}
        for ticket in self._asked.keys() - waiting:
            self._told_nothing(ticket, pause_s)

    # Messages of the process

    def _on_message(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, EmbedFigures):
            self._count_growth(message.counts, self._texts)
        elif isinstance(message, Embedded):
            self._failures = 0
            front, its = self._asked.pop(message.ticket, (None, 0))
            if front is not None and fds:
                front.send(Embedded(ticket=its), [fds.pop(0)])

    def _told_nothing(self, ticket: int, pause_s: float) -> None:
        front, its = self._asked.pop(ticket)
        self._answer(front, its, Vectors(pause_s=pause_s))

    def _answer(self, front: FrontProcess, ticket: int, vectors: Vectors) -> None:
        """Send vectors to a front; one that cannot be reached asks again."""
        try:
            front.send(Embedded(ticket=ticket), [packets.blob(codec.dump(vectors))])
        except (OSError, TooLarge):
            return


def _without_log(spec: EmbeddingsSpec) -> EmbeddingsSpec:
    """Return `spec` without log format and log levels, which can be changed while the process
    runs."""
    return structs.replace(spec, log=LogSpec(secrets=spec.log.secrets))
