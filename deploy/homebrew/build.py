"""`python -m deploy.homebrew.build SDIST`: the formula for one source distribution, on stdout.

METAMCP_URL names the repository whose release has the file.
"""

import hashlib
import os
import re
import sys
from pathlib import Path

TEMPLATE = Path(__file__).with_name("metamcp.rb.in")


def formula(name: str, data: bytes, url: str) -> str:
    """Return the formula. Raises ValueError for a name that is not one of a source distribution."""
    found = re.fullmatch(r"metamcp-(.+)\.tar\.gz", name)
    if found is None:
        raise ValueError(f"{name} is not metamcp-VERSION.tar.gz")
    values = {
        "URL": url.rstrip("/"),
        "VERSION": found[1],
        "SHA256": hashlib.sha256(data).hexdigest(),
    }
    return re.sub(r"@([A-Z0-9]+)@", lambda mark: values[mark[1]], TEMPLATE.read_text())


if __name__ == "__main__":
    source = Path(sys.argv[1])
    sys.stdout.write(formula(source.name, source.read_bytes(), os.environ["METAMCP_URL"]))
