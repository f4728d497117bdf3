"""How a nursery is to speak: as this process does.

Owns: the order to it. Never: how this process speaks (`logs`), workers and fronts (`crew`,
`fronts`).
"""

import contextlib

from metamcp_worker.ipc import messages
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Tune
from metamcp_worker.ipc.packets import Channel
from metamcp_worker.runtime import logs


def tune(channel: Channel) -> None:
    """Levels that fill more than a packet are left: a nursery hardly speaks."""
    log = logs.current()
    with contextlib.suppress(TooLarge):
        channel.send(messages.pack(Tune(format=log.format, level=log.level, levels=log.levels)))
