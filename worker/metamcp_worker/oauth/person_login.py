"""Getting authorized while a person waits for it: what `metamcp login` and `logout` do.

Owns: asking a server what it wants, one flow in the process that calls, the removal of tokens.
Never: links and browsers, sentences for a terminal (`cli/login` has these), the running gateway.
"""

import base64
from collections.abc import Callable

from metamcp_worker.http.fetch import Origin
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.spec import OAuthSpec, ServerSpec
from metamcp_worker.oauth.challenge import Challenge
from metamcp_worker.oauth.vault import TokenRecord, Vault, VaultUnfit, bare

ANSWER_S_MAX = 30.0
"""For a server to say what it wants."""

_PROTOCOL = "2026-07-28"
_PREFIX = "io.modelcontextprotocol"
#: A question that does nothing, and that servers want authorization for if they want any.
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
    """Get tokens for this server and store them. `show`: what to do with the link that a person is
    to open, who may take `person_s`; see `Flow`. Raises Unreachable, NotAuthorized, Broken and
    VaultUnfit."""
    from metamcp_worker.oauth.flow import Flow

    vault = _vault(spec)
    record = await Flow(spec, vault, show).authorize(await _challenge(spec), person_s=person_s)
    kept = vault.find(spec.name, bare(spec.url or ""))
    if not any(one.access_token == record.access_token for one in kept):
        raise VaultUnfit("; ".join(vault.warnings) or "the tokens were not stored")
    return record


def logout(spec: ServerSpec) -> bool:
    """Remove what is stored for this server. False if there was nothing. Raises VaultUnfit."""
    return _vault(spec).forget(spec.name) > 0


async def _challenge(spec: ServerSpec) -> Challenge:
    """What the server wants of who comes without a token. Raises Unreachable and Broken."""
    origin = Origin(spec.url or "", headers=spec.headers)
    try:
        response = await origin.send("POST", _HEADERS, _QUESTION, answer_s=ANSWER_S_MAX)
        await response.close()
        if response.status in {404, 405}:
            # A server of the transport before this one has only a stream of events.
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
