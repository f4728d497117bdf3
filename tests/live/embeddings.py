"""An endpoint that makes vectors of texts, as OpenAI's API has it: words hashed, synonyms equal."""

import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

PATH = "/v1/embeddings"
SIZE = 64
SYNONYMS = {"macaw": "echo", "cockatoo": "echo"}
"""Words that mean the same to it, and to no search by words."""


def embedded(text: str) -> list[float]:
    """How often each word is there, by its hash; never nothing at all."""
    found = [0.01] * SIZE
    for word in "".join(one if one.isalnum() else " " for one in text.lower()).split():
        meant = SYNONYMS.get(word, word)
        found[zlib.crc32(meant.encode()) % SIZE] += 1.0
    return found


class Embeddings:
    """Listens on loopback while the `with` block lasts. `status`, `body`: what it answers with in
    place of vectors; `open`: while it is cleared, answers wait; `refuses`: a request with it in a
    text is refused; `texts`: everything that it was asked for; `headers`: of each request."""

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.body: bytes | None = None
        self.open = threading.Event()
        self.open.set()
        self.refuses = ""
        self.texts: list[str] = []
        self.headers: list[dict[str, str]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.headers.append({key.lower(): text for key, text in self.headers.items()})
                endpoint.texts += asked["input"]
                endpoint.open.wait(60)
                body = endpoint.body or json.dumps(answer(asked)).encode()
                status = endpoint.status if self.path == PATH else 404
                if endpoint.refuses and any(endpoint.refuses in one for one in asked["input"]):
                    status = 400
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{PATH}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": at, "embedding": embedded(text)}
        for at, text in enumerate(asked["input"])
    ]
    return {"object": "list", "data": data, "model": asked["model"], "usage": {"total_tokens": 1}}
