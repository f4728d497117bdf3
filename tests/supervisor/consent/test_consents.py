"""Consent in the supervisor: open questions, answers of operators, grants on the disk."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from metamcp_supervisor.consent.consents import (
    GRANTS_MAX,
    SHOWN_BYTES_MAX,
    Consents,
    ConsentUnknown,
)
from metamcp_supervisor.store.database import DatabaseFile
from metamcp_supervisor.telemetry.journal import WAITING, Journal
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.consent_records import (
    ConsentClosed,
    ConsentDecided,
    ConsentGiven,
    ConsentGrant,
    ConsentGrants,
    ConsentOpened,
    OpenConsent,
)
from metamcp_worker.ipc.messages import Listen
from tests.supervisor import configs
from tests.supervisor.services import service_context
from tests.supervisor.stage import Player, Stage, front_up, opened_stage, until

pytestmark = pytest.mark.process


class Place:
    """Time, rules and keys that decide whether a grant counts."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rules = "mark"
        self.keys = {"k"}
        self.journal = Journal(lambda: 0.0)

    def has(self, key_id: str) -> bool:
        return key_id in self.keys

    @property
    def noted(self) -> list[str]:
        return [event.cause for event in self.journal.since(0) if event.what == "error"]

    @property
    def opened(self) -> list[str]:
        return [event.cause for event in self.journal.since(0) if event.what == WAITING]


def consents(stage: Stage, folder: Path, place: Place) -> Consents:
    context = service_context(
        stage, configs.config, database=DatabaseFile(folder, busy_s=0.1), fronts=stage.fronts,
        keys=place, journal=place.journal,
    )  # fmt: skip
    stage.consents = Consents(context, lambda: place.now, lambda config: place.rules)
    return stage.consents


def grant(name: str = "g1", **members: Any) -> ConsentGrant:
    known: dict[str, Any] = {
        "id": name, "holder": "keys:k", "principal": "ann", "server": "git", "tool": "push",
        "definition": "d", "rules": "mark", "given": 1000.0, "until": 2000.0, "by": "client",
    }  # fmt: skip
    return ConsentGrant(**(known | members))


def question(name: str, since: float = 1000.0) -> OpenConsent:
    return OpenConsent(
        id=name, server="git", tool="push", workspace="default", endpoint="default",
        principal="ann", client="c", arguments="{}", source="client", asked=True, since=since,
        until=since + 120,
    )  # fmt: skip


def known(player: Player) -> list[list[str]]:
    """The grants in each message that a front got."""
    return [
        [one.id for one in codec.decode_as(list[ConsentGrant], packets.read_blob(os.dup(fds[0])))]
        for message, fds in player.sent
        if isinstance(message, ConsentGrants)
    ]


