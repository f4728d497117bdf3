"""What can be asked of API keys, and what an order makes of those there are."""

from typing import Any

import pytest
from msgspec import structs

from metamcp_supervisor.keys import key_rules
from metamcp_supervisor.keys.key_rules import DAY_S, KeyOrderInvalid, KeyUnknown, StoredKey
from metamcp_supervisor.verbs import Expire, NewKey, Revoke, Rotate
from metamcp_worker.ipc.key_table import CONSOLE_SCOPES, METRICS_SCOPE, KeySpec
from metamcp_worker.ipc.spec import UseLimits

PLACES = {"desk": "default", "lab": "science", "bench": "science"}
NOW = 1_000_000.0


def asked(places: dict[str, str] | None = PLACES, **given: Any) -> StoredKey:
    order = structs.replace(NewKey(name="laptop"), **given)
    return key_rules.build_new_key(order, [], "k1", b"digest", NOW, "ann", places).about


def key(key_id: str = "k1", name: str = "laptop", valid_s: float = 90 * DAY_S) -> StoredKey:
    spec = KeySpec(
        id=key_id, digest=b"d", name=name, principal=key_id, scopes=("mcp:list",),
        expires=NOW + valid_s if valid_s else 0.0,
    )  # fmt: skip
    return StoredKey(spec=spec, created=NOW, valid_s=valid_s)


def rotated(old: StoredKey, now: float, grace: str = "") -> key_rules.TableChange:
    order = Rotate(key=old.spec.id, grace=grace)
    return key_rules.build_new_key(order, [old], "k2", b"new", now, "bob", None)


# Ends


def test_of_keys_with_one_name_the_last_end_counts_the_soonest_name_first() -> None:
    old, other = key(), key("k9", "robot", valid_s=DAY_S)
    change = rotated(old, NOW + DAY_S, grace="24h")
    assert key_rules.expiries([*change.put, other]) == [
        (NOW + DAY_S, "default", "robot"), (NOW + 91 * DAY_S, "default", "laptop"),
    ]  # fmt: skip
    endless = [old, key("k3", valid_s=0.0), other]
    assert [name for _, _, name in key_rules.expiries(endless)] == ["robot"]


# Making


def test_a_key_expires_after_ninety_days_unless_something_else_is_said() -> None:
    assert asked().spec.expires == NOW + 90 * DAY_S
    assert asked(expires="12h").spec.expires == NOW + DAY_S / 2
    assert asked(expires="never").spec.expires == 0.0


def test_a_key_has_a_principal_of_its_own_unless_one_is_named() -> None:
    assert asked().spec.principal == "k1"
    assert asked(principal="team").spec.principal == "team"


def test_a_key_for_console_or_metrics_is_of_the_workspace_default_and_in_no_url() -> None:
    for scope in (*CONSOLE_SCOPES, METRICS_SCOPE):
        assert not key_rules.for_fronts(asked(scopes=(scope,)).spec)
    assert key_rules.for_fronts(asked(scopes=("console:admin", "mcp:list")).spec)
    assert key_rules.for_fronts(asked().spec)
    with pytest.raises(KeyOrderInvalid, match="is of the workspace default"):
        asked(workspace="science", scopes=("console:viewer",))
    with pytest.raises(KeyOrderInvalid, match="is of the workspace default"):
        asked(workspace="science", scopes=("metrics",))
    with pytest.raises(KeyOrderInvalid, match="has no other scope"):
        asked(scopes=("metrics", "console:admin"))
    with pytest.raises(KeyOrderInvalid, match="may not stand in a URL"):
        asked(url=True, scopes=("mcp:list", "console:viewer"))
    with pytest.raises(KeyOrderInvalid, match="'console:owner' is not a scope"):
        asked(scopes=("console:owner",))


