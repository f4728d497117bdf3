"""python -m tests.live.mistakes [--write]: run every mistake, and show or keep what is new."""

import difflib
import sys

from tests.live.mistakes.script import Script, World


def main() -> int:
    script = Script.read()
    world = World(script)
    with world.running():
        answers = world.answers()
    new = 0
    for mistake in script.mistakes:
        old = script.told(mistake)
        if answers[mistake.number] != old:
            new += 1
            sys.stdout.write(f"### {mistake.number}. {mistake.title}\n")
            sys.stdout.writelines(
                f"{line}\n" for line in difflib.ndiff(old, answers[mistake.number])
            )
    if "--write" in sys.argv[1:]:
        script.write(answers)
        return 0
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
