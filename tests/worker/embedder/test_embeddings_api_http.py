"""An endpoint over real HTTP: what it is sent, and each way in which it makes no vectors."""

import asyncio
import contextlib
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from metamcp_worker.embedder import embeddings_api
from metamcp_worker.embedder.embeddings_api import NoVectors
from metamcp_worker.embedder.run import EmbeddingsEndpoint
from metamcp_worker.ipc.spec import EmbeddingsSpec
from tests.live.embeddings import Embeddings, embedded
from tests.live.gateway import free_port

pytestmark = pytest.mark.process


def spec(url: str, **settings: Any) -> EmbeddingsSpec:
    return EmbeddingsSpec(url=url, model="words", **settings)


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Generator[str, None, None]:
    """A URL that it answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/x"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked(wanted: EmbeddingsSpec, *texts: str) -> list[list[float]]:
    async def main() -> list[list[float]]:
        endpoint = EmbeddingsEndpoint(wanted)
        try:
            return await endpoint.embed(texts)
        finally:
            await endpoint.close()

    return asyncio.run(main())


def test_texts_become_vectors_and_the_key_is_a_bearer_token() -> None:
    with Embeddings() as found:
        assert asked(spec(found.url, key="k"), "a dog", "é") == [embedded("a dog"), embedded("é")]
        assert asked(spec(found.url), "a dog") == [embedded("a dog")]
        assert [headers.get("authorization") for headers in found.headers] == ["Bearer k", None]
        assert found.texts == ["a dog", "é", "a dog"]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "status 401; does 'key'"), (403, "status 403; does 'key'"),
        (404, "status 404; 'url' must end"), (429, "too many requests"), (500, "status 500"),
        (302, "status 302"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence_with_what_to_do(status: int, why: str) -> None:
    with Embeddings() as found:
        found.status = status
        with pytest.raises(NoVectors, match=why):
            asked(spec(found.url), "x")


def test_nobody_listens_and_nobody_answers_in_time() -> None:
    with pytest.raises(NoVectors, match="cannot be reached") as nobody:
        asked(spec(f"http://127.0.0.1:{free_port()}/a-secret-path"), "x")
    assert "secret" not in str(nobody.value)
    with Embeddings() as found:
        found.open.clear()
        with pytest.raises(NoVectors, match=r"gave no answer in 0\.05 s"):
            asked(spec(found.url, timeout_s=0.05), "x")


def test_an_answer_that_only_drips_does_not_hold_the_request_for_good() -> None:
    over = threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            with contextlib.suppress(OSError):
                while not over.wait(0.05):
                    self.wfile.write(b" ")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            pass

    with serving(Dripping) as url:
        try:
            with pytest.raises(NoVectors, match=r"did not end its answer in 1 s"):
                asked(spec(url, timeout_s=1.0), "x")
        finally:
            over.set()


def test_an_answer_that_is_too_large_is_not_read() -> None:
    with Embeddings() as found:
        found.body = b" " * (embeddings_api.bytes_max(1) + 1)
        with pytest.raises(NoVectors, match="an answer of http"):
            asked(spec(found.url), "x")


def test_a_redirect_to_another_origin_is_not_followed() -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", "http://169.254.169.254/latest/meta-data")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            pass

    with (
        serving(Elsewhere) as url,
        pytest.raises(NoVectors, match="another origin is not followed"),
    ):
        asked(spec(url), "x")


@pytest.mark.parametrize("url", ["ftp://host/x", "http://user:pass@host/x", "http://"])
def test_a_url_that_cannot_be_asked_is_said_at_once(url: str) -> None:
    with pytest.raises(NoVectors) as said:
        EmbeddingsEndpoint(spec(url))
    assert "pass" not in str(said.value)