def test_a_key_keeps_what_was_asked_for_once_each() -> None:
    found = asked(
        workspace="science", endpoints=("lab", "bench", "lab"),
        scopes=("mcp:list", "mcp:call:git", "mcp:list"), url=True, limits={"calls_per_minute": 60},
    ).spec  # fmt: skip
    assert (found.workspace, found.endpoints) == ("science", ("lab", "bench"))
    assert (found.scopes, found.url) == (("mcp:list", "mcp:call:git"), True)
    assert found.limits == UseLimits(calls_per_minute=60)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": ""}, "the name of a key has 1 to 64 printable characters"),
        ({"name": "x" * 65}, "the name of a key has 1 to 64"),
        ({"name": "a\nb"}, "the name of a key has 1 to 64"),
        ({"principal": "\x1b[2J"}, "the principal of a key has 1 to 64"),
        ({"scopes": ("mcp:cal",)}, "'mcp:cal' is not a scope; did you mean 'mcp:call'?"),
        ({"scopes": ("admin:keys",)}, "'admin:keys' is not a scope"),
        ({"scopes": ("mcp:call:",)}, "'mcp:call:' is not a scope"),
        ({"scopes": ("mcp:call:" + "x" * 65,)}, "'mcp:call:xxx"),
        ({"endpoints": ("x" * 65,)}, "the endpoint of a key has 1 to 64 printable characters"),
        ({"workspace": "scince"}, "no workspace is named 'scince'; did you mean 'science'?"),
        ({"endpoints": ("dsk",)}, "the workspace default has no endpoint 'dsk'; did you mean"),
        ({"endpoints": ("lab",)}, "the workspace default has no endpoint 'lab'"),
        ({"endpoints": ("desk",) * 65}, "a key names at most 64 endpoints and scopes"),
        (
            {"expires": "soon"},
            '\'soon\' is not a duration; write it like "500ms", "30s", "15m", "2d"',
        ),
        ({"expires": "0d"}, "'0d' is too short"),
        ({"expires": "9999d"}, "'9999d' is too long; the longest duration here is \"3650d\""),
        ({"limits": {"calls_per_minuet": 1}}, "'calls_per_minuet' is not a limit; did you mean"),
        ({"limits": {"calls_per_day": 0}}, "the limit calls_per_day is a whole number from 1"),
        ({"limits": {"burst": 5}}, "the limit burst needs calls_per_minute"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_what_was_meant(
    given: dict[str, Any], why: str
) -> None:
    with pytest.raises(KeyOrderInvalid) as refused:
        asked(**given)
    assert str(refused.value).startswith(why)


def test_a_namesake_and_a_scope_of_an_unknown_server_are_made_with_a_warning() -> None:
    order = NewKey(name="laptop", scopes=("mcp:list", "mcp:call:gti", "mcp:call:git"))
    assert key_rules.doubts(order, [key("k0"), key("k3", "ci")], ["git"], NOW) == (
        "the key k0 is named 'laptop' too; name each by its id",
        "mcp:call:gti: no server is named 'gti'; did you mean 'git'?",
    )
    expired = key("k0", valid_s=60)
    assert key_rules.doubts(order, [expired], [], NOW + 60) == ()


def test_places_are_taken_as_they_are_when_the_configuration_is_not_known() -> None:
    assert asked(None, workspace="later", endpoints=("soon",)).spec.workspace == "later"


# Changing


def test_a_rotated_key_ends_at_once_and_its_successor_is_the_same_but_for_its_secret() -> None:
    old, later = key(), NOW + 30 * DAY_S
    change = rotated(old, later)
    expected = structs.replace(old.spec, id="k2", digest=b"new", expires=later + 90 * DAY_S)
    assert change.about.spec == expected
    assert (change.put, change.drop, change.about.created_by) == ((change.about,), ("k1",), "bob")


def test_with_a_grace_the_old_key_is_valid_as_long_as_that_and_never_longer_than_before() -> None:
    change = rotated(key(), NOW, "24h")
    assert [one.spec.expires for one in change.put] == [NOW + 90 * DAY_S, NOW + DAY_S]
    assert change.drop == change.over == ()
    change = rotated(key(valid_s=60), NOW, "24h")
    assert [one.spec.expires for one in change.put] == [NOW + 60, NOW + 60]
    change = rotated(key(valid_s=0), NOW, "24h")
    assert [one.spec.expires for one in change.put] == [0.0, NOW + DAY_S]


def test_the_successor_of_a_key_that_ended_early_is_valid_for_the_whole_time() -> None:
    ended = key_rules.end_key(Expire(key="k1"), key(), NOW + 60).about
    assert rotated(ended, NOW + 120).about.spec.expires == NOW + 120 + 90 * DAY_S


def test_the_successor_of_a_key_of_an_earlier_version_ends_too() -> None:
    earlier = structs.replace(key(), valid_s=0.0)
    later = NOW + 30 * DAY_S
    change = rotated(earlier, later, "1h")
    assert change.about.spec.expires == later + 90 * DAY_S
    assert rotated(change.about, later + 60).about.spec.expires == later + 60 + 90 * DAY_S


def test_the_successor_of_a_key_without_end_that_was_ended_has_none() -> None:
    endless = structs.replace(asked(expires="never"), pepper="aa")
    ended = key_rules.end_key(Expire(key="k1"), endless, NOW + 60).about
    assert rotated(ended, NOW + 120).about.spec.expires == 0.0


def test_a_key_that_was_rotated_a_moment_ago_is_rotated_again_by_who_knows_the_new_one() -> None:
    new = rotated(key(), NOW).about
    order = Rotate(key="laptop")
    with pytest.raises(
        KeyOrderInvalid, match=r"'laptop' was rotated 2 s ago, and that new key stay"
    ):
        key_rules.build_new_key(order, [new], "k3", b"newer", NOW + 2, "bob", None)
    assert key_rules.build_new_key(order, [new], "k3", b"newer", NOW + 10, "bob", None).drop == (
        "k2",
    )
    again = key_rules.build_new_key(Rotate(key="k2"), [new], "k3", b"newer", NOW + 2, "bob", None)
    assert again.drop == ("k2",)
    _, old = rotated(key(), NOW + 5, "24h").put
    with pytest.raises(KeyOrderInvalid, match="'k1' was rotated 0 s ago"):
        rotated(old, NOW + 5, "24h")


def test_a_grace_is_at_most_a_week() -> None:
    with pytest.raises(KeyOrderInvalid, match=r"'8d' is too long; .*7d"):
        rotated(key(), NOW, "8d")


def test_an_expired_key_stays_in_the_list_and_a_revoked_one_does_not() -> None:
    change = key_rules.end_key(Expire(key="k1"), key(), NOW + 60)
    assert (change.put, change.over, change.drop) == ((change.about,), ("k1",), ())
    assert key_rules.state(change.about.spec, NOW + 60) == "expired"
    change = key_rules.end_key(Revoke(key="k1"), key(), NOW + 60)
    assert (change.put, change.over, change.drop) == ((), (), ("k1",))


def test_a_key_that_has_expired_is_not_brought_back_by_expiring_it_again() -> None:
    old = key(valid_s=60)
    assert key_rules.end_key(Expire(key="k1"), old, NOW + 90).about.spec.expires == NOW + 60


# Finding


def test_a_key_is_found_by_its_id_and_by_a_name_that_only_it_has() -> None:
    known = [key("k1", "laptop"), key("k2", "ci"), key("k3", "ci"), key("k4", "k1")]
    assert key_rules.find_key(known, "k1", NOW).spec.name == "laptop", "an id goes before a name"
    assert key_rules.find_key(known, "laptop", NOW).spec.id == "k1"
    with pytest.raises(KeyUnknown, match="2 keys are named 'ci'; say the id: k2, k3"):
        key_rules.find_key(known, "ci", NOW)
    with pytest.raises(KeyUnknown, match="no key has the id or name 'laptp'; did you mean"):
        key_rules.find_key(known, "laptp", NOW)
    with pytest.raises(KeyUnknown, match="'metamcp keys create NAME' makes one"):
        key_rules.find_key([], "x", NOW)


def test_a_name_that_several_keys_have_means_the_one_that_has_not_expired() -> None:
    known = [key("k1", "ci", valid_s=60), key("k2", "ci"), key("k3", "ci", valid_s=30)]
    assert key_rules.find_key(known, "ci", NOW + 60).spec.id == "k2"
    with pytest.raises(KeyUnknown, match="3 keys are named 'ci'; say the id"):
        key_rules.find_key(known, "ci", NOW + 40)
