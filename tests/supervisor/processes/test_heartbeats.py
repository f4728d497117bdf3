"""The one ticker over all pulses; its deadlines are tested in test_pulse."""

import asyncio
import math
import signal

import pytest

from metamcp_supervisor.processes.heartbeats import PAUSE_S, TICK_S, Heartbeats
from metamcp_supervisor.processes.workers import PulseVerdict


class Watch:
    """Hearts with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pulse: tuple[float, float] | None = None
        self.signals: list[int] = []
        self.verdicts: list[PulseVerdict] = []
        self.lags: list[tuple[str, float]] = []
        self.heartbeats = Heartbeats(
            lambda pid, number: self.signals.append(number),
            lambda: self.now,
            lambda role, seconds: self.lags.append((role, seconds)),
            lambda pid: self.pulse,
        )
        self.rests = 0
        self.heartbeats.watch(1, self.verdicts.append, on_rest=self._rest)

    def _rest(self) -> None:
        self.rests += 1

    def wait(self, seconds: float) -> None:
        """Let time pass in ticks, as it does when nothing stands still."""
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.heartbeats.look()


async def test_a_worker_that_never_beats_again_is_ended_with_its_stacks_first() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.wait(20)
    assert watch.signals == [signal.SIGABRT, signal.SIGKILL]
    assert watch.verdicts == [PulseVerdict.LATE, PulseVerdict.HUNG, PulseVerdict.DEAD]


async def test_a_worker_that_has_not_beaten_yet_is_not_judged() -> None:
    watch = Watch()
    watch.wait(20)
    assert watch.verdicts == []


async def test_a_halted_worker_is_late_until_it_goes_on_and_killed_if_it_does_not() -> None:
    watch = Watch()
    watch.heartbeats.on_halt(1, True)
    watch.heartbeats.on_halt(1, False)
    watch.heartbeats.on_halt(1, True)
    watch.wait(10)
    assert watch.verdicts == [
        PulseVerdict.LATE,
        PulseVerdict.FINE,
        PulseVerdict.LATE,
        PulseVerdict.DEAD,
    ]
    assert watch.signals == [signal.SIGKILL]


async def test_when_the_supervisor_itself_stood_still_nobody_is_late() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.now += 3600.0
    watch.heartbeats.look()
    assert PAUSE_S < 3600.0
    watch.heartbeats.beat(1)
    watch.wait(1)
    assert watch.verdicts == []


async def test_news_that_waited_while_the_supervisor_stood_still_kill_nobody() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.wait(1)
    watch.now += 3600.0
    watch.heartbeats.on_halt(1, True)  # all were stopped, and this was read first
    watch.heartbeats.look()
    watch.heartbeats.on_halt(1, False)
    watch.wait(1)
    assert watch.verdicts == [PulseVerdict.LATE, PulseVerdict.FINE]
    assert watch.signals == []


async def test_a_worker_without_news_is_judged_by_its_pulse_as_by_its_beats() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    for _ in range(5):
        watch.wait(2)
        watch.pulse = watch.now, 0.02
    watch.wait(2)
    assert watch.verdicts == []
    assert watch.heartbeats.ages_s() == {1: 2.0}
    watch.wait(1)
    assert watch.verdicts == [PulseVerdict.LATE]
    watch.wait(3)
    assert watch.verdicts[1:] == [PulseVerdict.HUNG]
    assert watch.lags.count(("worker", 0.02)) == 5


async def test_a_worker_that_sleeps_is_judged_from_the_time_at_which_it_wakes_up() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.pulse = 9.0, 0.02  # it wakes up at 10
    watch.wait(10)
    assert watch.heartbeats.ages_s() == {1: 1.0}
    assert watch.rests == 1
    watch.wait(1)
    assert watch.verdicts == []
    watch.wait(1)
    assert watch.verdicts == [PulseVerdict.LATE]
    watch.pulse = 19.0, 0.0
    watch.wait(1)
    assert watch.verdicts == [PulseVerdict.LATE, PulseVerdict.FINE]
    assert watch.rests == 2
    assert watch.signals == []


async def test_a_worker_that_is_woken_and_hangs_is_late_after_three_seconds() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.pulse = 9.0, 0.0
    watch.wait(3)
    watch.pulse = 4.0, 0.0  # a call wakes it
    watch.wait(3)
    assert watch.verdicts == []
    watch.wait(1)
    assert watch.verdicts == [PulseVerdict.LATE]


async def test_a_pause_of_the_machine_is_not_the_fault_of_workers_that_slept_or_were_woken() -> (
    None
):
    watch = Watch()
    watch.heartbeats.beat(1)
    for woken in False, True:
        watch.pulse = watch.now + 5.0, 0.0
        watch.wait(3)
        if woken:
            watch.pulse = watch.now, 0.0
        watch.now += 3600.0
        watch.wait(2)
    assert watch.verdicts == []


async def test_a_worker_that_sleeps_and_is_stopped_is_killed_as_early_as_others() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.pulse = 9.0, 0.0
    watch.wait(3)
    watch.heartbeats.on_halt(1, True)
    watch.wait(6)
    assert watch.signals == [signal.SIGKILL]


async def test_a_worker_that_slept_goes_on_to_sleep_after_it_was_stopped() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.pulse = 9.0, 0.0
    watch.wait(3)
    watch.heartbeats.on_halt(1, True)
    watch.heartbeats.on_halt(1, False)
    watch.wait(6)
    assert watch.verdicts == [PulseVerdict.LATE, PulseVerdict.FINE]


@pytest.mark.parametrize("pulse", [(1e9, 0.0), (math.nan, 0.0), (-1.0, -1.0), None])
async def test_a_pulse_that_cannot_be_is_none(pulse: tuple[float, float] | None) -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.pulse = pulse
    watch.wait(3)
    assert watch.verdicts == [PulseVerdict.LATE]


async def test_a_forgotten_worker_is_nobody() -> None:
    watch = Watch()
    watch.heartbeats.beat(1)
    watch.heartbeats.forget(1)
    watch.heartbeats.beat(1)
    watch.heartbeats.on_halt(1, True)
    watch.wait(10)
    assert watch.verdicts == []
    assert watch.signals == []


async def test_how_late_loops_are_is_told_for_workers_and_for_this_process_itself() -> None:
    watch = Watch()
    watch.heartbeats.beat(1, "front", 30.0)
    watch.now += TICK_S
    assert watch.heartbeats.ages_s() == {1: TICK_S}
    watch.heartbeats.look()
    watch.now += 10.0
    assert watch.heartbeats.lag_s() == 10.0 - TICK_S
    watch.heartbeats.beat(1, "worker", 0.0)  # read before the ticker runs
    assert watch.lags == [("front", 0.03), ("worker", 0.0), ("supervisor", 10.0 - TICK_S)]


async def test_a_long_pause_that_the_ticker_finds_is_told_once() -> None:
    now, told, lags = 0.0, asyncio.Event(), list[float]()

    def hear(role: str, seconds: float) -> None:
        lags.append(seconds)
        told.set()

    heartbeats = Heartbeats(lambda pid, number: None, lambda: now, hear)
    now = 10.0
    async with asyncio.timeout(30):
        await told.wait()
    heartbeats.close()
    assert lags == [10.0 - TICK_S]
