"""A nursery in which something has started a thread before the first fork."""

import sys
import threading

from metamcp_worker.runtime import nursery

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    sys.exit(nursery.main(sys.argv[1:], roles={"child": "nursery_worker"}, preload=()))
