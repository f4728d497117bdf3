"""What one HTTP client may send and how long it may take: the numbers of `serve`.

Owns: the limits that nobody needs otherwise. Never: those that an operator or a test sets
(`patience.Limits`), and those of MCP.
"""

URL_BYTES_MAX = 8 * 1024
HEADERS_MAX = 100
HEAD_BYTES_MAX = 32 * 1024
"""Names and values of all headers of one request."""
BODY_RATE = 1024
"""Bytes per second, on average, that a body must come with."""
BODY_CHECK_S = 1.0
LINGER_S = 2.0
"""How long a refused client may go on sending. Closing at once would make the kernel throw away
the refusal before the client has read it."""
LINGER_BYTES_MAX = 1024 * 1024
"""Of a body that nobody wants: enough for what is on its way already."""
UNWANTED_BYTES_MAX = 64 * 1024
"""Of a body that the application does not ask for (yet); then nothing more is read."""
KNOWN_HEADS_MAX = 512
"""Heads of requests that a server knows by their bytes; it begins anew when there are more."""
KNOWN_BYTES_MAX = 2048
"""The size of one. Together they are a megabyte or two, parsed."""
BACKLOG = 2048
"""Connections that wait in the kernel while a front restarts."""
DESCRIPTORS_KEPT = 128
"""Of this process's open-file limit: for pipes to come, control sockets and blobs."""
END_S = 1.0
"""From cutting a connection to its end: a few turns of the loop."""
