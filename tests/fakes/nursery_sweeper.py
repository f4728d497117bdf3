"""A subreaper that makes orphans of every kind, sweeps, and writes what came of it as JSON."""

import json
import os
import signal
import subprocess
import sys

from metamcp_worker.runtime import orphans

#: Each shell leaves at once, and what it started becomes a child of this process.
ORPHANS = (
    "sleep 1000 &",
    "setsid sleep 1000 &",
    "setsid sh -c 'sleep 1000 & sleep 1000; :' &",
    "sh -c 'kill -STOP $$; :' &",
)


def main() -> None:
    able = orphans.become_subreaper()
    known = subprocess.Popen(["sleep", "1000"])
    for script in ORPHANS:
        subprocess.run(["sh", "-c", script], check=True)
    before = orphans.children()
    agree = before == orphans.children_by_scan()
    killed = orphans.sweep({known.pid})
    after = orphans.children()
    spared = after == {known.pid} and known.poll() is None
    known.send_signal(signal.SIGKILL)
    known.wait()
    told = orphans.die_with_parent(os.getppid()), orphans.die_with_parent(1 << 30)
    facts = {
        "able": able,
        "orphans": len(before) - 1,
        "agree": agree,
        "killed": killed,
        "spared": spared,
        "left": len(orphans.children()),
        "parent": told,
    }
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
