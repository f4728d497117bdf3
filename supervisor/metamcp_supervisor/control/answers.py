"""What was answered to orders with a key, so that one that comes again is not carried out again.

Owns: the table of keys, its bounds and how long it remembers. Never: what an order does (`orders`),
who may give it (`access`).

A script that got no answer, because its connection broke, cannot know whether its order arrived: it
gives the order once more with the same key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from msgspec import Raw, Struct

from metamcp_supervisor.control.access import PER_MINUTE_MAX
from metamcp_supervisor.rations import Ration
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError

REMEMBERED_S = 600.0
"""Ten minutes: longer than a script tries again."""
KEYS_MAX = 1024
"""Remembered at once; of more the oldest are forgotten. Orders come from people and scripts."""
KEY_CHARACTERS_MAX = 200
"""A UUID has 36."""


class AnswerSnapshot(Struct, frozen=True, kw_only=True):
    """What was answered to an order with a key. `result`: raw JSON; empty when it was refused, with
    `code`, `message` and `data`."""

    uid: int
    key: str
    order: tuple[str, bytes]
    given_at: float
    result: bytes = b""
    code: int = 0
    message: str = ""
    data: bytes = b""


class _Answer(Struct):
    """`order`: verb and parameters, so that a key cannot stand for two things."""

    order: tuple[str, bytes]
    given_at: float
    result: asyncio.Future[object]


class OrderAnswers:
    """`now`: a monotonic clock. `refusals`: how many orders were refused lately."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.refusals = Ration(PER_MINUTE_MAX)
        self._by_key: dict[tuple[int, str], _Answer] = {}

    async def once(
        self,
        who: tuple[int, str],
        order: tuple[str, bytes],
        carry_out: Callable[[], Awaitable[object]],
    ) -> object:
        """What `carry_out` answers, or what it answered to the same order before. Raises Refused,
        also as it was raised before. `who`: user id and key."""
        if len(who[1]) > KEY_CHARACTERS_MAX:
            raise ProtocolError(Exit.FAILED, f"a key has at most {KEY_CHARACTERS_MAX} characters")
        self._forget_old()
        known = self._by_key.get(who)
        if known is not None and known.order != order:
            raise ProtocolError(
                Exit.FAILED,
                f"the key {who[1][:40]!r} was given to another order; each order needs its own key",
            )
        if known is not None:
            return await asyncio.shield(known.result)
        if len(self._by_key) >= KEYS_MAX:
            del self._by_key[next(iter(self._by_key))]
        answer = _Answer(order, self.now(), asyncio.get_running_loop().create_future())
        self._by_key[who] = answer
        try:
            result = await carry_out()
        except ProtocolError as refusal:
            answer.result.set_exception(refusal)
            answer.result.exception()  # nobody may ask for it again, and that is no fault
            raise
        except (asyncio.CancelledError, Exception):
            # Nobody knows what became of it: a repetition may try.
            self._by_key.pop(who, None)
            answer.result.cancel()
            raise
        answer.result.set_result(result)
        return result

    def handed(self) -> tuple[AnswerSnapshot, ...]:
        """What was answered, for the program that goes on with it."""
        return tuple(
            _handed(who, answer)
            for who, answer in self._by_key.items()
            if answer.result.done() and not answer.result.cancelled()
        )

    def go_on(self, found: Iterable[AnswerSnapshot]) -> None:
        """After what the program before answered."""
        for each in found:
            result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            if each.result:
                result.set_result(Raw(each.result))
            else:
                result.set_exception(ProtocolError(each.code, each.message, each.data))
                result.exception()  # nobody may ask for it again, and that is no fault
            self._by_key[each.uid, each.key] = _Answer(each.order, each.given_at, result)

    def _forget_old(self) -> None:
        oldest = self.now() - REMEMBERED_S
        old = [who for who, answer in self._by_key.items() if answer.given_at < oldest]
        for who in old:
            del self._by_key[who]


def _handed(who: tuple[int, str], answer: _Answer) -> AnswerSnapshot:
    uid, key = who
    refusal = answer.result.exception()
    if isinstance(refusal, ProtocolError):
        return AnswerSnapshot(
            uid=uid,
            key=key,
            order=answer.order,
            given_at=answer.given_at,
            code=int(refusal.code),
            message=refusal.message,
            data=refusal.data,
        )
    result = codec.dump(answer.result.result())
    return AnswerSnapshot(
        uid=uid, key=key, order=answer.order, given_at=answer.given_at, result=result
    )
