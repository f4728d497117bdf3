"""The page that a browser gets at `/`: what this is, and how to connect.

Owns: its words. Never: who may see it, tools, servers; a browser is not a client of MCP.
"""

from collections.abc import Iterable

from metamcp_worker.http.http1 import Head
from metamcp_worker.ipc.spec import EndpointSpec

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>MetaMCP</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 sans-serif; max-width: 44em; \
margin: 2em auto; padding: 0 1em }} pre {{ overflow: auto }}</style>
<h1>MetaMCP {version}</h1>
<p>A gateway for the Model Context Protocol: one endpoint in front of many MCP servers. It speaks
with MCP clients; a browser sees only this page.</p>
<h2>Connect a client</h2>
<p>The URL:</p>
<pre>{urls}</pre>
<p>Claude Code:</p>
<pre>claude mcp add --transport http metamcp {first}</pre>
<p>Other clients:</p>
<pre>{{"mcpServers": {{"metamcp": {{"type": "http", "url": "{first}"}}}}}}</pre>
<p><code>metamcp install CLIENT</code> writes it into the client's file for you.</p>
<h2>Look at the gateway</h2>
<p><code>metamcp status</code> shows which servers run, <code>metamcp doctor</code> what stands in
the way.</p>
</html>
"""


def wanted(head: Head) -> bool:
    """Does a browser look what is here?"""
    if head.method != "GET" or head.target.partition(b"?")[0] != b"/":
        return False
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in head.headers)


def page(version: str, host: bytes, endpoints: Iterable[EndpointSpec]) -> bytes:
    """`host`: as the browser wrote it, checked."""
    base = f"http://{host.decode()}"
    # The default one first, by its short path.
    paths = [
        "/mcp" if one.default else f"{one.base}/mcp"
        for one in sorted(endpoints, key=lambda one: not one.default)
    ]
    urls = [f"{base}{path}" for path in paths] or ["no endpoint is configured"]
    return _PAGE.format(version=version, urls="\n".join(urls), first=urls[0]).encode()
