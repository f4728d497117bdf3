"""Resources that clients watch, and the subscriptions that their servers hold for them.

Owns: which client watches which resource, the next request for a server, and who waits for its
outcome. Never: asking, waiting, notifications, views.

A server is asked once for a resource, however many clients watch it. Whether a client watches the
resource and whether the server holds a subscription for it are two facts; `next` compares them and
says what to ask. At most one request for a resource is on its way, because two might overtake each
other; after each of them the facts are compared again. So whatever the order in which clients come
and go, requests fail and servers restart, both facts agree in the end.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from msgspec import Struct

from metamcp_worker.catalog.uris import URI_BYTES_MAX
from metamcp_worker.front_calls.server_processes import ProcessClient

WATCHER_URIS_MAX = 1000
"""Maximum number of resources that one client may watch: more than any client shows to its user."""
URIS_MAX = 100_000
"""Maximum number of resources watched through one front: ten of each of ten thousand clients."""

#: A server and a URI, as the server knows it.
Key = tuple[str, str]
_ENDS = "/?#"
"""Characters that end a part of a URI; the resources below come behind them."""


class Watcher(ProcessClient, Protocol):
    """Client that watches resources, as long as it can be reached."""

    def send_resource_updated(self, params: bytes) -> None:
        """Take the raw params of a `notifications/resources/updated`. Never waits."""
        ...


class TooManyWatched(Exception):
    """Raised when too much is watched already. The text is a sentence."""


class WaitOutcome(Struct, frozen=True):
    """End of a wait. `answered`: the answer of the server is its outcome; else there was nothing to
    ask."""

    number: int
    answered: bool


class _PendingWait(Struct, frozen=True):
    """Wait until a resource is watched, or is not watched any more."""

    key: Key
    pair: tuple[Watcher, str]
    wanted: bool


class _Topic:
    """Resource of a server. `pairs`: its watchers, each with the URI that it knows for the
    resource; `held`: the server has a subscription; `asking`: request on its way, for a
    subscription (True) or for its end (False); `outdated`: the server was restarted after that;
    `tired`: the server refused a subscription, so it is not asked again for those who watch
    already."""

    __slots__ = ("asking", "held", "outdated", "pairs", "tired", "waiting")

    def __init__(self) -> None:
        self.pairs: dict[tuple[Watcher, str], None] = {}
        self.waiting: dict[int, None] = {}
        self.held = False
        self.asking: bool | None = None
        self.outdated = False
        self.tired = False

    @property
    def wish(self) -> bool | None:
        """Request that the server is to get now, as in `asking`; None for no request."""
        has_watchers = bool(self.pairs)
        if self.asking is not None or has_watchers == self.held or (has_watchers and self.tired):
            return None
        return has_watchers


class Watches:
    """Resources that are watched. A wait has a number that the caller chooses, unique for ever."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, _Topic]] = {}
        self._watched: dict[Watcher, dict[str, Key]] = {}
        self._waiting: dict[int, _PendingWait] = {}
        self._numbers: dict[Watcher, dict[int, None]] = {}
        self._count = 0

    def watch(self, key: Key, watcher: Watcher, exposed: str, number: int) -> bool:
        """Let `watcher` learn of changes of a resource that it knows as `exposed`. Returns True if
        it learns of them from now on, False if `number` waits for that. Raises TooManyWatched."""
        pair = (watcher, exposed)
        topic = self._topic(key)
        if topic is not None and pair in topic.pairs and not self._waits(key, pair):
            return True
        topic = self._join(key, pair)
        if topic.held and topic.asking is None:
            return True
        topic.tired = False
        self._wait(topic, number, _PendingWait(key, pair, wanted=True))
        return False

    def adopt(self, key: Key, watcher: Watcher, exposed: str) -> list[Key]:
        """Go on with a resource that `watcher` has watched elsewhere. Returns the keys that may
        have to be asked about. Raises TooManyWatched."""
        self._join(key, (watcher, exposed))
        return self._open([key])

    def rebind_uri(self, key: Key, watcher: Watcher, exposed: str) -> list[Key]:
        """Note that `exposed` stands for `key` now. If it stood for something else when `watcher`
        began to watch that, the old watch ends. Returns the keys that may have to be asked
        about."""
        before = self._watched.get(watcher, {}).get(exposed, key)
        if before == key:
            return []
        self._leave((watcher, exposed), before)
        return self._open([before])

    def unwatch(self, watcher: Watcher, exposed: str, number: int) -> Key | None:
        """End the watch of `watcher`. Returns the resource for whose end `number` waits, or None if
        nothing changes at its server."""
        key = self._watched.get(watcher, {}).get(exposed)
        if key is None:
            return None
        topic = self._leave((watcher, exposed), key)
        if topic.pairs or not (topic.held or topic.asking):
            self._tidy(key)
            return None
        self._wait(topic, number, _PendingWait(key, (watcher, exposed), wanted=False))
        return key

    def leave(self, watcher: Watcher) -> tuple[list[Key], list[int]]:
        """End all watches of a client that is gone. Returns the keys that may have to be asked
        about, and the numbers that do not wait any more."""
        numbers = list(self._numbers.get(watcher, ()))
        keys = [self._forget(number).key for number in numbers]
        for exposed, key in list(self._watched.get(watcher, {}).items()):
            self._leave((watcher, exposed), key)
            keys.append(key)
        return self._open(keys), numbers

    def of(self, watcher: Watcher) -> list[Key]:
        """Return the resources that a client watches, or waits to watch."""
        return list(self._watched.get(watcher, {}).values())

    def is_watched(self, key: Key) -> bool:
        """Whether a client watches this resource, or waits to."""
        topic = self._topic(key)
        return topic is not None and bool(topic.pairs)

    def give_up(self, number: int) -> list[Key]:
        """End the wait of `number`; a client that never learns that it watches does not. Returns
        the keys that may have to be asked about."""
        if number not in self._waiting:
            return []
        ended = self._forget(number)
        topic = self._topics[ended.key[0]][ended.key[1]]
        if ended.wanted and ended.pair in topic.pairs and not self._waits(ended.key, ended.pair):
            self._leave(ended.pair, ended.key)
        return self._open([ended.key])

    def renew(self, server: str, sent_keys: Collection[Key]) -> list[Key]:
        """Note that the server was restarted and holds nothing. `sent_keys`: resources whose
        requests are on their way to the new process already. Returns the keys that may have to be
        asked about."""
        for uri, topic in self._topics.get(server, {}).items():
            topic.held = topic.tired = False
            topic.outdated = topic.asking is True and (server, uri) not in sent_keys
        return self._open([(server, uri) for uri in self._topics.get(server, {})])

    def next(self, key: Key) -> bool | None:
        """Return the next request for this resource at its server: for a subscription (True), for
        its end (False), or None. The request counts as sent, until `on_answer`."""
        topic = self._topic(key)
        if topic is None or topic.wish is None:
            return None
        topic.asking = topic.wish
        topic.outdated = False
        return topic.asking

    def on_answer(self, key: Key, *, ok: bool) -> list[WaitOutcome]:
        """Take over the answer of the server to what `next` returned, and return the waits that
        end. Call `next` again afterwards."""
        topic = self._topics[key[0]][key[1]]
        subscribing, topic.asking = topic.asking, None
        assert subscribing is not None
        if topic.outdated:  # what was said is of a process that is not asked any more
            return self._settle(topic, None, key)
        topic.held = subscribing and ok
        if subscribing and not ok:
            topic.tired = True
            for waiting in [self._waiting[number] for number in topic.waiting]:
                if waiting.wanted and waiting.pair in topic.pairs:
                    self._leave(waiting.pair, key)
        return self._settle(topic, subscribing, key)

    def watchers(self, server: str, uri: str) -> list[tuple[Watcher, str]]:
        """Return the clients to notify that this resource changed, each with the URI that it knows
        for it. A client that watches a resource hears of the resources below as well."""
        topics = self._topics.get(server)
        if not topics or len(uri) > URI_BYTES_MAX:
            return []
        uris: dict[Watcher, str] = {}
        for above in _list_ancestors(uri):
            if above in topics:
                for watcher, exposed in topics[above].pairs:
                    uris.setdefault(watcher, exposed + uri[len(above) :])
        return list(uris.items())

    def all_of(self, server: str) -> list[tuple[str, Watcher, str]]:
        """Return the resources that are watched at a server, by which client, and the URI that it
        knows."""
        topics = self._topics.get(server, {})
        return [(uri, *pair) for uri, topic in topics.items() for pair in topic.pairs]

    def empty(self) -> bool:
        """Whether no resource is watched or held, and no number waits."""
        return not (self._topics or self._watched or self._waiting or self._numbers or self._count)

    # --- underneath ---------------------------------------------------------------------------

    def _topic(self, key: Key) -> _Topic | None:
        return self._topics.get(key[0], {}).get(key[1])

    def _check(self, watcher: Watcher) -> None:
        if len(self._watched.get(watcher, ())) >= WATCHER_URIS_MAX:
            raise TooManyWatched(f"One client may watch {WATCHER_URIS_MAX} resources at once.")
        if self._count >= URIS_MAX:
            raise TooManyWatched("As many resources are watched as may be; try again later.")

    def _waits(self, key: Key, pair: tuple[Watcher, str]) -> bool:
        own = (self._waiting[number] for number in self._numbers.get(pair[0], ()))
        return any(
            waiting.wanted and waiting.pair == pair and waiting.key == key for waiting in own
        )

    def _join(self, key: Key, pair: tuple[Watcher, str]) -> _Topic:
        watcher, exposed = pair
        if exposed not in self._watched.get(watcher, {}):
            self._check(watcher)
            self._count += 1
        self._watched.setdefault(watcher, {})[exposed] = key
        topic = self._topics.setdefault(key[0], {}).setdefault(key[1], _Topic())
        topic.pairs[pair] = None
        return topic

    def _wait(self, topic: _Topic, number: int, waiting: _PendingWait) -> None:
        topic.waiting[number] = None
        self._waiting[number] = waiting
        self._numbers.setdefault(waiting.pair[0], {})[number] = None

    def _forget(self, number: int) -> _PendingWait:
        waiting = self._waiting.pop(number)
        del self._topics[waiting.key[0]][waiting.key[1]].waiting[number]
        watcher = waiting.pair[0]
        own = self._numbers[watcher]
        del own[number]
        if not own:
            del self._numbers[watcher]
        return waiting

    def _leave(self, pair: tuple[Watcher, str], key: Key) -> _Topic:
        watcher, exposed = pair
        own = self._watched[watcher]
        del own[exposed]
        self._count -= 1
        if not own:
            del self._watched[watcher]
        topic = self._topics[key[0]][key[1]]
        del topic.pairs[pair]
        return topic

    def _settle(self, topic: _Topic, outcome: bool | None, key: Key) -> list[WaitOutcome]:
        """End the waits that have this outcome; all waits, if no request is to follow."""
        over = topic.wish is None
        settled: list[WaitOutcome] = []
        for number in list(topic.waiting):
            answered = self._waiting[number].wanted is outcome
            if answered or over:
                self._forget(number)
                settled.append(WaitOutcome(number, answered))
        self._tidy(key)
        return settled

    def _open(self, keys: Iterable[Key]) -> list[Key]:
        """Return the keys for which a request is to be sent, and drop topics that are not used any
        more."""
        due: list[Key] = []
        for key in dict.fromkeys(keys):
            self._tidy(key)
            topic = self._topic(key)
            if topic is not None and topic.wish is not None:
                due.append(key)
        return due

    def _tidy(self, key: Key) -> None:
        topic = self._topic(key)
        if topic is None or topic.pairs or topic.waiting or topic.held or topic.asking is not None:
            return
        topics = self._topics[key[0]]
        del topics[key[1]]
        if not topics:
            del self._topics[key[0]]


def _list_ancestors(uri: str) -> list[str]:
    """Return the URI itself and those above it, the nearest first."""
    uris = [uri]
    for at in range(len(uri) - 1, 0, -1):
        if uri[at] in _ENDS:
            uris += [uri[: at + 1], uri[:at]]
    return list(dict.fromkeys(uris))
