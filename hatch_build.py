"""What hatchling asks for when it builds a package (``pyproject.toml``): README, as the package's page shows it."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\((?P<path>(?!https?://)[^)#\s]+)(?:#[^)]*)?\)")
WHERE = "\n\nThe pages that are named here in `docs/` are in the source distribution.\n"


class PackagePage(MetadataHookInterface):
    """A package's page has no other file of the project, so a link to one would be dead there."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add README to the package's metadata."""
        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": without_relative_links(text) + WHERE}


def without_relative_links(text: str) -> str:
    """A page that names the project's files where it linked to them; links to other sites stay."""
    return LINK.sub(r"\g<text> (`\g<path>`)", text)
