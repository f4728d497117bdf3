"""A server that boots as fast as Python can: it imports next to nothing, and has one tool.

    python -I -S benchmarks/quick_child.py

Knows what it is asked by looking for words: only the handshake, the list of tools and a call.
"""

import os

HELLO = (
    b'{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"quick","version":"1"}}'
)
TOOLS = b'{"tools":[{"name":"nothing","inputSchema":{"type":"object"}}]}'
RESULT = b'{"content":[],"isError":false}'
REFUSED = b'{"code":-32601,"message":"Method not found"}'


def answer(line: bytes) -> bytes:
    after = line.partition(b'"id":')[2]
    if not after:
        return b""
    number = after.partition(b",")[0].strip(b"} ")
    if b'"initialize"' in line:
        kind, body = b"result", HELLO
    elif b'"tools/list"' in line:
        kind, body = b"result", TOOLS
    elif b'"tools/call"' in line:
        kind, body = b"result", RESULT
    elif b'"ping"' in line:
        kind, body = b"result", b"{}"
    else:
        kind, body = b"error", REFUSED
    return b'{"jsonrpc":"2.0","id":%b,"%b":%b}\n' % (number, kind, body)


def main() -> None:
    rest = b""
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            os.write(1, answer(line))


if __name__ == "__main__":
    main()
