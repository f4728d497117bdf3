"""The process of vectors, played by the test over a real control socket: started when somebody
asks, answered for when it is not there, left to end when nobody needs it."""

import itertools
import socket
from collections.abc import Callable
from contextlib import aclosing

import pytest
from msgspec import structs

from metamcp_supervisor.embeddings.embedder import ASKS_MAX, WHO, Embedder
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.embedding import Embed, Embedded, EmbedFigures, EmbedOn, Vectors
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import FromFront, HandOver, Heartbeat, Tune, WorkerExit
from metamcp_worker.ipc.spec import EmbeddingsSpec, LogSpec
from tests.supervisor import configs
from tests.supervisor.services import service_context
from tests.supervisor.stage import until

pytestmark = pytest.mark.process

SPEC = EmbeddingsSpec(url="http://host/v1/embeddings", model="m", key="secret", id="1")
_to_embedder = codec.reader(EmbedOn | Embed | Tune)
_to_front = codec.reader(Embedded)


class Played:
    """The other end of a control socket, and what was said there."""

    def __init__(
        self, sock: socket.socket, pid: int, read: Callable[[bytes], Message] = _to_front
    ) -> None:
        self.pid = pid
        self.gone = False
        self.heard: list[tuple[Message, bytes]] = []
        self._read = read
        self._channel = packets.Channel(sock, self._packet, self._left)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        blob = packets.read_blob(fds.pop()) if fds else b""
        self.heard.append((self._read(data), blob))

    def _left(self) -> None:
        self.gone = True

    def say(self, message: Message, value: object = None) -> None:
        fds = () if value is None else (packets.blob(codec.dump(value)),)
        self._channel.send(messages.pack(message), fds)

    def close(self) -> None:
        self._channel.close()


class House:
    """What an embedder is wired to. `spec`: what is wanted."""

    def __init__(self) -> None:
        self.spec: EmbeddingsSpec | None = SPEC
        self.born: list[Played] = []
        self.signals: list[tuple[int, int]] = []
        self.refuses = False
        self.journal = Journal(lambda: 0.0)
        context = service_context(self, configs.config, journal=self.journal)
        self._heartbeats = context.heartbeats
        self.embedder = Embedder(context, lambda config: self.spec, dice=lambda: 0.0)
        ours, theirs = packets.pair()
        self.front = FrontProcess(1, 0, ForkedWorker(1, "front", "front-0", ours), 0.0, self)
        self.client = Played(theirs, 1)

    async def fork(self, role: str, name: str) -> ForkedWorker:
        if self.refuses:
            raise NotForked("there is no room")
        ours, theirs = packets.pair()
        pid = 100 + len(self.born)
        self.born.append(Played(theirs, pid, _to_embedder))
        return ForkedWorker(pid, role, name, ours)

    def signal(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))

    def tune(self) -> None: ...

    def suspect(self) -> None: ...

    def on_message(self, front: FrontProcess, message: FromFront, blob: bytes) -> None: ...

    def on_hand_over(self, front: FrontProcess, message: HandOver, fds: list[int]) -> None: ...

    def unheard(self, front: FrontProcess, sentence: str) -> None: ...

    def fell_silent(self, front: FrontProcess) -> None: ...

    def ask(self, ticket: int, *texts: str, query: bool = False) -> None:
        blob = codec.dump(texts) if texts else b""
        self.embedder.embed_texts(self.front, Embed(ticket=ticket, query=query), blob)

    def texts(self) -> dict[tuple[str, ...], object]:
        ((_, rows),) = self.embedder.metric_rows()
        return dict[tuple[str, ...], object](rows)

    async def process(self, number: int = 0) -> Played:
        await until(lambda: len(self.born) > number, "it is forked")
        return self.born[number]

    async def asked(self, process: Played, count: int) -> list[tuple[Embed, list[str]]]:
        """The first questions to it."""

        def found() -> list[tuple[Embed, list[str]]]:
            return [
                (message, codec.decode_as(list[str], blob))
                for message, blob in process.heard
                if isinstance(message, Embed)
            ]

        await until(lambda: len(found()) >= count, "it is asked")
        return found()

    async def answers(self, count: int) -> dict[int, Vectors]:
        """What the front was told, by its tickets."""
        await until(lambda: len(self.client.heard) >= count, "the front is told")
        return {
            message.ticket: codec.decode_as(Vectors, blob)
            for message, blob in self.client.heard
            if isinstance(message, Embedded)
        }

    async def aclose(self) -> None:
        await self.embedder.close()
        self._heartbeats.close()
        self.front.close()
        self.client.close()
        for each in self.born:
            each.close()


