"""Makes the pictures of README and docs anew: `make pictures`, or `python -m tests.pictures.draw`.

With the word `terminal` only those of the terminal, which take ten seconds.
"""

import sys

from metamcp_supervisor.__main__ import verbs
from tests.live.gateway import ROOT
from tests.pictures import scenes, svg

IMAGES = ROOT / "docs" / "images"


def terminals() -> None:
    for scene in scenes.all_scenes():
        text = svg.drawn(scene.title, scene.runs, scene.columns)
        (IMAGES / f"{scene.name}.svg").write_text(text)


def main(words: list[str]) -> int:
    terminals()
    if "terminal" in words:
        return 0
    from tests.observability import draw
    from tests.pictures import console

    draw.main()
    if "console" in verbs() and console.chromium():
        for name, text in console.console(IMAGES).items():
            (IMAGES / f"{name}.txt").write_text(f"{text.strip()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
