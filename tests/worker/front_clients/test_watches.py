"""Who watches what, with values; and any history of it."""

import pytest
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metamcp_worker.catalog.uris import URI_BYTES_MAX
from metamcp_worker.front_clients.watches import (
    URIS_MAX,
    WATCHER_URIS_MAX,
    Key,
    TooManyWatched,
    WaitOutcome,
    Watches,
)

ONE: Key = ("git", "file:///a")


class Client:
    """A watcher; only its identity matters here."""

    who = "someone"
    rooted = project = ""
    unasked = modern = False
    caller = roots = b""

    def send_resource_updated(self, params: bytes) -> None:
        raise AssertionError("nobody tells anybody here")


def watched(table: Watches, *clients: Client, key: Key = ONE) -> None:
    """All of them watch, and the server knows."""
    for number, client in enumerate(clients, 10_000):
        if not table.watch(key, client, key[1], number):
            assert table.next(key) is True
            assert table.on_answer(key, ok=True) == [WaitOutcome(number, answered=True)]


def test_a_server_is_asked_once_however_many_watch() -> None:
    table, first, second, third = Watches(), Client(), Client(), Client()
    assert not table.watch(ONE, first, ONE[1], 1)
    assert table.next(ONE) is True
    assert not table.watch(ONE, second, ONE[1], 2)
    assert table.next(ONE) is None
    assert table.on_answer(ONE, ok=True) == [
        WaitOutcome(1, answered=True),
        WaitOutcome(2, answered=True),
    ]
    assert table.watch(ONE, third, ONE[1], 3)
    assert table.unwatch(first, ONE[1], 4) is table.unwatch(second, ONE[1], 5) is None
    assert table.unwatch(third, ONE[1], 6) == ONE
    assert table.next(ONE) is False
    assert table.on_answer(ONE, ok=True) == [WaitOutcome(6, answered=True)]
    assert table.empty()


def test_one_who_changes_his_mind_meanwhile_leaves_nothing_behind() -> None:
    table, client = Watches(), Client()
    table.watch(ONE, client, ONE[1], 1)
    assert table.next(ONE) is True
    assert table.unwatch(client, ONE[1], 2) == ONE
    assert table.on_answer(ONE, ok=True) == [WaitOutcome(1, answered=True)]
    assert table.next(ONE) is False
    assert not table.watch(ONE, client, ONE[1], 3)
    assert table.unwatch(client, ONE[1], 4) == ONE
    assert {settled.number for settled in table.on_answer(ONE, ok=True)} == {2, 3, 4}
    assert table.empty()


def test_a_refused_subscription_is_nobodys() -> None:
    table, first, second = Watches(), Client(), Client()
    table.watch(ONE, first, ONE[1], 1)
    assert table.next(ONE) is True
    table.watch(ONE, second, ONE[1], 2)
    assert table.on_answer(ONE, ok=False) == [
        WaitOutcome(1, answered=True),
        WaitOutcome(2, answered=True),
    ]
    assert table.next(ONE) is None
    assert table.empty()


def test_a_server_that_was_started_anew_is_asked_again() -> None:
    table, client = Watches(), Client()
    watched(table, client)
    assert table.renew("other", ()) == []
    assert table.renew("git", ()) == [ONE]
    assert table.next(ONE) is True
    assert table.on_answer(ONE, ok=False) == []
    assert table.watchers(*ONE), "it watches still"
    assert table.next(ONE) is None, "it is not asked in a circle"
    assert not table.watch(ONE, Client(), ONE[1], 1), "but for somebody new"
    assert table.next(ONE) is True


def test_what_the_process_before_answered_does_not_count() -> None:
    table, client = Watches(), Client()
    table.watch(ONE, client, ONE[1], 1)
    assert table.next(ONE) is True
    assert table.renew("git", ()) == []
    assert table.on_answer(ONE, ok=True) == []
    assert table.next(ONE) is True
    table.renew("git", (ONE,))  # this one waited for the new process
    assert table.on_answer(ONE, ok=True) == [WaitOutcome(1, answered=True)]
    assert table.next(ONE) is None


