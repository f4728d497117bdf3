"""Login while a person waits: the work of `metamcp login` and `metamcp logout`.

Owns: asking a server for its challenge, one flow in the calling process, the removal of tokens.
Never: links and browsers, sentences for a terminal (both in `cli/login`), the running gateway.
"""

import base64
from collections.abc import Callable

from metamcp_worker.http.fetch import Origin
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.spec import OAuthSpec, ServerSpec
from metamcp_worker.oauth.challenge import Challenge
from metamcp_worker.oauth.vault import TokenRecord, Vault, VaultUnfit, bare

ANSWER_S_MAX = 30.0
"""Seconds for a server to answer with its challenge."""

_PROTOCOL = "2026-07-28"
_PREFIX = "io.modelcontextprotocol"
#: Request without effects, which needs authorization at every server that wants authorization.
_QUESTION = (
    '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{'
    f'"{_PREFIX}/protocolVersion":"{_PROTOCOL}","{_PREFIX}/clientCapabilities":{{}},'
    f'"{_PREFIX}/clientInfo":{{"name":"metamcp","version":"1"}}}}}}}}'
).encode()
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": _PROTOCOL,
    "Mcp-Method": "tools/list",
}


async def login(spec: ServerSpec, show: Callable[[str], None], *, person_s: float) -> TokenRecord:
    """Get tokens for this server and store them. `show`: function that gets the link that a person
    must open; `person_s`: seconds that the person may take; see `Flow`. Raises Unreachable,
    NotAuthorized, Broken and VaultUnfit; MetaMCPError for a server without `oauth`."""
    from metamcp_worker.oauth.flow import Flow

    vault = _vault(spec)
    record = await Flow(spec, vault, show).authorize(await _challenge(spec), person_s=person_s)
    kept = vault.find(spec.name, bare(spec.url or ""))
    if not any(one.access_token == record.access_token for one in kept):
        raise VaultUnfit("; ".join(vault.warnings) or "the tokens were not stored")
    return record


def logout(spec: ServerSpec) -> bool:
    """Remove the tokens of this server; False if there were not any. Raises VaultUnfit;
    MetaMCPError for a server without `oauth`."""
    return _vault(spec).forget(spec.name) > 0


async def _challenge(spec: ServerSpec) -> Challenge:
    """Ask the server without a token for its challenge. Raises Unreachable and Broken."""
    origin = Origin(spec.url or "", headers=spec.headers)
    try:
        response = await origin.send("POST", _HEADERS, _QUESTION, answer_s=ANSWER_S_MAX)
        await response.close()
        if response.status in {404, 405}:
            # A server of the older transport answers only GET, with a stream of events.
            said = {"Accept": "text/event-stream"}
            response = await origin.send("GET", said, answer_s=ANSWER_S_MAX)
            await response.close()
        header = response.header("www-authenticate")
        return Challenge.of(response.status, header, _PROTOCOL) or Challenge(401, "", _PROTOCOL)
    finally:
        await origin.close()


def _vault(spec: ServerSpec) -> Vault:
    oauth = spec.oauth
    if not isinstance(oauth, OAuthSpec):
        raise MetaMCPError(f"server '{spec.name}' has no `oauth` in its configuration")
    return Vault(oauth.store, base64.b64decode(oauth.key))
