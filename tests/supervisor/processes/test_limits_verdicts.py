"""Verdicts about what servers use, from values to values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metamcp_supervisor.processes import limits
from metamcp_supervisor.processes.limits import (
    LOOKS_MIN,
    RECYCLE_S_MIN,
    REMEMBER_S,
    DiskUse,
    LimitAction,
    Limiter,
    LimitRecord,
    Limits,
    LimitVerdict,
    Sample,
)
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from tests.supervisor.configs import server

MIB = 1024 * 1024
LOOK_S = 2.0
LIMITS = Limits(memory_high=400 * MIB, memory_max=512 * MIB, processes_max=10)
SIGKILL = 9


class Watch:
    """One server that is looked at every two seconds."""

    def __init__(self, of: Limits = LIMITS) -> None:
        self.limits = of
        self.limiter = Limiter()
        self.now = 0.0
        self.generation = 1

    def look(self, *mebibytes: int, processes: int = 1) -> list[LimitAction]:
        """What each of these samples asks for."""
        return [verdict for verdict, _ in (self.one(m, processes) for m in mebibytes)]

    def one(self, mebibytes: int, processes: int = 1) -> tuple[LimitAction, str]:
        self.now += LOOK_S
        sample = Sample(
            server="git", generation=self.generation, at=self.now, memory_bytes=mebibytes * MIB,
            processes=processes,
        )  # fmt: skip
        for told, verdict in self.limiter.look([sample], {"git": self.limits}, self.now):
            assert told is sample
            return verdict.fate, verdict.why
        return LimitAction.FINE, ""


def leak(watch: Watch) -> list[LimitAction]:
    """As many samples above the soft limit as it takes."""
    return watch.look(*[450] * LOOKS_MIN)


RECYCLED = [*[LimitAction.FINE] * (LOOKS_MIN - 1), LimitAction.RECYCLE]
NOTHING = [LimitAction.FINE] * LOOKS_MIN


@pytest.mark.parametrize(
    ("samples", "last"),
    [
        ([400] * 20, LimitAction.FINE),
        ([450] * (LOOKS_MIN - 1), LimitAction.FINE),
        ([450] * LOOKS_MIN, LimitAction.RECYCLE),
        ([450] * (LOOKS_MIN - 1) + [399] + [450] * (LOOKS_MIN - 1), LimitAction.FINE),
        ([100, 512], LimitAction.FINE),
        ([100, 513], LimitAction.KILL),
    ],
)
def test_a_leak_is_recycled_a_peak_is_not_and_a_danger_is_killed(
    samples: list[int], last: LimitAction
) -> None:
    fates = Watch().look(*samples)
    assert fates == [*[LimitAction.FINE] * (len(samples) - 1), last]


def test_people_are_told_what_it_used_and_what_it_may() -> None:
    assert Watch().one(612) == (LimitAction.KILL, "it used 612 MiB, memory_max is 512 MiB")
    assert Watch().one(1, processes=21) == (
        LimitAction.KILL, "it had 21 processes, processes_max is 10",
    )  # fmt: skip
    watch = Watch()
    watch.look(*[450] * (LOOKS_MIN - 1))
    assert watch.one(430)[1] == "it used 430 MiB and more for a while, memory_high is 400 MiB"


def test_a_few_processes_more_end_a_server_at_the_second_look_in_a_row() -> None:
    watch = Watch()
    assert [watch.one(1, processes=count)[0] for count in (20, 10, 11)] == [LimitAction.FINE] * 3
    assert watch.one(1, processes=11) == (
        LimitAction.KILL,
        "it had 11 processes, processes_max is 10",
    )


def test_a_recycling_is_not_asked_for_twice() -> None:
    watch = Watch()
    assert leak(watch) == RECYCLED
    assert leak(watch) == NOTHING
    watch.now += RECYCLE_S_MIN
    assert leak(watch) == NOTHING  # it is the same instance, and it was asked for
    assert watch.look(395) == [LimitAction.FINE]  # below the limit, and not yet calm
    assert leak(watch) == NOTHING
    assert watch.look(300) == [LimitAction.FINE]
    assert leak(watch) == RECYCLED


def test_a_server_that_is_above_at_once_is_not_recycled_without_end() -> None:
    watch = Watch()
    assert leak(watch) == RECYCLED
    watch.generation = 2
    assert leak(watch) == NOTHING
    watch.now += RECYCLE_S_MIN
    assert watch.look(450) == [LimitAction.RECYCLE]


def test_a_kill_is_asked_for_once_and_of_the_next_instance_anew() -> None:
    watch = Watch()
    assert watch.look(600, 600, 450) == [LimitAction.KILL, LimitAction.FINE, LimitAction.FINE]
    watch.generation = 2
    assert watch.look(600) == [LimitAction.KILL]


def test_the_same_sample_counts_once() -> None:
    sample = Sample(server="git", generation=1, at=5.0, memory_bytes=450 * MIB)
    record = LimitRecord()
    for _ in range(LOOKS_MIN + 1):
        record, verdict = limits.judge(record, LIMITS, sample, None)
        assert verdict.fate is LimitAction.FINE
    assert record.over == 1


def test_a_server_without_limits_may_use_anything_and_is_forgotten() -> None:
    watch = Watch(Limits())
    assert watch.look(10**6, processes=10**6) == [LimitAction.FINE]
    assert not watch.limits.any
    sample = Sample(server="git", generation=1, at=1.0, memory_bytes=600 * MIB)
    assert watch.limiter.look([sample], {}, 1.0) == []
    assert watch.limiter.look([sample], {"git": LIMITS}, 1.0)[0][1].fate is LimitAction.KILL


def test_a_spare_is_not_recycled_but_may_be_once_it_serves() -> None:
    limiter = Limiter()
    found: list[LimitAction] = []
    for at in range(1, 3 * LOOKS_MIN + 1):
        serving = at > 2 * LOOKS_MIN
        sample = Sample(server="git", generation=2, at=at, memory_bytes=450 * MIB, serving=serving)
        found += [verdict.fate for _, verdict in limiter.look([sample], {"git": LIMITS}, at)]
        assert len(found) == (at == 3 * LOOKS_MIN)
    assert found == [LimitAction.RECYCLE]


def test_two_copies_of_a_server_are_judged_each_by_itself() -> None:
    limiter = Limiter()

    def look(at: float, *mebibytes: int) -> list[tuple[int, LimitAction]]:
        samples = [
            Sample(server="git", generation=number, at=at, memory_bytes=each * MIB)
            for number, each in enumerate(mebibytes, 1)
        ]
        found = limiter.look(samples, {"git": LIMITS}, at)
        return [(sample.generation, verdict.fate) for sample, verdict in found]

    for at in range(1, LOOKS_MIN):
        assert look(at, 450, 100) == []
    assert look(LOOKS_MIN, 450, 600) == [(1, LimitAction.RECYCLE), (2, LimitAction.KILL)]
    assert look(LOOKS_MIN + 1, 450, 600) == []


def test_the_soft_limit_is_four_fifths_of_the_hard_one_unless_it_is_written() -> None:
    only = server("git", memory_max=500 * MIB)
    assert limits.limits_of(only).memory_high == 400 * MIB
    both = replace(only, memory_high=100 * MIB, cpu_max=1.5, processes_max=3)
    assert limits.limits_of(both) == Limits(
        memory_max=500 * MIB, memory_high=100 * MIB, cpu_max=1.5, processes_max=3
    )
    assert limits.limits_of(server("git", sandbox="none")) == Limits()


def test_a_confined_server_has_a_limit_of_processes_anyway() -> None:
    assert limits.limits_of(server("git")) == Limits(processes_max=256, tasks_max=4096)
    assert limits.limits_of(server("git", processes_max=3)) == Limits(processes_max=3)
    assert limits.limits_of(server("far", command=(), url="https://x/")) == Limits()


def test_a_server_that_holds_more_of_the_disk_than_it_may_is_killed_and_told_where() -> None:
    use = DiskUse(300 * MIB, "/s/servers/a", 200 * MIB)
    now = Sample(server="a", generation=1, at=1.0, memory_bytes=MIB, disk=use)

    def verdict(disk_max: int | None) -> LimitVerdict:
        return limits.judge(LimitRecord(), Limits(disk_max=disk_max), now, None)[1]

    assert verdict(None) == LimitVerdict(
        LimitAction.KILL,
        "it held 300 MiB of the disk, most of it in /s/servers/a, disk_max is 200 MiB",
    )
    assert verdict(299 * MIB).fate is LimitAction.KILL
    assert verdict(300 * MIB).fate is LimitAction.FINE


@pytest.mark.parametrize(
    ("held", "free", "limit"),
    [(0, 100, 50), (60, 40, 50), (0, 10 << 30, 1 << 30), (5 << 30, 0, 1 << 30), (0, 0, 0)],
)
def test_without_disk_max_a_server_gets_half_of_the_room_and_no_more_than_a_gibibyte(
    held: int, free: int, limit: int
) -> None:
    assert limits.disk_limit(held, free) == limit


def test_the_kernel_knows_best_what_a_server_uses() -> None:
    usage = Usage(pid=2, rss_bytes=30, pss_bytes=20, processes=3)
    plain = limits.sample("git", usage, pid=2, generation=4, at=1.0)
    assert plain == Sample(server="git", generation=4, at=1.0, memory_bytes=20, processes=3)
    told = limits.sample("git", usage, pid=2, generation=4, at=1.0, leaf_bytes=9)
    assert told == Sample(server="git", generation=4, at=1.0, memory_bytes=9, processes=3)
    alone = limits.sample("git", None, pid=2, generation=4, at=1.0, leaf_bytes=9)
    assert alone == Sample(server="git", generation=4, at=1.0, memory_bytes=9)
    assert limits.sample("git", None, pid=2, generation=4, at=1.0) is None


def test_what_an_instance_before_used_is_not_taken_for_the_next_ones() -> None:
    before = Usage(pid=2, rss_bytes=30, processes=3)
    assert limits.sample("git", before, pid=5, generation=4, at=1.0) is None
    found = limits.sample("git", before, pid=5, generation=4, at=1.0, leaf_bytes=9)
    assert found == Sample(server="git", generation=4, at=1.0, memory_bytes=9)


def test_only_servers_with_a_limit_of_memory_are_measured_closely() -> None:
    hosted = server("d", command=(), module="m:s", memory_max=10)
    few = [server("a", memory_high=7), server("b", processes_max=1), server("c"), hosted]
    roots = [MeasuredProcess(role, name) for role in ("worker", "server") for name in "abcde"]
    roots += [MeasuredProcess("server", "a", 2), MeasuredProcess("supervisor")]
    assert limits.closely(roots, {each.name: each for each in few}) == {
        MeasuredProcess("server", "a"): 7, MeasuredProcess("server", "a", 2): 7,
        MeasuredProcess("worker", "d"): 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("used", "signal", "oom_kills", "sentence"),
    [
        (500, SIGKILL, 1, "it was killed by the kernel because it was out of memory; it used 500"),
        (100, SIGKILL, 1, "it was killed by the kernel because it was out of memory; it used 100"),
        (500, SIGKILL, 0, "it was ended by SIGKILL (9), most likely by the kernel for want of"),
        (100, SIGKILL, 0, ""),
        (500, 11, 1, ""),
        (500, 0, 0, ""),
    ],
)
def test_an_end_by_the_kernel_is_told_from_others(
    used: int, signal: int, oom_kills: int, sentence: str
) -> None:
    watch = Watch()
    watch.look(used)
    found = watch.limiter.out_of_memory(
        "git", LIMITS, generation=1, signal=signal, oom_kills=oom_kills
    )
    assert bool(found) == bool(sentence)
    assert found.startswith(sentence)


def test_the_figures_of_an_instance_before_say_nothing_of_the_next() -> None:
    watch = Watch()
    watch.look(500)

    def found(generation: int) -> str:
        return watch.limiter.out_of_memory("git", LIMITS, generation=generation, signal=SIGKILL)

    assert found(1)
    assert not found(2)
    watch.generation, watch.now = 2, watch.now + REMEMBER_S
    watch.look(500)
    assert found(2)
    assert not found(1)  # long ago
    assert watch.limiter.out_of_memory("x", Limits(), generation=1, signal=SIGKILL, oom_kills=1)


@given(st.lists(st.tuples(st.integers(0, 700), st.booleans()), max_size=200))
def test_whatever_it_uses_nothing_is_asked_for_too_often(steps: list[tuple[int, bool]]) -> None:
    watch = Watch()
    recycled: list[float] = []
    killed: set[int] = set()
    for mebibytes, restarts in steps:
        watch.generation += restarts
        fate, why = watch.one(mebibytes)
        assert bool(why) == (fate is not LimitAction.FINE)
        if fate is LimitAction.KILL:
            assert mebibytes > 512
            assert watch.generation not in killed
            killed.add(watch.generation)
        elif fate is LimitAction.RECYCLE:
            assert 400 < mebibytes <= 512
            assert not recycled or watch.now - recycled[-1] >= RECYCLE_S_MIN
            recycled.append(watch.now)
        else:
            assert mebibytes <= 512 or watch.generation in killed
