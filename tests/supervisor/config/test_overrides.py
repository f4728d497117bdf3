"""Settings that are other than in the file, for a time."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import ConfigInvalid, Log, Server
from metamcp_supervisor.config.overrides import SETTINGS, TimedOverrides, read, text_of
from metamcp_supervisor.config.reload import fingerprint, plan, with_overrides
from metamcp_supervisor.config.show import server_table
from tests.supervisor.configs import config, server

OPERATING = (Path(__file__).parents[3] / "docs/operating.md").read_text()
DOC = OPERATING.split("### Other settings for a while")[1].split("\n### ")[0]
GIT = server("git", timeout_s=60.0, memory_max=64 * 1024**2, sharing="shared")


def test_what_counts_at_once_can_be_set_and_nothing_else() -> None:
    assert {"timeout", "hide_after", "strict_listing", "restart", "retry", "start"} <= {*SETTINGS}
    assert {"memory_max", "memory_high", "cpu_max", "processes_max"} <= {*SETTINGS}
    assert not {"command", "env", "enabled", "spares", "depends_on", "start_timeout"} & {*SETTINGS}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"timeout": "5s"}, {"timeout_s": 5.0}),
        ({"strict_listing": "true"}, {"strict_listing": True}),
        ({"restart": "never", "retry": "idempotent"}, {"restart": "never", "retry": "idempotent"}),
        ({"memory_max": "128M"}, {"memory_max": 128 * 1024**2}),
        ({"processes_max": "7"}, {"processes_max": 7}),
        ({"cpu_max": "1.5"}, {"cpu_max": 1.5}),
        ({"cpu_max": "150%"}, {"cpu_max": 1.5}),
        ({"start": "lazy", "idle_stop": "2m"}, {"start": "lazy", "idle_stop_s": 120.0}),
    ],
)
def test_a_value_is_read_as_in_the_file(
    settings: dict[str, str], expected: dict[str, object]
) -> None:
    assert read(GIT, settings) == replace(GIT, **expected)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"timeout": "5"}, "servers.git.timeout: is not a duration; write it like"),
        ({"timeot": "5s"}, "unknown key 'timeot'; did you mean 'timeout'"),
        ({"command": "sh"}, "cannot be set for a time: the server would have to restart"),
        ({"queue": "9"}, "cannot be set for a time: it counts from a start"),
        ({"spares": "1"}, "'spares' belongs into the file"),
        ({"strict_listing": "maybe"}, "must be true or false, not a string"),
        ({"processes_max": "many"}, "must be a whole number"),
        ({"cpu_max": "nan"}, "servers.git.cpu_max"),
        ({"memory_high": "65M"}, "is above memory_max, which is 64M"),
        ({"idle_stop": "2m"}, 'is only for a server with start = "lazy"'),
        ({"restart": "allways"}, "'allways' is not a choice; did you mean 'always'"),
    ],
)
def test_what_the_file_could_not_say_is_refused_in_its_words(
    settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        TimedOverrides().set(GIT, settings, 10.0)
    assert words in str(caught.value)
    assert str(caught.value).startswith("servers.git.")


def test_all_that_is_set_is_in_force_until_its_time_is_over() -> None:
    whole = config(GIT, server("other"))
    early = TimedOverrides().set(GIT, {"timeout": "5s"}, 10.0)
    both = early.set(early.apply(whole).servers["git"], {"retry": "read-only"}, 20.0)
    found = both.apply(whole).servers
    assert found["git"] == replace(GIT, timeout_s=5.0, retry="read-only")
    assert found["other"] == server("other")
    assert (both.next_end(), [each.key for each in both.list_expired(10.0)]) == (10.0, ["timeout"])
    left = both.after(10.0)
    assert left.apply(whole).servers["git"] == replace(GIT, retry="read-only")
    assert left.without("git") == TimedOverrides()
    assert left.restrict_to(config(server("other"))) == TimedOverrides()
    assert TimedOverrides().next_end() is None


def test_what_is_set_twice_is_what_was_set_last() -> None:
    first = TimedOverrides().set(GIT, {"timeout": "5s"}, 10.0)
    second = first.set(GIT, {"timeout": "90s"}, 30.0)
    (found,) = second.of("git")
    assert (found.value, found.text, found.ends) == (90.0, "90s", 30.0)


def test_what_was_set_before_is_read_together_and_each_ends_when_it_was_to_end() -> None:
    before = {"idle_stop": ("2m", 10.0), "start": ("lazy", 20.0)}
    after = TimedOverrides().set(GIT, {"timeout": "5s"}, 5.0).restore(GIT, before)
    assert {(each.key, each.text, each.ends) for each in after.of("git")} == {
        ("idle_stop", "2m", 10.0),
        ("start", "lazy", 20.0),
        ("timeout", "5s", 5.0),
    }
    with pytest.raises(ConfigInvalid):
        TimedOverrides().restore(GIT, {"idle_stop": ("2m", 10.0)})


def test_a_reload_leaves_it_and_says_so() -> None:
    old, new = config(GIT), config(replace(GIT, retry="read-only"))
    overrides = TimedOverrides().set(GIT, {"timeout": "5s"}, 10.0)
    (change,) = with_overrides(plan(old, new), overrides).changes
    assert (change.action, change.why) == ("in-place", "retry changed, stays as set: timeout")
    assert overrides.apply(new).servers["git"].timeout_s == 5.0
    assert fingerprint(old) == fingerprint(config(GIT)), "the hash is that of the files"
    (gone,) = with_overrides(plan(old, config()), overrides).changes[:1]
    assert (gone.action, gone.why) == ("remove", "")


def test_a_reload_says_which_levels_of_the_log_it_ends() -> None:
    quiet, loud = config(GIT), replace(config(GIT), log=Log(level="error"))
    overrides = TimedOverrides().set_levels(Log(), {"log.level": "debug"}, 10.0)
    for new, why in ((quiet, ""), (loud, "level changed, ")):
        change = with_overrides(plan(quiet, new), overrides).changes[-1]
        assert (change.server, change.action) == ("[log]", "in-place")
        assert change.why == f"{why}as in the file again: log.level"


def test_no_value_is_told_as_such() -> None:
    table = server_table(Server(name="git", source="", command=("x",)))
    assert text_of(table, "memory_max") == "none"
    assert text_of(table, "required") == "false"
    assert text_of(table, "timeout") == "5m"


def test_everything_that_can_be_set_is_documented_and_is_read_as_it_is_shown() -> None:
    whole = server(
        "git",
        start="lazy",
        idle_stop_s=600.0,
        recording="full",
        strict_listing=False,
        memory_max=2**30,
        memory_high=2**29,
        cpu_max=1.5,
        processes_max=9,
        disk_max=2**30,
    )
    table = server_table(whole)
    shown = {key: text_of(table, key) for key in SETTINGS}
    assert "none" not in shown.values()
    assert read(whole, shown) == whole
    for key in SETTINGS:
        assert f"`{key}`" in DOC, key
