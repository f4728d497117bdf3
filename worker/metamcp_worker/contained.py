"""An application whose failures harm nobody else.

Owns: what a client gets when the application fails. Never: HTTP, what the application does.
"""

import asyncio
import logging

from metamcp_worker import asgi
from metamcp_worker.asgi import CONNECTION, App, Receive, Scope, Send
from metamcp_worker.errors import Code

_FAILURE = asgi.error_body(Code.INTERNAL_ERROR, "The gateway failed to handle this request.")

log = logging.getLogger("metamcp.http")


def contained(app: App) -> App:
    """The application, with its failures turned into an answer and one line in the log."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            scope[CONNECTION].abort()
            return  # the end of a drain; this is the root of the task
        except Exception:
            log.exception("request failed")
            try:
                await _send_failure(send)
            except RuntimeError:  # the answer had begun
                scope[CONNECTION].abort()
                while (await receive())["type"] != "http.disconnect":
                    pass

    return answer


async def _send_failure(send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(_FAILURE)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": _FAILURE, "more_body": False})
