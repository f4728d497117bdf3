"""The nursery with roles of the tests, and with a module to preload that does not exist."""

import sys

from metamcp_worker.runtime import nursery

ROLES = {"child": "nursery_worker", "front": "nursery_worker", "brief": "nursery_brief"}
PRELOAD = ("nursery_worker", "nursery_brief", "no_module_of_this_name")

if __name__ == "__main__":
    sys.exit(nursery.main(sys.argv[1:], roles=ROLES, preload=PRELOAD))
