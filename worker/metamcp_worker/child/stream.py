"""The stream of a legacy session that belongs to no request: what a server says of its own accord.

Owns: opening it by GET, taking it up whenever it ends, noticing that it is dead. Never: what is
said on it, the session itself.
"""

import asyncio

from metamcp_worker.child import headers, replies
from metamcp_worker.child.exchange import OPEN_S_MAX
from metamcp_worker.child.intake import Body
from metamcp_worker.child.link import Link
from metamcp_worker.child.resume import Resume
from metamcp_worker.child.sessions import HttpSession
from metamcp_worker.http.fetch import Broken, Unreachable
from metamcp_worker.http.sse import FIELDS_BYTES_MAX, Event, EventReader
from metamcp_worker.ipc.errors import TooLarge

SILENT_S_MAX = 300.0
"""A stream that is silent for so long, keep-alives included, may be dead without having ended:
something between forgot it. Taking up one that lives loses nothing."""

_AGAIN = frozenset({408, 409, 425, 429})
"""Not now. 409: the server has not noticed yet that the last connection ended."""


async def listen(link: Link, session: HttpSession) -> bool:
    """Pass on what comes, as long as the server has such a stream. Is the session over?"""
    resume = Resume(endless=True)
    had_one = False
    while True:
        said: dict[str, str | bytes] = {**session.headers, "Accept": headers.EVENTS}
        if resume.last_id:
            said[headers.LAST_EVENT] = resume.last_id
        try:
            response = await link.origin.send("GET", said, answer_s=OPEN_S_MAX)
            async with Body(link.intake, response) as body:
                status = response.status
                if status == 200 and response.media_type == headers.EVENTS:
                    had_one = True
                    await _events(link, session, body, resume)
                elif status == 404 and had_one and session.id:
                    return True
                elif status < 500 and status not in _AGAIN and not resume.last_id:
                    return False
                elif status < 500:
                    resume.anew()
        except Unreachable:
            link.doubt()
        except Broken:
            pass  # It is taken up again, like one that ended.
        except TooLarge as error:
            link.warn(f"something that it said on its own was passed over: {error}")
            resume.anew()
        await asyncio.sleep(resume.ended() or 0.0)


async def _events(link: Link, session: HttpSession, body: Body, resume: Resume) -> None:
    reader = EventReader(link.intake.message_bytes + FIELDS_BYTES_MAX)
    talk = session.talk
    while piece := await body.piece(wait_s=SILENT_S_MAX):
        _take(link, resume, talk, reader.feed(piece))
        link.noise(reader)
        body.holds(reader.held_bytes)


def _take(link: Link, resume: Resume, talk: int, events: list[Event]) -> None:
    """A function of its own, or the last event would be kept until the next one comes."""
    for event in events:
        resume.saw(event)
        if event.event == "message" and event.data:
            link.deliver(replies.numbered(replies.one_line(event.data)), b"", talk)
