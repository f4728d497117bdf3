"""Secrets that are made up for one test, the forms in which they may show, and a remote server that
tells every failure together with the request."""

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

MADE_LENGTH = 24
#: What base64 makes of a text depends on its place; these bytes before it give all three.
_BEFORE = (b"", b"x", b"xy")
_DROPPED = (0, 2, 3)


def made() -> str:
    """A secret that is spelled otherwise in URLs and in JSON of PHP."""
    return f"{secrets.token_urlsafe(MADE_LENGTH)}/+{secrets.token_hex(2)}"


def forms(secret: str) -> Mapping[str, bytes]:
    """The spellings of a secret by name."""
    data = secret.encode()
    found = {
        "raw": data,
        "reversed": data[::-1],
        "hex": data.hex().encode(),
        "percent": quote(secret, safe="").encode(),
        "json": json.dumps(secret)[1:-1].replace("/", "\\/").encode(),
        "sha256": hashlib.sha256(data).hexdigest().encode(),
        "md5": hashlib.md5(data, usedforsecurity=False).hexdigest().encode(),
    }
    for name, encode in (("base64", base64.b64encode), ("urlsafe", base64.urlsafe_b64encode)):
        for at, (before, dropped) in enumerate(zip(_BEFORE, _DROPPED, strict=True)):
            text = encode(before + data)
            end = len(text) - (3 if (len(before) + len(data)) % 3 else 0)  # what comes after it
            found[f"{name}-{at}"] = text[dropped:end]
    return found


def seen(known: Mapping[str, str], sinks: Iterable[tuple[str, bytes]]) -> list[str]:
    """Where which secret was found, in which form."""
    spelled = [
        (name, form, spelling)
        for name, secret in known.items()
        for form, spelling in forms(secret).items()
    ]
    return [
        f"{name} ({form}) in {sink}: {_around(content, spelling)}"
        for sink, content in sinks
        for name, form, spelling in spelled
        if spelling in content
    ]


def _around(content: bytes, spelling: bytes) -> str:
    at = content.index(spelling)
    return content[max(0, at - 100) : at + len(spelling) + 20].decode("utf-8", "replace")


class Remote:
    """A server of the handshake era on loopback, without sessions. A call of `break` is answered
    with status 500, whose body is the head of the request; if it is `spiteful`, so is the error of
    a handshake. `heard`: the heads of all requests."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.spiteful = False
        remote = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body: dict[str, Any] = json.loads(
                    self.rfile.read(int(self.headers["Content-Length"]))
                )
                head = f"{self.path}\n{self.headers}"
                remote.heard.append(head)
                tool = body.get("params", {}).get("name")
                status, answer = remote.answer(body, tool)
                if status == 500:
                    data = head.encode()
                else:
                    data = json.dumps(answer).encode() if answer is not None else b""
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.send_response(405)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/mcp"

    def answer(self, body: dict[str, Any], tool: str | None) -> tuple[int, dict[str, Any] | None]:
        if "id" not in body:
            return 202, None
        method: str = body["method"]
        result: dict[str, Any] = {}
        if method == "initialize" and self.spiteful:
            # Without the name and the scheme of a header, nothing says that a word is secret.
            words = " ".join(line.split()[-1] for line in self.heard[-1].splitlines() if line)
            told = {"code": -32000, "message": f"no {words}", "data": words}
            return 200, {"jsonrpc": "2.0", "id": body["id"], "error": told}
        if method == "initialize":
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "remote", "version": "1"},
            }
        elif method == "tools/list":
            names = ("work", "break")
            result = {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in names]}
        elif method == "tools/call":
            if tool == "break":
                return 500, None
            result = {"content": [{"type": "text", "text": "done"}]}
        elif method not in {"ping"}:
            error = {"code": -32601, "message": "unknown"}
            return 200, {"jsonrpc": "2.0", "id": body["id"], "error": error}
        return 200, {"jsonrpc": "2.0", "id": body["id"], "result": result}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def files(folder: Any) -> Iterator[tuple[str, bytes]]:
    """Every regular file below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(folder)), path.read_bytes()
