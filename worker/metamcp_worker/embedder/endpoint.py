"""Endpoint that makes vectors of texts, reached over HTTP.

Owns: one request to the endpoint, and the errors by status. Never: its API (`embeddings_api`), the
pause after a failure (`run`), connections and where they may lead (`fetch`).
"""

import asyncio
from collections.abc import Sequence

from metamcp_worker.embedder import embeddings_api
from metamcp_worker.embedder.embeddings_api import NoVectors, TextRefused
from metamcp_worker.http.fetch import Broken, FetchLimits, Origin, Unreachable
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.spec import EmbeddingsSpec

REQUESTS_MAX = 16
"""Maximum requests at once: queries of all fronts, and one for tools."""
END_S = 1.0
"""Seconds beyond the timeout until an answer must be complete; a server that sends byte by byte
would not end otherwise."""


class EmbeddingsEndpoint:
    """Source of vectors at a URL. Raises NoVectors for a URL or key that cannot be used."""

    def __init__(self, spec: EmbeddingsSpec) -> None:
        self._spec = spec
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if spec.key:
            headers["Authorization"] = f"Bearer {spec.key}"
        limits = FetchLimits(requests_max=REQUESTS_MAX, connect_s=spec.timeout_s)
        try:
            self._origin = Origin(spec.url, headers=headers, limits=limits)
        except (Unreachable, UnicodeEncodeError) as error:
            raise NoVectors(str(error)) from None

    def __str__(self) -> str:
        return str(self._origin)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text. Raises NoVectors; TextRefused for a refused text."""
        wait_s = self._spec.timeout_s
        try:
            async with asyncio.timeout(wait_s + END_S):
                answer = await self._asked(texts, wait_s)
        except TimeoutError:
            raise NoVectors(f"{self} did not end its answer in {wait_s:g} s") from None
        except (Unreachable, Broken, TooLarge) as error:
            raise NoVectors(str(error)) from None
        return embeddings_api.read(answer, len(texts))

    async def _asked(self, texts: Sequence[str], wait_s: float) -> bytes:
        """Return the body of the answer. Raises NoVectors, Unreachable, Broken and TooLarge."""
        body = embeddings_api.request(self._spec.model, texts)
        async with await self._origin.send("POST", {}, body, answer_s=wait_s) as response:
            if response.status != 200:
                raise _refused(response.status)
            limit = embeddings_api.bytes_max(len(texts))
            return await response.read(wait_s=wait_s, limit_bytes=limit)

    async def close(self) -> None:
        await self._origin.close()


def _refused(status: int) -> NoVectors:
    said = f"it answers with status {status}"
    match status:
        case 400 | 413 | 422:
            return TextRefused(said)
        case 401 | 403:
            return NoVectors(f"{said}; does 'key' have the right token?")
        case 404:
            return NoVectors(f"{said}; 'url' must end as its /embeddings does")
        case 429:
            return NoVectors(f"{said}, too many requests")
        case _:
            return NoVectors(said)
