"""What is taken down of a run: numbers of callers, names of figures, how long is waited. Pure."""

CALLERS = (1, 16, 64, 256)
CALLERS_OF_MANY = (1, 64)
LARGE_CALLERS = 4
LARGE_KIB = 1024
TOOLS = 104
"""Of each server."""
DIRECT = "direct"
"""The row of the server itself, over its pipes."""
CPU = "cpu ms/call"
TOLD, SAME, NEW = "told ms", "same session s", "new session s"
"""After a server was killed: until its caller knew, until a call was answered again."""
COMES_BACK_S_MAX = 10.0
"""So long is waited for each of these."""