async def test_the_first_texts_start_it_and_each_answer_goes_to_who_asked() -> None:
    async with aclosing(House()) as house:
        assert not house.born
        house.ask(7, "a", "b")
        house.ask(8, "what", query=True)
        process = await house.process()
        (tools, query) = await house.asked(process, 2)
        assert codec.decode_as(EmbeddingsSpec, process.heard[0][1]) == SPEC
        assert (tools[1], query[1]) == (["a", "b"], ["what"])
        assert (tools[0].query, query[0].query) == (False, True)
        process.say(Embedded(ticket=query[0].ticket), Vectors((b"\x01",)))
        process.say(Embedded(ticket=tools[0].ticket), Vectors((b"\x02", b"")))
        process.say(Embedded(ticket=12345), Vectors())
        found = await house.answers(2)
        assert found == {8: Vectors((b"\x01",)), 7: Vectors((b"\x02", b""))}
        assert len(house.born) == 1


async def test_what_it_counts_is_told_as_what_came_since() -> None:
    async with aclosing(House()) as house:
        house.ask(1, "a")
        process = await house.process()
        process.say(Heartbeat(seq=1))
        process.say(EmbedFigures(counts={"embedded": 2}))
        process.say(EmbedFigures(counts={"embedded": 5, "failed": 1}))
        await until(lambda: house.texts()[("failed",)] == 1, "it is counted")
        assert house.texts()[("embedded",)] == 5


async def test_when_it_dies_fronts_are_told_nothing_and_another_one_is_started_later() -> None:
    async with aclosing(House()) as house:
        house.ask(1, "a")
        process = await house.process()
        await house.asked(process, 1)
        assert house.embedder.on_exit(WorkerExit(pid=process.pid, signal=9))
        assert not house.embedder.on_exit(WorkerExit(pid=process.pid, signal=9))
        assert not house.embedder.on_exit(WorkerExit(pid=999, signal=9))
        found = await house.answers(1)
        assert (found[1].found, found[1].pause_s > 0) == ((), True)
        house.ask(2, "b")  # too soon
        assert (await house.answers(2))[2].pause_s > 0
        assert len(house.born) == 1
        said = [event for event in house.journal.since(0) if event.what == "error"]
        assert "it ended with signal 9; searches go by words alone" in said[0].cause
        tickets = itertools.count(3)

        def another() -> bool:
            house.ask(next(tickets), "c")
            return len(house.born) == 2

        await until(another, "another one")


async def test_who_cannot_be_asked_is_told_so() -> None:
    async with aclosing(House()) as house:
        house.ask(1)  # its descriptor was lost
        house.spec = None
        house.ask(2, "a")
        house.spec, house.refuses = SPEC, True
        house.ask(3, "a")
        found = await house.answers(3)
        assert all(one.found == () and one.pause_s > 0 for one in found.values())
        assert not house.born
        assert [event.cause for event in house.journal.since(0)] == ["there is no room"]


async def test_no_more_questions_are_kept_than_there_is_room_for() -> None:
    async with aclosing(House()) as house:
        for ticket in range(ASKS_MAX + 1):
            house.ask(ticket, "a")
        assert list(await house.answers(1)) == [ASKS_MAX]


async def test_other_settings_need_another_process_and_other_levels_do_not() -> None:
    async with aclosing(House()) as house:
        house.ask(1, "a")
        process = await house.process()
        await house.asked(process, 1)
        house.spec = structs.replace(SPEC, log=LogSpec(level="debug"))
        house.ask(2, "b")
        await house.asked(process, 2)
        assert Tune(format="auto", level="debug", levels={}) in [one for one, _ in process.heard]
        house.spec = structs.replace(SPEC, key="another")
        house.ask(3, "c")
        second = await house.process(1)
        await house.asked(second, 1)
        assert codec.decode_as(EmbeddingsSpec, second.heard[0][1]).key == "another"
        await until(lambda: process.gone, "the first one is to end")
        assert (await house.answers(2)) == {1: Vectors(), 2: Vectors()}
        assert house.embedder.on_exit(WorkerExit(pid=process.pid, code=0))
        assert house.embedder.pid == second.pid
        assert [event.what for event in house.journal.since(0)] == ["ready", "ready"]
        assert {event.who for event in house.journal.since(0)} == {WHO}


async def test_it_ends_when_the_configuration_wants_no_vectors_any_more() -> None:
    async with aclosing(House()) as house:
        house.ask(1, "a")
        process = await house.process()
        await house.asked(process, 1)
        house.spec = None
        process.say(Heartbeat(seq=1))
        await until(lambda: process.gone, "it is to end")
        assert house.embedder.pid == 0
        assert await house.answers(1) == {1: Vectors()}
        said = [event.cause for event in house.journal.since(0) if event.what == "stopped"]
        assert said == ["nobody needs vectors any more"]
