"""A package with middleware, good and bad; tests copy this file into a folder of its own."""

import asyncio
import os
import sys
import time
from typing import Any

from metamcp_worker.middleware.api import CallFailed

LEAK_BYTES = 16 * 1024 * 1024


class Shout:
    """Changes arguments and results: `prefix` goes before the argument `text`, results are loud."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.prefix = options.get("prefix", "")

    async def on_call_tool(self, request: Any, call_next: Any) -> Any:
        if "text" in request.arguments:
            text = self.prefix + request.arguments["text"]
            request = request.with_arguments({**request.arguments, "text": text})
        result = await call_next(request)
        return result.map_text(str.upper)


class Watch:
    """Writes down what it sees in the file `path`, and changes nothing."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.path = options["path"]

    def note(self, *words: object) -> None:
        with open(self.path, "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    async def on_call_tool(self, request: Any, call_next: Any) -> Any:
        told = request.server, request.name, request.endpoint, request.workspace, request.principal
        self.note("call", *told, request.client.get("name"), request.arguments)
        try:
            return await call_next(request)
        except CallFailed as error:
            self.note("error", error.code, error.message)
            raise
        except asyncio.CancelledError:
            self.note("cancelled", request.name)
            raise

    async def on_get_prompt(self, request: Any, call_next: Any) -> Any:
        result = await call_next(request)
        self.note("prompt", request.name, len(result.messages))
        return result

    async def on_read_resource(self, request: Any, call_next: Any) -> Any:
        result = await call_next(request)
        self.note("resource", request.name, len(result.contents))
        return result

    def on_lists_changed(self, server: str) -> None:
        self.note("changed", server)


class Bad:
    """Does what the argument `do` says, `where`: before or after the call."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.kept: list[bytearray] = []
        if options.get("broken"):
            raise ValueError("it has no such option")

    async def on_call_tool(self, request: Any, call_next: Any) -> Any:
        text = str(request.arguments.get("text", ""))
        where, _, what = text.partition(" ")
        if where == "before":
            await self.do(what)
        result = await call_next(request)
        if where == "after":
            await self.do(what)
        return {"content": []} if what == "return" else result

    async def do(self, what: str) -> None:
        if what == "raise":
            raise ValueError("a secret that nobody should read")
        if what == "wait":
            await asyncio.Event().wait()
        while what == "spin":
            pass
        if what == "block":
            time.sleep(3600)  # noqa: ASYNC251 - what it is for
        if what == "exit":
            sys.exit(3)
        if what == "die":
            os.abort()
        while what == "leak":
            self.kept.append(bytearray(b"x" * LEAK_BYTES))
