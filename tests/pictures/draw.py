"""Makes the pictures of README and docs anew: `make pictures`, or `python -m tests.pictures.draw`.

With the word `terminal` only those of the terminal, which take ten seconds.
"""

import sys

from tests.live.gateway import ROOT
from tests.pictures import scenes, svg

IMAGES = ROOT / "docs" / "images"


def terminals() -> None:
    for scene in scenes.all_scenes():
        text = svg.drawn(scene.title, scene.runs, scene.columns)
        (IMAGES / f"{scene.name}.svg").write_text(text)


def main(words: list[str]) -> int:
    terminals()
    if "terminal" not in words:
        from tests.observability import draw

        draw.main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
