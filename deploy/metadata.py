"""The links of the package on its page: to the repository that built it, named by METAMCP_URL."""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

URL = "METAMCP_URL"
"""Environment variable with the address of the repository; a build without it has no links."""


class Links(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        url = os.environ.get(URL, "").rstrip("/")
        metadata["urls"] = urls(url) if url else {}


def urls(url: str) -> dict[str, str]:
    """Return the links by their names, in the words that package indexes know."""
    return {
        "Homepage": url,
        "Documentation": f"{url}/tree/main/docs",
        "Changelog": f"{url}/blob/main/CHANGELOG.md",
        "Issues": f"{url}/issues",
        "Source": url,
    }
