"""The way of a request through its middleware, step by step."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_worker.ipc import codec
from metamcp_worker.middleware.chain import Chain, HookAnswer, LevelFacts
from tests.examples import examples

ANSWER = HookAnswer(b'{"content":[]}')


class Scene:
    """A chain, and what it has done: words with the level, or with the raw arguments."""

    def __init__(self, *modes: str, tool: bool = True) -> None:
        self.seen: list[tuple[str, object]] = []
        self.answers: list[HookAnswer] = []
        facts = [LevelFacts(f"m{at}", mode == "enforce") for at, mode in enumerate(modes)]
        self.chain = Chain(facts, self, tool=tool)
        self.chain.begin(b"{}")

    def start(self, level: int, arguments: bytes) -> None:
        self.seen.append((f"start {level}", arguments))

    def pause(self, level: int) -> None:
        self.seen.append(("pause", level))

    def resume(self, level: int, answer: HookAnswer) -> None:
        self.seen.append((f"resume {level}", answer.body))

    def drop(self, level: int) -> None:
        self.seen.append(("drop", level))

    def call(self, arguments: bytes) -> None:
        self.seen.append(("call", arguments))

    def leave(self, why: str) -> None:
        self.seen.append(("leave", why))

    def answer_request(self, answer: HookAnswer) -> None:
        self.answers.append(answer)

    def said(self) -> list[str]:
        return [what for what, _ in self.seen]

    def text(self) -> str:
        """The text of the only answer, which is a failure of the tool."""
        (answer,) = self.answers
        found = codec.value(answer.body)
        assert found["isError"] is True
        return str(found["content"][0]["text"])


def test_a_request_goes_in_by_all_of_them_and_its_result_comes_back_by_all() -> None:
    scene = Scene("enforce", "permissive")
    scene.chain.passed_on(0, b'{"a":1}')
    scene.chain.passed_on(1, None)
    assert scene.seen == [
        ("start 0", b"{}"), ("pause", 0), ("start 1", b'{"a":1}'), ("pause", 1),
        ("call", b'{"a":1}'),
    ]  # fmt: skip
    scene.chain.on_answer(ANSWER, final=True)
    scene.chain.on_hook_end(1, None)
    scene.chain.on_hook_end(0, b'{"content":[1]}')
    assert scene.seen[5:] == [
        ("resume 1", ANSWER.body), ("drop", 1), ("resume 0", ANSWER.body), ("drop", 0),
    ]  # fmt: skip
    assert scene.answers == [HookAnswer(b'{"content":[1]}')]


def test_one_that_answers_by_itself_makes_no_call() -> None:
    scene = Scene("enforce", "enforce")
    scene.chain.on_hook_end(0, b"{}")
    assert scene.answers == [HookAnswer(b"{}")]
    assert "call" not in scene.said()


def test_a_failure_that_is_enforced_ends_the_request_and_says_whether_the_tool_ran() -> None:
    before = Scene("enforce")
    before.chain.on_failure(0, "raised ValueError")
    assert before.text() == (
        "The middleware 'm0' raised ValueError, so this request has no result; it did not reach its"
        " server."
    )
    while_it_runs = Scene("enforce")
    while_it_runs.chain.passed_on(0, None)
    while_it_runs.chain.on_failure(0, "lost its process")
    assert while_it_runs.said()[-2:] == ["drop", "leave"]
    assert while_it_runs.text().endswith("; its tool may have run.")
    while_it_runs.chain.on_answer(ANSWER, final=True)
    assert len(while_it_runs.answers) == 1


def test_a_failure_that_is_permitted_leaves_the_request_as_it_is() -> None:
    before = Scene("permissive")
    before.chain.on_failure(0, "raised ValueError")
    assert before.said() == ["start 0", "drop", "call"]
    before.chain.on_answer(ANSWER, final=True)
    meanwhile = Scene("permissive")
    meanwhile.chain.passed_on(0, None)
    meanwhile.chain.on_failure(0, "lost its process")
    meanwhile.chain.on_answer(ANSWER, final=True)
    after = Scene("permissive")
    after.chain.passed_on(0, None)
    after.chain.on_answer(ANSWER, final=True)
    after.chain.on_failure(0, "took more than 0.2 s")
    for scene in (before, meanwhile, after):
        assert scene.answers == [ANSWER]
        assert scene.said().count("call") == 1


def test_the_outer_ones_get_the_failure_of_an_inner_one() -> None:
    scene = Scene("permissive", "enforce")
    scene.chain.passed_on(0, None)
    scene.chain.on_failure(1, "raised ValueError")
    assert scene.said()[-1] == "resume 0"
    scene.chain.on_hook_end(0, None)
    assert "'m1' raised ValueError" in scene.text()


def test_a_request_that_is_not_a_call_of_a_tool_fails_with_an_error() -> None:
    scene = Scene("enforce", tool=False)
    scene.chain.on_failure(0, "raised ValueError")
    (answer,) = scene.answers
    assert (answer.code, codec.value(answer.body)["code"]) == (-32603, -32603)


def test_what_a_server_wants_of_the_client_goes_past_all_of_them() -> None:
    scene = Scene("enforce", "enforce")
    scene.chain.passed_on(0, None)
    scene.chain.passed_on(1, None)
    scene.chain.on_answer(ANSWER, final=False)
    assert scene.said()[-2:] == ["drop", "drop"]
    assert scene.answers == [ANSWER]


def test_a_client_that_leaves_ends_hooks_and_call_and_gets_no_answer() -> None:
    scene = Scene("enforce", "permissive")
    scene.chain.passed_on(0, None)
    scene.chain.passed_on(1, None)
    scene.chain.cancel("the client left")
    assert scene.seen[-3:] == [("drop", 0), ("drop", 1), ("leave", "the client left")]
    scene.chain.on_hook_end(0, b"{}")
    assert scene.answers == []


def test_one_without_the_hook_is_left_out() -> None:
    scene = Scene("enforce")
    scene.chain.skip(0)
    scene.chain.on_answer(ANSWER, final=True)
    assert scene.answers == [ANSWER]


def test_a_hook_that_returns_before_it_has_a_result_ends_the_call() -> None:
    scene = Scene("enforce")
    scene.chain.passed_on(0, None)
    scene.chain.on_hook_end(0, b"{}")
    assert scene.said()[-2:] == ["drop", "leave"]
    assert scene.answers == [HookAnswer(b"{}")]


EVENTS = ("passed_on", "ended", "same", "failed", "answered", "cancel")


@pytest.mark.promise("M100")
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from(["enforce", "permissive"]), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 2)), max_size=20),
)
def test_whatever_happens_there_is_one_answer_at_most_and_one_call_at_most(
    modes: list[str], events: list[tuple[str, int]]
) -> None:
    scene = Scene(*modes)
    for what, chosen in events:
        level = min(chosen, len(modes) - 1)
        if what == "passed_on":
            scene.chain.passed_on(level, None)
        elif what == "answered":
            scene.chain.on_answer(ANSWER, final=True)
        elif what == "cancel":
            scene.chain.cancel("left")
        elif what == "failed":
            scene.chain.on_failure(level, "raised ValueError")
        else:
            scene.chain.on_hook_end(level, b"{}" if what == "ended" else None)
    for level in itertools.chain(range(len(modes)), reversed(range(len(modes)))):
        scene.chain.on_failure(level, "lost its process")
    scene.chain.on_answer(ANSWER, final=True)
    assert scene.said().count("call") <= 1
    cancelled = any(what == "cancel" for what, _ in events)
    assert len(scene.answers) <= 1
    assert scene.answers or cancelled
