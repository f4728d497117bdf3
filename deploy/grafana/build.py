"""Writes the dashboards: `python -m deploy.grafana.build`, from the root of the project.

With `--check` nothing is written; exit code 1 when one of them is not what would be written.
"""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from deploy.grafana.capacity import capacity
from deploy.grafana.fronts import fronts
from deploy.grafana.overview import overview
from deploy.grafana.runbook import runbook
from deploy.grafana.server import server

FOLDER = Path(__file__).parent / "dashboards"


def text_of(made: dashboard.Dashboard) -> str:
    return json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def files() -> dict[Path, str]:
    """What belongs into each file."""
    made = (overview(), server(), fronts(), capacity(), runbook())
    return {FOLDER / f"{str(one.uid).removeprefix('metamcp-')}.json": text_of(one) for one in made}


def main() -> int:
    wanted = files()
    if "--check" in sys.argv[1:]:
        wrong = [path.name for path, text in wanted.items() if path.read_text() != text]
        sys.stdout.writelines(f"{name}: not what the script makes\n" for name in wrong)
        return int(bool(wrong))
    FOLDER.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
