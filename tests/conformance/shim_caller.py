"""What the suite starts as a client: it asks `shims` for a fork, and ends as that does.

python -I -S shim_caller.py SOCKET legacy|modern URL
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    request = json.dumps([sys.argv[2:], dict(os.environ)]).encode()
    socket.send_fds(server, [request], [1, 2])
    code = server.recv(1)
sys.exit(code[0] if code else 1)