def test_a_request_that_was_given_up_is_no_subscription() -> None:
    table, client, other = Watches(), Client(), Client()
    table.watch(ONE, client, ONE[1], 1)
    assert table.next(ONE) is True
    table.watch(ONE, other, ONE[1], 2)
    assert table.give_up(1) == []
    assert table.watchers(*ONE) == [(other, ONE[1])]
    assert table.give_up(2) == [], "its answer is waited for"
    assert table.on_answer(ONE, ok=True) == []
    assert table.next(ONE) is False


def test_a_name_that_stands_for_another_resource_now_is_another_subscription() -> None:
    table, client = Watches(), Client()
    watched(table, client)
    other = ("fs", ONE[1])
    assert table.rebind_uri(ONE, client, ONE[1]) == []
    assert table.rebind_uri(other, client, ONE[1]) == [ONE]
    watched(table, client, key=other)
    assert table.next(ONE) is False
    assert table.on_answer(ONE, ok=True) == []
    assert [key for key in (ONE, other) if table.watchers(*key)] == [other]


def test_who_watches_a_resource_hears_of_those_below_it() -> None:
    table, client, deep = Watches(), Client(), Client()
    watched(table, client)
    watched(table, deep, key=("git", "file:///a/b?c"))
    assert table.watchers("git", "file:///a/b?c#d") == [
        (deep, "file:///a/b?c#d"), (client, "file:///a/b?c#d")
    ]  # fmt: skip
    assert table.watchers("git", "file:///ab") == []
    assert table.watchers("fs", "file:///a") == []
    assert table.watchers("git", "file:///a/" + "b" * URI_BYTES_MAX) == []


def test_a_client_hears_the_name_that_it_used_and_once_only() -> None:
    table, client = Watches(), Client()
    table.watch(ONE, client, "x://git/a", 1)
    table.next(ONE)
    table.on_answer(ONE, ok=True)
    watched(table, client, key=("git", "file:///a/b"))
    assert table.watchers("git", "file:///a/c") == [(client, "x://git/a/c")]
    assert table.watchers("git", "file:///a/b") == [(client, "file:///a/b")]


def test_what_one_client_watches_is_bounded_and_so_is_all() -> None:
    table, greedy = Watches(), Client()
    for number in range(WATCHER_URIS_MAX):
        table.watch(("git", f"a:{number}"), greedy, f"a:{number}", number)
    with pytest.raises(TooManyWatched, match="One client"):
        table.watch(("git", "a:x"), greedy, "a:x", -1)
    table.watch(("git", "a:0"), greedy, "a:0", -2)
    for number in range(URIS_MAX - WATCHER_URIS_MAX):
        table.watch(ONE, Client(), ONE[1], WATCHER_URIS_MAX + number)
    with pytest.raises(TooManyWatched, match="try again"):
        table.watch(ONE, Client(), ONE[1], -3)


