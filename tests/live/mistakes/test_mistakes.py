"""Every mistake of the script gets the message that stands there."""

import pytest

from tests.live.mistakes.script import Script, World, flawed

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def test_each_mistake_gets_its_message() -> None:
    """When messages are others on purpose: python -m tests.live.mistakes --write, and read it."""
    script = Script.read()
    assert [one.number for one in script.mistakes] == list(range(1, len(script.mistakes) + 1))
    assert len(script.mistakes) >= 60
    world = World(script)
    with world.running():
        answers = world.answers()
    told = {one.number: script.told(one) for one in script.mistakes}
    others = {number: answers[number] for number in told if answers[number] != told[number]}
    assert others == {number: told[number] for number in others}
    assert {number: found for number, lines in told.items() if (found := flawed(lines))} == {}