@pytest.mark.promise("M97")
async def test_a_grant_of_one_front_is_stored_and_told_to_all(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        place = Place()
        kept = consents(stage, tmp_path, place)
        await kept.begin(fresh=True)
        first = await front_up(stage)
        first.say(ConsentGiven(grant=grant()))
        await until(lambda: known(first), "told")
        assert known(first) == [["g1"]]
        await kept.close()
        again = consents(stage, tmp_path, place)
        await again.begin(fresh=True)
        assert again.grants() == (grant(),)
        assert place.noted == []


@pytest.mark.promise("M97")
async def test_a_new_front_knows_the_grants_before_it_listens(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        kept = consents(stage, tmp_path, Place())
        await kept.begin(fresh=True)
        first = await front_up(stage)
        first.say(ConsentGiven(grant=grant()))
        await until(lambda: known(first), "told")
        first.leave(None, 9)
        await until(lambda: stage.players[-1] is not first, "its successor")
        second = stage.players[-1]
        await until(partial(second.told, Listen), "told to listen")
        kinds = [type(message) for message in second.heard]
        assert kinds.index(ConsentGrants) < kinds.index(Listen)
        await kept.close()


@pytest.mark.promise("M97")
@pytest.mark.parametrize(
    ("member", "value"), [("now", 2000.0), ("rules", "other"), ("keys", set[str]())]
)
async def test_a_grant_is_void_when_its_time_its_rules_or_its_key_are_over(
    tmp_path: Path, member: str, value: object
) -> None:
    async with opened_stage(tmp_path) as stage:
        place = Place()
        kept = consents(stage, tmp_path, place)
        front = await front_up(stage)
        front.say(ConsentGiven(grant=grant()))
        front.say(ConsentGiven(grant=grant("g2", holder="none:local", until=9000.0)))
        await until(lambda: len(kept.grants()) == 2, "both are there")
        setattr(place, member, value)
        left = [one.id for one in kept.grants()]
        assert left == ([] if member == "rules" else ["g2"])
        await kept.close()


@pytest.mark.promise("M97")
async def test_an_operator_ends_grants(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        kept = consents(stage, tmp_path, Place())
        front = await front_up(stage)
        for name in ("g1", "g2", "g3"):
            front.say(ConsentGiven(grant=grant(name)))
        await until(lambda: len(kept.grants()) == 3, "all are there")
        with pytest.raises(ConsentUnknown, match="no grant is named 'g9'"):
            kept.revoke(["g1", "g9"])
        assert [one.id for one in kept.revoke(["g2"])] == ["g2"]
        assert [one.id for one in kept.revoke([])] == ["g1", "g3"]
        await until(lambda: known(front)[-1] == [], "the front has none")
        await kept.close()


@pytest.mark.promise("M97")
async def test_an_answer_goes_to_the_front_that_asks_and_counts_once(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        kept = consents(stage, tmp_path, Place())
        front = await front_up(stage)
        number = stage.fronts.list_serving()[0].number
        for call, since in ((17, 1002.0), (18, 1001.0)):
            front.say(ConsentOpened(question=question(f"{number}-{call}", since)))
        front.say(ConsentOpened(question=question("99-1")))  # of another front
        await until(lambda: len(kept.questions()) == 2, "both are open")
        assert [one.id for one in kept.questions()] == [f"{number}-18", f"{number}-17"]
        assert kept.decide(f"{number}-17", "24h", "ops").tool == "push"
        kept.decide(f"{number}-18", None, "ops")
        await until(lambda: len(front.told(ConsentDecided)) == 2, "both are told")
        assert front.told(ConsentDecided) == [
            ConsentDecided(call=17, scope="24h", by="ops"),
            ConsentDecided(call=18, scope="", by="ops"),
        ]
        for name in (f"{number}-17", "99-1", "", "x", "1-2-3", "-", "9" * 50):
            with pytest.raises(ConsentUnknown):
                kept.decide(name, "once", "ops")


async def test_a_question_is_an_event_once_although_its_front_tells_it_again(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        place = Place()
        kept = consents(stage, tmp_path, place)
        front = await front_up(stage)
        number = stage.fronts.list_serving()[0].number
        for call in (1, 1, 2):
            front.say(ConsentOpened(question=question(f"{number}-{call}")))
        await until(lambda: kept.count_waiting()["consent"] == 2, "both are open")
        assert place.opened == [
            f"a call of git/push needs consent: 'metamcp consent approve {number}-{call}'"
            for call in (1, 2)
        ]


@pytest.mark.promise("M97")
async def test_questions_end_with_their_answer_or_their_front(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        kept = consents(stage, tmp_path, Place())
        front = await front_up(stage)
        number = stage.fronts.list_serving()[0].number
        for call in (1, 2):
            front.say(ConsentOpened(question=question(f"{number}-{call}")))
        front.say(ConsentClosed(id=f"{number}-1"))
        await until(lambda: [one.id for one in kept.questions()] == [f"{number}-2"], "one is left")
        front.leave()
        await until(lambda: kept.questions() == (), "none is left")


async def test_there_is_an_end_to_the_number_of_grants(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        place = Place()
        kept = consents(stage, tmp_path, place)
        front = await front_up(stage)
        for number in range(GRANTS_MAX + 2):
            kept.on_front_message(stage.fronts.list_serving()[0], _given(number), b"")
        await kept.close()
        assert kept.grants()[0].id == "g2"
        assert len(kept.grants()) == GRANTS_MAX
        assert place.noted == []
        await until(lambda: known(front), "told")


def _given(number: int) -> ConsentGiven:
    return ConsentGiven(grant=grant(f"g{number}", given=1000.0 + number / 1e6))


@pytest.mark.promise("M97")
async def test_the_oldest_questions_are_shown_as_many_as_one_answer_can_have(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        kept = consents(stage, tmp_path, Place())
        await front_up(stage)
        front = stage.fronts.list_serving()[0]
        for at in range(100):
            asked = question(f"{front.number}-{at}", 1000.0 + at)
            asked = structs.replace(asked, arguments='"' * 8192)
            kept.on_front_message(front, ConsentOpened(question=asked), b"")
        shown = kept.questions()
        assert [one.id for one in shown] == [f"{front.number}-{at}" for at in range(len(shown))]
        assert SHOWN_BYTES_MAX - 16_500 < len(codec.dump(shown)) < SHOWN_BYTES_MAX + 16_384
