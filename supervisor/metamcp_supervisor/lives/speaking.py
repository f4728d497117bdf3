"""How a nursery is to speak: as this process does.

Owns: the order to it. Never: how this process speaks (`logs`), workers and fronts (`crew`,
`fronts`).
"""

import contextlib

from metamcp_worker import logs, messages
from metamcp_worker.errors import TooLarge
from metamcp_worker.messages import Tune
from metamcp_worker.packets import Channel


def tune(channel: Channel) -> None:
    """Levels that fill more than a packet are left: a nursery hardly speaks."""
    log = logs.current()
    with contextlib.suppress(TooLarge):
        channel.send(messages.pack(Tune(format=log.format, level=log.level, levels=log.levels)))
