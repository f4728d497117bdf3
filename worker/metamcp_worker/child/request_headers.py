"""HTTP headers of requests to a server.

Owns: which configured headers are not sent, the size of the headers of one request, which tools are
left out because of the headers that they want. Never: the form of headers (`mcp_headers`), sending,
sessions, the meaning of an answer.
"""

from collections.abc import Mapping

from msgspec import Raw

from metamcp_worker.child.jsonrpc_lines import MODERN
from metamcp_worker.child.lists import ITEM_BYTES_MAX
from metamcp_worker.http.mcp_headers import MESSAGE, TOKEN, HeaderRuleUnfit, ToolHeaders
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import TooLarge

INITIALIZE: Mapping[str, str] = {**MESSAGE, "Mcp-Method": "initialize"}
"""Headers of `initialize`. A modern server wants the method there too, before it refuses this
request."""

HEADERS_BYTES_MAX = 48 * 1024
"""Maximum bytes of the headers built from one message. Servers take 8 to 64 KiB, and would refuse
longer headers."""
ANNOTATED_MAX = 2000
"""Maximum number of tools whose annotations are remembered."""

#: Headers of one connection or of the protocol, where configured values would contradict ours.
_OURS = frozenset({
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type",
    "host", "keep-alive", "last-event-id", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade",
})  # fmt: skip


def filter_headers(headers: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the configured headers that are sent, and the names of those that cannot be sent."""
    sent: dict[str, str] = {}
    refused: list[str] = []
    for name, value in headers.items():
        low = name.lower()
        if low in _OURS or low.startswith("mcp-") or not TOKEN.fullmatch(name):
            refused.append(name)
        else:
            sent[name] = value
    return sent, refused


class RequestHeaders:
    """Headers for modern servers. Lists of tools say which arguments a tool wants in headers."""

    def __init__(self) -> None:
        self._tools = ToolHeaders(ANNOTATED_MAX)

    def headers(self, method: str, params: bytes) -> dict[str, str]:
        """Return the headers of this request. Raises TooLarge."""
        headers = self._tools.headers(MODERN, method, codec.members(params))
        size = sum(len(name) + len(value) for name, value in headers.items())
        if size > HEADERS_BYTES_MAX:
            raise TooLarge("what a request has to say in its headers", size, HEADERS_BYTES_MAX)
        return headers

    def learn(self, answer: bytes) -> tuple[bytes, list[str]]:
        """Learn the annotations in an answer to `tools/list`. Return the answer without the tools
        whose annotations are invalid, because clients must leave those out, and a sentence about
        each of them."""
        try:
            message = codec.level(answer)
            result = codec.level(message["result"])
            tools = codec.items(result["tools"])
        except (codec.Malformed, KeyError):
            return answer, []
        accepted: list[Raw] = []
        warnings: list[str] = []
        for tool in tools:
            try:
                if len(tool) <= ITEM_BYTES_MAX:  # else no list takes it, and the search is long
                    self._tools.learn(tool)
                accepted.append(tool)
            except HeaderRuleUnfit as error:
                warnings.append(f"left out of tools: {error}")
        if warnings:
            result["tools"] = Raw(codec.dump(accepted))
            message["result"] = Raw(codec.dump(result))
            answer = codec.dump(message)
        return answer, warnings