class AnyHistory(RuleBasedStateMachine):
    """Clients, and a server that loses everything from time to time. In the end the server holds
    what is watched, and everybody was answered once."""

    keys = some.sampled_from([("s", "a:1"), ("s", "a:2")])

    def __init__(self) -> None:
        super().__init__()
        self.table = Watches()
        self.clients = [Client() for _ in range(3)]
        self.believes: set[tuple[int, Key]] = set()
        self.waits: dict[int, tuple[int, Key, bool]] = {}
        self.server: set[Key] = set()
        self.asked: dict[Key, tuple[int, bool]] = {}
        self.ended: dict[tuple[int, Key], int] = {}
        self.epoch = 0
        self.count = 0

    @rule(who=some.integers(0, 2), key=keys)
    def watch(self, who: int, key: Key) -> None:
        self.count += 1
        if self.table.watch(key, self.clients[who], key[1], self.count):
            self.believes.add((who, key))
        else:
            self.waits[self.count] = (who, key, True)
            self.pump(key)

    @rule(who=some.integers(0, 2), key=keys)
    def adopt(self, who: int, key: Key) -> None:
        if not any(one[:2] == (who, key) for one in self.waits.values()):
            for open_key in self.table.adopt(key, self.clients[who], key[1]):
                self.pump(open_key)
            self.believes.add((who, key))

    @rule(who=some.integers(0, 2), key=keys)
    def unwatch(self, who: int, key: Key) -> None:
        self.count += 1
        self.believes.discard((who, key))
        self.ended[who, key] = self.count
        if self.table.unwatch(self.clients[who], key[1], self.count) is not None:
            self.waits[self.count] = (who, key, False)
            self.pump(key)

    @rule(who=some.integers(0, 2))
    def leave(self, who: int) -> None:
        keys, numbers = self.table.leave(self.clients[who])
        assert {number for number, one in self.waits.items() if one[0] == who} == set(numbers)
        for number in numbers:
            del self.waits[number]
        self.believes = {one for one in self.believes if one[0] != who}
        for key in keys:
            self.pump(key)

    @precondition(lambda self: bool(self.waits))
    @rule(data=some.data())
    def give_up(self, data: some.DataObject) -> None:
        number = data.draw(some.sampled_from(sorted(self.waits)))
        del self.waits[number]
        for key in self.table.give_up(number):
            self.pump(key)

    @precondition(lambda self: bool(self.asked))
    @rule(data=some.data(), ok=some.booleans())
    def answer(self, data: some.DataObject, ok: bool) -> None:
        key = data.draw(some.sampled_from(sorted(self.asked)))
        epoch, wanted = self.asked.pop(key)
        if epoch == self.epoch and (ok or not wanted):
            (self.server.add if wanted else self.server.discard)(key)
        self.settle(key, wanted, ok or not wanted)
        self.pump(key)

    @rule()
    def restart(self) -> None:
        self.epoch += 1
        self.server.clear()
        for key in self.table.renew("s", ()):
            self.pump(key)

    def pump(self, key: Key) -> None:
        wanted = self.table.next(key)
        if wanted is not None:
            assert key not in self.asked, "one request at a time"
            self.asked[key] = (self.epoch, wanted)

    def settle(self, key: Key, asked: bool, ok: bool) -> None:
        for settled in self.table.on_answer(key, ok=ok):
            who, about, wanted = self.waits.pop(settled.number)
            assert about == key
            assert not settled.answered or wanted is asked
            later = self.ended.get((who, key), 0) > settled.number
            if wanted and not later and (ok or not settled.answered):
                self.believes.add((who, key))

    @invariant()
    def whoever_believes_to_watch_is_told(self) -> None:
        for who, key in self.believes:
            told = [watcher for watcher, _ in self.table.watchers(*key)]
            assert self.clients[who] in told

    def teardown(self) -> None:
        self.restart()  # so that refused ones are asked for again
        while self.asked:
            key, (epoch, wanted) = self.asked.popitem()
            if epoch == self.epoch:
                (self.server.add if wanted else self.server.discard)(key)
            self.settle(key, wanted, ok=True)
            self.pump(key)
        assert not self.waits, "everybody is answered"
        watched = {key for key in (("s", "a:1"), ("s", "a:2")) if self.table.watchers(*key)}
        assert self.server == watched
        for client in self.clients:
            for key in self.table.leave(client)[0]:
                self.pump(key)
        while self.asked:
            self.settle(key := self.asked.popitem()[0], asked=False, ok=True)
            self.pump(key)
        assert self.table.empty()


TestAnyHistory = AnyHistory.TestCase


def test_one_who_leaves_ends_only_its_own_waiting() -> None:
    table, first, second = Watches(), Client(), Client()
    table.watch(ONE, first, ONE[1], 1)
    table.watch(ONE, second, ONE[1], 2)
    assert table.next(ONE) is True
    assert table.unwatch(first, ONE[1], 3) is None
    table.watch(ONE, first, ONE[1], 4)
    assert table.leave(first) == ([], [1, 4])
    assert table.leave(first) == ([], [])
    assert table.on_answer(ONE, ok=True) == [WaitOutcome(2, answered=True)]
    assert table.leave(second) == ([ONE], [])
