"""Tools of the scripted server that need nobody: answers, pauses, processes, bad manners."""

import json
import os
import time
from typing import ClassVar

from tests.fakes.stdio_wire import Json, Refused, Wire, content

DEEP = 100_000
MIB = 1024 * 1024
PAGE = 4096
FOREVER_S = 3600.0


class Tools(Wire):
    """`kept`: what leaked. `known_roots`: what the client said of its roots."""

    kept: ClassVar[list[bytearray]] = []
    known_roots: object = None

    def tool_echo(self, _: object, text: str = "") -> Json:
        return {**content(text), "structuredContent": {"text": text, "x": 1.0}}

    def tool_blob(self, _: object, kib: int = 1) -> Json:
        return content("x" * (kib * 1024))

    def tool_sleep(self, number: object, ms: float = 0) -> None:
        self.later(ms, lambda: self.reply(number, result=content(f"slept {ms} ms")))

    def tool_work(self, _: object, ms: float = 0) -> Json:
        """Unlike in `sleep`, nothing else is done or read meanwhile."""
        time.sleep(ms / 1000)
        return content("worked")

    def tool_pid(self, _: object) -> Json:
        return content(str(os.getpid()))

    def tool_known_roots(self, number: object) -> Json | None:
        """What the client said of its roots when it was asked; with `--roots-late` the first calls
        ask, as those of server-everything do."""
        if not self.options.roots_late or self.known_roots is not None:
            return content(json.dumps(self.known_roots))

        def then(message: Json, line: bytes) -> None:
            self.rooted(message, line)
            self.reply(number, result=content(json.dumps(self.known_roots)))

        self.request("roots/list", {}, then)
        return None

    def rooted(self, message: Json, _: bytes) -> None:
        self.known_roots = message.get("result", {}).get("roots")

    def tool_environ(self, _: object) -> Json:
        return content(json.dumps({"environ": dict(os.environ), "cwd": os.getcwd()}))

    def tool_fail(self, _: object) -> Json:
        return {**content("it did not work"), "isError": True}

    def tool_error(self, _: object, code: int = -32050) -> Json:
        raise Refused(code, "a failure", {"reason": "scripted", "n": 1.0})

    def tool_raw(self, _: object, **__: object) -> Json:
        """The parameters of this very call, byte for byte."""
        whole = self.line.decode()
        start = whole.index('"params":') + len('"params":')
        return content(whole[start : json.JSONDecoder().raw_decode(whole, start)[1]])

    def tool_client(self, _: object) -> Json:
        """What the client said of itself: in initialize, or in this request."""
        return content(json.dumps({**self.declared, "capabilities": self.capabilities_of_client}))

    def tool_progress(self, _: object, n: int = 3, note: str = "", every_ms: float = 0) -> Json:
        more = {"message": note} if note else {}
        for step in range(1, n + 1) if self.token is not None else ():
            done = {"progressToken": self.token, "progress": step, "total": n, **more}
            time.sleep(every_ms / 1000)
            self.notify("notifications/progress", **done)
        return content(f"{n} steps")

    def tool_leak(self, _: object, mib: int = 1) -> Json:
        """Memory that is written to and never given back; how much that is by now."""
        try:
            held = bytearray(mib * MIB)
        except MemoryError:
            raise Refused(-32603, "out of memory") from None
        held[::PAGE] = b"x" * len(held[::PAGE])
        self.kept.append(held)
        return content(str(sum(map(len, self.kept)) // MIB))

    def tool_crash(self, _: object, code: int = 3) -> Json:
        os.write(2, b"crashing with %d\n" % code)
        os._exit(code)

    def tool_spawn_daemon(self, _: object) -> Json:
        """A process that nobody's group or session holds; its pid."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            grandchild = os.fork()
            if grandchild:
                os.write(writing, str(grandchild).encode())
                os._exit(0)
            time.sleep(FOREVER_S)
            os._exit(0)
        os.waitpid(child, 0)
        return content(os.read(reading, 20).decode())

    def tool_deafen(self, _: object) -> Json:
        self.deaf = True
        return content("reads no more")

    def tool_half(self, number: int) -> None:
        """Half an answer, and not a word more."""
        os.write(1, b'{"jsonrpc":"2.0","id":%d,"result":{"content":[' % number)
        self.deaf = True

    def tool_close_stdout(self, _: object) -> None:
        os.close(1)

    def tool_close_stdin(self, _: object) -> Json:
        """Nothing more can be written to it, though it lives on."""
        os.close(0)
        self.deaf = True
        return content("closed")

    def tool_odd(self, number: int, kind: str = "both") -> None:
        """Answers that are none."""
        result = content("odd")
        if kind == "both":
            self.send({"id": number, "result": result, "error": {"code": 1, "message": "odd"}})
        elif kind == "neither":
            self.send({"id": number})
        elif kind == "deep":
            deep = b"[" * DEEP + b"]" * DEEP
            self.send_line(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, deep))
        elif kind == "bad-utf8":
            self.send_line(b'{"result":{"text":"\xff"},"jsonrpc":"2.0","id":%d}' % number)
        elif kind == "float-id":
            self.send_line(b'{"jsonrpc":"2.0","id":%d.0,"result":{}}' % number)
        elif kind == "string-id":
            self.send({"id": str(number), "result": result})
        elif kind == "twice":
            self.send({"id": number + 1000, "result": result})
            self.send({"id": number, "result": result})
            self.send({"id": number, "result": content("again")})
